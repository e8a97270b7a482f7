"""Exported decoders against the same decoder in NumPy: steps of every kind, over one cache."""

import numpy as np
import pytest

import octavo
from octavo.attention.kernels.oracle import paged_attention
from octavo.integrations.onnx import Decoder, PagedSession, Rotary, export_decoder
from octavo.model.lifetimes import group_name
from octavo.model.spec import Attention, Latent

SIZES = {"vocab": 50, "hidden": 32, "layers": 2, "heads": 4, "mlp": 48, "max_length": 128}
DECODERS = {
    "separate": Decoder(**SIZES, kind=Attention(2, 16, 16)),
    "window": Decoder(**SIZES, kind=Attention(1, 32, 32, window=20)),
    "latent": Decoder(**SIZES, kind=Latent(24, 16), nope_dim=8, v_dim=12, interleaved=True),
    "sinks": Decoder(
        **SIZES,
        kind=(Attention(2, 16, 16, sink_logits=True), Attention(2, 16, 16, 20, sink_logits=True)),
        score_cap=1.5,
        biases=("q_proj", "k_proj", "v_proj", "o_proj"),
    ),
    "mixed": Decoder(
        **(SIZES | {"layers": 3}),
        kind=(Attention(2, 32, 32, 20), Attention(2, 32, 32), Attention(2, 32, 32, 9)),
        rotary=(Rotary.plain(16, 100.0), Rotary.plain(32), Rotary.plain(16, 100.0)),
        score_scale=0.1,
    ),
}
TOLERANCE = {"fp32": 2e-5, "fp16": 2e-2, "bf16": 1.5e-1}  # of logits that are about 1 in size
by_decoder = pytest.mark.parametrize("name", DECODERS)


def planned(decoder, dtype="fp32", **options):
    """A plan of 24 or so pages for a decoder."""
    size = f"{192 * len(decoder.groups) ** 2}KiB"
    return octavo.plan(decoder.spec, size, dtype=dtype, layout="component", **options)


class Plain:
    """The decoder in NumPy and float64, attending with the oracle over arrays of its own."""

    def __init__(self, decoder, weights, plan):
        self.d, self.plan = decoder, plan
        self.w = {name: values.astype(np.float64) for name, values in weights.items()}
        shape = (plan.num_pages, plan.page_size, *decoder.row)
        parts = 1 if isinstance(decoder.kind, Latent) else 2
        self.pages = [[np.zeros(shape) for _ in range(parts)] for _ in range(decoder.layers)]

    def run(self, step):
        """Logits of every token of the step."""
        for group, copies in step.copies.items():
            for layer in self.d.groups[group]:
                for pages in self.pages[layer]:
                    pages[copies.target] = pages[copies.source]
        x = self.w["model.embed_tokens.weight"][step.input_ids]
        for layer in range(self.d.layers):
            name = f"model.layers.{layer}"
            h = self.norm(x, f"{name}.input_layernorm")
            mix = self.latent if isinstance(self.d.kind, Latent) else self.separate
            x = x + mix(h, f"{name}.self_attn", layer, step)
            h = self.norm(x, f"{name}.post_attention_layernorm")
            gate = self.linear(h, f"{name}.mlp.gate_proj")
            up = self.linear(h, f"{name}.mlp.up_proj")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, f"{name}.mlp.down_proj")
        return self.linear(self.norm(x, "model.norm"), "lm_head")

    def linear(self, x, name):
        """x W^T, and its bias where there is one."""
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0)

    def norm(self, x, name):
        """RMS norm."""
        scale = np.sqrt((x**2).mean(-1, keepdims=True) + self.d.epsilon)
        return x / scale * self.w[f"{name}.weight"]

    def rotate(self, x, positions, layer):
        """[tokens, heads, channels], the first rotated in halves or in neighbours."""
        rotary = self.d.rotaries[layer]
        width = rotary.channels
        angles = positions[:, None, None] * np.array(rotary.frequencies)
        pairs = slice(0, width, 2), slice(1, width, 2)
        halves = slice(0, width // 2), slice(width // 2, width)
        a, b = pairs if self.d.interleaved else halves
        out = x.copy()
        out[..., a] = x[..., a] * np.cos(angles) - x[..., b] * np.sin(angles)
        out[..., b] = x[..., b] * np.cos(angles) + x[..., a] * np.sin(angles)
        return out

    def write(self, layer, part, new, step):
        """The step's rows into its slots."""
        slots = step.group(group_name(self.d.kinds[layer])).slots
        page, offset = np.divmod(slots, self.plan.page_size)
        self.pages[layer][part][page, offset] = new

    def separate(self, h, name, layer, step):
        """Attention with keys and values of their own."""
        tokens, kind = len(h), self.d.kinds[layer]
        q, k, v = (
            self.linear(h, f"{name}.{part}_proj").reshape(tokens, -1, kind.k_dim) for part in "qkv"
        )
        q, k = (self.rotate(each, step.positions, layer) for each in (q, k))
        self.write(layer, 0, k, step)
        self.write(layer, 1, v, step)
        options = {"window": kind.window, "scale": self.d.scale, "group": group_name(kind)}
        options |= {"softcap": self.d.score_cap, "sink_logits": self.w.get(f"{name}.sinks")}
        given = {key: each for key, each in options.items() if each is not None}
        out = paged_attention(q, *self.pages[layer], step, **given)
        return self.linear(out.reshape(tokens, -1), f"{name}.o_proj")

    def latent(self, h, name, layer, step):
        """Decomposed: every head's keys and values expanded from the latents, nothing absorbed."""
        tokens, d, rank, pages = len(h), self.d, self.d.kind.rank, self.pages[layer]
        q = self.linear(h, f"{name}.q_proj").reshape(tokens, d.heads, -1)
        q[..., d.nope_dim :] = self.rotate(q[..., d.nope_dim :], step.positions, layer)
        row = self.linear(h, f"{name}.kv_a_proj_with_mqa")
        latent = self.norm(row[:, :rank], f"{name}.kv_a_layernorm")
        rope = self.rotate(row[:, None, rank:], step.positions, layer)
        self.write(layer, 0, np.concatenate([latent[:, None], rope], axis=-1), step)
        wide = pages[0][..., :rank] @ self.w[f"{name}.kv_b_proj.weight"].T
        wide = wide.reshape(*pages[0].shape[:2], d.heads, -1)
        rope = np.broadcast_to(pages[0][..., rank:], (*wide.shape[:3], d.kind.rope))
        keys = np.concatenate([wide[..., : d.nope_dim], rope], axis=-1)
        out = paged_attention(q, keys, wide[..., d.nope_dim :], step)
        return self.linear(out.reshape(tokens, -1), f"{name}.o_proj")


def stored(weights, session):
    """Weights as numbers of the session's element type hold them."""
    element = next(iter(session.caches.values())).dtype
    return {name: values.astype(element).astype(np.float32) for name, values in weights.items()}


def steps(cache):
    """Six steps of one cache, each yielded open and committed after: every kind there is."""
    a, b = cache.admit(range(40)), cache.admit([41, 42, 43, 44, 45, 46, 47])
    yield from told(cache, cache.extend([a, b], [24, 7]), [0, 11])
    yield from told(cache, cache.extend([a, b], [16, 1]), [12, 13])  # the rest of a prompt
    c = cache.admit([*range(35), 3, 2, 1])
    assert 32 == c.cached  # a prefix hit
    yield from told(cache, cache.extend([b, c, a], [1, 6, 1]), [14, 15, 16])
    (d,) = cache.fork(a)
    step = cache.extend([a, d, b], [1, 1, 1])
    assert step.copies  # the open page is copied before it is written
    yield from told(cache, step, [17, 18, 19])
    step = cache.extend([c, d], [4, 1], ahead=3)  # three drafts, of which one is right
    step.input_ids[1:4] = 20, 21, 22
    yield step
    cache.commit(step, [[20, 23], [24]], kept=[2, 1])
    cache.truncate(b, 5)  # and back before what was sampled
    cache.release(a)
    step = cache.extend([b, c, d], [1, 1, 1], ahead=1)
    step.input_ids[0] = 25
    yield from told(cache, step, [[25, 26], [27], [28]])


def told(cache, step, tokens):
    """The step, and once it has run its commit."""
    yield step
    cache.commit(step, tokens)


def compare(name, dtype, runtime, operators):
    """Largest difference of logits over all steps between a session and NumPy."""
    decoder, plan = DECODERS[name], planned(DECODERS[name], dtype)
    weights = decoder.random_weights()
    model = export_decoder(decoder, weights, dtype=dtype, operators=operators)
    session = PagedSession(model, plan, runtime=runtime)
    for pages in session.caches.values():
        pages[1:] = np.nan  # what no sequence owns may hold anything
    plain = Plain(decoder, stored(weights, session), plan)
    worst = []
    for step in steps(octavo.Cache(plan)):
        wanted, found = plain.run(step), session.run(step)
        assert found.shape == wanted.shape
        worst.append(np.abs(found.astype(np.float64) - wanted).max())
    assert 6 == len(worst)
    return max(worst)


@by_decoder
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_standard_operators_on_onnxruntime(name, dtype):
    """ONNX Runtime's CPU provider computes what NumPy does, over prefix hits, forks, rollbacks."""
    assert compare(name, dtype, "onnxruntime", "standard") < TOLERANCE[dtype]


@by_decoder
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_paged_attention_in_the_reference_evaluator(name, dtype):
    """Graphs with PagedAttention nodes, the oracle as the operator, compute what NumPy does."""
    assert compare(name, dtype, "reference", "paged") < TOLERANCE[dtype]


@by_decoder
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_standard_operators_in_the_reference_evaluator(name, dtype):
    """The evaluator writes no page in place; a session keeps what it puts out."""
    assert compare(name, dtype, "reference", "standard") < TOLERANCE[dtype]


@by_decoder
def test_both_graphs_leave_the_same_pages(name):
    """ONNX Runtime with standard operators, and the evaluator with PagedAttention, agree."""
    decoder, plan = DECODERS[name], planned(DECODERS[name])
    weights = decoder.random_weights()
    sessions = [
        PagedSession(
            export_decoder(decoder, weights, dtype="fp32", operators=operators),
            plan,
            runtime=runtime,
        )
        for operators, runtime in (("standard", "onnxruntime"), ("paged", "reference"))
    ]
    for step in steps(octavo.Cache(plan)):
        one, other = (session.run(step) for session in sessions)
        assert np.abs(one - other).max() < TOLERANCE["fp32"]
    for one, other in zip(*(session.caches.values() for session in sessions), strict=True):
        assert np.abs(one - other).max() < TOLERANCE["fp32"]
