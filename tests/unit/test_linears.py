"""Linear layers by the C kernel: what they give, and how modules get and lose it."""

import copy
from functools import partial

import pytest
import torch
import transformers
from torch.nn.functional import linear
from torch.nn.utils.parametrize import register_parametrization

import octavo
from octavo.attention.kernels.build import Kernel
from octavo.checkpoints.processor import fast_dtype
from octavo.engine import Engine, SamplingParams, linears
from octavo.engine.linears import GROUP, Layers, Linears, PlainLinear, QuantisedLinear, Together
from octavo.errors import PlanError, UnsupportedModel


def by(layer):
    """How the kernel computes one layer."""
    together = Together([layer])
    together.taken = True
    return partial(together.compute, 0)


class Small(torch.nn.Module):
    """Layers of several shapes, and one that is no plain linear layer."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(1)
        self.wide = torch.nn.Linear(64, 96)
        self.odd = torch.nn.Linear(45, 13, bias=False)
        self.head = torch.nn.Linear(96, 50, bias=False)
        self.norm = torch.nn.LayerNorm(96)
        self.to(dtype)

    def get_output_embeddings(self):
        """The layer that makes logits."""
        return self.head

    def forward(self, x):
        """Something that goes through two of the layers."""
        return self.head(self.norm(self.wide(x)))


def layer_of(width, outs, dtype=torch.float32, *, bias=True):
    """A linear layer of random weights."""
    torch.manual_seed(width * outs)
    layer = torch.nn.Linear(width, outs, bias=bias, dtype=dtype)
    return layer.requires_grad_(False)


def inputs_of_15_bits(x):
    """What the kernel makes of inputs: each group of a row in 16,256 steps of its largest."""
    groups = x.float().unflatten(-1, (-1, GROUP))
    top = groups.abs().amax(-1, keepdim=True)
    numbers = (groups.double() * (16_256 / top).nan_to_num(posinf=0)).round()
    return (numbers * top.double() / 16_256).flatten(-2)


@pytest.fixture
def calls(monkeypatch):
    """Counts of the layers of each call of the kernel, in order; 0 where torch computes."""
    counts, compute = [], Layers.compute

    def counted(layers, x):
        found = compute(layers, x)
        counts.append(len(found or ()))
        return found

    monkeypatch.setattr(Layers, "compute", counted)
    return counts


@pytest.fixture(params=[True, False], ids=["tiles", "no tiles"])
def tiles(request, monkeypatch):
    """Whether tiles are multiplied: not where Linux or the processor refuses them."""
    can = request.param and linears.has_tiles()
    monkeypatch.setattr(linears, "has_tiles", lambda: can)
    return can


def error(found, expected):
    """The largest difference by the largest number expected."""
    return float((found.double() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 17, 64])
@pytest.mark.parametrize(("width", "outs"), [(64, 96), (45, 13), (7, 1), (576, 192), (33, 6)])
def test_kernel_gives_the_layer(rows, width, outs):
    """Sums are those of float64 within the rounding of float32, whatever the shape."""
    layer, x = layer_of(width, outs), torch.randn(rows, width)
    with torch.inference_mode():
        found = by(PlainLinear(layer))(x)

    assert found.dtype == torch.float32
    assert 2e-6 > error(found, linear(x.double(), layer.weight.double(), layer.bias.double()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_is_the_same_beside_any_others(dtype, tiles):
    """A row's result is equal to the bit alone, beside others, and with more threads."""
    rows = 63 if tiles or dtype == torch.float32 else 8
    layer, x = layer_of(96, 200, dtype), torch.randn(rows, 96, dtype=dtype)
    kernel = by(PlainLinear(layer))
    threads = torch.get_num_threads()
    with torch.inference_mode():
        together = kernel(x)
        for n in range(1, rows):
            assert torch.equal(kernel(x[n:]), together[n:])
        torch.set_num_threads(3)
        assert torch.equal(kernel(x), together)
        torch.set_num_threads(threads)


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 48, 63])
@pytest.mark.parametrize(("width", "outs"), [(576, 64), (32, 1), (96, 50), (45, 13)])
def test_bfloat16_sums_in_float32(rows, width, outs, tiles):
    """Only the result is rounded, whatever the shape."""
    layer = layer_of(width, outs, torch.bfloat16)
    x = torch.randn(1, rows, width, dtype=torch.bfloat16)
    exact = linear(x.double(), layer.weight.double(), layer.bias.double())
    with torch.inference_mode():
        found = by(PlainLinear(layer))(x)

    assert (1, rows, outs) == found.shape
    assert torch.allclose(found.double(), exact, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bfloat16_rows_keep_to_themselves(bad, tiles):
    """NaN and infinity in a row show in its outputs, and in no other row's."""
    layer, x = layer_of(64, 20, torch.bfloat16), torch.randn(5, 64, dtype=torch.bfloat16)
    x[1, 40] = bad
    with torch.inference_mode():
        found = by(PlainLinear(layer))(x)

    assert [True, False, True, True, True] == found.isfinite().all(-1).tolist()


def test_tiles_compute_what_they_can(calls, tiles):
    """Up to 64 rows of bf16 are the kernel's by tiles, if widths are whole; else torch has many."""
    whole, odd = layer_of(64, 20, torch.bfloat16), layer_of(45, 20, torch.bfloat16)
    with torch.inference_mode():
        for layer in (whole, odd):
            by(PlainLinear(layer))(torch.randn(16, layer.in_features, dtype=torch.bfloat16))

    few = fast_dtype() == "bf16"
    assert [tiles or not few, not few] == [count == 1 for count in calls]


@pytest.mark.parametrize("bits", ["int8", "int4"])
@pytest.mark.parametrize("rows", [1, 3, 5, 8, 9, 22, 70, 140])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantised_layer_is_that_of_its_rounded_weights(bits, rows, dtype, tiles):
    """The kernel computes with the weights it stores and inputs of 15 bits, few rows and many."""
    layer, plain = layer_of(128, 47, dtype), layer_of(128, 47, dtype, bias=False)
    plain.weight, bias = layer.weight, layer.bias.double()
    stored = by(QuantisedLinear(layer, bits))
    with torch.inference_mode():
        rounded = by(QuantisedLinear(plain, bits))(torch.eye(128)).double()  # [width, outs]
        x = torch.randn(rows, 128, dtype=dtype)
        x[0, :GROUP] = 0  # a group without a scale
        found = stored(x)
        for n in range(rows):
            assert torch.equal(found[n : n + 1], stored(x[n : n + 1]))  # to the bit, by any way

    assert found.dtype == dtype
    exact = inputs_of_15_bits(x) @ rounded
    assert {torch.float32: 3e-6, torch.bfloat16: 2**-8}[dtype] > error(found, exact + bias)
    steps = {"int8": 1 / 127, "int4": 1 / 15}[bits] * layer.weight.abs().max() * 2
    assert (rounded.T - layer.weight).abs().max() <= steps / 2 * 1.001


@pytest.mark.parametrize("bits", ["int8", "int4"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("rows", [3, 8])
def test_numbers_that_are_none_are_not_rounded_away(bits, bad, rows):
    """NaN and infinity in a row show in every output of it, and in no other row."""
    layer, x = layer_of(64, 20), torch.randn(rows, 64)
    x[1, 40] = bad
    with torch.inference_mode():
        found = by(QuantisedLinear(layer, bits))(x)

    assert [n != 1 for n in range(rows)] == found.isfinite().all(-1).tolist()
    assert not found[1].isfinite().any()


def test_weights_of_four_bits_stay_what_they_are():
    """Numbers on a grid of 16 steps in each group of 32 are not changed by rounding them again."""
    layer = layer_of(96, 12, bias=False)
    scale, zero = torch.rand(12, 3, 1) + 0.1, torch.randn(12, 3, 1)
    numbers = torch.randint(0, 16, (12, 3, GROUP))
    numbers[..., 0], numbers[..., 1] = 0, 15
    layer.weight.data = (numbers * scale + zero).flatten(1)
    with torch.inference_mode():
        rounded = by(QuantisedLinear(layer, "int4"))(torch.eye(96))

    assert torch.allclose(rounded.T, layer.weight, atol=1e-6)


def test_zeros_and_equal_weights_can_be_quantised():
    """A group without a range has no scale to divide by."""
    layer = layer_of(64, 6, bias=False)
    layer.weight.data.zero_()
    layer.weight.data[1] = 0.25
    for bits in ("int8", "int4"):
        with torch.inference_mode():
            found = by(QuantisedLinear(layer, bits))(torch.ones(1, 64))
        assert torch.allclose(found, torch.tensor([[0.0, 16, 0, 0, 0, 0]]), atol=1e-5)


class Heads(torch.nn.Module):
    """Layers by the names of those that take the same input."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.q_proj = torch.nn.Linear(64, 50)
        self.k_proj = torch.nn.Linear(64, 20, bias=False)
        self.v_proj = torch.nn.Linear(64, 13)
        self.requires_grad_(False)

    def get_output_embeddings(self):
        """None here."""


@pytest.mark.parametrize(
    ("quantise", "dtype"),
    [(None, torch.float32), (None, torch.bfloat16), ("int4", torch.float32)],
)
def test_layers_of_one_input_are_one_call(calls, quantise, dtype):
    """Queries, keys and values come from one call, with what each gives alone."""
    model, x = Heads().to(dtype), torch.randn(3, 64, dtype=dtype)
    layers = [model.q_proj, model.k_proj, model.v_proj]
    kinds = PlainLinear if quantise is None else partial(QuantisedLinear, bits=quantise)
    taken = Linears(model, quantise)
    taken.take()
    with torch.inference_mode():
        alone = [by(kinds(layer))(x) for layer in layers]
        calls.clear()
        for _ in range(2):
            found = [layer(x) for layer in layers]
            assert all(map(torch.equal, found, alone))
        found = [layer(x) for layer in reversed(layers)]
        assert all(map(torch.equal, found, reversed(alone)))
    taken.close()

    assert [3, 3, 3] == calls


def test_layers_of_different_inputs_are_computed_apart(calls):
    """As in cross attention: what was computed in vain is never given, nor computed again."""
    model, x, other = Heads(), torch.randn(3, 64), torch.randn(2, 64)
    taken = Linears(model)
    taken.take()
    with torch.inference_mode():
        for _ in range(2):
            assert torch.allclose(
                model.q_proj(x), linear(x, model.q_proj.weight, model.q_proj.bias), atol=1e-5
            )
            for layer in (model.k_proj, model.v_proj):
                assert torch.allclose(
                    layer(other), linear(other, layer.weight, layer.bias), atol=1e-5
                )
    taken.close()

    assert [3, 1, 1, 1, 1, 1] == calls


def test_modules_are_given_back():
    """The model computes as before, by the same modules; hooks on them are called."""
    model, x, seen = Small(), torch.randn(2, 64), []
    model.wide.register_forward_hook(lambda *_: seen.append(1))
    before = model(x)
    taken = Linears(model)
    taken.take()
    with torch.inference_mode():
        within = model(x)
    own = [name for name, m in model.named_modules() if "forward" in vars(m)]
    taken.close()
    taken.close()

    assert ["wide", "odd", "head"] == own
    assert torch.allclose(within, before, atol=1e-6)
    assert not any("forward" in vars(m) for m in model.modules())
    assert 2 == len(seen)


def test_gradients_are_torchs():
    """A model that is trained while an engine has it is computed by torch."""
    model, x = Small(), torch.randn(2, 64)
    model(x).sum().backward()
    expected = model.wide.weight.grad.clone()
    model.zero_grad()
    taken = Linears(model)
    taken.take()
    model(x).sum().backward()
    taken.close()

    assert torch.equal(expected, model.wide.weight.grad)


def test_changed_weights_are_seen():
    """Weights are read where they lie, whoever has put others there."""
    model, x = Small(), torch.randn(1, 64)
    taken = Linears(model)
    taken.take()
    with torch.inference_mode():
        model.wide.weight.data = torch.zeros(96, 64)
        found = model.wide(x)
    taken.close()

    assert torch.equal(found[0], model.wide.bias)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_layers_that_change_are_left_to_torch(dtype):
    """A model that gets another element type, or weights that lie otherwise, is computed right."""
    model, x = Small(), torch.randn(1, 64)
    taken = Linears(model)
    taken.take()
    with torch.inference_mode():
        model.wide.weight.data = torch.randn(64, 96).T
        expected = linear(x, model.wide.weight, model.wide.bias)
        assert torch.equal(expected, model.wide(x))
        model.wide.weight.data = model.wide.weight.contiguous()
        model.to(dtype)
        assert torch.allclose(expected, model.wide(x.to(dtype)).float(), atol=0.2)
    taken.close()


def test_weights_of_other_kinds_are_left_alone():
    """Tensors that only look like float32, as those of other quantisers, are not read."""

    class Packed(torch.Tensor):
        """A tensor of someone else's."""

    model = Small()
    model.wide.weight = torch.nn.Parameter(torch.randn(96, 64).as_subclass(Packed))
    taken = Linears(model)
    taken.take()
    own = [name for name, m in model.named_modules() if "forward" in vars(m)]
    taken.close()

    assert ["odd", "head"] == own


def test_last_to_take_has_the_layers():
    """Of two that share a model the one whose turn it is computes; each gives back its own."""
    model, x = Small(), torch.randn(1, 64)
    plain, rounded = Linears(model), Linears(model, "int4")
    with torch.inference_mode():
        plain.take()
        exact = model(x)
        rounded.take()
        rough = model(x)
        plain.take()
        assert torch.equal(exact, model(x))
        assert not torch.equal(exact, rough)
        rounded.close()
        assert torch.equal(exact, model(x))
        plain.close()

    assert not any("forward" in vars(m) for m in model.modules())


def test_layers_of_others_are_left_alone():
    """A module whose forward someone else has replaced keeps that."""
    model = Small()
    model.wide.forward = stranger = model.wide.forward
    taken = Linears(model)
    taken.take()
    taken.close()

    assert model.wide.forward is stranger


def test_memory_of_quantised_weights_is_told():
    """4 bits and two numbers a group, 8 bits and one, outputs filled up to 16.

    Layers of odd widths keep their weights.
    """
    assert 0 == Linears(Small()).nbytes
    assert 96 * (32 + 16) + 64 * (96 + 12) == Linears(Small(), "int4").nbytes
    assert 96 * (64 + 8) + 64 * (96 + 12) == Linears(Small(), "int8").nbytes


def test_what_cannot_be_quantised_is_refused(monkeypatch, tmp_path):
    """No such type, no layer, no kernel; without rounding a model does without the kernel."""
    with pytest.raises(PlanError, match="quantise is 'int2'; it must be int8, int4 or None"):
        Linears(Small(), "int2")
    with pytest.raises(UnsupportedModel, match="no linear layers on a CPU of a multiple of 32"):
        Linears(Small().to(torch.float64), "int4")
    lacking = Kernel("lacking", tmp_path / "lacking.c", "octavo_linear", "linear layers")
    monkeypatch.setattr(linears, "KERNEL", lacking)
    with pytest.raises(UnsupportedModel, match="linear layers: the C kernel cannot be built"):
        Linears(Small(), "int4")
    model = Small()
    Linears(model).take()
    assert not any("forward" in vars(m) for m in model.modules())


def tiny():
    """A tiny random Llama in float32 whose layers can be quantised."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=90,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=None,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config).eval()


def rounded(model):
    """A copy of ``model`` whose linear layers have what int4 makes of weights and inputs."""
    other = copy.deepcopy(model)
    other.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    for module in other.modules():
        if type(module) is torch.nn.Linear:
            stored = QuantisedLinear(module, "int8" if module is other.lm_head else "int4")
            with torch.inference_mode():
                weight = by(stored)(torch.eye(module.in_features)).T
            module.weight.data.copy_(weight)
            module.register_forward_pre_hook(lambda _, args: inputs_of_15_bits(args[0]).float())
    return other


@pytest.mark.parametrize("quantise", [None, "int4"])
def test_engine_generates_by_the_kernel(quantise):
    """Tokens are those of generate() on the weights computed with, alone and beside others."""
    model = tiny()
    host = model if quantise is None else rounded(model)
    prompts = [[5, 6, 7], list(range(1, 30)), [9] * 11]
    expected = [
        host.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=8,
            do_sample=False,
            pad_token_id=0,
        )[0, len(ids) :].tolist()
        for ids in prompts
    ]
    plan = octavo.plan(
        octavo.ModelSpec.from_config(model.config.to_dict()),
        2**20,
        page_size=4,
        dtype="fp32",
        order="head",
        max_length=64,
    )
    params = SamplingParams(max_tokens=8)
    with Engine(model, plan, quantise=quantise) as engine:
        alone = [engine.generate([ids], params)[0].token_ids for ids in prompts]
        together = [each.token_ids for each in engine.generate(prompts, params)]

    assert expected == alone == together
    assert not any("forward" in vars(m) for m in model.modules())
    with pytest.raises(PlanError, match="quantise is 4; it must be int8, int4 or None"):
        Engine(model, plan, quantise=4)


# -- what others do to layers meanwhile ------------------------------------------------------------


class Larger(torch.nn.Module):
    """Half as much again, as a parametrisation computes it."""

    def forward(self, weight):
        """Another tensor at every call."""
        return weight * 1.5


def narrower(layer):
    """Fewer outputs, as embeddings that are resized have."""
    layer.weight = torch.nn.Parameter(layer.weight[:2].clone(), requires_grad=False)
    layer.bias = torch.nn.Parameter(layer.bias[:2].clone(), requires_grad=False)


@pytest.mark.parametrize("quantise", [None, "int8"])
@pytest.mark.parametrize(
    "change",
    [
        lambda layer: register_parametrization(layer, "weight", Larger()),
        lambda layer: register_parametrization(layer, "bias", Larger()),
        lambda layer: setattr(layer, "bias", None),
        narrower,
        lambda layer: layer.weight.mul_(2),
        lambda layer: setattr(layer, "weight", torch.nn.Parameter(layer.weight * 2)),
        lambda layer: setattr(layer.weight, "data", layer.weight * 2),
    ],
    ids=["weight computed", "bias computed", "no bias", "fewer", "in place", "another", "data"],
)
@torch.no_grad()
def test_layers_that_others_change_are_theirs(change, quantise):
    """The result is that of the layer as it is now, also where its weights had been rounded."""
    layer = layer_of(64, 48)
    kernel = by(PlainLinear(layer) if quantise is None else QuantisedLinear(layer, quantise))
    x = torch.randn(3, 64)
    kernel(x)
    change(layer)

    expected = linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(kernel(x), expected, rtol=1e-4, atol=0.05 if quantise else 1e-5)


@torch.no_grad()
def test_tensors_that_are_not_what_lies_there_are_left_to_torch():
    """Views that negate, zeros without memory, and widths that are not the layer's."""
    layer = layer_of(64, 48)
    kernel = by(PlainLinear(layer))
    x = torch.randn(3, 64)

    for odd in (torch._neg_view(x), torch._efficientzerotensor((3, 64)), torch.nn.Parameter(x)):
        torch.testing.assert_close(kernel(odd), linear(odd, layer.weight, layer.bias))
    with pytest.raises(RuntimeError, match="shapes"):
        kernel(torch.randn(2, 96))
    with torch.device("meta"):
        assert "cpu" == kernel(x).device.type


def test_what_wraps_a_layer_outlives_the_engine():
    """Behind `close` it computes with the model's own weights."""
    model = Small()
    linears = Linears(model, "int8")
    linears.take()
    kept = model.wide.forward
    model.wide.forward = partial(kept)
    linears.close()
    x = torch.randn(2, 64)

    with torch.no_grad():
        expected = linear(x, model.wide.weight, model.wide.bias)
        torch.testing.assert_close(model.wide(x), expected)
