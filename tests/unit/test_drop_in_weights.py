"""OctavoCache and a model's weights: others forget by themselves, and gradients are refused."""

import pytest
import torch
import transformers
from drop_in_models import SHAPE, generate, ids_of
from torch import nn

from octavo.errors import StepError
from octavo.integrations.transformers import OctavoCache

IDS = ids_of(1, 20)


@pytest.fixture
def model():
    """A Llama of its own, as its weights are changed."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(**SHAPE | {"initializer_range": 0.2})
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def cache(model):
    """A small cache that has answered a prompt."""
    found = OctavoCache.for_model(model, "1MiB", page_size=8)
    generate(model, IDS, found)
    return found


def agrees(model, cache):
    """Whether the prompt is answered as without a cache."""
    found, expected = generate(model, IDS, cache), generate(model, IDS, None)
    near = (found[1] - expected[1]).abs().max() < 2e-5 * expected[1].abs().max()
    return bool(near) and torch.equal(found[0], expected[0])


def load(model):
    """Weights of another model of the kind."""
    state = {name: value.roll(1) for name, value in model.state_dict().items()}
    model.load_state_dict(state)


def train(model):
    """A step of an optimiser."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    model(IDS, labels=IDS).loss.backward()
    optimiser.step()
    optimiser.zero_grad()


def exchange(model):
    """Another tensor for one, which stays alive."""
    attention = model.model.layers[0].self_attn
    attention.old = [attention.k_proj.weight]
    attention.k_proj.weight = nn.Parameter(attention.k_proj.weight.detach() * 2)


def swap_data(model):
    """Other memory behind the same parameter, which torch does not count."""
    weight = model.model.layers[1].self_attn.k_proj.weight
    weight.data = weight.detach() * 2


def add(model):
    """An adapter: weights beside those that were there."""
    projection = model.model.layers[0].self_attn.k_proj
    lora = nn.Linear(64, 32, bias=False)
    projection.add_module("lora", lora)
    projection.register_forward_hook(lambda _m, args, out: out + lora(args[0]))


CHANGES = {f.__name__: f for f in (load, train, exchange, swap_data, add)}


@pytest.mark.parametrize("reset", [False, True], ids=["rows", "pages"])
@pytest.mark.parametrize("how", CHANGES)
def test_pages_of_other_weights_are_forgotten(model, cache, how, reset):
    """Neither rows nor pages that they computed are found by the next prompt."""
    CHANGES[how](model)
    if reset:
        cache.reset()
    assert agrees(model, cache)
    assert cache.pages.stats().cached_tokens == 0
    cache.reset()
    assert agrees(model, cache)
    assert cache.pages.stats().cached_tokens == 16


def test_prompt_forgets_too(model, cache):
    """A prompt that is said finds nothing of other weights."""
    load(model)
    cache.prompt(IDS)
    assert cache.get_seq_length() == 0
    assert agrees(model, cache)
    assert cache.pages.stats().cached_tokens == 0


def test_assisted_decoding_forgets_too(model, cache):
    """Drafts are still taken back in the call that has forgotten."""
    load(model)
    ids = IDS[:, :6].repeat(1, 3)
    found = generate(model, ids, cache, prompt_lookup_num_tokens=4, new=10)
    assert torch.equal(found[0], generate(model, ids, None, new=10)[0])


def test_rows_do_not_go_on_under_other_weights(model, cache):
    """By hand, the next token would see keys of both: refused, and a reset begins others."""
    with torch.no_grad():
        cache.reset()
        model(IDS, cache=cache)
        model.model.layers[0].self_attn.k_proj.weight.mul_(2)
        with pytest.raises(StepError, match="weights"):
            model(IDS[:, :1], cache=cache)
        assert cache.get_seq_length() == 20
        cache.reset()
        expected = model(IDS).logits
        found = model(IDS, cache=cache).logits
    assert torch.equal(found, expected)
    assert cache.pages.stats().cached_tokens == 0


def test_weights_that_stay_forget_nothing(model, cache):
    """Modes, other caches and passes beside it are no change."""
    cache.reset()
    model.train()
    model.eval()
    model(IDS)
    other = OctavoCache.for_model(model, "1MiB", page_size=8)
    generate(model, IDS, other)
    model.requires_grad_(False)
    assert agrees(model, cache)
    assert cache.pages.stats().cached_tokens == 16


def test_gradients_through_the_cache_are_refused(model, cache):
    """Pages keep no graph: projections of keys would get none of their gradient."""
    cache.reset()
    with pytest.raises(StepError, match="no_grad"):
        model(IDS, cache=cache)
    assert cache.pages.stats().live == 0
    assert agrees(model, cache)


def test_frozen_models_need_no_context(model, cache):
    """What autograd would not record runs."""
    cache.reset()
    model.requires_grad_(False)
    assert torch.equal(model(IDS, cache=cache).logits, model(IDS).logits)
