"""Where octavo hooks into a transformers model: a Cache that writes pages, and its attention.

The model calls `PageStore.update` in every layer with the new keys and values, then `attend`, which
is registered with transformers under the name ``octavo``. A handle passed from one to the other,
among the attention function's keywords, leads to the layer's pages. Knows no requests and no
models.
"""

from typing import Any

import torch
from transformers import Cache as HostCache

from octavo.attention import best
from octavo.cache.step import Step
from octavo.errors import StepError, UnsupportedModel
from octavo.model.lifetimes import group_name
from octavo.model.spec import Attention
from octavo.planner.request import Plan
from octavo.storage import Storage, WriteIndex

NAME = "octavo"
"""The attention implementation registered with transformers."""

_ABSENT: Any = object()


class PageStore(HostCache):
    """What the model takes for its cache: writes new keys and values to pages, keeps none itself.

    Args:
        storage: where they go.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(layers=[])
        self._storage = storage
        self._layers = [
            LayerHandle(self, layer, kind, group) for layer, kind, group in _layers(storage.plan)
        ]
        self._slots: dict[str, WriteIndex] | None = None
        plan = storage.plan
        assert plan.dtype is not None  # Storage refuses plans without one
        self.backend = best(storage.device, plan.dtype, plan.order).load()
        self.steps: dict[str, Any] | None = None
        self.attended = 0

    def begin(self, step: Step) -> None:
        """Prepare the indices all layers of this step share. O(rows + tokens + pages covered)."""
        plan = self._storage.plan
        self._slots = {
            name: self._storage.index(step.group(name).slots, name) for name in plan.groups
        }
        self.steps = {
            name: self.backend.prepare(
                step, page_size=plan.page_size, group=name, device=self._storage.device
            )
            for name in plan.groups
        }
        self.attended = 0

    def end(self) -> None:
        """Check that every layer has attended through octavo.

        Raises:
            UnsupportedModel: one has not; its output cannot be trusted.
        """
        if self.attended != len(self._layers):
            why = f"{self.attended} of {len(self._layers)} layers attended through octavo"
            raise UnsupportedModel("model", why)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_args: Any,
        kwargs: dict[str, Any] | None = None,
        **_rest: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's new keys and values; called by the model.

        Args:
            key_states: [1, kv_heads, T, k_dim].
            value_states: [1, kv_heads, T, v_dim].
            layer_idx: the layer.
            kwargs: the attention function's keywords; the layer's handle is put among them.

        Returns:
            The same tensors, the keys carrying the handle for models that pass no ``kwargs``.
        """
        if self._slots is None:
            raise StepError("no step has begun; run the model through a Runner")
        keys, values = key_states[0].transpose(0, 1), value_states[0].transpose(0, 1)
        handle = self._layers[layer_idx]
        self._storage.write(layer_idx, keys, values, self._slots[handle.group])
        if kwargs is not None:
            kwargs[NAME] = handle
        key_states._octavo = handle  # type: ignore[attr-defined]
        return key_states, value_states


def _layers(plan: Plan) -> list[tuple[int, Attention, str]]:
    """(layer, kind, group) of a plan whose layers all keep keys and values."""
    kinds = [] if plan.spec is None else plan.spec.kinds()
    return [(layer, kind, group_name(kind)) for layer, kind in kinds if isinstance(kind, Attention)]


class LayerHandle:
    """Leads the attention function from one layer of the model to its pages.

    Attributes:
        kind: what the layer keeps.
        group: whose page table it reads.
    """

    __slots__ = ("_order", "_store", "_view", "group", "kind")

    def __init__(self, store: PageStore, layer: int, kind: Attention, group: str) -> None:
        self._store, self.kind, self.group = store, kind, group
        self._view = store._storage.layer(layer)
        self._order = store._storage.plan.order

    def attend(
        self,
        query: torch.Tensor,
        scale: float | None,
        softcap: float | None,
        sink_logits: torch.Tensor | None,
    ) -> torch.Tensor:
        """[T, H, v_dim] of a query [T, H, k_dim] over this layer's pages."""
        if self._store.steps is None:
            raise StepError("no step has begun; run the model through a Runner")
        self._store.attended += 1
        found: torch.Tensor = self._store.backend.paged_attention(
            query,
            self._view.key,
            self._view.value,
            self._store.steps[self.group],
            order=self._order,
            scale=scale,
            softcap=softcap,
            window=self.kind.window,
            sink_tokens=self.kind.sink_tokens,
            sink_logits=sink_logits,
        )
        return found


def attend(
    _module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    _value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    sliding_window: int | None = _ABSENT,
    octavo: LayerHandle | None = None,
    **_rest: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function transformers calls under the name ``octavo``.

    Args:
        query: [1, H, T, k_dim].
        key: the new keys, already written; carries the layer's handle.
        attention_mask: None: what is seen follows from the step.
        scaling: factor of the scores.
        softcap: bound of the scores.
        s_aux: [H], sink logits.
        sliding_window: the window the model believes in.
        octavo: the layer's handle.

    Returns:
        [1, T, H, v_dim], and None for the weights.

    Raises:
        StepError: called outside a Runner. UnsupportedModel: the model and its spec disagree.
    """
    handle = octavo if octavo is not None else getattr(key, "_octavo", None)
    if handle is None:
        why = "the model's attention is octavo's; close the engine to use the model without it"
        raise StepError(why)
    if attention_mask is not None:
        raise UnsupportedModel("attention mask", "octavo derives what is seen from the step")
    if sliding_window is not _ABSENT and sliding_window != handle.kind.window:
        why = f"the model asks for {sliding_window}, its config says {handle.kind.window}"
        raise UnsupportedModel("window", why)
    if key.shape[1] != handle.kind.kv_heads:
        why = f"the model attends to {key.shape[1]} heads, its config says {handle.kind.kv_heads}"
        raise UnsupportedModel("key/value heads", why)
    out = handle.attend(query[0].transpose(0, 1), scaling, softcap, s_aux)
    return out[None], None
