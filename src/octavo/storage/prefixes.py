"""A published prefix in a file: saved from one cache and storage, published again in others.

Composes public verbs of Cache and Storage: loading is a prefill that reads pages and computes none.
"""

import json
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from octavo.cache.cache import Cache
from octavo.cache.identity import Adapter, Extra, Media, Salt
from octavo.cache.inspection import published_pages
from octavo.cache.prompt import Prompt
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.cache.views import StateView
from octavo.checks import Ints, Tokens, check_tokens
from octavo.errors import (
    IdentityError,
    LengthError,
    PageFileError,
    PlanError,
    TokenError,
    UnsupportedModel,
)
from octavo.planner.plan import GroupPlan, Plan
from octavo.storage.files import PageFile, save_pages
from octavo.storage.store import Storage
from octavo.storage.weights import Weights

_KINDS: dict[str, Callable[..., Extra]] = {kind.__name__: kind for kind in (Salt, Adapter, Media)}
_NEXT = 0  # any token id: a hit leaves one to compute, which is never computed here


class SavedPrefix(NamedTuple):
    """A prefix and where its pages are.

    Attributes:
        tokens: its ids, a multiple of the page size of them.
        extra: what it depends on beside them.
        columns: by token group, the columns that are there, ascending.
    """

    tokens: list[int]
    extra: tuple[Extra, ...]
    columns: dict[str, list[int]]


def save_prefix(
    path: str | os.PathLike[str],
    cache: Cache,
    storage: Storage,
    tokens: Tokens,
    *,
    extra: Iterable[Extra] = (),
    model: Weights,
) -> int:
    """Save the published prefix of ``tokens``, for `load_prefix` in another process.

    Windows must still have every page that some shorter prefix needs, since what is published again
    must serve prompts that branch off early: save right after the prompt was computed. Where pages
    are gone, the prefix up to there is saved.

    Args:
        path: the file; replaced where it exists.
        cache: which knows the prefix; it is left as it is.
        storage: which holds its pages.
        tokens: ids; whole pages of them are saved.
        extra: as the prefix was admitted with. It is written to the file, a Salt too.
        model: as in `save_pages`.

    Returns:
        Tokens saved.

    Raises:
        LengthError: not a single page of it can be reused.
        UnsupportedModel: windows beside states, or cross inputs.
        PlanError: no path, cache or storage, the cache has another plan, or ``model`` names no
            weights.
        TokenError, IdentityError: tokens or extras malformed. OutOfPages: as `Cache.pin`.
        OSError: the file cannot be written.

    Cost: as `save_pages`.
    """
    _check(cache, storage)
    size = cache.plan.page_size
    asked = Prompt([*check_tokens(tokens).tolist(), _NEXT], extra)
    wanted = SavedPrefix(asked.tokens[:-1].tolist(), asked.extra, {})
    with cache.pin(asked) as pin:
        if not pin.tokens:
            raise LengthError(
                "published tokens", 0, size, None, "nothing of the prefix can be reused"
            )
        whole, pages = _found(cache, wanted, pin.tokens // size, pin.pages)
        if not whole.tokens:
            raise LengthError("published tokens", 0, size, None, "a window's first page is gone")
        about = {"tokens": whole.tokens, "columns": whole.columns}
        about["extra"] = [_extra_out(item) for item in wanted.extra]
        metadata = {"prefix": json.dumps(about)}
        save_pages(path, storage, pages, model=model, metadata=metadata)
    return len(whole.tokens)


def load_prefix(
    path: str | os.PathLike[str], cache: Cache, storage: Storage, *, model: Weights
) -> int:
    """Publish a prefix that `save_prefix` wrote: `Cache.admit` hits it from now on.

    No step of the cache may be open. Pages are taken as for a prompt, from free and evictable ones,
    and nobody holds them afterwards; `Cache.pin` does.

    Args:
        path: the file.
        cache: where it is published.
        storage: where its pages go, of the cache's plan.
        model: as in `save_pages`.

    Returns:
        Tokens of the prefix that a prompt can reuse now: all of them, unless the cache takes no
        snapshot of a state, or its prefixes are off.

    Raises:
        PageFileMismatch: of another model, dtype or geometry. PageFileError: damaged, no file of a
            prefix, or one that says what cannot be of its pages. Nothing has been written then.
        UnsupportedModel, PlanError: as `save_prefix`.
        OutOfPages, CapacityError, StepError: as `Cache.admit` and `Cache.extend`.

    Cost: as `PageFile.read`.
    """
    _check(cache, storage)
    file = PageFile.read(path, storage, model=model)
    prefix = _read(file, storage.plan)
    try:
        prompt = Prompt([*prefix.tokens, _NEXT], prefix.extra)
        sequence = cache.admit(prompt, limit=len(prompt))
    except (TokenError, IdentityError) as error:
        raise PageFileError(file.path, f"its prefix cannot be admitted: {error}") from None
    try:
        while sequence.computed < len(prefix.tokens):
            _fill(cache, storage, file, prefix, sequence)
    finally:
        cache.release(sequence)
    return cache.peek(prompt).tokens


def _check(cache: Cache, storage: Storage) -> None:
    held: tuple[tuple[str, object, type], ...] = (
        ("cache", cache, Cache),
        ("storage", storage, Storage),
    )
    for name, given, kind in held:
        if not isinstance(given, kind):
            raise PlanError(name, type(given).__name__, f"it must be a {kind.__name__}")
    if cache.plan != storage.plan:
        raise PlanError("storage", storage.plan, "it must be of the cache's plan")
    groups = storage.plan.groups.values()
    forms = {group.lifetime.form for group in groups}
    if "cross" in forms:
        raise UnsupportedModel("prefix", "pages of a cross input are not saved")
    if "state" in forms and any(group.slides for group in groups):
        why = "windows beside states: no shorter prefix can be reused, so it cannot be saved either"
        raise UnsupportedModel("prefix", why)


def _found(
    cache: Cache, wanted: SavedPrefix, most: int, pinned: Iterable[Ints]
) -> tuple[SavedPrefix, dict[str, Ints]]:
    """The prefix that can be saved, and by group the pages it is in.

    Args:
        cache: which knows it.
        wanted: tokens and extras.
        most: pages of it that can be reused.
        pinned: by group, those a hit of all of them needs.
    """
    plan = cache.plan
    by_name = dict(zip(plan.groups, pinned, strict=True))
    states = {n: by_name[n].reshape(1, -1) for n, g in plan.groups.items() if not _of_tokens(g)}
    if any(group.slides for group in plan.groups.values()):
        most, held = _held_by_windows(cache, wanted, most)
    else:
        held = {n: dict(enumerate(p.tolist())) for n, p in by_name.items() if n not in states}
    pages = {name: np.array([*each.values()], np.int32) for name, each in held.items()}
    columns = {name: [*each] for name, each in held.items()}
    whole = wanted._replace(tokens=wanted.tokens[: most * plan.page_size], columns=columns)
    return whole, pages | states


def _held_by_windows(
    cache: Cache, wanted: SavedPrefix, most: int
) -> tuple[int, dict[str, dict[int, int]]]:
    """The longest boundary up to which all can be reused; by group, column to page. O(tokens)."""
    plan, size = cache.plan, cache.plan.page_size
    pages = published_pages(cache, Prompt([*wanted.tokens, _NEXT], wanted.extra))
    held: dict[str, dict[int, int]] = {name: {} for name in plan.groups}
    first = dict.fromkeys(pages, 0)  # by group, the first column from which on none is missing
    for column in range(most):
        for name, found in pages.items():
            lifetime = plan.groups[name].lifetime
            if not found[column]:
                first[name] = column + 1
            lost = not found[column] and column * size < lifetime.sinks
            if lost or lifetime.floor((column + 1) * size) // size < first[name]:
                return column, held
        for name, found in pages.items():
            if _is_kept(plan.groups[name], column, size):
                held[name][column] = found[column]
    return most, held


def _fill(
    cache: Cache, storage: Storage, file: PageFile, prefix: SavedPrefix, sequence: Sequence
) -> None:
    """One step of the prefill: its pages are read from the file. O(bytes)."""
    end = _next_end(storage, prefix, sequence.computed)
    step = cache.extend(sequence, end - sequence.computed)
    try:
        storage.apply(step.copies)
        for name in file.counts:
            _put(storage, file, prefix, name, step)
        storage.apply(step.snapshots)
    except BaseException:
        cache.abort(step)
        raise
    cache.commit(step)


def _next_end(storage: Storage, prefix: SavedPrefix, start: int) -> int:
    """Where the step from ``start`` ends: with states at the end, which is all they are kept of."""
    plan = storage.plan
    if any(not _of_tokens(group) for group in plan.groups.values()):
        return len(prefix.tokens)
    most = max(1, plan.max_step_tokens // plan.page_size) * plan.page_size
    return min(start + most, len(prefix.tokens))


def _put(storage: Storage, file: PageFile, prefix: SavedPrefix, name: str, step: Step) -> None:
    view = step.group(name)
    if isinstance(view, StateView):
        file.write(storage, name, slice(None), view.table[:, 0])
        return
    size = storage.plan.page_size
    first, stop = int(step.past[0]) // size, int(step.context[0]) // size
    columns = prefix.columns[name]
    rows = slice(bisect_left(columns, first), bisect_left(columns, stop))
    file.write(storage, name, rows, view.table[0, columns[rows]])


def _of_tokens(group: GroupPlan) -> bool:
    return group.grows


def _is_kept(group: GroupPlan, column: int, page_size: int) -> bool:
    """Whether a prefix that ends with this column needs it: the next token sees it, or a sink."""
    last = (column + 1) * page_size - 1
    return group.lifetime.floor(last + 1) <= last or last < group.lifetime.sinks


def _read(file: PageFile, plan: Plan) -> SavedPrefix:
    """What `save_prefix` said of the file, as it must be of such tokens and such a plan.

    Raises:
        PageFileError: it said nothing, or something else.
    """
    if "prefix" not in file.metadata:
        raise PageFileError(file.path, "it holds pages and no prefix")
    try:
        about = json.loads(file.metadata["prefix"])
        extra = tuple(_extra_in(*item) for item in about["extra"])
        tokens, columns = about["tokens"], about["columns"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        why = f"what it says of its prefix cannot be read: {type(error).__name__}: {error}"
        raise PageFileError(file.path, why) from None
    pages = _whole_pages(file, tokens, plan.page_size)
    wanted = {
        name: [column for column in range(pages) if _is_kept(group, column, plan.page_size)]
        for name, group in plan.groups.items()
        if _of_tokens(group)
    }
    counts = {name: len(wanted[name]) if name in wanted else 1 for name in plan.groups}
    if columns != wanted or file.counts != counts:
        why = f"it does not hold the pages that its {len(tokens):,} tokens need"
        raise PageFileError(file.path, why)
    return SavedPrefix(tokens, extra, wanted)


def _whole_pages(file: PageFile, tokens: object, page_size: int) -> int:
    """How many pages the tokens fill; PageFileError where they are none, or end within one."""
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise PageFileError(file.path, "the tokens of its prefix are no list of ints")
    pages, rest = divmod(len(tokens), page_size)
    if rest or not pages:
        why = f"the {len(tokens)} tokens of its prefix are no whole pages of {page_size}"
        raise PageFileError(file.path, why)
    return pages


def _extra_out(extra: Extra) -> tuple[str, dict[str, Any]]:
    """An extra as JSON-ready data; bytes as a list of numbers."""
    fields = asdict(extra)
    return type(extra).__name__, {
        name: list(value) if isinstance(value, bytes) else value for name, value in fields.items()
    }


def _extra_in(kind: str, fields: dict[str, Any]) -> Extra:
    """The extra that `_extra_out` wrote."""
    read = {n: bytes(value) if isinstance(value, list) else value for n, value in fields.items()}
    return _KINDS[kind](**read)
