"""Bad input: a typed error that is the natural builtin too, with its facts; nothing changes."""

import numpy as np
import pytest

from octavo import (
    Attention,
    Cache,
    CapacityError,
    DuplicateSequence,
    IdentityError,
    LengthError,
    NeverFits,
    OutOfPages,
    Plan,
    Salt,
    StaleSequence,
    State,
    StepError,
    TokenError,
    UnknownSequence,
)
from octavo.testing import freeze

PAGE = 4
PROMPTS = [list(range(9)), [7] * 9, [8] * 5]


class Busy:
    """A cache in the middle of its work: shared, private, idle and evictable pages.

    ``a`` and ``b`` share two published pages, ``stale`` was released and left one to evict,
    ``c`` has an open step when ``open_step`` is true.
    """

    def __init__(self, *, open_step=False):
        self.cache = Cache(Plan.from_pages(12, PAGE), max_sequences=4, max_length=40)
        self.stale = self.cache.admit([8] * 4, id="stale")
        self.run(self.stale)
        self.cache.release(self.stale)
        self.a = self.cache.admit(range(9), limit=12, id="a")
        self.run(self.a)
        self.b = self.cache.admit(range(9), id="b")
        self.run(self.b)
        self.c = self.cache.admit([7] * 6, id="c")
        self.foreign = Cache(Plan.from_pages(12, PAGE)).admit([1], id="foreign")
        self.step = self.cache.extend(self.c, 6) if open_step else None

    def run(self, row):
        """Compute all that is known and learn a token."""
        self.cache.commit(self.cache.extend(row, row.length - row.computed), [0])

    def seen(self):
        """Everything inside."""
        return freeze(self.cache)


def refused(busy, verb, kind):
    """The error ``verb`` raises; the cache must be as before, and in order."""
    before = busy.seen()
    with pytest.raises(kind) as caught:
        verb(busy.cache)

    assert kind is caught.type
    assert before == busy.seen()
    busy.cache.check()
    return caught.value


TOKENS = [
    ([], LengthError, ValueError, {"name": "len(tokens)", "value": 0, "low": 1, "high": None}),
    ([1, -1], TokenError, ValueError, {"index": 1, "value": -1}),
    ([1, 2**31], TokenError, ValueError, {"index": 1, "value": 2**31}),
    ([2**70], TokenError, ValueError, {"index": 0, "value": 2**70}),
    ([1, 2, 1.0], TokenError, ValueError, {"index": 2, "value": 1.0}),
    ([True], TokenError, ValueError, {"index": 0, "value": True}),
    ([None], TokenError, ValueError, {"index": 0, "value": None}),
    (["1"], TokenError, ValueError, {"index": 0, "value": "1"}),
    ("12", TokenError, ValueError, {"index": 0, "value": "12"}),
    (b"12", TokenError, ValueError, {"index": 0, "value": b"12"}),
    ([[1, 2]], TokenError, ValueError, {"index": 0, "value": [1, 2]}),
    (np.array([1, -5]), TokenError, ValueError, {"index": 1, "value": -5}),
    (np.array([1.0, 2.0]), TokenError, ValueError, {"index": 0, "value": 1.0}),
    (np.array([[1, 2]]), TokenError, ValueError, {"index": 0, "value": [1, 2]}),
    (np.array([2**63], np.uint64), TokenError, ValueError, {"index": 0, "value": 2**63}),
    (np.array([True]), TokenError, ValueError, {"index": 0, "value": True}),
    (np.array([], np.int32), LengthError, ValueError, {"name": "len(tokens)", "value": 0}),
]


@pytest.mark.parametrize(("tokens", "kind", "builtin", "fields"), TOKENS, ids=repr)
@pytest.mark.parametrize("verb", ["admit", "peek", "fits"])
def test_prompts_are_checked(verb, tokens, kind, builtin, fields):
    """admit, peek and fits refuse the same prompts with the same error."""
    calls = {
        "admit": lambda cache: cache.admit(tokens),
        "peek": lambda cache: cache.peek(tokens),
        "fits": lambda cache: cache.fits([(tokens, 8)]),
    }
    error = refused(Busy(), calls[verb], kind)

    assert isinstance(error, builtin)
    assert fields.items() <= vars(error).items()


@pytest.mark.parametrize("tokens", [None, 5, object()], ids=["None", "int", "object"])
def test_a_prompt_is_a_sequence_of_ids(tokens):
    """What cannot be a list of ids at all is a TokenError too, not a TypeError."""
    refused(Busy(), lambda cache: cache.admit(tokens), TokenError)


ADMIT = [
    ({"id": "a"}, DuplicateSequence, {"id": "a"}),
    ({"limit": 0}, LengthError, {"name": "limit", "value": 0, "low": 1}),
    ({"limit": -3}, LengthError, {"name": "limit", "value": -3}),
    ({"limit": 8.0}, LengthError, {"name": "limit", "value": 8.0}),
    ({"limit": True}, LengthError, {"name": "limit", "value": True}),
    ({"limit": 1}, CapacityError, {"name": "len(tokens)", "value": 2, "limit": 1}),
    ({"limit": 41}, CapacityError, {"name": "limit", "value": 41, "limit": 40}),
    ({"limit": 45}, NeverFits, {"need": 12, "total": 11, "short": {"full": 1}}),
    ({"tokens": [1] * 45}, NeverFits, {"need": 12, "total": 11}),
    ({"tokens": [1] * 41}, CapacityError, {"name": "len(tokens)", "value": 41, "limit": 40}),
    ({"limit": 40, "guarantee": True}, OutOfPages, {"need": 10, "free": 6, "evictable": 1}),
]


@pytest.mark.parametrize(("arguments", "kind", "fields"), ADMIT, ids=lambda part: str(part)[:40])
def test_admit_refuses(arguments, kind, fields):
    """Ids in use, limits out of range, prompts too long, guarantees that cannot be given."""
    arguments = {"tokens": [1, 2]} | arguments
    error = refused(Busy(), lambda cache: cache.admit(**arguments), kind)

    assert fields.items() <= vars(error).items()


def test_admit_refuses_more_sequences_than_planned():
    """max_sequences is a limit like any other, and a place is free again after a release."""
    busy = Busy()
    fourth = busy.cache.admit([1])
    with pytest.raises(CapacityError) as caught:
        busy.cache.admit([2])

    assert {"name": "sequences", "value": 5, "limit": 4} == vars(caught.value)
    assert "sequences is 5, at most 4 is possible: max_sequences" == str(caught.value)
    busy.cache.release(fourth)
    assert busy.cache.admit([2])


MESSAGES = [
    (lambda c: c.admit([]), "len(tokens) is 0; it must be an int of at least 1 (a prompt has"),
    (lambda c: c.admit([1], id="a"), "sequence 'a' is already admitted; release it first"),
    (lambda c: c.admit([1] * 45), "need 12 pages but the whole pool has 11: this can never fit"),
    (lambda c: c.admit([1], limit=41), "limit is 41, at most 40 is possible: max_length of the"),
    (lambda c: c.admit([-1]), "token 0 is -1; token ids are ints in 0..2147483647"),
    (lambda c: c.reset(), "3 sequences or pins hold pages; release them first"),
    (lambda c: c.release("x"), "sequence 'x' is not known to this cache"),
]


@pytest.mark.parametrize(("verb", "message"), MESSAGES, ids=[said[:40] for _, said in MESSAGES])
def test_messages_say_what_is_wrong_and_what_is_right(verb, message):
    """The text names the field, its value and the way out."""
    busy = Busy()
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the message is what is tested
        verb(busy.cache)

    assert message in str(caught.value)


HANDLES = {
    "release": lambda cache, row: cache.release(row),
    "truncate": lambda cache, row: cache.truncate(row, 0),
    "drop": lambda cache, row: cache.drop(row, 1),
    "extend": lambda cache, row: cache.extend([row], 1),
    "batch": lambda cache, row: cache.batch([row]),
    "need": lambda cache, row: cache.need([row], 1),
    "fits": lambda cache, row: cache.fits([(row, 8)]),
    "fork": lambda cache, row: cache.fork(row),
    "preempt": lambda cache, row: cache.preempt(row),
    "resume": lambda cache, row: cache.resume(row),
    "add": lambda cache, row: cache.batch().add(row),
}


@pytest.mark.parametrize("verb", HANDLES)
def test_released_handles_are_stale(verb):
    """A handle of a released sequence is refused by every verb, as a KeyError."""
    busy = Busy()
    error = refused(busy, lambda cache: HANDLES[verb](cache, busy.stale), StaleSequence)

    assert isinstance(error, KeyError)
    assert "sequence 'stale' has been released; its handle is stale" == str(error)


@pytest.mark.parametrize("verb", HANDLES)
def test_handles_of_another_cache_are_unknown(verb):
    """A sequence belongs to the cache that admitted it."""
    busy = Busy()
    error = refused(busy, lambda cache: HANDLES[verb](cache, busy.foreign), UnknownSequence)

    assert {"id": "foreign"} == vars(error)


@pytest.mark.parametrize("verb", ["release", "truncate", "drop", "extend", "batch", "need"])
@pytest.mark.parametrize("thing", ["a", 0, None, object()], ids=["id", "int", "None", "object"])
def test_other_things_are_unknown_sequences(verb, thing):
    """An id is no handle; neither is anything else."""
    refused(Busy(), lambda cache: HANDLES[verb](cache, thing), UnknownSequence)


def test_a_stale_handle_whose_row_is_used_again():
    """The row a handle once had belongs to somebody else now; the handle stays stale."""
    busy = Busy()
    heir = busy.cache.admit([1], id="stale")
    with pytest.raises(StaleSequence):
        busy.cache.release(busy.stale)

    assert not heir.released
    busy.cache.release(heir)


EXTEND = [
    ((0,), LengthError, {"name": "sum(counts)", "value": 0}),
    ((-1,), LengthError, {"name": "count", "value": -1, "low": 0}),
    ((1.0,), LengthError, {"name": "count", "value": 1.0}),
    (([1, 1],), LengthError, {"name": "len(counts)", "value": 2, "low": 1, "high": 1}),
    ((7,), LengthError, {"name": "count", "value": 7, "low": 0, "high": 6}),
    ((7, -1), LengthError, {"name": "ahead", "value": -1, "low": 0}),
    ((7, 0.5), LengthError, {"name": "ahead", "value": 0.5}),
    ((9, 2), LengthError, {"name": "count", "value": 9, "high": 8}),
    ((41,), CapacityError, {"name": "length", "value": 41, "limit": 40}),
    ((34, 40), OutOfPages, {"need": 9, "free": 6, "evictable": 1, "short": {"full": 2}}),
]


@pytest.mark.parametrize(("arguments", "kind", "fields"), EXTEND, ids=lambda part: str(part)[:40])
def test_extend_refuses(arguments, kind, fields):
    """Counts that are none, beyond what is known, beyond the limit or beyond the pages."""
    busy = Busy()
    counts, ahead = (*arguments, 0)[:2]
    error = refused(busy, lambda cache: cache.extend(busy.c, counts, ahead=ahead), kind)

    assert fields.items() <= vars(error).items()


def test_extend_at_the_limit():
    """A sequence that knows all it may is refused with its limit, before anything is written."""
    busy = Busy()
    busy.run(busy.a)
    busy.run(busy.a)
    busy.cache.commit(busy.cache.extend(busy.a, 1))
    plain = refused(busy, lambda cache: cache.extend(busy.a, 1), CapacityError)
    ahead = refused(busy, lambda cache: cache.extend(busy.a, 1, ahead=4), CapacityError)

    assert {"name": "length", "value": 13, "limit": 12} == vars(plain) == vars(ahead)


def test_a_row_stands_in_a_step_once():
    """The same sequence twice is refused, whether in a list or beside itself."""
    busy = Busy()
    error = refused(
        busy, lambda cache: cache.extend([busy.c, busy.a, busy.c], 1), DuplicateSequence
    )

    assert "sequence 'c' stands in two rows" == str(error)


def test_a_released_row_of_a_batch():
    """A batch that still lists a released sequence cannot step."""
    busy = Busy()
    batch = busy.cache.batch([busy.a, busy.b])
    busy.cache.release(busy.a)
    with pytest.raises(StaleSequence):
        busy.cache.extend(batch, 1)

    batch.remove(busy.a)
    assert busy.cache.extend(batch, 1)


def test_out_of_pages_evicts_nothing():
    """Feasibility is computed before anything is evicted: every prefix is still found."""
    busy = Busy()
    refused(busy, lambda cache: cache.extend(busy.c, 34, ahead=40), OutOfPages)

    assert (8, 0, 4) == tuple(busy.cache.peek(tokens).tokens for tokens in PROMPTS)


WHILE_OPEN = [
    lambda b: lambda cache: cache.extend(b.a, 1),
    lambda b: lambda cache: cache.truncate(b.c, 3),
    lambda b: lambda cache: cache.drop(b.c, 1),
    lambda b: lambda cache: cache.reset(),
    lambda b: lambda cache: cache.commit(None),
    lambda b: lambda cache: cache.abort(None),
]


@pytest.mark.parametrize("verb", range(len(WHILE_OPEN)))
def test_an_open_step_forbids(verb):
    """A second extend, and going back in a sequence that is being computed."""
    busy = Busy(open_step=True)
    error = refused(busy, WHILE_OPEN[verb](busy), StepError)

    assert isinstance(error, RuntimeError)


def test_going_back_beside_an_open_step():
    """Sequences that are not in the open step may be truncated."""
    busy = Busy(open_step=True)
    busy.cache.truncate(busy.a, 9)

    assert 9 == busy.a.length


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("again", ["commit", "abort"])
def test_a_step_ends_once(end, again):
    """Committed or aborted, a step is closed."""
    busy = Busy(open_step=True)
    step, busy.step = busy.step, None
    getattr(busy.cache, end)(step)
    error = refused(busy, lambda cache: getattr(cache, again)(step), StepError)

    assert str(error).startswith("this step is not open")


def test_steps_of_another_cache():
    """A step is committed where it was made."""
    one, other = Busy(open_step=True), Busy(open_step=True)

    refused(one, lambda cache: cache.commit(other.step), StepError)


COMMIT = [
    ({"tokens": [-1]}, TokenError, {"index": 0, "value": -1}),
    ({"tokens": [1, 2]}, LengthError, {"name": "len(tokens)", "value": 2}),
    ({"tokens": [[1] * 35]}, CapacityError, {"name": "length", "value": 41, "limit": 40}),
    ({"kept": [7]}, LengthError, {"name": "kept", "value": 7, "high": 6}),
    ({"kept": [1, 1]}, LengthError, {"name": "len(kept)", "value": 2}),
]


@pytest.mark.parametrize(("arguments", "kind", "fields"), COMMIT, ids=lambda part: str(part)[:40])
def test_commit_refuses(arguments, kind, fields):
    """Malformed ids, ids beyond the limit, more positions kept than there are."""
    busy = Busy(open_step=True)
    error = refused(busy, lambda cache: cache.commit(busy.step, **arguments), kind)

    assert fields.items() <= vars(error).items()


@pytest.mark.parametrize("kept", [{}, {"kept": [3]}], ids=["all", "named"])
def test_kept_drafts_must_be_known(kept):
    """KV may not be kept for a position whose token the cache was not told."""
    busy = Busy()
    busy.step = busy.cache.extend(busy.b, 3, ahead=2)
    error = refused(busy, lambda cache: cache.commit(busy.step, [[1]], **kept), LengthError)

    assert {"name": "kept", "value": 3, "low": 0, "high": 2} == vars(error)
    assert "pass kept= to cut rejected drafts" in str(error)
    busy.cache.commit(busy.step, [[1, 2]])
    assert 12 == busy.b.computed


@pytest.mark.parametrize(("kept", "value"), [({}, 4), ({"kept": [3]}, 3)], ids=["all", "named"])
def test_kept_drafts_are_what_is_learned(kept, value):
    """KV of a draft may not be kept where the row learns another token."""
    busy = Busy()
    busy.step = busy.cache.extend(busy.b, 4, ahead=3)
    busy.step.input_ids[busy.step.unknown.at] = [5, 6, 7]
    told = [[5, 8, 7]]
    error = refused(busy, lambda cache: cache.commit(busy.step, told, **kept), LengthError)

    assert {"name": "kept", "value": value, "low": 0, "high": 2} == vars(error)
    assert "row 0, learns another token at position 11 than 6, with which it was" in str(error)
    busy.cache.commit(busy.step, told, kept=[2])
    assert (11, 13) == (busy.b.computed, busy.b.length)


def test_a_token_of_the_step_before_is_what_was_learned():
    """A step that ran ahead with a guess is not kept where the step before it learns otherwise."""
    cache = Cache(Plan.from_pages(12, PAGE), depth=2)
    row = cache.admit([1, 2, 3])
    first = cache.extend(row, 3)
    step = cache.extend(row, 1, ahead=1)
    step.input_ids[step.unknown.at] = [9]
    cache.commit(first, [4])

    with pytest.raises(LengthError, match="another token at position 3 than 9"):
        cache.commit(step, [5])
    cache.commit(step, [[]], kept=[0])
    assert (3, 4) == (row.computed, row.length)


def test_drafts_the_step_does_not_name_are_not_compared():
    """An engine may keep its drafts elsewhere: an id of 0 is none that was written."""
    cache = Cache(Plan.from_pages(12, PAGE))
    row = cache.admit([1, 2, 3])
    cache.commit(cache.extend(row, 5, ahead=2), [[4, 5, 6]])

    assert (5, 6) == (row.computed, row.length)


TRUNCATE = [
    (-1, {"name": "length", "value": -1, "low": 0, "high": 10}),
    (11, {"name": "length", "value": 11, "low": 0, "high": 10}),
    (2.0, {"name": "length", "value": 2.0}),
    (True, {"name": "length", "value": True}),
    (None, {"name": "length", "value": None}),
]


@pytest.mark.parametrize(("length", "fields"), TRUNCATE)
def test_truncate_refuses(length, fields):
    """Lengths below 0, above what is known, or no ints: two verbs, and no sign tricks."""
    busy = Busy()
    error = refused(busy, lambda cache: cache.truncate(busy.a, length), LengthError)

    assert fields.items() <= vars(error).items()


@pytest.mark.parametrize("length", [7, 4, 0])
def test_exclusive_truncate_refuses_to_touch_what_others_may_read(length):
    """Below a shared or published page it raises, and says down to where it would go."""
    busy = Busy()
    error = refused(busy, lambda cache: cache.truncate(busy.a, length, exclusive=True), LengthError)

    assert {"name": "length", "value": length, "low": 8, "high": 10} == vars(error)
    assert 8 == busy.cache.truncate(busy.a, 8, exclusive=True)


@pytest.mark.parametrize("count", [-1, 1.5, None, True])
def test_drop_refuses(count):
    """A count is an int of at least 0."""
    busy = Busy()
    error = refused(busy, lambda cache: cache.drop(busy.a, count), LengthError)

    assert ("count", count, 0) == (error.name, error.value, error.low)


@pytest.mark.parametrize("limit", [0, -1, 2.5, None])
def test_fits_refuses(limit):
    """A limit is an int of at least 1."""
    busy = Busy()
    error = refused(busy, lambda cache: cache.fits([(busy.a, limit)]), LengthError)

    assert ("limit", limit) == (error.name, error.value)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"max_sequences": 0}, "max_sequences"),
        ({"max_sequences": 2.0}, "max_sequences"),
        ({"max_length": 0}, "max_length"),
        ({"max_length": "9"}, "max_length"),
    ],
)
def test_caches_with_impossible_sizes_are_refused(arguments, name):
    """Sizes are ints of at least 1, and no sequence is longer than the pool."""
    with pytest.raises(LengthError) as caught:
        Cache(Plan.from_pages(12, PAGE), **arguments)

    assert (name, arguments[name]) == (caught.value.name, caught.value.value)


# -- groups, depth, extras -------------------------------------------------------------------------


def deep(depth=2, **options):
    """A cache with several steps open at once."""
    return Cache(Plan.from_pages(20, PAGE), depth=depth, **options)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_more_steps_than_planned(depth):
    """As many as ``depth`` may be open, the next is refused."""
    cache = deep(depth)
    row = cache.admit([1] * 4)
    steps = [cache.extend(row, 4)]
    steps += [cache.extend(row, 1, ahead=n) for n in range(1, depth)]
    before = freeze(cache)
    with pytest.raises(StepError, match=rf"^{depth} step(s are| is) open"):
        cache.extend(row, 1, ahead=depth)

    assert before == freeze(cache)
    assert depth == len(steps)


def test_what_a_later_step_needs_is_not_cut():
    """kept below the count while a later step of the sequence is open."""
    cache = deep()
    row, other = cache.admit([1] * 4), cache.admit([2])
    one = cache.extend([row, other], [4, 1])
    two = cache.extend(row, 1, ahead=1)
    before = freeze(cache)
    with pytest.raises(StepError, match="a later step"):
        cache.commit(one, [3, 4], kept=[3, 1])

    assert before == freeze(cache)
    cache.commit(one, [3, 4], kept=[4, 0])
    cache.commit(two, [5])
    assert (6, 2) == (row.length, other.length)


def test_a_decode_step_at_the_limit():
    """A batch whose row may learn no more: it wants no token, and cannot make a further step."""
    cache = deep(1)
    row, other = cache.admit([1] * 3, limit=5), cache.admit([2] * 3)
    cache.commit(cache.extend([row, other], 3), [4, 4])
    batch = cache.batch([row, other])
    cache.commit(cache.extend(batch), [5, 5])
    step = cache.extend(batch)
    before = freeze(cache)
    with pytest.raises(CapacityError) as caught:
        cache.commit(step, [[6], [6]])
    assert {"name": "length", "value": 6, "limit": 5} == vars(caught.value)
    assert before == freeze(cache)
    assert [False, True] == step.wants_token.tolist()
    cache.commit(step, [6, 6])
    with pytest.raises(CapacityError):
        cache.extend(batch)
    batch.remove(row)
    cache.commit(cache.extend(batch), [7])
    assert [2, 2, 2, 4, 5, 6, 7] == other.tokens().tolist()


@pytest.mark.parametrize("batched", [True, False])
def test_steps_ahead_of_the_limit(batched):
    """With steps open, a row that will reach its limit sits out of what it could not learn from."""
    cache = deep(3)
    rows = [cache.admit([1] * 3, limit=5), cache.admit([2] * 3, limit=9)]
    cache.commit(cache.extend(rows, 3), [4, 4])
    stepped = cache.batch(rows) if batched else rows
    steps = [cache.extend(stepped, 1, ahead=3) for _ in range(3)]

    assert [[True, True], [False, True], [False, True]] == [s.wants_token.tolist() for s in steps]
    assert [1, 1, 0] == [int(step.counts[0]) for step in steps]
    for step in steps:
        cache.commit(step, [5, 5])
    assert [(5, 5), (7, 6)] == [(row.length, row.computed) for row in rows]
    cache.check()


@pytest.mark.parametrize("tokens", [[-1, 0], [2**31, 0], [0.5, 0], np.array([0, -3])], ids=repr)
def test_bad_ids_in_a_decode_step(tokens):
    """TokenError before anything is changed; the step can be committed then."""
    cache = deep(1)
    rows = [cache.admit([n] * 3) for n in range(2)]
    cache.commit(cache.extend(rows, 3), [4, 4])
    step = cache.extend(cache.batch(rows))
    before = freeze(cache)
    with pytest.raises(TokenError):
        cache.commit(step, tokens)

    assert before == freeze(cache)
    cache.commit(step, [5, 6])


@pytest.mark.parametrize("extra", [["x"], [Salt("a"), Salt("b")], 3, [None]], ids=repr)
@pytest.mark.parametrize("verb", ["admit", "peek", "pin", "explain_match"])
def test_bad_extras(verb, extra):
    """Every verb that takes a prompt refuses them alike, as a ValueError."""
    busy = Busy()
    error = refused(busy, lambda cache: getattr(cache, verb)([1] * 9, extra=extra), IdentityError)

    assert isinstance(error, ValueError)
    assert "extra" == error.name


def test_a_pin_is_released_once():
    """And keeps its pages until then, whoever needs room."""
    busy = Busy()
    pin = busy.cache.pin([8] * 5)
    assert 4 == pin.tokens
    refused(busy, lambda cache: cache.extend(busy.c, 28, ahead=40), OutOfPages)
    refused(busy, lambda cache: cache.reset(), StepError)
    pin.release()
    refused(busy, lambda cache: pin.release(), StepError)


def test_a_pin_that_would_break_a_promise():
    """Holding idle pages takes them from what is guaranteed."""
    cache = deep(1)
    row = cache.admit([1] * 9)
    cache.commit(cache.extend(row, 9))
    cache.release(row)
    kept = cache.admit([2], limit=19 * PAGE, guarantee=True)
    before = freeze(cache)
    with pytest.raises(OutOfPages):
        cache.pin([1] * 9)

    assert before == freeze(cache)
    assert 8 == cache.peek([1] * 9).tokens
    assert kept.limit == 19 * PAGE


def test_a_guarantee_outlives_a_shared_prefix():
    """A hit that would take what is promised to another is cut to what is left."""
    cache = deep(1)
    row = cache.admit([1] * 17)
    cache.commit(cache.extend(row, 17))
    cache.release(row)
    kept = cache.admit([2], limit=17 * PAGE, guarantee=True)
    other = cache.admit([1] * 17)

    assert 2 * PAGE == other.cached
    cache.check()
    cache.abort(cache.extend(kept, 17 * PAGE, ahead=17 * PAGE))


@pytest.mark.parametrize(
    "arguments",
    [
        {"rollback": -1},
        {"rollback": 1.0},
        {"depth": 0},
        {"depth": True},
        {"snapshot_bytes": -5},
    ],
    ids=repr,
)
def test_caches_with_impossible_options_are_refused(arguments):
    """A LengthError names the option."""
    with pytest.raises(LengthError) as caught:
        Cache(Plan.from_pages(12, PAGE), **arguments)

    ((name, value),) = arguments.items()
    assert (name, value) == (caught.value.name, caught.value.value)


def test_a_request_that_can_never_fit_is_refused_at_once():
    """By group, with what it needs and what there is; nothing is queued or evicted."""
    groups = {"full": Attention(1, 1, 1), "state": State(1)}
    cache = Cache(Plan.from_pages(5, PAGE, groups, parts={"state": 3}))
    before = freeze(cache)
    with pytest.raises(NeverFits) as caught:
        cache.admit([1] * 9)

    assert (6, 4) == (caught.value.need, caught.value.total)
    assert isinstance(caught.value, MemoryError)
    assert before == freeze(cache)
    assert cache.admit([1] * 4)
