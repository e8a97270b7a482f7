"""OctavoCache between calls: prefixes found again, octavo's own attention, and speech."""

from functools import partial

import pytest
import torch
import transformers
from drop_in_models import CONFIGS, SPEECH, generate, ids_of, model_of, padded
from transformers import DynamicCache

from octavo.integrations.transformers import OctavoCache

PAGE = 8
HYBRID = ("qwen3_next", "bamba", "falcon_h1", "lfm2")  # Jamba forgets its state between chunks


def cache_for(model, **options):
    """A small cache."""
    return OctavoCache.for_model(model, "4MiB", page_size=PAGE, **options)


def fresh(model, ids, mask=None, **options):
    """What transformers' own cache makes of it, nothing reused."""
    own = DynamicCache(config=model.config.get_text_config(decoder=True))
    return generate(model, ids, own, mask, **options)


def agree(found, expected, error=2e-5):
    """Equal tokens, and logits that differ by rounding."""
    assert torch.equal(found[0], expected[0])
    assert (found[1] - expected[1]).abs().max() <= error * expected[1].abs().max()


def cached(cache):
    """Prompt tokens found again so far."""
    return cache.pages.stats().cached_tokens


@pytest.mark.parametrize("family", CONFIGS)
def test_a_second_prompt_computes_only_what_is_new(family):
    """The first prompt, its answer and a new turn, after the rows were let go."""
    model = model_of(family)
    cache = cache_for(model)
    options = {"prefill_chunk_size": 2 * PAGE} if family in HYBRID else {}
    first, _ = generate(model, ids_of(1, 37), cache, **options)
    cache.reset()
    second = torch.cat([first, ids_of(1, 9, seed=8)], dim=1)
    if family in HYBRID:
        cache.prompt(second)
    agree(generate(model, second, cache, **options), fresh(model, second))
    expected = {"jamba": 0} | dict.fromkeys(HYBRID, 32)
    assert cached(cache) == expected.get(family, 40)
    cache.pages.check()
    cache.close()


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "deepseek_v3"])
def test_rows_of_a_batch_share_a_system_prompt(family):
    """Prompts of different length behind the same beginning: each computes its own part."""
    model = model_of(family)
    cache = cache_for(model)
    system = ids_of(1, 24, seed=11)[0]
    generate(model, system[None], cache)
    ids, mask = padded([24 + 13, 24 + 6, 24 + 3], "left", seed=12)
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        ids[row, ids.shape[1] - length :][:24] = system
    seen = []
    hook = model.model.register_forward_pre_hook(
        lambda _m, _a, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    agree(generate(model, ids, cache, mask), fresh(model, ids, mask))
    hook.remove()
    assert seen[0] == 37 - 24  # all rows begin behind what the longest has: no column has less
    assert cached(cache) == 3 * 24
    cache.close()


def test_a_hybrid_batch_reuses_where_its_rows_stand_alike():
    """States are of one position: rows that agree on it reuse, others compute from the start."""
    model = model_of("qwen3_next")
    cache = cache_for(model)
    ids = ids_of(2, 37)
    generate(model, ids, cache, prefill_chunk_size=2 * PAGE)
    cache.reset()
    cache.prompt(ids)
    agree(generate(model, ids, cache, prefill_chunk_size=2 * PAGE), fresh(model, ids))
    assert cached(cache) == 2 * 32
    cache.reset()
    other = torch.cat([ids[:1], ids_of(1, 37, seed=9)])
    cache.prompt(other)
    assert cache.get_seq_length() == 0
    agree(generate(model, other, cache, prefill_chunk_size=2 * PAGE), fresh(model, other))
    cache.close()


def test_beams_of_one_prompt_hold_it_once():
    """Four beams store the prompt's pages once, and copy only the page they write."""
    model = model_of("llama")
    cache = cache_for(model)
    generate(model, ids_of(1, 8 * PAGE), cache, num_beams=4, new=PAGE)
    assert cache.pages.stats().peak_live <= 8 + 4
    cache.close()


def test_a_cache_filled_once_fans_out():
    """batch_repeat_interleave: one prefilled row goes on as three, without another page."""
    model = model_of("qwen3_next")
    cache, ids = cache_for(model), ids_of(1, 19)
    with torch.no_grad():
        model(ids, cache=cache)
        live = cache.pages.stats().live
        cache.batch_repeat_interleave(3)
        assert cache.pages.stats().live == live
        turns = ids_of(3, 1, seed=8)
        found = model(turns, cache=cache).logits
        expected = model(torch.cat([ids.repeat(3, 1), turns], dim=1)).logits[:, -1:]
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    cache.close()


def test_assisted_decoding_reuses_a_prefix():
    """The first pass is prompt and drafts in one: what is there is cut off it."""
    model = model_of("llama")
    cache, ids = cache_for(model), ids_of(1, 12).repeat(1, 3)
    expected = fresh(model, ids, prompt_lookup_num_tokens=5)
    for _ in range(2):
        agree(generate(model, ids, cache, prompt_lookup_num_tokens=5), expected)
        cache.reset()
    assert cached(cache) == 32
    cache.close()


def test_sampling_draws_the_same_tokens():
    """With one seed, four samples of a prompt are those of transformers' own cache."""
    model = model_of("llama")
    cache, found = cache_for(model), []
    for each in (cache, DynamicCache(config=model.config)):
        torch.manual_seed(3)
        ids = ids_of(1, 19)
        found.append(
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                cache=each,
                do_sample=True,
                num_return_sequences=4,
                max_new_tokens=8,
            )
        )
    assert torch.equal(*found)
    cache.close()


PAGED = [
    (family, name)
    for family in CONFIGS
    for name in ("left", "beams", "chunks")
    if family != "jamba" or name == "left"
]


@pytest.mark.parametrize(("family", "mode"), PAGED)
def test_octavos_attention_reads_the_pages_in_place(family, mode):
    """Under cache.attend() the tokens are those of eager or fused attention, padding included."""
    model = model_of(family)
    cache = cache_for(model)
    ids, mask = padded([19, 12, 5], "left")
    options = {}
    if mode != "left":
        ids, mask = ids_of(2, 21), None
        options = {"num_beams": 4} if mode == "beams" else {"prefill_chunk_size": PAGE}
    own = model.config._attn_implementation
    expected = fresh(model, ids, mask, **options)
    with cache.attend():
        found = generate(model, ids, cache, mask, **options)
    agree(found, expected)
    assert model.config._attn_implementation == own
    cache.close()


@pytest.fixture(scope="module")
def speech():
    """A tiny CSM: a backbone over frames, a depth decoder over their codebooks."""
    torch.manual_seed(4)
    return transformers.CsmForConditionalGeneration(transformers.CsmConfig(**SPEECH)).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [1, 3])
def test_speech_frames_are_those_of_transformers_own_cache(speech, rows):
    """CSM's backbone runs on pages; frames have no single ids, so nothing of them is shared."""
    cache = cache_for(speech)
    ids = ids_of(rows, 11)
    mask = torch.ones_like(ids)
    if rows > 1:
        ids[1, :4], mask[1, :4] = 0, 0
    own = DynamicCache(config=speech.config)
    found = [
        speech.generate(
            input_ids=ids,
            attention_mask=mask,
            cache=each,
            max_new_tokens=6,
            do_sample=False,
            depth_decoder_do_sample=False,
        )
        for each in (own, cache, cache)
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    cache.pages.check()
    cache.close()


@pytest.mark.filterwarnings("ignore")
def test_codebooks_are_those_of_transformers_own_cache(speech, monkeypatch):
    """CSM's decoder in depth on pages of its own: each frame begins anew and shares nothing."""
    cache, depth = cache_for(speech), cache_for(speech.depth_decoder)
    ids = ids_of(2, 11)
    options = {
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": 6,
        "do_sample": False,
        "depth_decoder_do_sample": False,
    }
    expected = speech.generate(input_ids=ids, **options)
    with_pages = partial(speech.depth_decoder.generate, cache=depth)
    monkeypatch.setattr(speech.depth_decoder, "generate", with_pages)
    assert torch.equal(expected, speech.generate(input_ids=ids, cache=cache, **options))
    assert (0, 12 * 2) == (depth.pages.stats().cached_tokens, depth.pages.stats().prompt_tokens)
    depth.reset()
    assert depth.pages.stats().live == 0
    cache.close()
    depth.close()
