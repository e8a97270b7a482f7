"""What is computed between linear layers by C kernels, and how modules get and lose that."""

import copy
from functools import partial

import pytest
import torch
import transformers
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.llama4.modeling_llama4 import Llama4TextL2Norm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated

import octavo
from octavo.attention.kernels.build import Kernel
from octavo.engine import Engine, SamplingParams, elementwise, rotary
from octavo.engine.norms import norm_of
from octavo.engine.rotary import turning
from octavo.engine.takeover import Takeover
from octavo.errors import CopyError

MAKERS = (norm_of, turning)
DTYPES = (torch.float32, torch.bfloat16)


def llama(**changes):
    """A tiny random Llama."""
    torch.manual_seed(3)
    shape = {"vocab_size": 90, "hidden_size": 48, "intermediate_size": 72, "eos_token_id": None}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**shape, **heads, initializer_range=0.3, **changes)
    return transformers.LlamaForCausalLM(config).eval()


def seeded(module, dtype):
    """A module with random weights of a type."""
    torch.manual_seed(1)
    for weight in module.parameters():
        nn.init.normal_(weight)
    return module.to(dtype)


def close(found, expected):
    """Whether two results are the same but for the order of sums."""
    rtol = 2**-7 if found.dtype == torch.bfloat16 else 1e-5
    atol = rtol * float(expected.abs().max())
    return found.dtype == expected.dtype and torch.allclose(found, expected, rtol, atol)


def owned(model):
    """The kinds of modules whose forward is another."""
    return {type(module).__name__ for module in model.modules() if "forward" in vars(module)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 64, 99])
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma2RMSNorm, nn.RMSNorm])
def test_kernel_gives_the_norm(kind, width, dtype):
    """Weights that are added to 1 or not, and roundings of bfloat16, are found by a trial."""
    norm = seeded(kind(width, eps=1e-5), dtype)
    x = torch.randn(2, 3, width).to(dtype)
    with torch.inference_mode():
        assert close(norm_of(norm)(x), norm(x))
        assert close(norm_of(norm)(x[:, ::2]), norm(x[:, ::2]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_turns_queries_and_keys(dtype):
    """What attention gives is what it gave, with queries and keys turned by the kernel."""
    model = llama().to(dtype)
    layer, x = model.model.layers[0].self_attn, torch.randn(1, 5, 48).to(dtype)
    codes = tuple(torch.randn(1, 5, 12).to(dtype) for _ in range(2))
    with torch.inference_mode():
        expected = layer(x, position_embeddings=codes)[0]
        found = turning(layer)(x, position_embeddings=codes)[0]

    assert torch.allclose(found, expected, rtol=2**-6 if dtype == torch.bfloat16 else 1e-4)


def test_row_is_the_same_beside_any_others():
    """To the bit, and with more threads where there are many rows."""
    norm = seeded(LlamaRMSNorm(700), torch.float32)
    x, threads = torch.randn(100, 700), torch.get_num_threads()
    with torch.inference_mode():
        together = norm_of(norm)(x)
        assert torch.equal(norm_of(norm)(x[7:8]), together[7:8])
        torch.set_num_threads(3)
        assert torch.equal(norm_of(norm)(x), together)
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "module",
    [
        nn.LayerNorm(64),
        MambaRMSNormGated(64, group_size=16, eps=1e-6),
        nn.RMSNorm((4, 16), eps=1e-6),
        nn.BatchNorm1d(64),
        nn.RMSNorm(64, eps=1e-6, dtype=torch.float64),
        nn.Linear(4, 4),
    ],
)
def test_what_is_something_else_is_left_alone(module):
    """Other norms, other types, other layers."""
    assert [None, None] == [make(module) for make in MAKERS]


def test_a_gate_beside_the_row_is_torchs():
    """A norm that can be given a gate computes without by the kernel, and with one by its code."""
    norm, x = MambaRMSNormGated(64, group_size=64, eps=1e-6), torch.randn(3, 64)
    with torch.inference_mode():
        assert close(norm_of(norm)(x), norm(x))
        assert torch.equal(norm_of(norm)(x, gate=x), norm(x, gate=x))


def test_norms_without_weights_are_norms():
    """As those of queries in some models."""
    norm, x = Llama4TextL2Norm(eps=1e-6), torch.randn(3, 20)
    with torch.inference_mode():
        assert close(norm_of(norm)(x), norm(x))


def test_modules_are_given_back():
    """The model computes the same by the same modules, hooks on them are called; then as before."""
    model, ids, seen = llama(), torch.tensor([[5, 6, 7]]), []
    layer = model.model.layers[0]
    for module in (layer.input_layernorm, layer.self_attn):
        module.register_forward_hook(lambda *_: seen.append(1))
    with torch.inference_mode():
        before = model(ids).logits
        taken = Takeover(model, MAKERS)
        taken.take()
        within, kinds = model(ids).logits, owned(model)
        taken.close()
        taken.close()

    assert {"LlamaRMSNorm", "LlamaAttention"} == kinds
    assert torch.allclose(within, before, rtol=1e-4, atol=1e-4)
    assert set() == owned(model)
    assert 4 == len(seen)


def test_gradients_and_other_types_are_torchs():
    """Where autograd is on, and where weights have become others than were tried."""
    model, ids = llama(), torch.tensor([[5, 6, 7]])
    model(ids).logits.sum().backward()
    expected = model.model.norm.weight.grad.clone()
    model.zero_grad()
    taken = Takeover(model, MAKERS)
    taken.take()
    model(ids).logits.sum().backward()
    assert torch.equal(expected, model.model.norm.weight.grad)
    with torch.inference_mode():
        found = model.bfloat16()(ids).logits, model.double()(ids).logits
        taken.close()
        assert torch.equal(found[1], model(ids).logits)
        assert torch.equal(found[0], model.bfloat16()(ids).logits)


def test_last_to_take_has_the_modules():
    """Of two that share a model each gives back its own; what others replaced stays theirs."""
    model = llama()
    model.model.norm.forward = stranger = model.model.norm.forward
    first, second = Takeover(model, MAKERS), Takeover(model, [norm_of])
    first.take()
    second.take()
    assert {"LlamaRMSNorm"} == owned(model)
    first.take()
    third = Takeover(model, MAKERS)
    third.take()
    assert {"LlamaRMSNorm", "LlamaAttention"} == owned(model)
    first.close()
    third.close()

    assert {"LlamaRMSNorm"} == owned(model)
    assert model.model.norm.forward is stranger


def test_a_taken_model_is_not_copied():
    """Its copy would compute with the original's weights."""
    model = llama()
    taken = Takeover(model, MAKERS)
    taken.take()
    with pytest.raises(CopyError):
        copy.deepcopy(model)
    taken.close()


def test_without_a_compiler_torch_computes(monkeypatch, tmp_path):
    """Nothing is taken."""
    lacking = partial(Kernel, source=tmp_path / "lacking.c", subject="elementwise kernels")
    kernels = {name: lacking("lacking", function=name) for name in elementwise.KERNELS}
    monkeypatch.setattr(elementwise, "KERNELS", kernels)
    rotary._agrees.cache_clear()
    taken = Takeover(model := llama(), MAKERS)
    taken.take()
    rotary._agrees.cache_clear()

    assert set() == owned(model)


def test_what_turns_otherwise_is_left_alone(monkeypatch):
    """A function of the same name that does something else, or raises."""
    model = llama()
    source = "transformers.models.llama.modeling_llama.apply_rotary_pos_emb"

    def other(q, k, cos, sin):
        return q + cos[:, None], k + sin[:, None]

    def failing(q, k, cos, sin):
        raise ValueError

    for function in (other, failing):
        monkeypatch.setattr(source, function)
        assert turning(model.model.layers[0].self_attn) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_engine_generates_by_the_kernels(dtype):
    """Greedy tokens are those of generate(), and the model is given back."""
    model, ids = llama().to(dtype), list(range(1, 20))
    given = torch.tensor([ids])
    expected = model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=8, do_sample=False
    )[0, len(ids) :].tolist()
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    kind = "fp32" if dtype == torch.float32 else "bf16"
    plan = octavo.plan(spec, 2**20, page_size=4, dtype=kind, order="head", max_length=64)
    with Engine(model, plan) as engine:
        found = engine.generate([ids], SamplingParams(max_tokens=8))[0].token_ids
        assert {"LlamaRMSNorm", "LlamaAttention", "Linear"} == owned(model)

    assert expected == found
    assert set() == owned(model)
