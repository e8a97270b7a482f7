"""The backends by name: what each takes, whether it works here, and which is the fastest.

Knows their facts and imports none of them before it is loaded.
"""

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from octavo.errors import PlanError, UnsupportedModel
from octavo.model.dtypes import DType
from octavo.model.dtypes import dtype as known_dtype


class Backend(NamedTuple):
    """One implementation of `paged_attention`.

    Its module has ``prepare(step, page_size=, group=, device=)``, a step made ready once for all
    layers, whose ``run(query, key_cache, value_cache, parameters)`` is a layer's attention;
    ``paged_attention``, both in one call; and ``why_not()``, where more than packages can be
    missing. What it does not take by these facts is refused before it is called.

    Attributes:
        name: its module in ``octavo.attention.kernels``.
        requires: the packages it needs to be installed.
        devices: types of torch devices it takes; empty: any.
        orders: page orders it takes, the fastest first.
        dtypes: element types of queries and caches it takes, by octavo's names; empty: any floats.
        latent: whether it takes latent caches.
        kv_dtypes: element types of quantised caches it takes.
        about: one sentence for people.
    """

    name: str
    requires: tuple[str, ...]
    devices: tuple[str, ...]
    orders: tuple[str, ...]
    dtypes: tuple[str, ...]
    latent: bool
    kv_dtypes: tuple[str, ...]
    about: str

    @property
    def missing(self) -> str | None:
        """Why it does not work here, or None: it does. The first time it may compile a kernel."""
        for package in self.requires:
            if find_spec(package) is None:
                return f"{package} is not installed"
        reason: str | None = getattr(self._module(), "why_not", lambda: None)()
        return reason

    def takes(
        self, device: str, dtype: str, order: str, *, latent: bool, kv_dtype: str | None
    ) -> bool:
        """Whether it is made for such caches, be it here or not. O(1)."""
        return (
            (not self.devices or device in self.devices)
            and order in self.orders
            and (not self.dtypes or dtype in self.dtypes)
            and (self.latent or not latent)
            and (kv_dtype is None or kv_dtype in self.kv_dtypes)
        )

    def load(self) -> Any:
        """The backend's module.

        Raises:
            UnsupportedModel: it does not work here; the reason is named.
        """
        if self.missing is not None:
            raise UnsupportedModel(f"backend {self.name}", self.missing)
        return self._module()

    def _module(self) -> Any:
        return import_module(f"octavo.attention.kernels.{self.name}")


_BACKENDS = (
    Backend(
        name="cpu",
        requires=("torch",),
        devices=("cpu",),
        orders=("head", "token"),
        dtypes=("fp32", "bf16"),
        latent=True,
        kv_dtypes=(),
        about="a C kernel, compiled on first use, that reads pages where they lie",
    ),
    Backend(
        name="torch",
        requires=("torch",),
        devices=(),
        orders=("head", "token"),
        dtypes=(),
        latent=True,
        kv_dtypes=("int8", "fp8", "int4"),
        about="PyTorch operators on any of its devices; gathers the live pages",
    ),
    Backend(
        name="triton",
        requires=("torch", "triton"),
        devices=("cuda",),
        orders=("token", "head"),
        dtypes=("bf16", "fp16", "fp32"),
        latent=True,
        kv_dtypes=(),
        about="a Triton kernel for GPUs that reads pages where they lie",
    ),
    Backend(
        name="flex",
        requires=("torch",),
        devices=(),
        orders=("token", "head"),
        dtypes=("bf16", "fp16", "fp32", "fp64"),
        latent=True,
        kv_dtypes=(),
        about="flex_attention over the gathered live pages; holds all scores but on CUDA",
    ),
    Backend(
        name="flash_attn",
        requires=("torch", "flash_attn"),
        devices=("cuda",),
        orders=("token",),
        dtypes=("bf16", "fp16"),
        latent=False,
        kv_dtypes=(),
        about="FlashAttention 2 by its block table; pages of a multiple of 256 tokens",
    ),
    Backend(
        name="flashinfer",
        requires=("torch", "flashinfer"),
        devices=("cuda",),
        orders=("token", "head"),
        dtypes=("bf16", "fp16"),
        latent=False,
        kv_dtypes=(),
        about="FlashInfer by its wrappers for paged decode and prefill",
    ),
    Backend(
        name="oracle",
        requires=(),
        devices=("cpu",),
        orders=("token", "head"),
        dtypes=(),
        latent=True,
        kv_dtypes=("int8", "fp8", "int4"),
        about="NumPy in float64, row by row: the truth, not fast",
    ),
)
"""In the order `best` tries them. A new backend is an entry here and a module of its name in
``kernels/``."""


def backends() -> tuple[Backend, ...]:
    """All backends in the order of `best`, here or not; ask each's ``missing``.

    Those for GPUs come after ``torch``, by name only, until they have been measured on one.
    """
    return _BACKENDS


def backend(name: str) -> Backend:
    """The backend of that name. O(backends).

    Raises:
        PlanError: there is none.
    """
    for each in _BACKENDS:
        if each.name == name:
            return each
    raise PlanError("backend", name, f"known are: {', '.join(b.name for b in _BACKENDS)}")


def best(
    device: Any = "cpu",
    dtype: str | DType = "bf16",
    order: str = "head",
    *,
    latent: bool = False,
    kv_dtype: str | None = None,
) -> Backend:
    """The fastest backend that takes such caches and works here.

    Measured (`benchmarks/bench_attention.py`), ``cpu`` is ahead of ``torch`` wherever it works, so
    the order of `backends` decides.

    Args:
        device: a torch device or its name.
        dtype: element type of queries, by octavo's or torch's name.
        order: ``head`` or ``token``.
        latent: whether the cache is a latent one.
        kv_dtype: how it is quantised; None: not at all.

    Raises:
        PlanError: no such dtype, or no backend takes such caches here.

    Warns:
        RuntimeWarning: a faster one would take them but does not work here, with the reason; once.
    """
    kind, name = str(device).partition(":")[0], known_dtype(dtype).name
    for each in _BACKENDS:
        if each.takes(kind, name, order, latent=latent, kv_dtype=kv_dtype):
            reason = each.missing
            if reason is None:
                return each
            warnings.warn(
                f"attention backend {each.name} is not used: {reason}", RuntimeWarning, stacklevel=2
            )
    wanted = f"{kind}, {name}, order {order}, latent {latent}, kv_dtype {kv_dtype}"
    raise PlanError("attention backend", wanted, "no backend takes such caches here")
