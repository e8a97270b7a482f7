"""OctavoCache with settings of torch and transformers around it, sized by tokens, and in files."""

from contextlib import nullcontext

import pytest
import torch
import transformers
from drop_in_models import SHAPE, generate, ids_of, model_of
from transformers import DynamicCache

from octavo.errors import LengthError, PageFileMismatch, PlanError, TokenError, UnsupportedModel
from octavo.integrations.transformers import OctavoCache

IDS = ids_of(1, 21)


@pytest.fixture
def model():
    """A tiny Llama."""
    return model_of("llama")


def cache_for(model, memory="1MiB", **options):
    """A small cache."""
    return OctavoCache.for_model(model, memory, page_size=8, **options)


# -- settings ----------------------------------------------------------------------------------


def test_autocast_in_another_dtype_is_refused(model):
    """Keys would be of two dtypes; rows stand as they stood."""
    cache = cache_for(model)
    with torch.no_grad():
        model(IDS, cache=cache)
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(PlanError, match="autocast"):
            model(IDS[:, :1], cache=cache)
    assert cache.get_seq_length() == 21


def test_autocast_in_the_models_dtype_is_shared_with_nobody():
    """It computes some layers otherwise than the model by itself does."""
    config = transformers.LlamaConfig(**SHAPE)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    cache = cache_for(model)
    generate(model, IDS, cache)
    cache.reset()
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = (
            generate(model, IDS, each) for each in (cache, DynamicCache(config=config))
        )
    assert torch.equal(found[1], expected[1])
    assert cache.pages.stats().cached_tokens == 0


def test_no_cache_beside_a_cache_is_refused(model):
    """generate() would show all ids to each pass: transformers' own cache keeps them twice."""
    cache = cache_for(model)
    with pytest.raises(UnsupportedModel, match="use_cache"):
        generate(model, IDS, cache, use_cache=False)
    assert torch.equal(generate(model, IDS, cache)[0], generate(model, IDS, None)[0])


def test_cropping_to_the_last_column(model):
    """What is left goes on; more than there is, is refused and changes nothing."""
    cache, own = cache_for(model), DynamicCache(config=model.config)
    for each in (cache, own):
        generate(model, IDS, each)
    with pytest.raises(LengthError, match="columns to remove is 28"):
        cache.crop(-28)
    assert cache.get_seq_length() == 27
    with torch.no_grad():
        for keep in (5, 1, 0):
            found = []
            for each in (cache, own):
                each.crop(keep - each.get_seq_length())
                found.append(model(IDS[:, :4], cache=each).logits)
            assert torch.equal(*found)


@pytest.mark.parametrize("where", ["gather", "attend"])
def test_a_compiled_model_is_the_model_itself(model, where):
    """for_model takes what torch.compile made; calls and passes through either are followed."""
    compiled = torch.compile(model, backend="eager")
    cache = cache_for(compiled)
    with cache.attend() if where == "attend" else nullcontext():
        for each in (compiled, model):
            assert torch.equal(generate(each, IDS, cache)[0], generate(model, IDS, None)[0])
        cache.reset()
        with torch.no_grad():
            found = compiled(IDS, cache=cache).logits
    assert (found - model(IDS).logits).abs().max() < 1e-4
    assert cache.get_seq_length() == 21
    cache.close()


# -- tokens that see those behind them ---------------------------------------------------------


@pytest.fixture(scope="module")
def prefixed():
    """A tiny PaliGemma: positions from 1, and tokens of a prompt that see each other."""
    text = SHAPE | {"model_type": "gemma", "head_dim": 16}
    eye = {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 32}
    eye |= {"num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 8, "image_size": 16}
    torch.manual_seed(5)
    config = transformers.PaliGemmaConfig(
        text_config=text,
        vision_config=eye | {"projection_dim": 64},
        image_token_index=90,
        projection_dim=64,
        hidden_size=64,
    )
    return transformers.PaliGemmaForConditionalGeneration(config).eval()


def picture(length, seed):
    """A prompt about a picture of four places."""
    ids = torch.cat([torch.full((1, 4), 90), ids_of(1, length, seed).clamp(max=89)], dim=1)
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
        "pixel_values": torch.randn(1, 3, 16, 16, generator=generator),
    }


def logits(model, prompt, cache):
    """Of six greedy tokens."""
    options = {"max_new_tokens": 6, "do_sample": False, "output_logits": True}
    found = model.generate(**prompt, cache=cache, return_dict_in_generate=True, **options)
    return torch.stack(found.logits)


def test_positions_from_one_are_the_models_own(prefixed):
    """Prompts with pictures and without, one after another; nothing of them is shared."""
    cache = cache_for(prefixed)
    ids = ids_of(2, 20).clamp(max=89)
    plain = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for prompt in (plain, picture(6, 1), picture(9, 2), plain, picture(6, 1)):
        assert torch.equal(logits(prefixed, prompt, cache), logits(prefixed, prompt, None))
    assert cache.pages.stats().cached_tokens == 0


@pytest.mark.parametrize("padding", [0, 3])
def test_octavos_attention_refuses_tokens_that_see_those_behind(prefixed, padding):
    """It is causal: by the model's word where it makes no mask, by the mask where it does."""
    cache = cache_for(prefixed)
    ids = ids_of(2, 20).clamp(max=89)
    mask = torch.ones_like(ids)
    mask[1, :padding] = 0
    prompt = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    with cache.attend(), pytest.raises(UnsupportedModel, match="attention mask"):
        logits(prefixed, prompt, cache)
    assert torch.equal(logits(prefixed, prompt, cache), logits(prefixed, prompt, None))


@pytest.mark.parametrize("where", ["gather", "attend"])
def test_a_window_that_holds_the_longest_sequence_is_none(where):
    """The plan has no window there, and the model still asks for one."""
    config = transformers.MistralConfig(**SHAPE | {"head_dim": 16, "sliding_window": 4096})
    model = transformers.MistralForCausalLM(config).eval()
    cache = cache_for(model)
    assert list(cache.plan.groups) == ["full"]
    with cache.attend() if where == "attend" else nullcontext():
        found = generate(model, IDS, cache)
    assert torch.equal(found[0], generate(model, IDS, None)[0])


def test_states_that_are_the_models_own_are_never_gone_on_from():
    """RecurrentGemma keeps them in its modules: each prompt is computed whole."""
    options = {"head_dim": 16, "attention_window_size": 8, "lru_width": 64, "conv1d_width": 4}
    torch.manual_seed(5)
    config = transformers.RecurrentGemmaConfig(**SHAPE | options | {"num_hidden_layers": 3})
    model = transformers.RecurrentGemmaForCausalLM(config).eval()
    cache, ids = cache_for(model), ids_of(1, 24)
    first, _ = generate(model, ids, cache)
    whole = torch.cat([first, ids_of(1, 5, seed=3)], dim=1)
    for prompt in (whole, ids, torch.cat([ids, ids_of(1, 9, seed=4)], dim=1)):
        found, expected = (generate(model, prompt, each) for each in (cache, None))
        assert torch.equal(found[0], expected[0])
        assert (found[1] - expected[1]).abs().max() < 1e-5 * expected[1].abs().max()
        cache.reset()
    assert cache.pages.stats().cached_tokens == 0


# -- sized by tokens ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next"])
@pytest.mark.parametrize("tokens", [1, 100, 512])
def test_a_cache_for_so_many_tokens_takes_them(family, tokens):
    """One row of that length fits, and no page is missing for it."""
    model = model_of(family)
    cache = OctavoCache.for_model(model, tokens=tokens, page_size=8)
    assert cache.plan.tokens >= tokens
    if tokens == 100:
        found = generate(model, ids_of(1, 93), cache)
        assert torch.equal(found[0], generate(model, ids_of(1, 93), None)[0])
    cache.close()


def test_more_tokens_than_a_row_may_have_are_of_several(model):
    """Two rows of the longest that the model has."""
    cache = OctavoCache.for_model(model, tokens=1_000)
    assert cache.plan.usable_pages * 16 >= 1_000
    assert cache.pages.max_length == 512


@pytest.mark.parametrize("options", [{}, {"memory": "1MiB", "tokens": 9}])
def test_memory_or_tokens_are_given(model, options):
    """Not neither, and not both."""
    with pytest.raises(PlanError, match="memory or tokens"):
        OctavoCache.for_model(model, **options)


@pytest.mark.parametrize("tokens", [0, -1, 1.5, "many"])
def test_tokens_are_a_number(model, tokens):
    """At least one."""
    with pytest.raises(LengthError, match="tokens is"):
        OctavoCache.for_model(model, tokens=tokens)


# -- in files ----------------------------------------------------------------------------------


def test_a_prefix_is_found_in_another_cache(model, tmp_path):
    """Saved pages are those another cache of the model reads, for rows of either shape."""
    cache, path = cache_for(model), tmp_path / "prompt"
    generate(model, IDS, cache)
    assert cache.save(path, IDS) == cache.save(path, IDS[0]) == 16
    other = cache_for(model)
    assert other.load(path) == 16
    found = generate(model, IDS, other)
    assert torch.equal(found[0], generate(model, IDS, None)[0])
    assert other.pages.stats().cached_tokens == 16


def test_other_weights_load_nothing(tmp_path):
    """Neither another model's, nor those the model had when it was saved."""
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).eval()
    cache, path = cache_for(model), tmp_path / "prompt"
    generate(model, IDS, cache)
    cache.save(path, IDS)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    with pytest.raises(PageFileMismatch):
        cache.load(path)
    with pytest.raises(LengthError, match="published"):
        cache.save(path, IDS)


@pytest.mark.parametrize(
    ("ids", "error"),
    [([1, 2], LengthError), (IDS.float(), TokenError), (ids_of(2, 9), LengthError)],
)
def test_what_is_no_prompt_is_not_saved(model, tmp_path, ids, error):
    """Lists, floats and several rows are refused by name."""
    cache = cache_for(model)
    generate(model, IDS, cache)
    with pytest.raises(error, match=r"input_ids|token"):
        cache.save(tmp_path / "prompt", ids)
    assert not (tmp_path / "prompt").exists()
