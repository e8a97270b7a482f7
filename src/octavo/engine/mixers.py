"""Modules of a model that keep a state, run over state pages beside ragged attention.

A step's tokens lie one after another in one row; a recurrence or a convolution must see each
sequence's own. So the module's forward is called for rows of equal length at a time: once for all
that decode, once for each chunk of a prompt; what it asks its cache for are states of those rows.
The rest of the model stays ragged. Knows modules and states; no requests and no attention.
"""

from collections.abc import Callable, Hashable, Iterator
from functools import cache, partial
from inspect import unwrap
from types import FunctionType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import Cache as HostCache

from octavo.arrays import NDArray
from octavo.cache.step import Step
from octavo.engine.own_states import Forward, asking
from octavo.errors import UnsupportedModel, uncopied
from octavo.integrations.transformers.models import forgets
from octavo.planner.layouts import TensorPlan
from octavo.storage import PageIndex, Storage

_ASKS = frozenset({"get_conv_state", "update_conv_state", "get_linear_cache"})
"""What a module that keeps a state asks its cache."""
Key = tuple[int, int]
"""Layer, and number of a state in it."""


class StateCache(HostCache):
    """A cache that leads a model's mixers to the states of the step it runs.

    Attributes:
        states: of the step; None: none has begun.
    """

    states: "StepStates | None" = None


class Rows(NamedTuple):
    """Rows of a step that a mixer runs together.

    Attributes:
        places: int64[n * length], which tokens of the step they are; None: all, in their order.
        length: new tokens of each.
        has_state: whether they have a state; else they start without one.
        source: pages of the states they start from.
        targets: pages of the states after all tokens, all but one, and so on for drafts.
    """

    places: torch.Tensor | None
    length: int
    has_state: bool
    source: PageIndex
    targets: list[PageIndex]


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


class Mixers:
    """The modules of one model that keep states, and the pages of those.

    Args:
        model: in which they are looked for.
        storage: of a plan for it.

    """

    __reduce__ = uncopied("it is a part of one runner")

    def __init__(self, model: Any, storage: Storage) -> None:
        self.storage, self.forgets = storage, forgets(model)
        self.tensors = {(t.layer, t.component): t for t in storage.plan.tensors if _is_state(t)}
        self._views = {key: storage.tensor(*key) for key in self.tensors}
        self.held: dict[Key, Held] = {}
        self.dtypes: dict[int, torch.dtype] = {}
        self._modules = modules_with_states(model) if self.tensors else []

    def take(self) -> None:
        """Have the modules run by `StepStates` in a step. O(modules)."""
        for module, make in self._modules:
            if not _is_ours(module.forward):
                module.forward = partial(_forward, module.forward, make)

    def release(self) -> None:
        """Give the modules their own forward back. O(modules)."""
        for module, _ in self._modules:
            if _is_ours(module.forward):
                module.forward = module.forward.args[0]

    def states(self, step: Step, drafts: NDArray[np.int64]) -> "StepStates | None":
        """What the modules take in a step; None: the plan has no states. O(rows).

        Args:
            step: open.
            drafts: of each row, how many of its last tokens may be taken back.
        """
        return StepStates(self, step, drafts) if self.tensors else None

    def read(self, key: tuple[int, str], pages: PageIndex) -> torch.Tensor:
        """One tensor of a layer's states, [n, *shape], copied."""
        return self._views[key].index_select(0, pages.pages[:, self.tensors[key].part])

    def write(
        self, key: tuple[int, str], pages: PageIndex, states: torch.Tensor, start: int, stop: int
    ) -> None:
        """Put [n, *shape] in pages, or some channels of it."""
        view = self._views[key][:, start:stop]
        view.index_copy_(0, pages.pages[:, self.tensors[key].part], states.to(view.dtype))


class StepStates:
    """The states of one step's rows, and how its rows are run together."""

    __reduce__ = uncopied("it belongs to one step")

    def __init__(self, mixers: Mixers, step: Step, drafts: NDArray[np.int64]) -> None:
        self.mixers, self._tokens = mixers, int(step.input_ids.size)
        (self._group,) = {tensor.group for tensor in mixers.tensors.values()}
        self._touched: set[int] = set()
        self._rows = list(self._groups(step, drafts))

    def run(self, own: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a module's own forward gives for all tokens of the step, [1, T, ...].

        Raises:
            UnsupportedModel: it is given other tokens than the step's.
        """
        if not any(map(self._is_by_token, (*args, *kwargs.values()))):
            why = f"a module that keeps states is not given the {self._tokens} tokens of the step"
            raise UnsupportedModel("model", why)
        found = [self._run(rows, own, args, kwargs) for rows in self._rows]
        if isinstance(found[0], tuple):
            return tuple(self._joined(each) for each in zip(*found, strict=True))
        return self._joined(found)

    def check(self) -> None:
        """Check that every layer that keeps a state has run so.

        Raises:
            UnsupportedModel: one has not; its output cannot be trusted.
        """
        lacks = sorted({layer for layer, _ in self.mixers.tensors} - self._touched)
        if lacks:
            why = f"its layers {lacks} keep states, and did not ask the cache for them"
            raise UnsupportedModel("model", why)

    def _groups(self, step: Step, drafts: NDArray[np.int64]) -> Iterator[Rows]:
        """Rows of as many tokens and drafts, those with a state apart from those without."""
        storage, view = self.mixers.storage, step.group(self._group)
        index = partial(storage.page_index, group=self._group)
        kinds = np.stack([step.counts, drafts, view.has_state], axis=1)
        for kind in np.unique(kinds[step.counts > 0], axis=0):
            length, back, has_state = kind.tolist()
            rows = np.flatnonzero((kinds == kind).all(axis=1))
            places = (step.query_start[rows][:, None] + np.arange(length)).ravel()
            every = np.array_equal(places, np.arange(self._tokens))
            yield Rows(
                None if every else torch.from_numpy(places.astype(np.int64)).to(storage.device),
                length,
                bool(has_state),
                index(view.source[rows]),
                [index(view.table[rows, left]) for left in range(1 + back)],
            )

    def _run(self, rows: Rows, own: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What it gives for some rows, [n, length, ...]; or each of several."""
        call = partial(self._call, rows, own, args, kwargs)
        states, parts = RowStates(self.mixers, rows), list[Any]()
        for start, stop in self._spans(rows):
            try:
                found = call(states, slice(start, stop))
            except _Unlearnt:
                call(RowStates(self.mixers, rows._replace(has_state=False)), slice(0, 1))
                states = RowStates(self.mixers, rows)
                found = call(states, slice(start, stop))
            parts.append(found)
            if rows.length - stop < len(rows.targets):
                self._touched |= states.save(rows.targets[rows.length - stop])
        if isinstance(parts[0], tuple):
            return tuple(_behind(each) for each in zip(*parts, strict=True))
        return _behind(parts)

    def _call(
        self,
        rows: Rows,
        own: Forward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        states: "RowStates",
        part: slice,
    ) -> Any:
        """What it gives for a part of their tokens, [n, t, ...]."""
        pick = partial(self._picked, rows, states, part=part)
        return own(*map(pick, args), **{name: pick(given) for name, given in kwargs.items()})

    def _spans(self, rows: Rows) -> Iterator[tuple[int, int]]:
        """Tokens of one call: all, but those of which each state is wanted come one by one."""
        first = rows.length - len(rows.targets) + 1
        if rows.has_state and self.mixers.forgets:
            first = 1
        yield 0, first
        yield from ((at, at + 1) for at in range(first, rows.length))

    def _picked(self, rows: Rows, states: "RowStates", given: Any, part: slice) -> Any:
        """An argument for some rows: [n, t, ...] of [1, T, ...], and their own cache."""
        if isinstance(given, StateCache):
            return states
        if not self._is_by_token(given):
            return given
        flat = given[0] if rows.places is None else given[0].index_select(0, rows.places)
        return flat.unflatten(0, (-1, rows.length))[:, part]

    def _is_by_token(self, given: Any) -> bool:
        return isinstance(given, torch.Tensor) and tuple(given.shape[:2]) == (1, self._tokens)

    def _joined(self, found: Any) -> Any:
        """[1, T, ...] of what all groups of rows gave, if that is by token; else the first's."""
        first = found[0]
        for rows, each in zip(self._rows, found, strict=True):
            if not isinstance(each, torch.Tensor) or each.ndim < 2 or each.shape[1] != rows.length:
                return first
        if self._rows[0].places is None:
            return first.flatten(0, 1)[None]
        out = first.new_empty(self._tokens, *first.shape[2:])
        for rows, each in zip(self._rows, found, strict=True):
            out.index_copy_(0, rows.places, each.flatten(0, 1))
        return out[None]


class _Unlearnt(Exception):
    """How a module keeps its states is not known: all it has run on came out of a file."""


class RowStates:
    """What a module takes for its cache: the states of some rows, [n, ...], while it runs.

    They are read when first asked for. A module may change what it got in place, or give another.
    """

    def __init__(self, mixers: Mixers, rows: Rows) -> None:
        self._mixers, self._rows = mixers, rows
        self._conv: dict[Key, torch.Tensor] = {}
        self._recurrent: dict[int, torch.Tensor] = {}

    def save(self, pages: PageIndex) -> set[int]:
        """Put the states in pages; returns the layers they are of."""
        for key, conv in self._conv.items():
            held = self._mixers.held[key]
            kept = conv[..., held.width - self._columns(key[0]) :]
            self._mixers.write((key[0], "conv"), pages, kept, held.start, held.stop)
        for layer, recurrent in self._recurrent.items():
            whole = recurrent.shape[1]
            self._mixers.write((layer, "recurrent"), pages, recurrent, 0, whole)
        return {layer for layer, _ in self._conv} | set(self._recurrent)

    # -- what modules call ---------------------------------------------------------------------

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """[n, channels, columns]; None: the rows have none."""
        key = layer_idx, state_idx
        if key not in self._conv and self._rows.has_state:
            if key not in self._mixers.held:
                raise _Unlearnt
            held = self._mixers.held[key]
            kept = self._mixers.read((layer_idx, "conv"), self._rows.source)
            conv = kept[:, held.start : held.stop].to(held.dtype)
            self._conv[key] = pad(conv, (held.width - conv.shape[-1], 0))
        return self._conv.get(key)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """[n, *shape]; None: the rows have none."""
        del state_idx
        if layer_idx not in self._recurrent and self._rows.has_state:
            if (layer_idx, "recurrent") not in self._mixers.tensors:
                return None
            if layer_idx not in self._mixers.dtypes:
                raise _Unlearnt
            kept = self._mixers.read((layer_idx, "recurrent"), self._rows.source)
            self._recurrent[layer_idx] = kept.to(self._mixers.dtypes[layer_idx])
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
            self._learn(key, conv_states, width)
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
        dtype = self._mixers.dtypes.setdefault(layer_idx, recurrent_states.dtype)
        self._recurrent[layer_idx] = recurrent_states.to(dtype)
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

    def _columns(self, layer: int) -> int:
        return self._mixers.tensors[layer, "conv"].shape[-1]

    def _learn(self, key: Key, conv: torch.Tensor, width: int) -> None:
        """Note how the model keeps a convolution state, where it first shows one."""
        (layer, number), held = key, self._mixers.held
        start = 0 if not number else held[layer, number - 1].stop
        held.setdefault(key, Held(start, start + conv.shape[1], width, conv.dtype))


def _forward(
    own: Forward, make: Callable[[Forward], Forward] | None, *args: Any, **kwargs: Any
) -> Any:
    """In place of a module's forward: as it was, but for a cache that leads to a step's states."""
    for given in (*args, *kwargs.values()):
        if isinstance(given, StateCache) and given.states is not None:
            found = given.states.run(own if make is None else make(own), args, kwargs)
            if isinstance(found, tuple):  # some hand the cache on
                return tuple(given if isinstance(each, RowStates) else each for each in found)
            return found
    return own(*args, **kwargs)


def _is_ours(forward: Any) -> bool:
    return isinstance(forward, partial) and forward.func is _forward


def _behind(parts: Any) -> Any:
    """One call's tokens behind another's, where there are several."""
    if len(parts) == 1 or not isinstance(parts[0], torch.Tensor):
        return parts[-1]
    return torch.cat(list(parts), dim=1)


def _is_state(tensor: TensorPlan) -> bool:
    return tensor.component in ("recurrent", "conv") and not tensor.draft


def modules_with_states(model: Any) -> list[tuple[Any, Callable[[Forward], Forward] | None]]:
    """The modules of a model that ask its cache for states, or can be made to, and how.

    Cost: O(modules).
    """
    found = []
    for name, module in model.named_modules():
        make = asking(name, module)
        if make is not None or _asks_for_states(cast("Hashable", type(module))):
            found.append((module, make))
    return found


@cache
def _asks_for_states(kind: Hashable) -> bool:
    """Whether a class's code does so. O(methods), once a class."""
    own = [each for base in type.mro(cast("type", kind)) for each in vars(base).values()]
    methods = (unwrap(each) for each in own if isinstance(each, FunctionType))
    return any(_ASKS & set(each.__code__.co_names) for each in methods)
