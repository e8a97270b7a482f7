"""Storage: planned bytes, strided views, writes by slot."""

import numpy as np
import pytest
import torch

import octavo
from octavo.planner import sizes
from octavo.storage import Storage

SPEC = octavo.ModelSpec(
    "mixed", (octavo.Attention(2, 8, 8), octavo.Attention(1, 4, 6), octavo.Attention(3, 5, 7)), 64
)


def storage(order="token", dtype="fp32", page_size=4):
    """A storage of a few pages with layers of different shapes."""
    return Storage(octavo.plan(SPEC, 20_000, page_size=page_size, dtype=dtype, order=order))


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("order", ["token", "head"])
def test_allocates_what_is_planned(order, dtype):
    """The arena has exactly the planned bytes, all zero, in views of the planned shapes."""
    store = storage(order, dtype)

    assert sizes.arena_bytes(store.plan) == store.nbytes
    assert not store.arena.any()
    for tensor in store.plan.tensors:
        view = getattr(store.layer(tensor.layer), tensor.component)
        assert tensor.shape == tuple(view.shape)
        assert tensor.page_stride == view.stride(0) * view.element_size()
        assert tensor.offset == view.data_ptr() - store.arena.data_ptr()
        assert store.dtype == view.dtype


def test_views_do_not_overlap():
    """Filling each view with its own number leaves every other one as it was."""
    store = storage("head")
    views = [view for layer in range(3) for view in store.layer(layer)[:2]]
    for number, view in enumerate(views, start=1):
        view.fill_(number)

    assert [1, 2, 3, 4, 5, 6] == [view.unique().item() for view in views]


@pytest.mark.parametrize("order", ["token", "head"])
@pytest.mark.parametrize("prepared", [False, True])
def test_write_by_slot(order, prepared):
    """A token's key and value land at page and offset of its slot; -1 is skipped, the rest kept."""
    store, slots = storage(order), np.array([9, -1, 4, 23], np.int32)
    for layer, kind in enumerate(SPEC.layers):
        key = torch.rand(4, kind.kv_heads, kind.k_dim)
        value = torch.rand(4, kind.kv_heads, kind.v_dim)
        store.write(layer, key, value, store.index(slots) if prepared else slots)
        for new, view in zip((key, value), store.layer(layer)[:2], strict=True):
            by_token = view if order == "token" else view.transpose(1, 2)
            expected = torch.zeros_like(by_token)
            for row, slot in enumerate(slots):
                if slot >= 0:
                    expected[slot // 4, slot % 4] = new[row]

            assert torch.equal(expected, by_token)


@pytest.mark.parametrize("slot", [0, 3, -2, 10**6])
def test_refuses_slots_outside(slot):
    """Slots of the null page, beyond the pool or below -1 are refused, nothing is written."""
    store = storage()
    key, value = torch.ones(2, 2, 8), torch.ones(2, 2, 8)

    with pytest.raises(octavo.LengthError, match=f"slot is {slot}"):
        store.write(0, key, value, np.array([5, slot], np.int32))
    assert not store.arena.any()


def new(tokens=2, heads=2, dim=8, dtype=torch.float32):
    """Ones to be written, by default such as layer 0 takes."""
    return torch.ones(tokens, heads, dim, dtype=dtype)


@pytest.mark.parametrize("order", ["token", "head"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (new(tokens=1), "axis 0 of {} is 1"),
        (new(tokens=3), "axis 0 of {} is 3"),
        (new(heads=1), "axis 1 of {} is 1"),
        (new(dim=1), "axis 2 of {} is 1"),
        (new()[0], "axes of {} is 2"),
        (new(dtype=torch.float64), "dtype of {} is 'torch.float64'; the plan's is torch.float32"),
        (new().numpy(), "dtype of {} is 'float32'"),
        (None, "dtype of {} is 'NoneType'"),
    ],
)
@pytest.mark.parametrize("name", ["key", "value"])
def test_refuses_keys_and_values_that_do_not_fit(order, wrong, message, name):
    """What would be broadcast or cast is refused by name, before anything is written."""
    store = storage(order)
    both = {"key": new(), "value": new()} | {name: wrong}

    with pytest.raises(octavo.OctavoError, match=message.format(name)):
        store.write(0, both["key"], both["value"], np.array([5, 6], np.int32))
    assert not store.arena.any()


@pytest.mark.parametrize(
    "slots", [[5, 6], np.array([5.0, 6.0]), np.array([True, True]), np.array([[5, 6]]), None]
)
def test_refuses_slots_that_are_no_array_of_ints(slots):
    """Slots are a NumPy array of ints with one axis."""
    store = storage()
    with pytest.raises(octavo.OctavoError, match="slots is"):
        store.write(0, new(), new(), slots)
    assert not store.arena.any()


@pytest.mark.parametrize("layer", [True, 1.0, "0", None, [0], -1])
def test_refuses_layers_that_are_no_index(layer):
    """A layer is an int of the plan's range."""
    with pytest.raises(octavo.LengthError, match="layer is"):
        storage().layer(layer)


def test_refuses_unknown_layer():
    """A layer the plan does not have is named, with those it has."""
    with pytest.raises(octavo.LengthError, match="layer is 3; .* at most 2"):
        storage().layer(3)


def test_refuses_plan_without_bytes():
    """A plan of page numbers only has nothing to allocate."""
    for plan in (octavo.Plan.from_pages(8, 4), None):
        with pytest.raises(octavo.PlanError, match="octavo.plan"):
            Storage(plan)
