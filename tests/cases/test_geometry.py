"""Flat memory plans, value by value, in the layout each is stated for; and what they refuse.

Source: sizing rules and values of tokenspeed's flat memory plan, in our own words.
"""

import pytest

import octavo
from octavo import Attention, BudgetTooSmall, LengthError, ModelSpec, PlanError
from octavo.planner.geometry import Geometry, Part, Row, fit_geometry, plan_components, plan_slab

KIB, MIB, GIB = 2**10, 2**20, 2**30


def kv(size=1024, layer=0, group="full"):
    """A row of keys and values of so many bytes a slot."""
    return Row(group, layer, (Part("kv", slot_bytes=size),))


def state(conv, ssm, layer=0, group="state"):
    """A row of two constant parts."""
    return Row(group, layer, (Part("conv", 0, conv), Part("ssm", 0, ssm)))


@pytest.mark.parametrize(
    ("rows", "page_size", "alignment", "expected"),
    [
        ([kv(), state(40 * KIB, 60 * KIB)], 16, 4, Geometry(100, 102_400)),
        ([kv(), Row("state", 0, (Part("s", 0, 101 * KIB),))], 16, 16, Geometry(112, 114_688)),
        ([Row("full", 0, (Part("latent", 1152), Part("index", 132)))], 64, 1, Geometry(64, 82_176)),
        ([kv()], 16, 4, Geometry(16, 16_384)),
        ([kv(), state(1, 16_383)], 16, 4, Geometry(16, 16_384)),
        ([kv(), state(1, 16_384)], 16, 4, Geometry(20, 20_480)),
        ([kv(3), Row("state", 0, (Part("s", 0, 10**30),))], 1, 7, None),
    ],
)
def test_pages_cover_states(rows, page_size, alignment, expected):
    """The smallest page whose widest row covers the widest state, in whole alignments."""
    found = fit_geometry(rows, page_size, alignment)

    if expected is None:  # beyond what a float counts exactly
        expected = Geometry(-(-(10**30) // 21) * 7, 3 * (-(-(10**30) // 21) * 7))
    assert expected == found


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "rows is 0; a plan has at least one row"),
        ([state(1, 1)], "at least one row must hold bytes per slot"),
        ([kv(), kv()], "rows is 'full 0'; each group and layer has one row"),
        ([Row("full", 0, ())], "a row has at least one part"),
        ([Row("full", 0, (Part("k", 1), Part("k", 1)))], "each with its own name"),
        ([Row("full", 0, (Part("k", 1, 1),))], "k is (1, 1); a part has either bytes per slot"),
        ([Row("full", 0, (Part("k"),))], "k is (0, 0); a part has either bytes per slot"),
        ([Row("full", 0, (Part("k", 1), Part("s", 0, 1)))], "grows with the page or is constant"),
    ],
)
def test_malformed_rows_are_refused(rows, message):
    """No rows, states alone, duplicates, and parts that are neither one nor the other."""
    with pytest.raises(PlanError) as caught:
        fit_geometry(rows, 16)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("part", "page_size", "alignment", "name"),
    [
        (Part("k", -1), 16, 4, "k.slot_bytes"),
        (Part("k", 1.5), 16, 4, "k.slot_bytes"),
        (Part("s", 0, -5), 16, 4, "s.constant_bytes"),
        (Part("k", 1), 0, 4, "page_size"),
        (Part("k", 1), -16, 4, "page_size"),
        (Part("k", 1), 16, 0, "alignment"),
        (Part("k", 1), 16, 4.0, "alignment"),
    ],
)
def test_numbers_are_whole_and_not_negative(part, page_size, alignment, name):
    """Sizes and alignments are ints; nothing passes through a float."""
    with pytest.raises(LengthError) as caught:
        fit_geometry([Row("full", 0, (part,))], page_size, alignment)

    assert name == caught.value.name


def test_a_slab_of_attention_and_a_state():
    """Two attention layers and one state layer: two slots, the state beside the first layer."""
    rows = [kv(layer=0), kv(layer=1), state(40 * KIB, 60 * KIB, layer=2)]
    page_size, _ = fit_geometry(rows, 16, 4)
    plan = plan_slab(rows, page_size, 100 * MIB)

    assert (100, 307_200, 341) == (plan.page_size, plan.block_bytes, plan.num_blocks)
    assert [204_800, 102_400] == [tensor.row_bytes for tensor in plan.tensors]
    assert [0, 40_960] == rows[2].offsets(page_size)
    assert [0, 102_400] == [offset for _, offset in plan.tensors[0].rows]
    with pytest.raises(BudgetTooSmall) as caught:
        plan_slab(rows, page_size, 102_400)
    assert (2 * 307_200, 102_400) == (caught.value.need, caught.value.have)
    assert plan_slab(rows, page_size, caught.value.need).usable_blocks == 1


def test_sliding_layers_beside_full_ones():
    """24 + 24 layers of 1,024 bytes: a slab charges every page for both, a packed plan for one."""
    rows = [kv(layer=n) for n in range(24)] + [kv(layer=24 + n, group="w") for n in range(24)]
    full, sliding = Attention(1, 256, 256), Attention(1, 256, 256, window=1024)
    spec = ModelSpec("mixed", (full, sliding) * 24)

    assert fit_geometry(rows, 16, 4) == (16, 16_384)
    for made in (plan_slab(rows, 16, 10 * GIB), plan_components(rows, 16, 10 * GIB)):
        assert 13_653 == made.num_blocks
    for layout in ("slab", "component"):
        assert 13_653 == octavo.plan(spec, "10GiB", layout=layout).num_pages
    packed = octavo.plan(spec, "10GiB")
    assert ("packed", 27_306) == (packed.layout, packed.num_pages)
    assert {1} == {group.pages_per_parent for group in packed.groups.values()}


def test_a_hybrid_in_components():
    """[linear x 3, full] x 12: a tensor a part, and every block has room for every row."""
    rows = []
    for layer in range(48):
        full = layer % 4 == 3
        rows.append(kv(2048, layer) if full else state(848_256, 1_298_048, layer))
    plan = plan_components(rows, 1088, 10 * GIB)

    assert 84 == len(plan.tensors)
    assert 10 * GIB // (12 * 1088 * 2048 + 36 * 2_146_304) == plan.num_blocks
    assert 12 * 1088 * 2048 + 36 * 2_146_304 == plan.block_bytes
    assert 1056 == fit_geometry(rows, 16, 16).page_size  # 1088 was rounded up to 64 on top of it


@pytest.mark.parametrize("make", [plan_components, plan_slab])
def test_reserved_bytes_of_a_draft(make):
    """What a draft takes is taken off every block."""
    rows = [kv(100, layer) for layer in range(2)]

    assert 12 == make(rows, 4, 10_000).num_blocks
    assert 11 == make(rows, 4, 10_000).usable_blocks
    assert 6 == make(rows, 4, 10_000, reserved=800).num_blocks
    with pytest.raises(BudgetTooSmall):
        make(rows[:1], 4, 500)
    for budget, reserved, page_size in ((-1, 0, 4), (10_000, -1, 4), (10_000, 0, 0)):
        with pytest.raises(LengthError):
            make(rows, page_size, budget, reserved=reserved)
    with pytest.raises(PlanError, match="at least one row"):
        make([], 4, 500)
