"""Modules of a model that keep a state, run over state pages beside ragged attention.

A step's tokens lie one after another in one row; a recurrence or a convolution must see each
sequence's own. So the module's forward is called for rows of equal length at a time: once for all
that decode, once for each chunk of a prompt; what it asks its cache for are states of those rows.
The rest of the model stays ragged. Knows modules and states; no requests and no attention.
"""

from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from functools import cache, partial
from inspect import unwrap
from types import FunctionType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from transformers import Cache as HostCache

from octavo.arrays import NDArray
from octavo.cache.step import Step
from octavo.engine.own_states import Forward, asking
from octavo.engine.states import Rows, RowStates, StatePages, Unlearnt
from octavo.errors import UnsupportedModel, uncopied
from octavo.integrations.transformers.models import keeps_states
from octavo.storage import LayerStore

_ASKS = frozenset({"get_conv_state", "update_conv_state", "get_linear_cache"})
"""What a module that keeps a state asks its cache."""


class AtHand(NamedTuple):
    """Tokens that a mixer computes now.

    Attributes:
        tokens: int64[n, t], which of the step's they are.
        total: how many the step has.
    """

    tokens: NDArray[np.int64]
    total: int


_at_hand: ContextVar[AtHand | None] = ContextVar("tokens at hand", default=None)


def tokens_at_hand() -> AtHand | None:
    """Those that a mixer computes now; None: none does. O(1)."""
    return _at_hand.get()


class StateCache(HostCache):
    """A cache that leads a model's mixers to the states of the step it runs.

    Attributes:
        states: of the step; None: none has begun.
    """

    __reduce__ = uncopied("it is a part of one runner")

    states: "StepStates | None" = None


class Mixers:
    """The modules of one model that keep states, and the pages of those.

    Args:
        model: in which they are looked for.
        storage: of a plan for it.

    Attributes:
        pages: its states.
        forgets: whether its convolutions forget where several tokens follow.
    """

    __reduce__ = uncopied("it is a part of one runner")

    def __init__(self, model: Any, storage: LayerStore) -> None:
        self.pages, self.forgets = StatePages(storage), keeps_states(model)
        self._modules = modules_with_states(model) if self.pages.tensors else []

    @property
    def modules(self) -> list[torch.nn.Module]:
        """Those that keep states. O(modules)."""
        return [module for module, _ in self._modules]

    def take(self) -> None:
        """Have the modules run by `StepStates` in a step. O(modules)."""
        for module, make in self._modules:
            if not _is_ours(module.forward):
                module.forward = partial(_forward, module.forward, make)

    def release(self) -> None:
        """Give the modules their own forward back. O(modules)."""
        for module, _ in self._modules:
            if _is_ours(module.forward):
                own = module.forward.args[0]
                del module.forward
                if module.forward != own:  # it was not its class's
                    module.forward = own

    def states(self, step: Step, drafts: NDArray[np.int64]) -> "StepStates | None":
        """What the modules take in a step; None: the plan has no states. O(rows).

        Args:
            step: open.
            drafts: of each row, how many of its last tokens may be taken back.
        """
        return StepStates(self, step, drafts) if self.pages.tensors else None


class StepStates:
    """The states of one step's rows, and how its rows are run together."""

    __reduce__ = uncopied("it belongs to one step")

    def __init__(self, mixers: Mixers, step: Step, drafts: NDArray[np.int64]) -> None:
        self._pages, self._forgets = mixers.pages, mixers.forgets
        self._tokens = int(step.input_ids.size)
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

    def kept(self) -> Callable[[], None]:
        """What puts states that rows go on from back, where the step is to be computed twice.

        Cost: O(bytes of the rows' states), now and when it is called.
        """
        sources = [rows.source for rows in self._rows if rows.has_state]
        kept = [(*at, source) for at in self._pages.tensors for source in sources]
        states = [self._pages.read(*each) for each in kept]

        def put_back() -> None:
            for each, state in zip(kept, states, strict=True):
                self._pages.write(*each, state)

        return put_back

    def check(self) -> None:
        """Check that every layer that keeps a state has run so.

        Raises:
            UnsupportedModel: one has not; its output cannot be trusted.
        """
        lacks = sorted(self._pages.layers - self._touched)
        if lacks:
            why = f"its layers {lacks} keep states, and did not ask the cache for them"
            raise UnsupportedModel("model", why)

    def _groups(self, step: Step, drafts: NDArray[np.int64]) -> Iterator[Rows]:
        """Rows of as many tokens and drafts, those with a state apart from those without."""
        storage, view = self._pages.storage, step.group(self._pages.group)
        index = partial(storage.page_index, group=self._pages.group)
        prompts = np.array([sequence.prompt for sequence in step.sequences])
        kinds = np.stack([step.counts, drafts, view.has_state], axis=1)
        for kind in np.unique(kinds[step.counts > 0], axis=0):
            length, back, has_state = kind.tolist()
            rows = np.flatnonzero((kinds == kind).all(axis=1))
            tokens = step.query_start[rows].astype(np.int64)[:, None] + np.arange(length)
            every = np.array_equal(tokens.ravel(), np.arange(self._tokens))
            yield Rows(
                tokens,
                None if every else torch.from_numpy(tokens.ravel()).to(storage.device),
                step.positions[tokens] < prompts[rows, None],
                bool(has_state),
                index(view.source[rows]),
                [index(view.table[rows, left]) for left in range(1 + back)],
            )

    def _run(self, rows: Rows, own: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What it gives for some rows, [n, length, ...]; or each of several."""
        call = partial(self._call, rows, own, args, kwargs)
        states, parts = RowStates(self._pages, rows), list[Any]()
        for start, stop in self._spans(rows):
            try:
                found = call(states, slice(start, stop))
            except Unlearnt:
                call(RowStates(self._pages, rows._replace(has_state=False)), slice(0, 1))
                states = RowStates(self._pages, rows)
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
        states: RowStates,
        part: slice,
    ) -> Any:
        """What it gives for a part of their tokens, [n, t, ...]."""
        pick = partial(self._picked, rows, states, part=part)
        states.prompt = rows.prompt[:, part]
        before = _at_hand.set(AtHand(rows.tokens[:, part], self._tokens))
        try:
            return own(*map(pick, args), **{name: pick(given) for name, given in kwargs.items()})
        finally:
            _at_hand.reset(before)

    def _spans(self, rows: Rows) -> Iterator[tuple[int, int]]:
        """Tokens of one call: all, but those of which each state is wanted come one by one."""
        first = rows.length - len(rows.targets) + 1
        if rows.has_state and self._forgets:
            first = 1
        yield 0, first
        yield from ((at, at + 1) for at in range(first, rows.length))

    def _picked(self, rows: Rows, states: RowStates, given: Any, part: slice) -> Any:
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
