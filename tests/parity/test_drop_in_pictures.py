"""OctavoCache under models that see pictures and count positions on three axes."""

import copy
from contextlib import nullcontext
from functools import cache as once

import pytest
import torch
import transformers
from transformers import DynamicCache

from octavo.errors import StepError
from octavo.integrations.transformers import OctavoCache

PAGE = 8
PICTURE, CLIP, START, END = 90, 91, 92, 93
PLACES = {"image_token_id": PICTURE, "video_token_id": CLIP}
MARKS = {"vision_start_token_id": START, "vision_end_token_id": END}
TEXT = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
EYE = {
    "depth": 1,
    "hidden_size": 32,
    "out_hidden_size": 64,
    "num_heads": 2,
    "intermediate_size": 32,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 1,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
INTERLEAVED = ROPE | {"mrope_interleaved": True}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "layer_types": ["linear_attention", "full_attention"],
}
FAMILIES = {
    "Qwen2_5_VL": (
        {"rope_parameters": ROPE},
        {"window_size": 16, "fullatt_block_indexes": [0]},
        MARKS,
    ),
    "Qwen3VL": (
        {"head_dim": 16, "rope_parameters": INTERLEAVED},
        {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        MARKS,
    ),
    "Glm4v": (
        {"head_dim": 16}
        | {"rope_parameters": ROPE | {"mrope_section": [1, 2, 1], "partial_rotary_factor": 0.5}},
        {"image_size": 16},
        {"image_start_token_id": START, "image_end_token_id": END}
        | {"video_start_token_id": 94, "video_end_token_id": 95},
    ),
    "Qwen3_5": (
        {"head_dim": 16, "rope_parameters": INTERLEAVED | {"partial_rotary_factor": 1.0}} | DELTA,
        {"num_position_embeddings": 16, "deepstack_visual_indexes": []},
        MARKS,
    ),
}


@once
def model_of(family):
    """A tiny random model; its greedy tokens vary."""
    text, eye, marks = copy.deepcopy(FAMILIES[family])
    config = getattr(transformers, f"{family}Config")(
        text_config=TEXT | text, vision_config=EYE | eye, **PLACES, **marks
    )
    torch.manual_seed(5)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


def ids_of(length, seed, rows=1):
    """Random ids of text."""
    return torch.randint(3, 89, (rows, length), generator=torch.Generator().manual_seed(seed))


def picture(before, after, height=4, width=6, seed=1):
    """What a processor gives for one picture of that many patches between two texts."""
    places = torch.full((1, height * width // 4), PICTURE)
    ids = [ids_of(before, seed), torch.tensor([[START]]), places, torch.tensor([[END]])]
    ids = torch.cat([*ids, ids_of(after, seed + 1)], dim=1)
    patches = torch.randn(height * width, 48, generator=torch.Generator().manual_seed(seed))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == PICTURE).long(),
        "pixel_values": patches,
        "image_grid_thw": torch.tensor([[1, height, width]]),
    }


def text(length, seed=9, rows=1, kinds=False):
    """The same for text."""
    ids = ids_of(length, seed, rows)
    found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return found | ({"mm_token_type_ids": torch.zeros_like(ids)} if kinds else {})


PROMPTS = {
    "a": picture(5, 4),
    "b": picture(3, 3, seed=20),
    "long": picture(2, 30, 4, 4, seed=30),
    "text": text(20),
    "kinds": text(30, kinds=True),
    "rows": text(16, seed=11, rows=3),
}


def answer(model, prompt, cache=None, **more):
    """Six greedy tokens behind a prompt."""
    options = {"max_new_tokens": 6, "do_sample": False} | more
    return model.generate(**prompt, cache=cache, **options)


def cache_for(model):
    """A small cache."""
    return OctavoCache.for_model(model, "4MiB", page_size=PAGE)


@pytest.mark.parametrize("level", ["gather", "attend"])
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_one_after_another_are_answered_alike(family, level):
    """Pictures, texts and batches without a reset between: positions are of the prompt shown."""
    model = model_of(family)
    cache = cache_for(model)
    for name in ("a", "b", "rows", "a", "text", "b", "rows", "kinds", "long", "text"):
        with cache.attend() if level == "attend" else nullcontext():
            found = answer(model, PROMPTS[name], cache)
        assert torch.equal(found, answer(model, PROMPTS[name])), name
    cache.pages.check()
    cache.close()


@pytest.mark.parametrize("kinds", [False, True])
@pytest.mark.parametrize("family", ["Qwen2_5_VL", "Qwen3VL", "Glm4v"])
def test_texts_are_found_again(family, kinds):
    """Three equal axes of positions are plain ones, and zeros are no kind of token."""
    model = model_of(family)
    cache = cache_for(model)
    answer(model, PROMPTS["a"], cache)
    prompt = text(30, kinds=kinds)
    for _ in range(2):
        found = answer(model, prompt, cache)
        cache.reset()
    assert torch.equal(found, answer(model, prompt))
    assert cache.pages.stats().cached_tokens == 24
    cache.close()


def behind(first, turn):
    """A conversation of a picture and an answer, and the next turn: (whole prompt, its text)."""
    ids = torch.cat([first, turn], dim=1)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    whole = PROMPTS["a"] | given | {"mm_token_type_ids": (ids == PICTURE).long()}
    return whole, given


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_about_a_picture_goes_on(family):
    """By the new ids alone, as with DynamicCache, or by all with the picture; never blindly."""
    model = model_of(family)
    own, cache = DynamicCache(config=model.config.get_text_config(decoder=True)), cache_for(model)
    first = answer(model, PROMPTS["a"], cache)
    answer(model, PROMPTS["a"], own)
    whole, given = behind(first, ids_of(5, 77))
    with pytest.raises(StepError, match="pictures or sounds"):
        answer(model, given, cache)
    expected = answer(model, whole)
    assert torch.equal(answer(model, whole, cache), expected)

    cache.reset()
    answer(model, PROMPTS["a"], cache)
    alone = given | {"input_ids": given["input_ids"][:, first.shape[1] - 1 :]}
    found = answer(model, alone, cache)
    assert torch.equal(found, answer(model, alone, own))
    assert torch.equal(found[:, -6:], expected[:, -6:])
    cache.close()


def test_a_conversation_in_text_goes_on_where_it_stands():
    """All ids on known rows: only the new ones are computed."""
    model = model_of("Qwen3VL")
    cache = cache_for(model)
    first = answer(model, PROMPTS["text"], cache)
    _, given = behind(first, ids_of(5, 77))
    seen = []
    hook = model.model.register_forward_pre_hook(
        lambda _m, _a, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    assert torch.equal(answer(model, given, cache), answer(model, given))
    hook.remove()
    assert seen[0] == 6
    cache.close()


def test_beams_about_a_picture():
    """The last prompt was of another size and another picture."""
    model = model_of("Qwen2_5_VL")
    cache = cache_for(model)
    for name in ("long", "a"):
        found = answer(model, PROMPTS[name], cache, num_beams=3)
        assert torch.equal(found, answer(model, PROMPTS[name], num_beams=3))
    cache.close()


def test_the_models_own_method_comes_back():
    """It is told of while a cache follows, in copies of the model too, and is its own again."""
    model = copy.deepcopy(model_of("Qwen3VL"))
    name = "_prepare_position_ids_for_generation"
    one, other = cache_for(model), cache_for(model)
    copied = copy.deepcopy(model)
    one.close()
    assert name in vars(model)
    assert torch.equal(answer(model, PROMPTS["a"], other), answer(copied, PROMPTS["a"]))
    other.close()
    assert name not in vars(model)
    mine = cache_for(copied)
    for prompt in (PROMPTS["a"], PROMPTS["b"]):
        assert torch.equal(answer(copied, prompt, mine), answer(model, prompt))
    mine.close()
