"""How a layer attends: every number and flag of `paged_attention`, checked once, whatever the step.

Knows neither steps nor the sizes of a layer's arrays.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import numpy as np

from octavo.checks import (
    as_reals,
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_positive,
)
from octavo.errors import PlanError

KV_DTYPES = ("int8", "fp8", "int4")
"""Element types of quantised caches, by the names of `octavo.model.dtypes`."""

_INT64 = 2**63 - 1


class Keywords(TypedDict, total=False):
    """The keywords of `paged_attention` that do not change what kind of thing it returns."""

    group: str | None
    order: str
    scale: float | None
    causal: bool
    softcap: float | None
    window: int | None
    sink_tokens: int
    sink_logits: Any
    v_dim: int | None
    key_scale: Any
    value_scale: Any
    kv_dtype: str | None


class Seen(NamedTuple):
    """What decides which keys a query sees.

    Attributes:
        causal: only its own and earlier positions.
        window: keys it sees, its own included; None: all.
        sink_tokens: first positions seen beside the window.
    """

    causal: bool = True
    window: int | None = None
    sink_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """How a layer attends; made once per layer and used in every step.

    `octavo.attention.kernels.oracle.paged_attention` defines what they mean.

    Attributes:
        order: ``token`` or ``head``, the axes of the caches.
        scale: factor of the scores; None: 1 / sqrt(k_dim). Latent attention with v_dim < k_dim must
            be given one, as k_dim is not the head's size before absorption.
        causal: whether a query sees only its own and earlier positions.
        softcap: bound of the scores; None: none.
        window: keys a query sees, its own included; None: all.
        sink_tokens: first positions seen beside the window.
        sink_logits: [H], finite, each in its head's denominator only; None: none.
        v_dim: elements of a value. Latent attention needs it; else None: what the cache has.
        key_scale: of a quantised cache, what stored elements are multiplied by: a number,
            [kv_heads], [kv_heads, k_dim], or the shape of the key cache without its last axis.
        value_scale: likewise of values.
        kv_dtype: how both caches are quantised: int8, fp8 or int4; None: they hold numbers.

    Raises:
        PlanError: no such order or ``kv_dtype``; a number that is none, or not finite; a flag that
            is no bool; a quantisation scale without ``kv_dtype``.
        LengthError: a window, sink or width out of range.

    Cost: O(1), and O(H) to look at sink logits, unless a device has them.
    """

    order: str = "token"
    scale: float | None = None
    causal: bool = True
    softcap: float | None = None
    window: int | None = None
    sink_tokens: int = 0
    sink_logits: Any = None
    v_dim: int | None = None
    key_scale: Any = None
    value_scale: Any = None
    kv_dtype: str | None = None

    def __post_init__(self) -> None:
        check_choice("order", self.order, ("token", "head"))
        check_flag("causal", self.causal)
        self._set("sink_tokens", check_int("sink_tokens", self.sink_tokens, 0, _INT64))
        if self.window is not None:
            why = "keys a query sees, its own included"
            self._set("window", check_int("window", self.window, 1, _INT64, why))
        if self.scale is not None:
            self._set("scale", check_number("scale", self.scale))
        if self.softcap is not None:
            self._set("softcap", check_positive("softcap", self.softcap))
        if self.v_dim is not None:
            self._set("v_dim", check_int("v_dim", self.v_dim, 1))
        if self.kv_dtype is not None:
            check_choice("kv_dtype", self.kv_dtype, KV_DTYPES)
        for name, factor in (("key_scale", self.key_scale), ("value_scale", self.value_scale)):
            if factor is not None:
                self._check_factor(name, factor)
        if self.sink_logits is not None:
            self._check_sinks()

    @property
    def seen(self) -> Seen:
        """Which keys a query sees."""
        return Seen(self.causal, self.window, self.sink_tokens)

    def _check_factor(self, name: str, scale: Any) -> None:
        """Refuse a scale of caches that have none, and a number that is no scale."""
        if self.kv_dtype is None:
            raise PlanError(name, scale, "only quantised caches have one; name their kv_dtype")
        if not hasattr(scale, "shape"):
            check_positive(name, scale)

    def _check_sinks(self) -> None:
        """Sink logits as finite numbers; those that lie on a device are not waited for."""
        sinks = self.sink_logits
        if isinstance(sinks, np.ndarray) or not hasattr(sinks, "shape"):
            self._set("sink_logits", as_reals("sink_logits", sinks, finite=True))
        elif getattr(getattr(sinks, "device", None), "type", "") == "cpu":
            for at in (~sinks.isfinite()).nonzero().tolist()[:1]:
                raise PlanError(f"sink_logits{at}", float(sinks[at[0]]), "it must be finite")

    def _set(self, name: str, value: Any) -> None:
        """What has been checked, in the type it must have."""
        object.__setattr__(self, name, value)


PLAIN = Parameters()
"""Nothing but a causal softmax of token-major pages."""
