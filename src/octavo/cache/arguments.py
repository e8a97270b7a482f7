"""What verbs are given, read into the numbers the core takes, and checked.

Arrays and lists of plain ints are read as they stand; whatever else a caller may pass is looked at
entry by entry, which finds what is wrong.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.identity import NO_EXTRAS, CrossInput, Extra, Identity, read_extras
from octavo.cache.prompt import Prompt
from octavo.cache.step import Step
from octavo.checks import Ints, Tokens, check_int, check_tokens, entries_of, has_entries
from octavo.core.arena import view
from octavo.core.commits import Core
from octavo.core.rows import Refused
from octavo.errors import IdentityError, LengthError, TokenError, quote

Counts = int | Iterable[int] | NDArray[np.integer[Any]]
Learned = NDArray[np.integer[Any]] | Items[Any] | tuple[Items[int], Items[int]] | None
MOST = 2**31 - 1
Spread = tuple[int, Any]
"""Positions each row of a step gets: a number for all and None, or 0 and int32[rows] as numbers."""
News = tuple[Any, Any]
"""Token ids newly known, as numbers, and how many each row learns; None: one per row, ignored
where the step wants none, or none at all."""


class Given(NamedTuple):
    """A prompt as a verb is given it.

    Attributes:
        length: how many ids.
        identity: its extras.
        begin: where in the core's arena its ids are, where they belong to nobody yet.
        prompt: where it was read before; its ids are there, and ``begin`` is -1.
    """

    length: int
    identity: Identity
    begin: int
    prompt: Prompt | None = None

    def place(self, core: Core) -> int:
        """Where in the arena its ids are, until others are put there. O(length)."""
        if self.prompt is None:
            return self.begin
        return core.read(numbers(self.prompt._ids), self.length)


def read_prompt(
    core: Core,
    tokens: Tokens | Prompt,
    extra: Iterable[Extra] = (),
    cross: CrossInput | tuple[str | bytes, int] | None = None,
) -> Given:
    """A prompt's ids and extras. O(len(tokens)), of one that was read before O(1).

    Raises:
        TokenError: an entry is no token id. LengthError: there are none.
        IdentityError: extras or cross are malformed, or given beside a `Prompt`.
    """
    identity = read_extras(extra, cross)
    if isinstance(tokens, Prompt):
        if identity != NO_EXTRAS:
            right = "a Prompt has its own: give them when it is made"
            raise IdentityError("extra", identity.root + identity.media, right)
        return Given(len(tokens), tokens._identity, -1, tokens)
    given: Any = tokens
    if type(given) is np.ndarray and given.dtype == np.int32 and given.ndim == 1:
        given = numbers(given)
    elif type(given) is not list:
        given = numbers(check_tokens(given))
    length = len(given)
    if not length:
        raise LengthError("len(tokens)", 0, 1, None, "a prompt has at least one token")
    try:
        return Given(length, identity, core.read(given, length))
    except Refused:
        ids = check_tokens(tokens)  # names the entry, or takes what is like an int
        return Given(ids.size, identity, core.read(numbers(ids), ids.size))


def numbers(array: NDArray[Any]) -> Any:
    """The numbers of an int32 array, for the core. O(1), where it has to be copied O(n)."""
    flags = array.flags
    return view(array if flags.c_contiguous and flags.writeable else array.copy())


def read_counts(counts: Counts, rows: int) -> Spread:
    """New positions of each row of a step. O(rows).

    Raises:
        LengthError: a count is no int of at least 0, there are not ``rows``, or all are 0.
    """
    if type(counts) is int and 0 < counts <= MOST:
        return counts, None
    array = _int32(counts, rows)
    if array is None or not array.any():
        array = np.minimum(_check_counts(counts, rows), MOST).astype(np.int32)
    return 0, numbers(array)


def _check_counts(counts: Counts, rows: int) -> NDArray[Any]:
    """`read_counts` one by one."""
    if not isinstance(counts, Iterable):
        checked = [check_int("count", counts, 0, None, "new positions of each row")] * rows
    else:
        items = _entries("counts", counts, "an int, or a list of one per row")
        if len(items) != rows:
            raise LengthError("len(counts)", len(items), rows, rows, "one count per row")
        checked = [check_int("count", item, 0, None, f"row {at}") for at, item in enumerate(items)]
    if not any(checked):
        raise LengthError("sum(counts)", 0, 1, None, "at least one row must take part in a step")
    return np.array(checked, object)


def _entries(name: str, given: Any, right: str) -> list[Any]:
    """What a list or an array has, one by one."""
    plain = given.tolist() if isinstance(given, np.ndarray) else given
    return entries_of(plain, lambda: LengthError(name, given, None, None, f"it must be {right}"))


def _int32(items: Any, rows: int) -> NDArray[np.int32] | None:
    """``items`` as int32[rows], where they are so many plain ints of 0 or more; else None."""
    if type(items) is list:
        if len(items) != rows or set(map(type, items)) != {int}:
            return None
        if not 0 <= min(items) <= max(items) <= MOST:
            return None
        return np.array(items, np.int32)
    if type(items) is not np.ndarray or items.shape != (rows,) or items.dtype.kind not in "iu":
        return None
    if int(items.min()) < 0 or int(items.max()) > MOST:
        return None
    return items.astype(np.int32, copy=False)


def read_learned(core: Core, tokens: Learned, step: Step) -> News:
    """Token ids newly known, row by row. O(rows + tokens).

    Args:
        tokens: one id per row (ignored where ``step.wants_token`` is False); one array per row; or
            (flat ids, counts per row); each for all rows or for those of ``step.sample`` alone; or
            None: nothing is learned.

    Raises:
        TokenError: an entry is no token id.
        LengthError: not one entry for each of these rows, or the counts do not sum to the ids.
    """
    if tokens is None:
        return core.nothing, None
    if type(tokens) is np.ndarray and tokens.shape == (step.count,):
        if tokens.dtype == np.int32:
            return numbers(tokens), None
    elif type(tokens) is list and len(tokens) == step.count:
        with suppress(Refused):  # one entry per row, of another kind, or one that no row wants
            return core.listed(tokens), None
    elif type(tokens) is np.ndarray and tokens.dtype == np.int32 and _is_sample(tokens, step):
        each = np.zeros(step.count, np.int32)
        each[step.sample] = tokens
        return numbers(each), None
    elif isinstance(tokens, tuple) and len(tokens) == 2 and _are_lists(tokens):
        flat: Any = tokens[0]
        ids = check_tokens(flat, "the flat ids")
        return numbers(ids), numbers(_sizes(tokens[1], step, ids.size))
    return _read_each(tokens, step)


def _is_sample(ids: NDArray[Any], step: Step) -> bool:
    """Whether these are token ids for the rows that sample, one each."""
    return ids.shape == step.sample.shape and int(ids.min(initial=0)) >= 0


def _are_lists(pair: tuple[Any, Any]) -> bool:
    """Whether flat ids and counts were given, and not an id or an array of each of two rows."""
    return has_entries(pair[0]) and hasattr(pair[0], "__len__")


def _read_each(tokens: Any, step: Step) -> News:
    """`read_learned` one by one, which finds what is wrong."""
    items = _entries("tokens", tokens, "a list or array of one entry per row of the step")
    are_lists = all(map(has_entries, items))
    if len(items) != step.count:
        items = _by_row(items, step, [] if are_lists else 0)
    if are_lists:
        return _joined(items, step)
    wants = step.wants_token.tolist()
    wanted = [item if want else 0 for item, want in zip(items, wants, strict=True)]
    try:
        return numbers(check_tokens(wanted)), None
    except TokenError as error:
        at = error.index
        raise TokenError(at, wanted[at], where=name_row(step, at)) from error.__cause__


def _by_row(items: list[Any], step: Step, none: Any) -> list[Any]:
    """Entries of the rows that sample as one for every row of the step, ``none`` in the others."""
    sample, rows, found = step.sample.tolist(), step.count, len(items)
    if found == len(sample):
        each = [none] * rows
        for row, item in zip(sample, items, strict=True):
            each[row] = item
        return each
    right = "one entry per row of the step"
    if len(sample) < rows:
        right += f", or one for each of the {len(sample)} rows that sample"
    lacking = sample[found:] if found < len(sample) else [row for row in sample if row >= found]
    for row in lacking[:1]:
        right += f"; {name_row(step, row)}, lacks its id"
    raise LengthError("len(tokens)", found, rows, rows, right)


def _joined(items: list[Any], step: Step) -> News:
    """One entry per row, each some token ids."""
    if set(map(type, items)) == {list}:
        try:
            ids = check_tokens(list(chain.from_iterable(items)))
        except TokenError:
            for at, item in enumerate(items):  # says where in which row
                check_tokens(item, name_row(step, at))
            raise
    else:
        items = [check_tokens(item, name_row(step, at)) for at, item in enumerate(items)]
        ids = np.concatenate(items)
    return numbers(ids), numbers(np.array([len(item) for item in items], np.int32))


def _sizes(counts: Items[int], step: Step, ids: int) -> Ints:
    """``counts`` as int32[rows]; they sum to ``ids``."""
    sizes = _int32(counts, step.count)
    if sizes is None:
        items = _entries("counts of tokens", counts, "a list of how many ids each row learns")
        if len(items) != step.count:
            items = _by_row(items, step, 0)
        checked = [check_int("count", n, 0, None, f"row {at}") for at, n in enumerate(items)]
        sizes = np.minimum(np.array(checked, object), MOST).astype(np.int32)
    total = int(sizes.sum(dtype=np.int64))
    if total != ids:
        raise LengthError("sum(counts)", total, ids, ids, f"as many as there are ids: {ids}")
    return sizes


def name_row(step: Step, row: int) -> str:
    """The sequence of a row of a step, for messages. O(1)."""
    return f"sequence {quote(step.sequences[row].id)}, row {row}"


def read_kept(kept: Counts | None, step: Step) -> Any:
    """Positions of the step whose KV is kept, int32[rows] as numbers; None: all. O(rows).

    Raises:
        LengthError: not one entry per row, or an entry outside 0..count.
    """
    if kept is None:
        return None
    plain = _int32(kept, step.count)
    if plain is None or (plain > step.counts).any():
        plain = _each_kept(kept, step)
    return numbers(plain)


def _each_kept(kept: Any, step: Step) -> Ints:
    """`read_kept` one by one, which finds what is wrong."""
    items = _entries("kept", kept, "a list or array of one number per row of the step")
    counts = step.counts.tolist()
    if len(items) != len(counts):
        raise LengthError("len(kept)", len(items), len(counts), len(counts), "one entry per row")
    rows = enumerate(zip(items, counts, strict=True))
    checked = [check_int("kept", n, 0, most, name_row(step, at)) for at, (n, most) in rows]
    return np.array(checked, np.int32)
