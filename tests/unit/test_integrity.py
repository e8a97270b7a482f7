"""What `Cache.check` sees: every equation it states can fail."""

import pytest

from octavo import Attention, Cache, IntegrityError, Plan, State

GROUPS = {"full": Attention(1, 1, 1), "w": Attention(1, 1, 1, window=5), "state": State(1)}
PACKED = {"full": 3, "w": 2, "state": 2}


def filled(per_parent=None):
    """A cache with a kept prompt and a sequence that has slid on; and its core."""
    cache = Cache(Plan.from_pages(60, 4, GROUPS, pages_per_parent=per_parent), max_sequences=3)
    for tokens in ([1] * 9, [2] * 17):
        row = cache.admit(tokens)
        while row.computed < row.length:
            stop = min(row.next_stop or row.length, row.length)
            cache.commit(cache.extend(row, stop - row.computed))
        if tokens[0] == 1:
            cache.release(row)
    cache.check()
    return cache, row


def page_of(row, group=0, column=0):
    """A page the sequence holds."""
    return row.core.groups[group].entry(row.row, column)


def put(numbers, at, more):
    """Change one number."""
    numbers[at] += more


DAMAGES = {
    "a holder more": lambda core, row: put(core.pool.spaces[0].holders, page_of(row), 1),
    "a page that nobody has": lambda core, row: put(core.pool.spaces[0].holders, 40, 1),
    "the null page is held": lambda core, row: put(core.pool.spaces[0].holders, 0, 1),
    "a live page less": lambda core, row: put(core.pool.live, page_of(row) - 1, -1),
    "live pages of a space": lambda core, row: setattr(core.pool.spaces[0], "live", 1),
    "a vacant page more": lambda core, row: put(core.pool.vacant, page_of(row) - 1, 1),
    "a parent is given away": lambda core, row: put(core.pool.owner, page_of(row) - 1, -1),
    "a free parent is lost": lambda core, row: setattr(core.pool, "touched", 50),
    "quiet parents": lambda core, row: put(core.pool.quiet.waiting, 1, 1),
    "a lane is empty": lambda core, row: put(core.pool.quiet.after, core.pool.parents + 1, 1),
    "a user of a node more": lambda core, row: put(core.index.users, core.tip[row.row], 1),
    "one more is coming": lambda core, row: put(core.index.coming, core.tip[row.row], 1),
    "a node is lost": lambda core, row: setattr(core.index, "count", 1),
    "a page of no node": lambda core, row: put(core.pool.spaces[0].node, page_of(row), 1),
    "a node of no page": lambda core, row: put(core.index.held, 3 * core.tip[row.row], 1),
    "a bundle is lost": lambda core, row: core.index.bundles[2].popitem(),
    "a bundle is not idle": lambda core, row: core.index.idle[2].update({99: None}),
    "bundles are miscounted": lambda core, row: setattr(core.index, "bundled", 9),
    "a sequence stands elsewhere": lambda core, row: put(core.tip, row.row, -1),
    "an entry is lost": lambda core, row: put(
        core.groups[0].table.data, core.groups[0].table.begin[row.row], -1
    ),
    "computed beyond scheduled": lambda core, row: put(core.computed, row.row, 5),
    "scheduled beyond computed": lambda core, row: put(core.scheduled, row.row, -1),
    "known beyond the limit": lambda core, row: put(core.limit, row.row, -10_000),
    "a column of a window": lambda core, row: put(core.groups[1].first, row.row, 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_seen(damage):
    """Any number that is not what the others say."""
    cache, row = filled()
    DAMAGES[damage](row.core, row)
    with pytest.raises(IntegrityError):
        cache.check()


PACKED_DAMAGES = {
    "a live page more": lambda core, row: put(core.pool.live, (page_of(row) - 1) // 3, 1),
    "evictable pages beside": lambda core, row: setattr(core.pool.spaces[0].beside, "count", 9),
    "parents with live pages": lambda core, row: setattr(core.pool.spaces[1], "mixed", 9),
    "the fullest parent": lambda core, row: setattr(core.pool.spaces[0], "fullest", 3),
}


@pytest.mark.parametrize("damage", PACKED_DAMAGES)
def test_a_damaged_packed_cache_is_seen(damage):
    """The same of parents."""
    cache, row = filled(PACKED)
    PACKED_DAMAGES[damage](row.core, row)
    with pytest.raises(IntegrityError):
        cache.check()


def test_the_equation_is_named():
    """With both sides."""
    cache, row = filled()
    row.core.pool.spaces[0].holders[0] = 1
    with pytest.raises(IntegrityError) as caught:
        cache.check()

    assert {"equation": "holders of the null page == 0", "left": 1, "right": 0} == vars(
        caught.value
    )
    assert "holders of the null page == 0: 1 != 0" == str(caught.value)
