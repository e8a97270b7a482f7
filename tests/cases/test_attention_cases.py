"""Failures of other engines, by id, in what attention gives over a cache's pages."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import octavo
import octavo.attention.kernels.torch as torch_backend
from octavo import Attention, Cache, ModelSpec, Plan
from octavo.attention import backends
from octavo.attention.kernels.oracle import paged_attention, visible
from octavo.attention.stored import StoredPages, decode, encode
from octavo.errors import PlanError
from octavo.integrations.onnx.op.operands import Inputs
from octavo.integrations.onnx.op.operator import paged_attention_op, rotate
from octavo.storage import Storage
from octavo.testing import unowned_slots

HEADS, KV_HEADS, DIM = 4, 2, 16
RNG = np.random.default_rng(0)
QUERIES, KEYS, VALUES = (RNG.standard_normal((100, heads, DIM)) for heads in (4, 2, 2))
TURNS = np.arange(512)[:, None] / 1000 ** (np.arange(DIM // 2) / (DIM // 2))


def rotated(rows, positions):
    """Rows as they stand at their positions."""
    return rotate(rows, np.cos(TURNS[positions]), np.sin(TURNS[positions]))


class Layer:
    """A cache with the keys and values of one layer, poison in all slots that nobody owns.

    A token's query, key and value follow from its id and position.
    """

    def __init__(self, cache, page_size, **options):
        self.cache, self.options = cache, options
        self.pages = cache.plan.num_pages
        shape = (self.pages, page_size, KV_HEADS, DIM)
        self.keys, self.values = np.full(shape, np.nan), np.full(shape, np.nan)
        self.keys[0] = self.values[0] = 0
        self.page_size = page_size

    def run(self, sequences, counts=None):
        """One step in which the sequences compute ``counts`` tokens; their outputs, in order."""
        if counts is None:
            counts = [each.length - each.computed for each in sequences]
        step = self.cache.extend(sequences, counts)
        place = np.divmod(step.group().slots, self.page_size)
        self.keys[place] = rotated(KEYS[step.input_ids], step.positions)
        self.values[place] = VALUES[step.input_ids]
        query = rotated(QUERIES[step.input_ids], step.positions)
        out = paged_attention(query, self.keys, self.values, step, **self.options)
        self.cache.commit(step, np.ones(len(sequences), np.int32))
        return np.split(out, step.query_start[1:-1])

    def poison(self):
        """NaN into every unowned slot."""
        free, tails = unowned_slots(self.cache)
        for memory in (self.keys, self.values):
            memory[free] = np.nan
            for page, offset in tails:
                memory[page, offset:] = np.nan


def layer(usable, page_size, groups=None, **options):
    """A layer over ``usable`` pages."""
    cache = Cache(Plan.from_pages(usable + 1, page_size, groups))
    return Layer(cache, page_size, **options)


def alone(tokens, page_size=16, chunks=None, groups=None, **options):
    """Outputs of a prompt in a fresh cache, computed at once or in chunks."""
    one = layer(200, page_size, groups, **options)
    row = one.cache.admit(tokens, limit=len(tokens) + 1)
    return np.concatenate([one.run([row], [chunk])[0] for chunk in chunks or [len(tokens)]])


def test_c34_a_hit_gives_what_the_whole_prompt_gives():
    """The ninth token over eight cached ones: the same output as without a cache."""
    prompt = list(range(1, 10))
    shared = layer(8, 4)
    first = shared.cache.admit(prompt)
    shared.run([first])
    shared.cache.release(first)
    second = shared.cache.admit(prompt)
    (out,) = shared.run([second])

    assert 8 == second.cached
    assert np.abs(out[0] - alone(prompt)[8]).max() < 1e-6


def test_d09_after_another_is_as_alone():
    """A prompt of 9 and three decode steps in pages that another sequence filled before."""

    def told(used):
        row = used.cache.admit([5] * 9)
        return [used.run([row])[0] for _ in range(4)]

    used = layer(4, 4)
    other = used.cache.admit([7] * 11)
    used.run([other])
    used.cache.release(other)
    for one, two in zip(told(layer(4, 4)), told(used), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("page_size", [1, 4, 16, 32, 64, 128])
def test_d20_every_page_size_gives_the_same(page_size):
    """Lengths around multiples of every page size: the output does not know where pages end."""
    for length in (1, 3, 4, 5, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129):
        prompt = [token % 99 + 1 for token in range(length)]
        chunks = [length - 1, 1] if length > 1 else [1]
        expected, found = alone(prompt, 256), alone(prompt, page_size, chunks)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_e03_poison_in_unowned_slots():
    """A decode with NaN in every slot nobody owns is finite and equal to the clean run."""

    def decoded(poison):
        one = layer(20, 4)
        rows = [one.cache.admit([3] * length) for length in (5, 8, 11)]
        gone = one.cache.admit([9] * 7)
        one.run([*rows, gone])
        one.cache.truncate(rows[2], 9)
        one.cache.release(gone)
        one.keys, one.values = np.nan_to_num(one.keys), np.nan_to_num(one.values)
        if poison:
            one.poison()
            assert np.isnan(one.keys).any()
        return np.concatenate(one.run(rows[:2]))

    clean, poisoned = decoded(poison=False), decoded(poison=True)

    assert np.isfinite(poisoned).all()
    np.testing.assert_array_equal(clean, poisoned)


def test_e05_a_row_without_keys(pages):
    """Exactly 0 and lse -inf; the neighbour is what it is alone."""
    case = pages([(-1, 1), (6, 1)], 4, 2, 8, 8, "token", np.random.default_rng(1))
    query = np.random.default_rng(2).standard_normal((2, 4, 8))
    out, lse = paged_attention(query, case.keys, case.values, case.step, return_lse=True)
    row = case.step.group().table[1]
    at = np.arange(7)
    keys, values = (cache[row[at // 4], at % 4] for cache in (case.keys, case.values))
    scores = np.einsum("hd,khd->hk", query[1], keys.repeat(2, 1)) / np.sqrt(8)
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)

    assert not out[0].any()
    assert np.isneginf(lse[0]).all()
    np.testing.assert_allclose(out[1], np.einsum("hk,khd->hd", weights, values.repeat(2, 1)))


def test_e07_a_window_includes_the_token_itself():
    """W = 4 at position 10: keys 7 to 10; FlashAttention's left is 3; three pages of 2 to drop."""
    seen = visible(np.array([10]), np.arange(11), causal=True, window=4, sink_tokens=0)
    one = layer(20, 2, {"window_4": Attention(2, 16, 16, window=4)}, window=4)
    row = one.cache.admit([1] * 10)
    one.run([row])
    step = one.cache.extend(row, 1)

    window_left = 4 - 1  # FlashAttention counts the keys before the query's own
    assert [7, 8, 9, 10] == np.flatnonzero(seen[0]).tolist() == [*range(10 - window_left, 11)]
    assert 3 == np.count_nonzero(step.group().table[0] == 0) == (10 - 4 + 1) // 2


def test_e09_a_full_window_goes_on_in_chunks():
    """384 tokens, then chunks of 44, 32 and 1: each query as over its last 128 keys alone."""
    groups = {"window_128": Attention(KV_HEADS, DIM, DIM, window=128)}
    tokens = [token * 7 % 99 + 1 for token in range(384 + 44 + 32 + 1)]
    out = alone(tokens, 16, [384, 44, 32, 1], groups, window=128)
    for position in (384, 427, 428, 459, 460):
        suffix = tokens[position - 127 : position + 1]  # its positions start at 0 again
        assert np.abs(out[position] - alone(suffix)[-1]).max() < 1e-5


def test_e10_sinks_keep_their_positions():
    """Four sinks and eight recent tokens at length 20: keys 0..3 and 12..19 as they were cached."""
    groups = {"window_8_s4": Attention(KV_HEADS, DIM, DIM, window=8, sink_tokens=4)}
    tokens = list(range(1, 21))
    out = alone(tokens, 4, [7, 6, 6, 1], groups, window=8, sink_tokens=4)[-1]
    seen = np.array([0, 1, 2, 3, *range(12, 20)])
    keys = rotated(KEYS[1:21], np.arange(20))[seen].repeat(2, 1)
    query = rotated(QUERIES[20:21], np.array([19]))[0]
    weights = np.exp(np.einsum("hd,khd->hk", query, keys) / 4)
    weights /= weights.sum(axis=1, keepdims=True)

    np.testing.assert_allclose(
        out, np.einsum("hk,khd->hd", weights, VALUES[1:21][seen].repeat(2, 1))
    )


def test_e12_each_call_has_its_own_scale(pages):
    """1 / sqrt(128), then 3 / sqrt(128) in the same shapes, on every backend: both are right."""
    rng = np.random.default_rng(3)
    case = pages([(5, 2), (0, 9)], 4, 1, 128, 128, "token", rng)
    query = rng.standard_normal((11, 2, 128))
    for backend in backends():
        if "cpu" not in (backend.devices or "cpu") or "fp64" not in (backend.dtypes or "fp64"):
            continue
        for scale in (1 / np.sqrt(128), 3 / np.sqrt(128), 1 / np.sqrt(128)):
            arrays = query, case.keys, case.values
            if backend.name != "oracle":
                arrays = map(torch.from_numpy, arrays)
            found = backend.load().paged_attention(*arrays, case.step, scale=scale)
            bare = paged_attention(query * scale, case.keys, case.values, case.step, scale=1)
            np.testing.assert_allclose(np.asarray(found), bare, rtol=1e-9)


def test_e15_rotation_follows_the_step():
    """Five tokens at once and one by one rotate by their positions, which the step says."""
    tables = [f(TURNS) for f in (np.cos, np.sin)]
    table = np.array([[1]], np.int32)

    def run(counts):
        caches, outputs, past = [np.zeros((2, 16, KV_HEADS, DIM)) for _ in "kv"], [], 0
        for count in counts:
            new = [rows[past : past + count].reshape(count, -1) for rows in (QUERIES, KEYS, VALUES)]
            lengths = (np.array(ints, np.int32) for ints in ([0, count], [past]))
            inputs = Inputs(*new, *caches, *lengths, table, *tables)
            sizes = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1}
            for _ in range(2):  # a layer that shares the cache runs at the same positions
                found = paged_attention_op(*inputs, dtype=np.float64, **sizes).output
            outputs.append(found)
            past += count
        return np.concatenate(outputs)

    np.testing.assert_allclose(run([5]), run([1] * 5), rtol=1e-12)


def test_e16_fp8_scales(pages):
    """896 needs a scale of 2, as 1 clips it to 448; none is 1 with a warning, no number raises."""
    for scale, kept in ((2.0, 896), (1.0, 448)):
        assert kept == decode(encode(np.array([896.0]) / scale, "fp8"), "fp8", 1)[0] * scale

    case = pages([(3, 1)], 4, 1, 4, 4, "token", np.random.default_rng(4))
    stored = encode(np.nan_to_num(case.keys), "fp8")
    query = np.ones((1, 1, 4))
    call = {"kv_dtype": "fp8", "value_scale": 1.0}
    one = paged_attention(query, stored, stored, case.step, key_scale=1.0, **call)
    with pytest.warns(RuntimeWarning, match="key_scale is None: stored fp8 .* with scale 1"):
        assert one == pytest.approx(paged_attention(query, stored, stored, case.step, **call))
    for scale in (0, -1, float("nan"), float("inf")):
        with pytest.raises(PlanError, match="key_scale is"):
            paged_attention(query, stored, stored, case.step, key_scale=scale, **call)


def test_e16_scales_stay_as_they_are():
    """The one scale of a layer is given once: pages written with it are never read with another."""
    spec = ModelSpec("one", (Attention(1, 4, 4),), 64)
    store = Storage(octavo.plan(spec, "64KiB", dtype="fp8", scales="tensor"))
    numbers, slots = torch.full((3, 1, 4), 896.0), np.array([16, 17, 18])
    store.set_scales(0, 2.0, 2.0)
    store.write(0, numbers, numbers, slots)
    with pytest.raises(PlanError, match="this layer has its scales already"):
        store.set_scales(0, 1.0, 1.0)

    for found in store.gather(0, np.array([1]), 0, 3):
        assert torch.equal(numbers, found)


@pytest.mark.parametrize(("dim", "kind", "top"), [(96, "int4", 7), (80, "int8", 127)])
def test_e17_quantised_rows_of_every_length(dim, kind, top):
    """Round trips stay within half a step; keys, values and their scales lie apart."""
    plan = octavo.plan(ModelSpec("one", (Attention(2, dim, dim),)), "1MiB", dtype=kind)
    spans = []
    for tensor in plan.tensors:
        inside = tensor.dtype.size(int(np.prod(tensor.shape[1:])))
        starts = tensor.offset + tensor.page_stride * np.arange(1, tensor.shape[0])
        spans += [(start, inside) for start in starts.tolist()]
    spans.sort()
    assert {"key", "value", "key_scale", "value_scale"} == {t.component for t in plan.tensors}
    assert all(at + size <= after for (at, size), (after, _) in pairwise(spans))

    width, element = (dim // 2, np.uint8) if kind == "int4" else (dim, np.int8)
    stored = np.zeros((3, 16, 2, width), element)
    numbers = np.random.default_rng(dim).uniform(-1, 1, (32, 2, dim))
    scales = np.abs(numbers).max(axis=2).reshape(2, 16, 2) / top
    scales = np.concatenate((np.full((1, 16, 2), np.nan), scales))
    store = StoredPages("cache", stored, "token", dim, kind, scales)
    place = np.divmod(range(16, 48), 16)
    store.write(*place, numbers)
    assert (np.abs(store.read(*place) - numbers) <= scales[place][..., None] * 0.50001).all()


def test_e18_the_result_depends_on_the_tokens_there_are():
    """200 tokens in a pool of 32,768: equal to a pool just large enough, all else poison."""
    prompt = [token % 99 + 1 for token in range(200)]
    outputs = []
    for usable in (2048, 13):
        one = layer(usable, 16)
        outputs.append(one.run([one.cache.admit(prompt)])[0])

    np.testing.assert_array_equal(*outputs)


class Work(TorchDispatchMode):
    """Counts the elements that every operation writes; those that only give views write none."""

    def __init__(self):
        super().__init__()
        self.elements = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        results = made if isinstance(made, tuple) else (made,)
        for result, told in zip(results, func._schema.returns, strict=False):
            written = told.alias_info is None or told.alias_info.is_write
            if isinstance(result, torch.Tensor) and written:
                self.elements[str(func)] += result.numel()
        return made


@pytest.mark.parametrize("count", [1, 200])
def test_e18_the_work_depends_on_the_tokens_there_are(count):
    """200 tokens of 32,768: torch's operations write as much as in a pool just large enough."""
    works = []
    for usable in (2048, 13):
        cache = Cache(Plan.from_pages(usable + 1, 16))
        row = cache.admit([1] * 200)
        if count < 200:
            cache.commit(cache.extend(row, 200 - count))
        step = cache.extend(row, count)
        keys, values = torch.zeros(2, usable + 1, KV_HEADS, 16, DIM)
        query = torch.ones(count, HEADS, DIM)
        with Work() as work:
            torch_backend.paged_attention(query, keys, values, step, order="head")
        works.append(work.elements)

    assert works[0] == works[1]
    assert works[0].total() >= 2 * 200 * KV_HEADS * DIM  # keys and values are gathered


def test_e19_a_page_is_copied_before_it_is_shared_no_more():
    """A fork of 3 tokens on a page of 16: all 3 arrive, and no slot of another page changes."""
    plan = octavo.plan(ModelSpec("one", (Attention(1, 4, 4),), 64), "64KiB", dtype="fp32")
    cache, store = Cache(plan), Storage(plan)
    store.arena.view(torch.float32).fill_(float("nan"))
    row = cache.admit([1, 2, 3], limit=9)
    step, numbers = cache.extend(row, 3), torch.rand(4, 1, 4)
    store.write(0, numbers[:3], numbers[:3], step.group().slots)
    cache.commit(step, [4])
    (child,) = cache.fork(row)
    before, step = store.arena.clone(), cache.extend(child, 1)
    store.apply(step.copies)
    store.write(0, numbers[3:], numbers[3:], step.group().slots)
    (page,) = step.group().table[0]

    for found in store.gather(0, step.group().table[0], 0, 4):
        assert torch.equal(numbers, found)
    others = np.setdiff1d(np.arange(1, plan.num_pages), page)
    after = store.read_pages("full", others)
    store.arena.copy_(before)
    assert torch.equal(store.read_pages("full", others), after)
    assert [page] == step.copies["full"].target.tolist()


def test_e20_padding_on_the_left(pages):
    """Lengths 2 and 5 with a window of 2: ragged there are no pads; padded, their rows are 0."""
    rng = np.random.default_rng(5)
    ragged = pages([(0, 2), (0, 5)], 4, 2, 8, 8, "token", rng)
    query = rng.standard_normal((7, 4, 8))
    expected = paged_attention(query, ragged.keys, ragged.values, ragged.step, window=2)
    padded = pages([(-3, 5), (0, 5)], 4, 2, 8, 8, "token", rng)
    for row, length in enumerate((2, 5)):
        for new, old in ((padded.keys, ragged.keys), (padded.values, ragged.values)):
            at = np.arange(length)
            place, source = (
                (case.step.group().table[row, at // 4], at % 4) for case in (padded, ragged)
            )
            new[place] = old[source]
    query = np.concatenate((np.ones((3, 4, 8)), query))
    found = paged_attention(query, padded.keys, padded.values, padded.step, window=2)

    assert not found[:3].any()
    np.testing.assert_allclose(found[3:], expected, rtol=1e-12)
