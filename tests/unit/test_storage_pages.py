"""Whole pages: copied with all sources read first, zeroed, and mirrored in host memory."""

import numpy as np
import pytest
import torch

import octavo
from octavo import Attention, Copies, Latent, ModelSpec, OctavoError, State, StepError
from octavo.storage import HostMirror, Storage, copy_pages

HYBRID = ModelSpec(
    "h", (*[State((16, 64), (6, 3))] * 4, *[Attention(2, 32, 32)] * 2, Attention(2, 32, 32, 6)), 64
)
LATENT = ModelSpec("l", (Latent(160, 16, 136), Latent(160, 16)), 64)


def made(spec=HYBRID, layout=None, **options):
    """A storage whose every byte is random."""
    plan = octavo.plan(spec, 3_000_000, page_size=4, dtype="fp32", layout=layout, **options)
    store = Storage(plan)
    store.arena.random_(0, 255, generator=torch.Generator().manual_seed(0))
    return store


def pages_of(store, group):
    """By component, the content of every page of a group, as bytes."""
    return {
        (t.layer, t.component): (
            t.part,
            store.tensor(t.layer, t.component).flatten(1).view(torch.uint8).clone(),
        )
        for t in store.plan.tensors
        if t.group == group
    }


def copies(source, target):
    """Copies from a list of pages to another."""
    return Copies(np.array(source, np.int32), np.array(target, np.int32))


@pytest.mark.parametrize("layout", ["component", "slab", "packed"])
def test_apply_reads_all_sources_first(layout):
    """A page that is source and target, in any group, hands on what it held before."""
    store = made(layout=layout)
    names = list(store.plan.groups)
    before = {name: pages_of(store, name) for name in names}
    arena = store.arena.clone()
    size = store.plan.groups["state"].parts if store.plan.packed else 1
    unit = np.arange(size)
    first, second, third = (1 + size * k + unit for k in range(3))
    other = {name: copies([40, 41, 42], [41, 42, 43]) for name in names if name != "state"}
    if not store.plan.packed:  # one id space: pages of the groups are different ones
        other = {
            n: copies([p, p + 1, p + 2], [p + 1, p + 2, p + 3])
            for n, p in zip(other, (20, 30), strict=True)
        }
    moves = other | {"state": copies([*first, *second], [*second, *third])}
    store.apply(moves)
    for name, move in moves.items():
        now = pages_of(store, name)
        for place, (part, held) in before[name].items():
            mine = (move.source - 1) % size == part if name == "state" else slice(None)
            for source, target in zip(move.source[mine], move.target[mine], strict=True):
                assert torch.equal(held[source], now[place][1][target])

    store.apply({name: copies([], []) for name in names})
    assert not torch.equal(arena, store.arena)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_copies_run_over_arrays_of_ones_own(kind):
    """Pages that change places, in every array of every group; a group left out: nothing is."""
    arrays = {name: [np.arange(12.0).reshape(6, 2), np.arange(6)] for name in ("full", "state")}
    moves = {"full": copies([1, 2, 3], [2, 1, 4]), "state": copies([5], [1])}
    if kind == "torch":
        arrays = {name: list(map(torch.from_numpy, each)) for name, each in arrays.items()}
        moves = {n: Copies(*(torch.tensor(p).long() for p in move)) for n, move in moves.items()}
    with pytest.raises(KeyError):
        copy_pages(moves, {"full": arrays["full"]})
    assert arrays["full"][1].tolist() == [0, 1, 2, 3, 4, 5]

    copy_pages(moves, arrays)
    assert arrays["full"][1].tolist() == [0, 2, 1, 3, 3, 5]
    assert arrays["full"][0][:, 0].tolist() == [0, 4, 2, 6, 6, 10]
    assert arrays["state"][1].tolist() == [0, 5, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ([1, 2], [4, 4], r"target of full at \[1\] is 4; it stands at \[0\] too"),
        ([1, 6], [4, 3], "source of full is 6; it must be an int of at least 0 and at most 5"),
        ([1, -1], [4, 3], "source of full is -1"),
        ([1, 2], [4, 6], "target of full is 6"),
        ([1, 2], [4, -1], "target of full is -1"),
        ([1, 2], [4, 0], "target of full is 0; .*the null page is never written"),
        ([1, 2], [4], "targets of full is 1; it must be 2"),
        ([[1, 2]], [[4, 3]], "source of full is"),
        ([1.0, 2.0], [4, 3], "source of full is"),
    ],
)
def test_copies_that_cannot_be_run(source, target, message, kind):
    """A page twice, a page that is not there and the null page are refused; nothing is written."""
    arrays = [np.arange(7), np.arange(6)]
    pages = np.array(source), np.array(target)
    if kind == "torch":
        arrays, pages = list(map(torch.from_numpy, arrays)), tuple(map(torch.from_numpy, pages))
    with pytest.raises(OctavoError, match=message):
        copy_pages({"full": Copies(*pages)}, {"full": arrays})
    assert [[*range(7)], [*range(6)]] == [array.tolist() for array in arrays]


def test_copies_of_two_groups_into_one_array():
    """Groups that share an array share its pages: two copies to one of them are refused."""
    ours, theirs = np.arange(6), np.arange(6)
    moves = {"full": copies([1], [4]), "window": copies([2], [4])}
    with pytest.raises(octavo.PlanError, match="target of full and window at"):
        copy_pages(moves, {"full": [theirs, ours], "window": [ours]})
    assert [0, 1, 2, 3, 4, 5] == ours.tolist() == theirs.tolist()

    copy_pages(moves, {"full": [theirs], "window": [ours]})
    assert [[1, 4], [4, 2]] == [[theirs[4], 4], [4, ours[4]]]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_fresh_pages_are_zeroed_between_reading_and_writing(kind):
    """A fresh page that is copied from hands on what it held, one that is copied to keeps it."""
    array, fresh = np.arange(1, 8), np.array([2, 3, 5, 5])
    moves, null = copies([2, 4], [3, 6]), np.array([3, 0])
    if kind == "torch":
        array, fresh, null = (torch.from_numpy(each) for each in (array, fresh, null))
        moves = Copies(*(torch.from_numpy(each).long() for each in moves))
    with pytest.raises(octavo.LengthError, match="fresh page of full is 0"):
        copy_pages({"full": moves}, {"full": [array]}, {"full": null})
    with pytest.raises(octavo.UnknownGroup, match="no group 'other'"):
        copy_pages({"full": moves}, {"full": [array]}, {"other": fresh})
    assert [1, 2, 3, 4, 5, 6, 7] == array.tolist()

    copy_pages({"full": moves}, {"full": [array]}, {"full": fresh})
    assert [1, 2, 0, 3, 5, 0, 5] == array.tolist()


@pytest.mark.parametrize("layout", ["component", "packed"])
def test_a_storage_zeroes_before_it_copies(layout):
    """Whatever a step says is fresh, what is copied stays, and what is copied from was read."""
    store = made(layout=layout)
    before = store.read_pages("full", np.array([1, 2, 3, 4, 5]))
    fresh = {"full": np.array([1, 2, 4], np.int32)}
    store.apply({"full": copies([1, 3], [2, 5])}, fresh)
    now = store.read_pages("full", np.array([1, 2, 3, 4, 5]))

    assert [False, True, True, False, True] == now.bool().any(1).tolist()
    assert torch.equal(before[[0, 2, 2]], now[[1, 2, 4]])


def test_what_was_fresh_and_copied_in_a_step():
    """A fork's first write: its copy stands although all that the step has taken is zeroed."""
    plan = octavo.plan(ModelSpec("f", (Attention(1, 4, 4),), 64), 10_000, page_size=4, dtype="fp32")
    cache, store = octavo.Cache(plan), Storage(plan)
    row = cache.admit([1, 2, 3, 4, 5, 6])
    cache.commit(cache.extend(row, 6), [7])
    store.arena.fill_(1)
    (twin,) = cache.fork(row)
    step = cache.extend([row, twin], 1)
    (target,) = step.copies["full"].target.tolist()
    store.apply(step.copies, step.fresh)

    assert store.read_pages("full", np.array([target])).bool().all()


def test_apply_touches_nothing_else():
    """All bytes but the target's own stay."""
    store = made(LATENT, "slab")
    before = store.arena.clone()
    store.apply({"full": copies([3], [7])})
    changed = (store.arena != before).nonzero().flatten()
    strides = {t.page_stride for t in store.plan.tensors}

    assert changed.numel()
    assert changed.numel() <= store.page_bytes("full")
    assert all(stride > 0 for stride in strides)
    store.write_pages("full", np.array([7]), store.read_pages("full", np.array([8])))
    store.write_pages("full", np.array([3]), store.read_pages("full", np.array([3])))


@pytest.mark.parametrize("layout", ["component", "slab", "packed"])
def test_zero(layout):
    """Fresh pages become zeros, other pages stay."""
    store = made(layout=layout)
    before = pages_of(store, "full")
    store.zero({"full": np.array([5, 9], np.int32)})
    for place, (_, now) in pages_of(store, "full").items():
        assert [5, 9] == (now.sum(1) == 0).nonzero().flatten().tolist()
        kept = [page for page in range(len(now)) if page not in (5, 9)]
        assert torch.equal(before[place][1][kept], now[kept])


@pytest.mark.parametrize("layout", ["component", "slab", "packed"])
@pytest.mark.parametrize("group", ["full", "state", "window_6"])
def test_mirror(group, layout):
    """Pages copied out and back in, to other pages, are the same; the host keeps them."""
    store = made(layout=layout)
    mirror = HostMirror(store, {group: 3})
    assert 3 * store.page_bytes(group) == mirror.nbytes
    assert mirror.pinned == torch.cuda.is_available()
    pages, places = np.array([4, 2, 7]), np.array([1, 2, 0])
    before = store.read_pages(group, pages)
    mirror.offload(group, pages, places)
    store.zero({group: pages})
    mirror.restore(group, places[::-1].copy(), np.array([2, 9, 10]))

    assert torch.equal(before[[2, 1, 0]], store.read_pages(group, np.array([2, 9, 10])))
    assert not store.read_pages(group, np.array([4])).any()


def test_mirror_refusals():
    """Places that do not exist, hold nothing or are too many are refused, and nothing is moved."""
    store = made()
    before, mirror = store.arena.clone(), HostMirror(store, {"full": 2})
    mirror.offload("full", np.array([1]), np.array([0]))
    for call, error, message in [
        (lambda: HostMirror(store, {"other": 1}), octavo.UnknownGroup, "no group 'other'"),
        (lambda: HostMirror(store, {"full": 0}), octavo.LengthError, "places is 0"),
        (lambda: mirror.offload("full", np.array([1]), np.array([2])), OctavoError, "place is 2"),
        (lambda: mirror.offload("state", np.array([1]), np.array([0])), OctavoError, "'state'"),
        (lambda: mirror.offload("full", np.array([10**6]), np.array([1])), OctavoError, "page is"),
        (lambda: mirror.offload("full", np.array([1, 2]), np.array([1])), OctavoError, "number of"),
        (lambda: mirror.offload("full", np.array([1]), np.array([0.5])), OctavoError, "places is"),
        (lambda: mirror.offload("full", np.array([1]), np.array([[0]])), OctavoError, "places is"),
        (
            lambda: mirror.offload("full", np.array([1, 2]), [0, 0]),
            OctavoError,
            r"place of full at \[1\] is 0; it stands at \[0\] too",
        ),
        (lambda: mirror.restore("full", [0, 0], np.array([3, 3])), OctavoError, "page of full at"),
        (lambda: mirror.restore("full", np.array([1]), np.array([2])), StepError, "holds no page"),
        (lambda: mirror.restore("full", np.array([0]), np.array([0])), OctavoError, "null page"),
    ]:
        with pytest.raises(error, match=message):
            call()
    assert torch.equal(before, store.arena)
    mirror.restore("full", np.array([0]), np.array([9]))  # what was first put there is there
    assert torch.equal(*(store.read_pages("full", np.array([page])) for page in (1, 9)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.apply({"full": copies([1], [0])}), "null page"),
        (lambda s: s.apply({"full": copies([1], [2]), "state": copies([1], [10**6])}), "page is"),
        (lambda s: s.apply({"full": copies([1, 2], [3])}), "targets is 1"),
        (lambda s: s.apply({"other": copies([1], [2])}), "no group 'other'"),
        (lambda s: s.apply({"full": copies([1, 2], [3, 3])}), "page of full at .* is 3"),
        (lambda s: s.apply({"full": copies([1], [3])}, {"full": np.array([0])}), "null page"),
        (lambda s: s.apply({"full": copies([1], [3])}, {"other": np.array([1])}), "no group"),
        (lambda s: s.apply({n: copies([1], [1]) for n in ("full", "state")}), "in the bytes of"),
        (
            lambda s: s.write_pages(
                "full", np.array([4, 4]), s.read_pages("full", np.array([1, 2]))
            ),
            "page of full at .* is 4",
        ),
        (
            lambda s: s.write(4, *[torch.ones(3, 2, 32)] * 2, np.array([9, 5, 9])),
            r"slot at \[2\] is 9; it stands at \[0\] too",
        ),
        (
            lambda s: s.write(4, *[torch.ones(3, 2, 32)] * 2, np.array([-1, 5, 5])),
            "slot at .* is 5",
        ),
        (
            lambda s: s.write_states(0, "conv", torch.ones(2, 6, 3), np.array([[1, 2], [3, 2]])),
            "page of state at .* is 2",
        ),
        (lambda s: s.zero({"full": np.array([3, 0])}), "null page"),
        (lambda s: s.zero({"full": np.array([3]), "state": np.array([-1])}), "page is -1"),
        (lambda s: s.zero({"full": [3]}), "pages is"),
        (
            lambda s: s.write_pages("full", np.array([0]), s.read_pages("full", np.array([1]))),
            "null",
        ),
        (lambda s: s.write_pages("full", np.array([3]), torch.zeros(1, 3)), "dtype of content"),
        (lambda s: s.write_pages("full", np.array([3]), torch.zeros(2, 3).byte()), "shape of"),
        (
            lambda s: s.write_pages("full", np.array([3]), torch.zeros(1).byte().to("meta")),
            "device",
        ),
    ],
)
def test_refusals(call, message):
    """Pages that do not exist, and the null page, are refused before anything is written."""
    store = made()
    before = store.arena.clone()
    with pytest.raises(OctavoError, match=message):
        call(store)
    assert torch.equal(before, store.arena)
