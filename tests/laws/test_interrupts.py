"""An interrupt at any line of any verb: no page is lent twice, and a forced reset begins anew."""

import sys
from pathlib import Path

import pytest

import octavo
from octavo import (
    Attention,
    Cache,
    Cross,
    CrossInput,
    IntegrityError,
    OctavoError,
    State,
    UnknownSequence,
)
from octavo.cache.inspection import is_own
from octavo.testing import ModelStore, Shape, Text

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

SOURCE = str(Path(octavo.__file__).parent)
FULL, WINDOW = Attention(1, 1, 1), Attention(1, 1, 1, window=3)
SHAPES = [
    Shape("plain", {"full": FULL}, 14, 2),
    Shape("packed", {"full": FULL, "window": WINDOW}, 9, 2, {"full": 2, "window": 3}),
    Shape(
        "states",
        {"full": FULL, "state": State(1)},
        26,
        2,
        parts={"state": 2},
        options={"policy": "slru", "depth": 2},
    ),
    Shape("cross", {"full": FULL, "cross": Cross(1, 1, 1)}, 22, 2),
]


class Scene:
    """A cache in the middle of its work: rows in a batch, a fork, a pin, what others have left."""

    def __init__(self, shape):
        self.shape, self.far = shape, 1 if "window" in shape.groups else 4
        self.cache = cache = Cache(
            shape.plan(), max_sequences=8, max_length=12, erase=True, **shape.options
        )
        self.extra = (CrossInput("sound", 3),) if "cross" in shape.groups else ()
        first = self.admit([1, 2, 3, 4, 5])
        self.run(first)
        cache.release(first)
        self.a, self.b = self.admit([1, 2, 3, 4, 6]), self.admit([7, 8, 9])
        self.batch = cache.batch([self.a, self.b])
        self.run(self.a)
        self.run(self.b)
        (self.c,) = cache.fork(self.b)
        self.d = self.admit([5, 6])
        self.run(self.d)
        cache.preempt(self.d)
        self.pin = cache.pin([1, 2, 3, 4, 9], self.extra)
        self.step = None

    def admit(self, tokens):
        """One more sequence."""
        return self.cache.admit(tokens, extra=self.extra)

    def run(self, row):
        """All it knows is computed."""
        while row.computed < row.length:
            stop = min(row.next_stop or row.length, row.length)
            self.cache.commit(self.cache.extend(row, stop - row.computed))

    def open(self):
        """A step of the batch and the fork is open."""
        for row in (self.a, self.b, self.c):
            self.cache.learn(row, [3, 4])
        self.step = self.cache.extend([self.a, self.b, self.c], 2)
        return self

    def learned(self):
        """All rows know more than is computed."""
        for row in (self.a, self.b, self.c):
            self.cache.learn(row, [3, 4])
        return self

    def decoded(self):
        """The step was committed."""
        self.open()
        self.cache.commit(self.step, [[5], [5], [5]])
        return self


def same(scene):
    """As it is."""
    return scene


def emptied(scene):
    """Nothing is admitted or pinned."""
    scene.pin.release()
    for row in (scene.a, scene.b, scene.c, scene.d):
        scene.cache.release(row)
    return scene


PREPARED = {
    "admit": (same, lambda s: s.admit([1, 2, 3, 4, 5, 6])),
    "guarantee": (same, lambda s: s.cache.admit([4, 3], limit=4, guarantee=True)),
    "peek": (same, lambda s: s.cache.peek([1, 2, 3, 4, 5], s.extra)),
    "explain": (same, lambda s: s.cache.explain_match([1, 2, 9], s.extra)),
    "fits": (same, lambda s: s.cache.fits([(s.a, 7), ([1, 2, 3], 4, s.extra)])),
    "check_limit": (same, lambda s: s.cache.check_limit(3, 4, s.extra)),
    "need": (Scene.learned, lambda s: s.cache.need(s.batch, 2)),
    "available": (same, lambda s: s.cache.available()),
    "held": (same, lambda s: s.cache.held(s.a)),
    "extend": (Scene.learned, lambda s: s.cache.extend([s.a, s.b, s.c], 2)),
    "extend a batch": (Scene.learned, lambda s: s.cache.extend(s.batch, 2)),
    "commit": (Scene.open, lambda s: s.cache.commit(s.step, [1, 2, 3])),
    "abort": (Scene.open, lambda s: s.cache.abort(s.step)),
    "release with a step open": (Scene.open, lambda s: s.cache.release(s.a)),
    "learn": (same, lambda s: s.cache.learn(s.a, [1, 2])),
    "keep": (same, lambda s: s.cache.keep(s.a, 8)),
    "truncate": (Scene.decoded, lambda s: s.cache.truncate(s.a, s.a.length - s.far)),
    "truncate a shared page": (Scene.decoded, lambda s: s.cache.truncate(s.b, s.b.length - s.far)),
    "slide": (Scene.decoded, lambda s: s.cache.slide(s.a, s.a.computed + 1)),
    "drop": (Scene.decoded, lambda s: s.cache.drop(s.c, s.far)),
    "fork": (same, lambda s: s.cache.fork(s.a, 2)),
    "preempt": (same, lambda s: s.cache.preempt(s.a)),
    "resume": (same, lambda s: s.cache.resume(s.d)),
    "pin": (same, lambda s: s.cache.pin([1, 2, 3, 4, 5], s.extra)),
    "unpin": (same, lambda s: s.pin.release()),
    "release": (same, lambda s: s.cache.release(s.b)),
    "batch": (same, lambda s: s.cache.batch([s.c])),
    "add": (same, lambda s: s.batch.add(s.c)),
    "remove": (same, lambda s: s.batch.remove(s.a)),
    "reset": (same, lambda s: s.cache.reset(force=True)),
    "forget": (emptied, lambda s: s.cache.reset()),
    "stats": (same, lambda s: s.cache.stats()),
    "vacated": (same, lambda s: s.cache.vacated()),
    "check": (same, lambda s: s.cache.check()),
}


class Interrupt:
    """A KeyboardInterrupt before the n-th line that octavo runs; 0: none.

    Attributes:
        lines: where each line stands that was run so far.
    """

    def __init__(self, number=0):
        self.number, self.lines = number, []

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.call)
        return self

    def __exit__(self, kind, error, trace):
        sys.settrace(self.before)
        return kind is KeyboardInterrupt

    def call(self, frame, _event, _arg):
        """Follow what is octavo's, but for what is collected meanwhile."""
        code = frame.f_code
        mine = code.co_filename.startswith(SOURCE) and code.co_name != "__del__"
        return self.line if mine else None

    def line(self, frame, event, _arg):
        """The number's turn may come."""
        if event == "line":
            self.lines.append((frame.f_code, frame.f_lineno))
            if len(self.lines) == self.number:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.line


def held_by(cache, handles, pins):
    """By (space, page), how many live handles and pins hold it; the pool knows as many holders."""
    core, found = cache._core, {}
    lists = [list(enumerate(pin.pages)) for pin in pins]
    for row in handles:
        if not row.released and not row.preempted:
            pages = [group.held(row.row, core.columns(group, row.row)) for group in core.groups]
            lists.append(list(enumerate(pages)))
    for number, pages in (pair for pairs in lists for pair in pairs):
        for page in map(int, pages):
            key = number if core.pool.packed else 0, page
            found[key] = found.get(key, 0) + 1
    for (number, page), count in found.items():
        space = core.pool.spaces[number]
        assert space.holders[page] >= count
        parent = (page - 1) // space.per_parent
        assert core.pool.owner[parent] == number + 1 or not core.pool.packed
    return found


def attempt(verb):
    """What a verb gives; None where it is refused."""
    try:
        return verb()
    except IntegrityError:
        raise
    except OctavoError:
        return None


def written(cache, step):
    """(space, page) of all pages of tokens that a step writes."""
    core, pages = cache._core, set()
    for group in core.groups:
        if group.keeps_tokens:
            slots = step.slots(core.names[group.number])
            number = group.number if core.pool.packed else 0
            pages |= {(number, int(slot) // core.size) for slot in slots}
    return pages


def go_on(scene):
    """Others come until pages run out, old rows go on: nobody writes what another holds."""
    cache, handles = scene.cache, [scene.a, scene.b, scene.c, scene.d]
    pins = [scene.pin] if scene.pin in cache._pins else []
    held_by(cache, handles, pins)
    for number in range(8):
        row = attempt(lambda: cache.admit([50 + number, 1, 2], limit=4))  # noqa: B023
        if row is None:
            break
        handles.append(row)
    for row in reversed(handles):
        step = attempt(lambda: cache.extend(row, 1, ahead=1))  # noqa: B023
        if step is None:
            continue
        held = held_by(cache, handles, pins)
        for number, page in written(cache, step):
            assert page > 0
            assert held[number, page] == cache._core.pool.spaces[number].holders[page] == 1
            assert cache._core.pool.spaces[number].node[page] == 0
        attempt(lambda: cache.commit(step, [[4]]))  # noqa: B023
    held_by(cache, handles, pins)
    return handles


def serve(cache, shape):
    """A few requests, each with what its tokens alone would have written."""
    store = ModelStore(shape, lambda group, page: is_own(cache, group, page))
    cross = CrossInput("sound", 3) if "cross" in shape.groups else None
    found = []
    for tokens in ([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 8, 9]):
        text = Text(tokens)
        row = cache.admit(tokens, cross=cross)
        found.append(row.cached)
        while row.computed < row.length:
            stop = min(row.next_stop or row.length, row.length)
            step = cache.extend(row, stop - row.computed)
            store.run(step, [text.contents[:stop]], [cross])
            cache.commit(step)
        cache.release(row)
    cache.check()
    assert "state" in shape.groups or [0, 4] == found


def places(shape):
    """(verb, n): what to interrupt, so that every line of every verb is.

    A line that verbs share is interrupted in one of them; one in a loop the first time, and where
    pages of parents are ordered the last time, too.
    """
    seen = set()
    for verb, (prepare, act) in PREPARED.items():
        scene = prepare(Scene(shape))
        with Interrupt() as whole:
            scene.result = act(scene)  # kept: what is collected calls octavo, too
        last = {line: number for number, line in enumerate(whole.lines, 1)}
        numbers = set()
        for number, line in enumerate(whole.lines, 1):
            if line not in seen:
                seen.add(line)
                numbers |= {number, last[line]} if shape.per_parent else {number}
        scene.cache.reset(force=True)
        yield from ((verb, number) for number in sorted(numbers))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_interrupt_lends_no_page_twice(shape):
    """Whatever line it comes at: others go on, and after a forced reset all is as new."""
    tried = 0
    for verb, number in places(shape):
        prepare, act = PREPARED[verb]
        scene = prepare(Scene(shape))
        with Interrupt(number) as interrupt:
            scene.result = act(scene)
        tried += len(interrupt.lines) == number
        check_scene(scene)
    assert tried > 500


def check_scene(scene):
    """What holds after any interrupt."""
    cache = scene.cache
    handles = go_on(scene)

    cache.reset(force=True)

    assert all(handle.released for handle in handles)
    assert 0 == cache.stats().live == cache.stats().sequences
    for stale in (lambda: cache.release(scene.a), lambda: scene.batch.add(scene.a)):
        with pytest.raises(UnknownSequence):
            stale()
    serve(cache, scene.shape)


def test_every_verb_is_interrupted():
    """No verb of a cache was left out here."""
    ran = set()
    for prepare, act in PREPARED.values():
        scene = prepare(Scene(SHAPES[0]))
        with Interrupt() as whole:
            scene.result = act(scene)
        ran |= {code.co_name for code, _ in whole.lines}
    verbs = {name for name, each in vars(Cache).items() if callable(each) and name[0] != "_"}

    assert set() == verbs - ran
