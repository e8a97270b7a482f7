"""Storage of every kind of layer: what is written by slot or page is read back from there."""

import numpy as np
import pytest
import torch

import octavo
from octavo import Attention, Cross, Latent, LengthError, ModelSpec, PlanError, State, UnknownGroup
from octavo.attention.kernels.oracle import paged_attention
from octavo.index import LatentGeometry
from octavo.slots import slot_mapping
from octavo.storage import Storage

ATTENTION = ModelSpec("a", (Attention(2, 8, 6), Attention(1, 4, 4, window=6)), 64)
MIXED = ModelSpec("m", ((Attention(2, 8, 8), State((2, 3, 4), (6, 3))), State((2, 3, 4))), 64)
LATENT = ModelSpec("l", (Latent(160, 16, 136), Latent(160, 16)), 64)
ROW = np.array([3, 0, 5, 2], np.int32)
"""A row of a page table: a page that was given back, and pages out of order."""


def made(spec, device="cpu", **options):
    """A storage of some pages of 4 tokens."""
    options = {"page_size": 4, "dtype": "fp32", "memory": 600_000} | options
    return Storage(octavo.plan(spec, options.pop("memory"), **options), device)


@pytest.mark.parametrize("layout", ["component", "slab", "packed"])
@pytest.mark.parametrize("order", ["token", "head"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
def test_gather_reads_positions_in_order(dtype, order, layout):
    """The positions of a sequence come back dense, whatever pages and slots they lie in."""
    store = made(ATTENTION, dtype=dtype, order=order, layout=layout)
    for layer, kind in enumerate(ATTENTION.layers):
        group = list(store.plan.groups)[layer]
        key = torch.rand(11, kind.kv_heads, kind.k_dim).to(store.dtype)
        value = torch.rand(11, kind.kv_heads, kind.v_dim).to(store.dtype)
        slots = slot_mapping(np.array([3, 1, 5]), 4, 1, 12)
        store.write(layer, key, value, store.index(slots, group), group)
        for start, stop in [(1, 12), (5, 8), (7, 9), (12, 12)]:
            got = store.gather(layer, np.array([3, 1, 5]), start, stop)

            assert torch.equal(key[start - 1 : stop - 1], got[0])
            assert torch.equal(value[start - 1 : stop - 1], got[1])


def test_gather_of_a_null_page_reads_zeros():
    """Columns that a window has given back read as zeros; the rest is where it was."""
    store = made(ATTENTION)
    ones = torch.ones(4, 2, 8)
    store.write(0, ones, ones[..., :6], slot_mapping(ROW[2:], 4, 0, 4))
    key, value = store.gather(0, ROW)

    assert (16, 2, 8) == key.shape
    assert (16, 2, 6) == value.shape
    assert [8, 9, 10, 11] == key.sum((1, 2)).nonzero().flatten().tolist()


def test_layers_in_two_groups():
    """A layer's own keys and those of its cross attention are told apart by group."""
    spec = ModelSpec("c", ((Attention(2, 8, 8), Cross(4, 6, 6, 12)),), 64)
    store = made(spec)
    own, other = torch.rand(3, 2, 8), torch.rand(3, 4, 6)
    slots = np.array([5, 6, 7])
    store.write(0, own, own, slots)
    store.write(0, other, other, slots + 4, "cross")

    assert torch.equal(own, store.gather(0, np.array([1]), 1)[0])
    assert torch.equal(other, store.gather(0, np.array([2]), 1, group="cross")[1])
    assert (4, 6) == store.layer(0, "cross").key.shape[2:]


@pytest.mark.parametrize("order", ["token", "head"])
def test_draft_layers(order):
    """The draft model's layers have the same verbs and bytes of their own."""
    draft = ModelSpec("d", (Attention(1, 4, 4),), 64)
    store = made(ATTENTION, draft=draft, order=order)
    key = torch.rand(2, 1, 4)
    store.draft.write(0, key, key, np.array([4, 9]))

    assert torch.equal(key[1], store.draft.gather(0, np.array([2]), 1, 2)[0][0])
    assert not store.layer(0).key.any()
    with pytest.raises(LengthError, match="layer is 1"):
        store.draft.layer(1)


@pytest.mark.parametrize("layout", [None, "slab"])
def test_latent_rows(layout):
    """A latent row and an indexer's key land at their slots; the key is stored in fp8."""
    store = made(LATENT, layout=layout)
    latent, key = torch.rand(5, 176), torch.rand(5, 136) - 0.5
    slots = np.array([9, -1, 4, 23, 10])
    kept = torch.tensor([0, 2, 3, 4])
    store.write_latent(0, latent, slots)
    store.write_indexer(0, key, slots)
    at = [9 - 4, 4 - 4, 23 - 4, 10 - 4]
    pages = np.arange(1, 6)

    assert torch.equal(latent[kept], store.gather_latent(0, pages)[at])
    assert not store.gather_latent(1, pages).any()
    torch.testing.assert_close(key[kept], store.gather_indexer(0, pages)[at], rtol=2**-4, atol=2e-4)
    with pytest.raises(LengthError, match="no indexer"):
        store.write_indexer(1, key, slots)


def test_latent_elements_lie_where_the_geometry_says():
    """Pages next to each other: storage writes, and the oracle reads, `LatentGeometry.element`."""
    plan = octavo.plan(ModelSpec("mla", (Latent(24, 16),), 64), "64KiB", dtype="fp32")
    store, rows = Storage(plan), torch.rand(20, 40)
    cache = octavo.Cache(plan)
    step = cache.extend(cache.admit([1] * 20), 20)
    slots = step.group().slots
    store.write_latent(0, rows, slots)
    pages = store.tensor(0, "latent").numpy()
    flat = pages.reshape(-1)
    assert np.shares_memory(flat, pages)
    geometry = LatentGeometry(40, 16, 24, 24, plan.page_size).validate()
    alone = paged_attention(np.ones((20, 1, 40)), pages, None, step, v_dim=24, scale=1, window=1)
    for channel in range(40):
        found = flat[geometry.element(slots, channel)]
        assert np.array_equal(rows[:, channel].numpy(), found)
        assert channel >= 24 or np.array_equal(alone[:, 0, channel], found)


def test_quantised_latent_rows():
    """In fp8 each tile of a latent has a scale and the position part stays bf16."""
    store = made(LATENT, dtype="fp8")
    latent = torch.randn(3, 176) * torch.cat((torch.full((128,), 1e3), torch.full((48,), 1e-3)))
    store.write_latent(0, latent, np.array([4, 5, 6]))
    got = store.gather_latent(0, np.array([1]), 0, 3)

    assert torch.float32 == got.dtype
    assert torch.equal(latent[:, 160:].bfloat16().float(), got[:, 160:])
    torch.testing.assert_close(latent[:, :128], got[:, :128], rtol=2**-4, atol=0.1)
    torch.testing.assert_close(latent[:, 128:160], got[:, 128:160], rtol=2**-4, atol=1e-7)
    with pytest.raises(PlanError, match="latent is 'NaN or infinite'"):
        store.write_latent(0, latent * float("nan"), np.array([8, 9, 10]))
    assert not store.gather_latent(0, np.array([2])).any()


@pytest.mark.parametrize("layout", ["component", "packed"])
def test_states(layout):
    """States go to their pages, each layer to the column of its part, and come back from there."""
    spec = ModelSpec("s", (*[State((16, 64), (6, 3))] * 4, *[Attention(2, 32, 32)] * 2), 64)
    store = made(spec, layout=layout, memory=3_000_000)
    parts = store.plan.groups["state"].parts
    assert (parts > 1) == (layout == "packed")
    pages = np.arange(1, 1 + 3 * parts).reshape(3, parts)
    written = {}
    for layer in range(4):
        for name, shape, dtype in [("recurrent", (16, 64), torch.float32), ("conv", (6, 3), None)]:
            states = torch.rand(3, *shape).to(dtype or store.tensor(layer, name).dtype)
            written[layer, name] = states
            store.write_states(layer, name, states, store.page_index(pages, "state"))
    for (layer, name), states in written.items():
        assert torch.equal(states, store.read_states(layer, name, pages))

    got = store.read_states(0, "recurrent", pages[::-1].copy(), np.array([True, False, True]))
    assert torch.equal(written[0, "recurrent"][2], got[0])
    assert not got[1].any()


def test_verbs_on_the_meta_device():
    """Without memory the verbs still check, and give shapes."""
    store = made(LATENT, "meta", dtype="fp8")
    row = torch.empty(2, 176, device="meta")
    store.write_latent(0, row, np.array([4, 5]))
    quantised = made(ATTENTION, "meta", dtype="int8")
    key = torch.empty(2, 2, 8, device="meta")
    quantised.write(0, key, key[..., :6], np.array([4, 5]))

    assert (8, 176) == store.gather_latent(0, np.array([1, 2])).shape
    assert (8, 2, 6) == quantised.gather(0, np.array([1, 2]))[1].shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.write_states(0, "conv", torch.ones(1, 6, 3), np.array([[0]])), "null page"),
        (
            lambda s: s.write_states(0, "conv", torch.ones(1, 6, 3), np.array([[10**6]])),
            "page is 1000000",
        ),
        (lambda s: s.write_states(0, "conv", torch.ones(1, 6, 3), np.array([1])), "axes of pages"),
        (
            lambda s: s.write_states(0, "conv", torch.ones(2, 6, 3), np.array([[1]])),
            "axis 0 of conv",
        ),
        (
            lambda s: s.write_states(0, "conv", torch.ones(1, 3, 6), np.array([[1]])),
            "axis 1 of conv",
        ),
        (
            lambda s: s.write_states(0, "conv", torch.ones(6, 3), np.array([[1]])),
            "axes of conv is 2",
        ),
        (lambda s: s.write_states(0, "conv", torch.ones(1, 6, 3).half(), np.array([[1]])), "dtype"),
        (
            lambda s: s.write_states(1, "conv", torch.ones(1, 6, 3), np.array([[1]])),
            "it has no conv",
        ),
        (lambda s: s.write_latent(0, torch.ones(1, 8), np.array([5])), "it has no latent"),
        (lambda s: s.read_states(0, "conv", np.array([[-1]])), "page is -1"),
        (lambda s: s.gather(0, np.array([1.5])), "pages is"),
        (lambda s: s.gather(0, np.array([1]), 3, 2), "start is 3"),
        (lambda s: s.gather(0, np.array([1]), 0, 5), "stop is 5"),
        (lambda s: s.gather(1, np.array([1])), "layer is 1"),
        (lambda s: s.write(0, *[torch.ones(1, 2, 8, device="meta")] * 2, np.array([5])), "device"),
        (lambda s: s.index(np.array([5]), "cross"), "no group 'cross'"),
        (lambda s: s.set_scales(0, 1.0, 1.0), "scales is 'none'"),
    ],
)
def test_refusals(call, message):
    """What does not fit is refused by name, and nothing has been written."""
    store = made(MIXED)
    with pytest.raises((PlanError, LengthError, UnknownGroup), match=message):
        call(store)
    assert not store.arena.any()
