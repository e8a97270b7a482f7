"""States of a model's layers in pages, and some rows' of them as its modules take them.

Knows pages and what transformers' modules ask of a cache; no modules, no attention, no requests.
"""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from octavo.arrays import NDArray
from octavo.errors import UnsupportedModel, uncopied
from octavo.planner.layouts import TensorPlan
from octavo.storage import LayerStore, PageIndex

Key = tuple[int, int]
"""Layer, and number of a convolution state in it."""


class Held(NamedTuple):
    """One convolution state of a layer, as the model has it, in the layer's tensor of a page.

    Attributes:
        start, stop: its channels.
        width: columns the model keeps, of which pages may lack the oldest.
        dtype: of the model's.
    """

    start: int
    stop: int
    width: int
    dtype: torch.dtype


class StatePages:
    """The states of one model's layers: where they lie, and how the model has them.

    Args:
        storage: of a plan for it.

    Attributes:
        storage: as given.
        tensors: by (layer, component).
        held: how the model keeps convolution states, by what its modules have shown.
        dtypes: the same of recurrent ones, by layer.
    """

    __reduce__ = uncopied("it is a part of one runner")

    def __init__(self, storage: LayerStore) -> None:
        self.storage = storage
        self.tensors: dict[tuple[int, str], TensorPlan] = {
            (layer, name): field.plan
            for (layer, _, name), field in storage.fields.items()
            if name in ("recurrent", "conv")
        }
        self._views = {key: storage.tensor(*key) for key in self.tensors}
        self.held: dict[Key, Held] = {}
        self.dtypes: dict[int, torch.dtype] = {}

    @cached_property
    def layers(self) -> set[int]:
        """Those that keep states."""
        return {layer for layer, _ in self.tensors}

    @cached_property
    def group(self) -> str:
        """The pages' group."""
        (name,) = {tensor.group for tensor in self.tensors.values()}
        return name

    def read(self, layer: int, component: str, pages: PageIndex) -> torch.Tensor:
        """One tensor of a layer's states, [n, *shape], copied."""
        key = layer, component
        return self._views[key].index_select(0, pages.pages[:, self.tensors[key].part])

    def write(
        self, layer: int, component: str, pages: PageIndex, states: torch.Tensor, start: int = 0
    ) -> None:
        """Put [n, channels, ...] in pages, from channel ``start`` on."""
        key = layer, component
        view = self._views[key][:, start : start + states.shape[1]]
        view.index_copy_(0, pages.pages[:, self.tensors[key].part], states.to(view.dtype))

    def shape(self, layer: int, component: str) -> tuple[int, ...]:
        """Of one state.

        Raises:
            UnsupportedModel: the model's config says of none.
        """
        if (layer, component) not in self.tensors:
            why = f"it keeps a {component} state that its config does not say"
            raise UnsupportedModel(f"layer {layer}", why)
        return self.tensors[layer, component].shape[1:]

    def learn_conv(self, key: Key, states: torch.Tensor, width: int) -> None:
        """Note how the model keeps a convolution state, where it first shows one.

        Args:
            key: its layer and number.
            states: [n, channels, t], the first columns.
            width: how many of them it keeps.

        Raises:
            UnsupportedModel: its config says otherwise.
        """
        (layer, number), (channels, columns) = key, self.shape(key[0], "conv")
        start = 0 if not number else self.held[layer, number - 1].stop
        found = Held(start, start + states.shape[1], width, states.dtype)
        if found.stop > channels or width < columns:
            why = f"its convolutions keep {found.stop} x {width}, its config says {channels}"
            raise UnsupportedModel(f"layer {layer}", f"{why} x {columns}")
        self.held.setdefault(key, found)

    def learn_recurrent(self, layer: int, states: torch.Tensor) -> None:
        """The same of a recurrent state [n, *shape]."""
        shape = self.shape(layer, "recurrent")
        if tuple(states.shape[1:]) != shape:
            why = f"its recurrent state is {tuple(states.shape[1:])}, its config says {shape}"
            raise UnsupportedModel(f"layer {layer}", why)
        self.dtypes.setdefault(layer, states.dtype)


class Rows(NamedTuple):
    """Rows of a step that a module runs together.

    Attributes:
        tokens: int64[n, length], which of the step's their new tokens are.
        places: the same on the device, int64[n * length]; None: all, in their order.
        prompt: bool[n, length], which of them are of prompts.
        has_state: whether they have a state; else they start without one.
        source: pages of the states they start from.
        targets: pages of the states after all tokens, all but one, and so on for drafts.
    """

    tokens: NDArray[np.int64]
    places: torch.Tensor | None
    prompt: NDArray[np.bool_]
    has_state: bool
    source: PageIndex
    targets: list[PageIndex]

    @property
    def length(self) -> int:
        """New tokens of each."""
        return int(self.tokens.shape[1])


class Unlearnt(Exception):
    """How a module keeps its states is not known: all it has run on came out of a file."""


class RowStates:
    """What a module takes for its cache: the states of some rows, [n, ...], while it runs.

    They are read when first asked for. A module may change what it got in place, or give another.

    Attributes:
        prompt: bool[n, t], which of the tokens it is given are of prompts.
    """

    __reduce__ = uncopied("it belongs to one step")

    def __init__(self, pages: StatePages, rows: Rows) -> None:
        self._pages, self._rows, self.prompt = pages, rows, rows.prompt
        self._conv: dict[Key, torch.Tensor] = {}
        self._recurrent: dict[int, torch.Tensor] = {}

    def save(self, targets: PageIndex) -> set[int]:
        """Put the states in pages; returns the layers they are of."""
        for key, conv in self._conv.items():
            held, (_, columns) = self._pages.held[key], self._pages.shape(key[0], "conv")
            kept = conv[..., held.width - columns :]
            self._pages.write(key[0], "conv", targets, kept, held.start)
        for layer, recurrent in self._recurrent.items():
            self._pages.write(layer, "recurrent", targets, recurrent)
        return {layer for layer, _ in self._conv} | set(self._recurrent)

    # -- what modules call ---------------------------------------------------------------------

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """[n, channels, columns]; None: the rows have none."""
        key = layer_idx, state_idx
        if key not in self._conv and self._rows.has_state:
            if key not in self._pages.held:
                raise Unlearnt
            held = self._pages.held[key]
            kept = self._pages.read(layer_idx, "conv", self._rows.source)
            conv = kept[:, held.start : held.stop].to(held.dtype)
            self._conv[key] = pad(conv, (held.width - conv.shape[-1], 0))
        return self._conv.get(key)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """[n, *shape]; None: the rows have none."""
        del state_idx
        if layer_idx not in self._recurrent and self._rows.has_state:
            if (layer_idx, "recurrent") not in self._pages.tensors:
                return None
            if layer_idx not in self._pages.dtypes:
                raise Unlearnt
            kept = self._pages.read(layer_idx, "recurrent", self._rows.source)
            self._recurrent[layer_idx] = kept.to(self._pages.dtypes[layer_idx])
        return self._recurrent.get(layer_idx)

    def update_conv_state(
        self,
        conv_states: torch.Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_rest: Any,
    ) -> torch.Tensor:
        """Add columns [n, channels, t]; returns them behind those there were."""
        key = layer_idx, state_idx
        had, width = self.get_conv_state(*key), conv_kernel_size or conv_states.shape[-1]
        if had is None:
            self._pages.learn_conv(key, conv_states, width)
            full = pad(conv_states, (max(0, width - conv_states.shape[-1]), 0))
        else:
            width, full = had.shape[-1], torch.cat([had, conv_states.to(had.dtype)], -1)
        self._conv[key] = full[..., full.shape[-1] - width :]
        return full

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_rest: Any
    ) -> torch.Tensor:
        """Replace the state [n, *shape]; returns it."""
        if state_idx:
            raise UnsupportedModel(f"layer {layer_idx}", "it keeps several recurrent states")
        if layer_idx not in self._pages.dtypes:
            self._pages.learn_recurrent(layer_idx, recurrent_states)
        self._recurrent[layer_idx] = recurrent_states.to(self._pages.dtypes[layer_idx])
        return self._recurrent[layer_idx]

    def get_linear_cache(self, layer_idx: int) -> torch.Tensor | None:
        """As MiniMax asks for its recurrent state."""
        return self.get_recurrent_state(layer_idx)

    def set_linear_cache(self, layer_idx: int, linear_cache: torch.Tensor) -> None:
        """As MiniMax gives it back."""
        self.update_recurrent_state(linear_cache, layer_idx)

    def is_recording_past(self, layer_idx: int) -> bool:
        """False: states are kept where the step wants them."""
        del layer_idx
        return False
