"""The laws between the pool, the prefix index and the page tables, checked as equations."""

from collections.abc import Collection

import numpy as np

from octavo.errors import IntegrityError
from octavo.pages import PagePool
from octavo.planning import Plan
from octavo.prefix import PrefixIndex
from octavo.sequences import Sequence
from octavo.table import PageTables


def check_cache(
    pool: PagePool,
    index: PrefixIndex,
    tables: PageTables,
    sequences: Collection[Sequence],
    plan: Plan,
) -> None:
    """Raise IntegrityError at the first equation that does not hold. O(pages + sequences)."""
    pool.check()
    index.check()
    _check_holders(pool, tables, sequences)
    _check_published(pool, index)
    for sequence in sequences:
        _check_lengths(sequence, int(tables.held[sequence._row]), plan)


def _check_holders(pool: PagePool, tables: PageTables, sequences: Collection[Sequence]) -> None:
    holders = np.zeros(pool.num_pages, np.int64)
    for sequence in sequences:
        np.add.at(holders, tables.row(sequence._row), 1)
    wrong = np.flatnonzero(holders != pool.refs)
    if wrong.size:
        page = int(wrong[0])
        left, right = int(holders[page]), int(pool.refs[page])
        raise IntegrityError(f"table entries of page {page} == its holders", left, right)


def _check_published(pool: PagePool, index: PrefixIndex) -> None:
    known = np.zeros(pool.num_pages, np.bool_)
    known[list(index.pages())] = True
    wrong = np.flatnonzero(known != pool.published)
    if wrong.size:
        page = int(wrong[0])
        left, right = bool(known[page]), bool(pool.published[page])
        raise IntegrityError(f"page {page} is in the index == it is published", left, right)


def _check_lengths(sequence: Sequence, held: int, plan: Plan) -> None:
    published = sequence._published * plan.page_size
    computed, known = sequence.computed, sequence.length
    if not published <= computed <= min(sequence.scheduled, known):
        right = (computed, sequence.scheduled, known)
        raise IntegrityError("published <= computed <= scheduled, known", published, right)
    if known > sequence.limit:
        raise IntegrityError("known <= limit", known, sequence.limit)
    if held != plan.pages(sequence.scheduled):
        raise IntegrityError(f"pages of {sequence!r}", held, plan.pages(sequence.scheduled))
