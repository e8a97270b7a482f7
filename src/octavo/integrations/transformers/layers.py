"""The layers of the cache as transformers knows them, over octavo's pages.

The base classes are transformers': their names, attributes and calls are its contract. A layer
holds nothing between two passes but where its pages are.
"""

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from octavo.errors import PlanError
from octavo.integrations.transformers.pages import Component, StateTensors
from octavo.integrations.transformers.rows import Pass, Rows
from octavo.model.spec import Attention, Latent

HANDLE = "_octavo_pages"
"""Attribute of the keys that leads octavo's attention to a layer's pages."""


class Handle:
    """What the attention function needs of a layer in a pass.

    Attributes:
        layer: whose pages. now: the pass.
    """

    __slots__ = ("layer", "now")

    def __init__(self, layer: "TokenLayer", now: Pass) -> None:
        self.layer, self.now = layer, now


class TokenLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values, or latents, of every token in pages.

    Args:
        rows: who has which token.
        kind: what is kept.
        parts: its components: ``key`` and ``value``, or ``latent``.
    """

    is_croppable = True

    def __init__(
        self, rows: Rows, kind: Attention | Latent, parts: dict[str, Component], **rest: Any
    ) -> None:
        super().__init__(**rest)
        self.rows, self.kind, self.parts = rows, kind, parts
        self.width = None if isinstance(kind, Latent) else kind.window or kind.chunk
        self.is_sliding = self.width is not None
        self.is_initialized = True

    @property
    def group(self) -> str:
        """Whose page table it reads."""
        return next(iter(self.parts.values())).group

    def lazy_initialization(self, *_states: torch.Tensor) -> None:
        """Nothing: the pages are there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_rest: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a pass's keys and values; called by the model.

        Args:
            key_states: [B, kv_heads, q, k_dim]; of a latent layer [B, 1, q, rank].
            value_states: [B, kv_heads, q, v_dim]; of a latent layer [B, 1, q, rope].

        Returns:
            What the model attends to, [B, kv_heads, L, dim] each; under octavo's own attention
            the same tensors, as it reads the pages.

        Raises:
            StepError: no pass is open. PlanError: another dtype, device or shape than planned.
        """
        now = self.rows.open_pass()
        self._check(key_states, value_states, now)
        if isinstance(self.kind, Latent):
            row = self.parts["latent"]
            row.write(now, torch.cat([key_states, value_states], dim=-1))
            found = row.read(now, 0)
            return found[..., : self.kind.rank], found[..., self.kind.rank :]
        self.parts["key"].write(now, key_states)
        self.parts["value"].write(now, value_states)
        if now.work.get("attend") and self.kind.chunk is None:
            setattr(key_states, HANDLE, Handle(self, now))
            return key_states, value_states
        first = self._first(now.past)
        return self.parts["key"].read(now, first), self.parts["value"].read(now, first)

    def _first(self, past: int) -> int:
        """First column the model is given: a window's passes see its last keys."""
        return 0 if self.width is None else max(0, past - self.width + 1)

    def _check(self, key: torch.Tensor, value: torch.Tensor, now: Pass) -> None:
        names = ("rank", "rope") if isinstance(self.kind, Latent) else ("k_dim", "v_dim")
        heads = 1 if isinstance(self.kind, Latent) else self.kind.kv_heads
        part = next(iter(self.parts.values()))
        for new, name in ((key, names[0]), (value, names[1])):
            shape = (len(now.owner), heads, now.new, getattr(self.kind, name))
            if tuple(new.shape) != shape:
                right = f"the cache has {shape} here: it was made for another model or batch"
                raise PlanError("shape of keys or values", tuple(new.shape), right)
            for what in ("dtype", "device"):
                found, wanted = getattr(new, what), getattr(part.tensor, what)
                if found != wanted:
                    right = f"the cache has {wanted}; make one with for_model again"
                    raise PlanError(what, str(found), right)

    def get_seq_length(self) -> int:
        """Columns computed, padding included."""
        return self.rows.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(columns, first column) of what `update` returns next."""
        past = self.rows.length
        first = self._first(past)
        return past + query_length - first, first

    def get_max_length(self) -> int:
        """Longest sequence."""
        return self.width or self.rows.cache.max_length


class StateLayer(LinearAttentionLayer):  # type: ignore[misc]
    """Convolution and recurrent states of transformers' own kind, for the time of a pass.

    Args:
        states: where they are kept between two passes.
    """

    def __init__(self, states: StateTensors, **rest: Any) -> None:
        super().__init__(**rest)
        self.states = states
        self._recurrent_dtype: torch.dtype | None = None

    def load(self, now: Pass) -> None:
        """Bring the states of a pass's rows in; nothing where the pass is the first. O(bytes)."""
        self._forget()
        if now.step is None or not now.past:
            return
        view, tensors = now.step.group(self.states.group), self.states
        source = view.source[:, tensors.part] * view.has_state  # without one: the null page, zeros
        pages = torch.from_numpy((source[now.owner] * (now.owner >= 0)).astype("int64"))
        if tensors.conv is not None:
            conv = tensors.conv[pages.to(tensors.conv.device)]
            self.update_conv_state(torch.nn.functional.pad(conv, (1, 0)))
        if tensors.recurrent is not None:
            state = tensors.recurrent[pages.to(tensors.recurrent.device)]
            self.update_recurrent_state(state.to(self._recurrent_dtype or state.dtype))
            self.has_previous_state[0] = True

    def save(self, now: Pass, cut: int = 0) -> None:
        """Put the states behind a pass, less its last ``cut`` columns, in their pages. O(bytes)."""
        tensors = self.states
        if now.step is not None:
            target = now.step.group(tensors.group).table[:, cut, tensors.part]
            pages, rows = (torch.from_numpy(a.astype("int64")) for a in (target, now.leader))
            for view, found in (
                (tensors.conv, self.conv_states[0]),
                (tensors.recurrent, self.recurrent_states[0]),
            ):
                if view is None or found is None:
                    continue
                kept = found[rows.to(found.device)].to(view.dtype)
                view[pages.to(view.device)] = kept[..., 1:] if view is tensors.conv else kept
            if self.recurrent_states[0] is not None:
                self._recurrent_dtype = self.recurrent_states[0].dtype
        self._forget()

    def _forget(self) -> None:
        """Hold no tensor of a batch."""
        for at in range(self.number_of_states):
            self.conv_states[at] = self.recurrent_states[at] = None
            self.is_conv_states_initialized[at] = False
            self.is_recurrent_states_initialized[at] = False
            self.has_previous_state[at] = False

    def reset(self) -> None:
        """Hold nothing."""
        self._forget()


class MixedLayer(StateLayer, TokenLayer):
    """Attention beside a state in one layer."""

    def __init__(
        self,
        states: StateTensors,
        rows: Rows,
        kind: Attention | Latent,
        parts: dict[str, Component],
    ) -> None:
        TokenLayer.__init__(self, rows, kind, parts)
        StateLayer.__init__(self, states)
