"""ActivePrefixCache against a masked cache of full capacity: equal outputs, equal tokens.

The decoder is small and written by hand. Its reference cache is the plain one: K and V of full
capacity, heads repeated, rows of one S x S mask.
"""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import octavo
from octavo.active_prefix import prefix as onepass

LAYERS, HEADS, KV_HEADS, DIM, VOCAB = 2, 6, 2, 8, 97
SIZES = {"layers": LAYERS, "kv_heads": KV_HEADS, "head_dim": DIM}
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


class FullCache:
    """The plain static cache, which attends to its whole capacity."""

    def __init__(self, capacity, batch=1, dtype=torch.float32):
        shape = (LAYERS, batch, KV_HEADS, capacity, DIM)
        self.keys, self.values = torch.zeros(2, *shape, dtype=dtype)
        self.mask = torch.ones(capacity, capacity, dtype=torch.bool).tril()
        self.length = 0

    def begin(self, count=1):
        """The next ``count`` positions."""
        self.where = torch.arange(self.length, self.length + count)
        self.positions = self.where.expand(self.keys.shape[1], -1)
        self.length += count
        return self

    def attend(self, layer, query, key, value):
        """Write, expand heads, attend behind the mask."""
        self.keys[layer][:, :, self.where] = key
        self.values[layer][:, :, self.where] = value
        keys = self.keys[layer].repeat_interleave(HEADS // KV_HEADS, 1)
        values = self.values[layer].repeat_interleave(HEADS // KV_HEADS, 1)
        return scaled_dot_product_attention(query, keys, values, self.mask[self.where])


class Decoder(torch.nn.Module):
    """Embedding, attention layers with a position signal, head."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(7)

        def weight(*shape):
            return torch.nn.Parameter(torch.randn(*shape, generator=generator) / shape[0] ** 0.5)

        width = HEADS * DIM
        self.embed, self.head = weight(VOCAB, width), weight(width, VOCAB)
        self.turn = weight(DIM, DIM)
        self.mix = torch.nn.ParameterList(
            weight(width, (HEADS + 2 * KV_HEADS) * DIM) for _ in range(LAYERS)
        )

    def forward(self, tokens, prefix):
        """Logits [batch, tokens, VOCAB]."""
        x = self.embed[tokens] * 20
        angle = torch.sin(prefix.positions[:, None, :, None] * 0.3).to(x.dtype) @ self.turn[:1]
        for layer, mix in enumerate(self.mix):
            heads = (x @ mix).unflatten(-1, (-1, DIM)).transpose(1, 2)
            query, key, value = heads.split([HEADS, KV_HEADS, KV_HEADS], 1)
            out = prefix.attend(layer, query + angle, key + angle, value.contiguous())
            x = torch.nn.functional.normalize(x + out.transpose(1, 2).flatten(2), dim=-1) * 5
        return x @ self.head


def greedy(model, cache, prompt, steps):
    """Logits of every pass and the tokens chosen: prefill, then one token a step."""
    seen, tokens = [], prompt
    with torch.inference_mode():
        for count in [prompt.shape[1]] + [1] * (steps - 1):
            logits = model(tokens, cache.begin(count))
            seen.append(logits)
            tokens = logits[:, -1:].argmax(-1)
    return torch.cat(seen, 1), torch.cat([each[:, -1:].argmax(-1) for each in seen], 1)


def prompt(length, batch=1, seed=0):
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (batch, length), generator=generator)


@pytest.fixture(scope="module")
def model():
    """The decoder."""
    return Decoder()


@pytest.mark.parametrize("bucket", [1, 16, 64])
@pytest.mark.parametrize("batch", [1, 3])
def test_equals_the_masked_full_cache(model, bucket, batch):
    """Logits of prefill and every step, and the tokens chosen, up to the capacity itself."""
    ids = prompt(5, batch)
    want, tokens = greedy(model, FullCache(40, batch), ids, 36)
    kept = octavo.ActivePrefixCache(**SIZES, capacity=40, batch=batch, bucket=bucket)
    got, chosen = greedy(model, kept, ids, 36)

    assert 40 == kept.kv_len
    torch.testing.assert_close(got, want, **CLOSE)
    assert tokens.tolist() == chosen.tolist()
    assert len(set(tokens[0].tolist())) > 8


def test_observed_lengths(model, monkeypatch):
    """Attention sees K, V and mask of 3 in prefill, of 4 in the first step, of 8 at capacity."""
    observed = []
    plain = onepass.scaled_dot_product_attention

    def spy(query, keys, values, *rest, **options):
        observed.append((keys.shape[-2], values.shape[-2]))
        return plain(query, keys, values, *rest, **options)

    monkeypatch.setattr(onepass, "scaled_dot_product_attention", spy)
    kept = octavo.ActivePrefixCache(**SIZES, capacity=8)
    lengths, chain = [], []
    for count in (3, 1, 1, 1, 1, 1):
        prefix = kept.begin(count)
        observed.clear()
        with torch.inference_mode():
            model(prompt(count), prefix)
        (pair,) = set(observed)
        lengths.append((*pair, prefix.mask.shape[-1]))
        chain.append(kept.kv_len)

    assert [(3, 3, 3), (4, 4, 4), (8, 8, 8)] == [lengths[0], lengths[1], lengths[-1]]
    assert [3, 4, 5] == chain[:3]


@pytest.mark.parametrize("bucket", [1, 4])
def test_named_positions_equal_the_next_ones(model, bucket):
    """`begin_at` with S4's positions and kv_len is the same as `begin` with counts."""
    ids = prompt(6)
    by_count = octavo.ActivePrefixCache(**SIZES, capacity=8, bucket=bucket)
    by_name = octavo.ActivePrefixCache(**SIZES, capacity=8, bucket=bucket)
    with torch.inference_mode():
        for start, stop in ((0, 3), (3, 4), (4, 6)):
            want = model(ids[:, start:stop], by_count.begin(stop - start))
            got = model(ids[:, start:stop], by_name.begin_at(range(start, stop), stop))
            assert torch.equal(want, got)


def test_position_within_a_longer_prefix_sees_no_later_one(model):
    """A position below kv_len - 1 is causal: it computes what it computed when it was the last."""
    ids = prompt(6)
    kept = octavo.ActivePrefixCache(**SIZES, capacity=8)
    with torch.inference_mode():
        want = model(ids, kept.begin(6))
        got = model(ids[:, 2:3], kept.begin_at([2], 6))
        pair = model(ids[:, 2:4], kept.begin_at([2, 3], 6))

    torch.testing.assert_close(got, want[:, 2:3], **CLOSE)
    torch.testing.assert_close(pair, want[:, 2:4], **CLOSE)


@pytest.mark.parametrize("bucket", [1, 16])
@pytest.mark.parametrize("chunks", [(1, 1, 1, 1, 1, 1, 1), (2, 5), (4, 1, 2)])
def test_chunks_equal_one_pass(model, bucket, chunks):
    """A prompt in pieces gives what it gives whole."""
    ids = prompt(7, 2)
    options = {"capacity": 16, "batch": 2, "bucket": bucket}
    kept = octavo.ActivePrefixCache(**SIZES, **options)
    with torch.inference_mode():
        want = model(ids, octavo.ActivePrefixCache(**SIZES, **options).begin(7))
        parts = [model(part, kept.begin(part.shape[1])) for part in ids.split(chunks, 1)]

    torch.testing.assert_close(torch.cat(parts, 1), want, **CLOSE)


@pytest.mark.parametrize("bucket", [1, 16])
def test_rows_of_different_length_equal_each_alone(model, bucket):
    """Ragged prefill with padding, then steps in which some rows sit out, row by row as alone."""
    lengths, ids = (9, 2, 5), prompt(30, 3)
    options = {"capacity": 32, "bucket": bucket}
    kept = octavo.ActivePrefixCache(**SIZES, batch=3, **options)
    got = [[], [], []]
    with torch.inference_mode():
        for counts in (lengths, (1, 1, 1), (0, 3, 1), (2, 0, 0), (1, 1, 1)):
            past, most = kept.lengths, max(counts)
            tokens = torch.stack([ids[row, past[row] : past[row] + most] for row in range(3)])
            logits = model(tokens, kept.begin(counts))
            for row, count in enumerate(counts):
                got[row].append(logits[row, :count])
        for row, parts in enumerate(got):
            held = kept.lengths[row]
            alone = octavo.ActivePrefixCache(**SIZES, **options)
            want = model(ids[row : row + 1, :held], alone.begin(held))[0]
            torch.testing.assert_close(torch.cat(parts), want, **CLOSE)


@pytest.mark.parametrize("bucket", [1, 16])
def test_rewound_and_copied_prefixes_equal_fresh_ones(model, bucket):
    """A kept prefix, one copied into rows, and a reset cache all give a fresh run's logits."""
    voice, text, other = prompt(6), prompt(4, 2, seed=1), prompt(9, 2, seed=2)
    options = {"capacity": 32, "bucket": bucket}
    whole = torch.cat([voice.expand(2, -1), text], 1)
    once = octavo.ActivePrefixCache(**SIZES, **options)
    kept = octavo.ActivePrefixCache(**SIZES, batch=2, **options)
    with torch.inference_mode():
        fresh = octavo.ActivePrefixCache(**SIZES, batch=2, **options)
        want = model(whole, fresh.begin(10))[:, 6:]
        model(voice, once.begin(6))
        model(other, kept.begin(9))
        kept.copy_prefix(once)
        torch.testing.assert_close(model(text, kept.begin(4)), want, **CLOSE)
        kept.truncate(6)
        torch.testing.assert_close(model(text, kept.begin(4)), want, **CLOSE)
        kept.reset()
        torch.testing.assert_close(model(whole, kept.begin(10))[:, 6:], want, **CLOSE)


@pytest.mark.parametrize("bucket", [1, 16])
def test_request_after_a_poisoned_one_equals_a_fresh_one(model, bucket):
    """NaN that an earlier request computed is not seen by the next one."""
    ids = prompt(6, 2)
    options = {"capacity": 32, "batch": 2, "bucket": bucket}
    kept = octavo.ActivePrefixCache(**SIZES, **options)
    want = greedy(model, octavo.ActivePrefixCache(**SIZES, **options), ids, 5)[0]
    prefix = kept.begin(20)
    for layer in range(LAYERS):
        poison = torch.full((2, KV_HEADS, 20, DIM), float("nan"))
        prefix.update(layer, poison, poison)
    kept.reset()

    assert torch.equal(want, greedy(model, kept, ids, 5)[0])


def test_capacity_changes_nothing(model):
    """32,768 and 64 positions give the same numbers and take the same memory."""
    ids = prompt(12)
    small = octavo.ActivePrefixCache(**SIZES, capacity=256)
    large = octavo.ActivePrefixCache(**SIZES, capacity=32_768)
    runs = [greedy(model, kept, ids, 30)[0] for kept in (small, large)]

    assert torch.equal(*runs)
    assert small.nbytes == large.nbytes


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(model, dtype):
    """Exact in float64; within its rounding in half precision."""
    ids = prompt(5, 2)
    cast = Decoder().to(dtype)
    kept = octavo.ActivePrefixCache(**SIZES, capacity=32, batch=2, dtype=dtype)
    with torch.inference_mode():
        full = FullCache(32, 2, dtype)
        for part in ids.split([3, 1, 1], 1):
            want, got = (cast(part, c.begin(part.shape[1])) for c in (full, kept))
            limits = CLOSE if dtype == torch.float64 else {"rtol": 0.05, "atol": 0.5}
            torch.testing.assert_close(got, want, **limits)


def test_heads_may_be_as_many_as_kv_heads():
    """Without groups, and with one head for all, attention is the plain one."""
    for heads, kv_heads in ((4, 4), (4, 1)):
        kept = octavo.ActivePrefixCache(layers=1, kv_heads=kv_heads, head_dim=8, capacity=8)
        query = torch.randn(1, heads, 6, 8)
        key, value = torch.randn(2, 1, kv_heads, 6, 8)
        want = scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True, scale=0.5
        )
        parts = [
            kept.begin(stop - start).attend(
                0,
                query[:, :, start:stop],
                key[:, :, start:stop],
                value[:, :, start:stop],
                scale=0.5,
            )
            for start, stop in ((0, 3), (3, 4), (4, 6))
        ]
        torch.testing.assert_close(torch.cat(parts, 2), want, **CLOSE)


def compiled(function, **options):
    """(``function`` under torch.compile, the graphs made so far); no C++ compiler is needed."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    return torch.compile(function, backend=backend, fullgraph=True, **options), graphs


@pytest.mark.parametrize("dynamic", [None, False])
def test_compiled_step_recompiles_at_most_once_a_bucket(model, dynamic):
    """Three buckets: a graph each where shapes are static, two in all by default; none a token."""
    ids = prompt(5)
    options = {"capacity": 4_096, "bucket": 16}
    step, graphs = compiled(model, dynamic=dynamic)
    want = greedy(model, octavo.ActivePrefixCache(**SIZES, **options), ids, 40)
    kept = octavo.ActivePrefixCache(**SIZES, **options)
    with torch.inference_mode():
        tokens = model(ids, kept.begin(5))[:, -1:].argmax(-1)
        chosen = [tokens]
        for _ in range(39):
            tokens = step(tokens, kept.begin())[:, -1:].argmax(-1)
            chosen.append(tokens)

    assert want[1].tolist() == torch.cat(chosen, 1).tolist()
    assert {None: 2, False: 3}[dynamic] == len(graphs)


@pytest.mark.parametrize("bucket", [1, 16])
def test_compiled_rows_of_different_length_recompile_no_more(model, bucket):
    """Neither rows of their own lengths nor a reset between requests brings new graphs."""
    options = {"capacity": 4_096, "bucket": bucket, "batch": 2}
    step, graphs = compiled(model)
    kept, plain = (octavo.ActivePrefixCache(**SIZES, **options) for _ in range(2))
    counts, token = [], prompt(1, 2)
    with torch.inference_mode():
        for lengths in ((5, 3), (2, 4), (1, 5)):
            ids = prompt(max(lengths), 2)
            for cache in (kept, plain):
                cache.reset()
                model(ids, cache.begin(lengths))
            for _ in range(20):
                got, want = step(token, kept.begin()), model(token, plain.begin())
                assert torch.equal(got, want)
            counts.append(len(graphs))

    assert [2, 2, 2] == counts


def test_whole_prompts_compile_too(model):
    """Prefill and steps through one function: a graph for steps, two for all prompt lengths."""
    step, graphs = compiled(model)
    options = {"capacity": 4_096, "bucket": 16}
    counts = []
    for length in (5, 9, 11, 7):
        ids = prompt(length)
        want = greedy(model, octavo.ActivePrefixCache(**SIZES, **options), ids, 5)
        got = greedy(step, octavo.ActivePrefixCache(**SIZES, **options), ids, 5)
        assert torch.equal(want[0], got[0])
        counts.append(len(graphs))

    assert [2, 3, 3, 3] == counts
