"""What a commit is told, in every form, through the cache."""

import numpy as np
import pytest

from octavo import Cache, LengthError, Plan, TokenError


class Twins:
    """Two rows with an open step: a chunk that wants no token, and a whole prompt that does."""

    def __init__(self):
        self.cache = Cache(Plan.from_pages(12, 4), max_sequences=4)
        self.a = self.cache.admit([1, 2, 3], limit=8)
        self.b = self.cache.admit([4, 5], limit=8)
        self.step = self.cache.extend([self.a, self.b], [2, 2])

    def commit(self, *arguments, **keywords):
        """Commit the step; the tokens both rows know then."""
        self.cache.commit(self.step, *arguments, **keywords)
        self.cache.check()
        return self.a.tokens().tolist(), self.b.tokens().tolist()


@pytest.fixture
def twins():
    """A fresh pair for each test."""
    return Twins()


@pytest.mark.parametrize(
    "tokens",
    [
        [-1, 6],
        [99, 6],
        [None, 6],
        (-1, 6),
        np.array([-1, 6]),
        np.array([0, 6], np.int64),
        [[], [6]],
        [np.array([], np.int32), np.array([6], np.int32)],
        ([6], [0, 1]),
        (np.array([6]), np.array([0, 1])),
    ],
    ids=repr,
)
def test_one_token_for_the_row_that_wants_it(twins, tokens):
    """All forms say the same; what stands where no token is wanted is ignored."""
    assert ([1, 2, 3], [4, 5, 6]) == twins.commit(tokens)


@pytest.mark.parametrize("tokens", [None, [[], []], ([], [0, 0])], ids=repr)
def test_nothing_learned(twins, tokens):
    """A commit need not bring tokens."""
    assert ([1, 2, 3], [4, 5]) == twins.commit(tokens)
    assert (2, 2) == (twins.a.computed, twins.b.computed)


@pytest.mark.parametrize("tokens", [[[7], [8, 9]], ([7, 8, 9], [1, 2])], ids=repr)
def test_several_tokens_a_row(twins, tokens):
    """Lists and (flat, counts) bring as many tokens as there are, wanted or not."""
    assert ([1, 2, 3, 7], [4, 5, 8, 9]) == twins.commit(tokens)


@pytest.mark.parametrize("kept", [[1, 0], (1, 0), np.array([1, 0]), iter([1, 0])])
def test_kept_cuts_what_is_computed(twins, kept):
    """Positions not kept lose their slots, and a page with none of them is given back."""
    twins.commit(kept=kept)

    assert (1, 0) == (twins.a.computed, twins.b.computed)
    assert (1, 0) == (twins.a.scheduled, twins.b.scheduled)
    assert 1 == twins.cache.stats().live


@pytest.mark.parametrize(
    ("tokens", "error", "fields"),
    [
        ([0, -1], TokenError, {"index": 1, "value": -1}),
        ([0, 2**31], TokenError, {"index": 1, "value": 2**31}),
        ([0, 1.5], TokenError, {"index": 1, "value": 1.5}),
        ([0, "6"], TokenError, {"index": 1, "value": "6"}),
        ([0, True], TokenError, {"index": 1, "value": True}),
        ([0, None], TokenError, {"index": 1, "value": None}),
        ([[], [2**31]], TokenError, {"index": 0, "value": 2**31}),
        (([-2], [0, 1]), TokenError, {"index": 0, "value": -2}),
        ([1, 2, 3], LengthError, {"name": "len(tokens)", "value": 3, "low": 2, "high": 2}),
        ([], LengthError, {"name": "len(tokens)", "value": 0, "low": 2, "high": 2}),
        (([6], [2]), LengthError, {"name": "sum(counts)", "value": 2, "low": 1, "high": 1}),
        (([6], [1, 1]), LengthError, {"name": "sum(counts)", "value": 2, "low": 1, "high": 1}),
        (([6], [2, -1]), LengthError, {"name": "count", "value": -1, "low": 0, "high": None}),
    ],
    ids=repr,
)
def test_malformed_tokens_change_nothing(twins, tokens, error, fields):
    """The error names the entry; the step stays open and can be committed then."""
    with pytest.raises(error) as caught:
        twins.commit(tokens)

    assert fields == vars(caught.value)
    assert ([1, 2, 3], [4, 5, 6]) == twins.commit([0, 6])


@pytest.mark.parametrize(
    "tokens", [6, 1.5, object(), np.array(6)], ids=["int", "float", "object", "array"]
)
def test_tokens_that_are_no_rows_at_all(twins, tokens):
    """One number for a whole step is refused like any other wrong number of rows."""
    with pytest.raises((LengthError, TokenError)):
        twins.commit(tokens)

    assert ([1, 2, 3], [4, 5, 6]) == twins.commit([0, 6])


@pytest.mark.parametrize(
    ("kept", "name", "value"),
    [
        ([3, 2], "kept", 3),
        ([2, -1], "kept", -1),
        ([2, 1.0], "kept", 1.0),
        ([2], "len(kept)", 1),
        ([2, 2, 2], "len(kept)", 3),
        (2, "kept", 2),
        (np.array(2), "kept", np.array(2)),
    ],
)
def test_malformed_kept_changes_nothing(twins, kept, name, value):
    """kept is one int a row, between 0 and the row's count."""
    with pytest.raises(LengthError) as caught:
        twins.commit(kept=kept)

    assert (name, value) == (caught.value.name, caught.value.value)
    assert ([1, 2, 3], [4, 5]) == twins.commit()


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint16])
def test_what_stands_where_no_token_is_wanted_is_ignored(twins, kind):
    """Even where it is no token id, in an array of any integer type."""
    ignored = 65_535 if kind is np.uint16 else -7

    assert ([1, 2, 3], [4, 5, 6]) == twins.commit(np.array([ignored, 6], kind))


def test_arrays_are_not_kept(twins):
    """What a caller does with its array afterwards changes nothing."""
    sampled = np.array([0, 6], np.int32)
    twins.commit(sampled)
    sampled[:] = 9

    assert [4, 5, 6] == twins.b.tokens().tolist()


def test_arrays_of_a_decode_step_are_not_kept(twins):
    """The same on the fast path."""
    twins.commit(np.array([0, 6], np.int32))
    batch = twins.cache.batch([twins.b])
    sampled = np.array([7], np.int32)
    twins.cache.commit(twins.cache.extend(batch), sampled)
    sampled[:] = 9

    assert [7] == twins.cache.extend(batch).input_ids.tolist()
    assert [4, 5, 6, 7] == twins.b.tokens().tolist()
