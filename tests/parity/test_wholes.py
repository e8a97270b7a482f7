"""Pictures and prefixes that a decoder sees as a whole, wherever a prompt is cut."""

from functools import cache as once
from unittest.mock import patch

import media_models
import pytest
import torch
from media_models import WHOLE, agree
from media_models import scored as by_generate
from media_shapes import FAMILIES, IMAGE

import octavo
from octavo.engine import Engine, SamplingParams
from octavo.engine.wholes import seen_of
from octavo.errors import UnsupportedModel

GREEDY = SamplingParams(max_tokens=5, logprobs=0)
model_of = once(media_models.model_of)


def engine_of(model, page_size=4, **options):
    """An engine on pages of a few tokens."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    plan = octavo.plan(spec, "2MiB", page_size=page_size, dtype="fp32", order="head")
    return Engine(model, plan, **options)


def windowed(window, attention="sdpa"):
    """A Gemma 3 with a window of so many tokens, and pictures of four."""
    model = media_models.model_of("Gemma3")
    model.config.text_config.sliding_window = window
    for module in model.modules():
        if hasattr(module, "sliding_window"):
            module.sliding_window = window if module.is_sliding else None
    model.set_attn_implementation(attention)
    return model


def asking(prompt, text):
    """A prompt with more text behind it."""
    more = torch.tensor([text])
    longer = {"input_ids": torch.cat([prompt["input_ids"], more], 1)}
    longer["attention_mask"] = torch.ones_like(longer["input_ids"])
    for name in prompt.keys() & {"token_type_ids", "mm_token_type_ids"}:
        longer[name] = torch.cat([prompt[name], torch.zeros_like(more)], 1)
    return prompt | longer


def ask(engine, *prompts):
    """Requests, run together."""
    requests = [engine.submit(p["input_ids"][0].tolist(), GREEDY, inputs=p) for p in prompts]
    engine.run()
    return requests


@pytest.mark.parametrize("window", [2, 4, 5, 300])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_windows_shorter_and_longer_than_pictures(window, attention):
    """In layers with a window a token sees as much of its picture as lies in the window."""
    model = windowed(window, attention)
    prompts = [media_models.picture("Gemma3", *size) for size in ((5, 4, 1), (6, 1, 2))]
    expected = [by_generate(model, each) for each in prompts]
    for options in ({}, {"max_step_tokens": 7}, {"max_step_tokens": 3, "page_size": 1}):
        with engine_of(model, **options) as engine:
            assert agree(expected, ask(engine, *prompts))
            engine.cache.check()
    assert attention == model.config._attn_implementation


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_layers_of_one_kind(kind):
    """A decoder may be given masks for layers that it has none of."""
    fields = FAMILIES["Gemma3"][0]
    text = fields["text_config"] | {"layer_types": [kind] * 2}
    with patch.dict(FAMILIES, Gemma3=(fields | {"text_config": text}, FAMILIES["Gemma3"][1])):
        model = media_models.model_of("Gemma3")
    prompt = media_models.picture("Gemma3", 5, 4)
    expected = [by_generate(model, prompt)]
    with engine_of(model, max_step_tokens=7) as engine:
        assert agree(expected, ask(engine, prompt))


def test_what_is_seen_matters():
    """A picture seen token by token is another prompt, with another answer."""
    model = model_of("Gemma3")
    whole = asking(media_models.picture("Gemma3", 5, 4), [20, 21, 22])
    causal = {name: each for name, each in whole.items() if name != "token_type_ids"}
    expected = [by_generate(model, each) for each in (whole, causal, whole, causal)]
    assert (expected[0][1] - expected[1][1]).abs().max() > 1e-3
    with engine_of(model) as engine:
        requests = [ask(engine, each)[0] for each in (whole, causal, whole, causal)]
    assert agree(expected, requests)
    assert [0, 4, 16, 16] == [each.cached_tokens for each in requests]


@pytest.mark.parametrize("family", ["Gemma3", "Gemma4"])
def test_questions_about_one_picture(family):
    """They share the pages up to where they differ, and no other picture is found there."""
    model = model_of(family)
    base, other = (media_models.picture(family, 5, 4, seed) for seed in (1, 2))
    other = base | {"pixel_values": other["pixel_values"]}
    asked = [asking(base, [20]), asking(base, [21, 22, 23]), asking(other, [20])]
    expected = [by_generate(model, each) for each in asked]
    assert (expected[0][1] - expected[2][1]).abs().max() > 1e-2
    with engine_of(model) as engine:
        requests = [ask(engine, each)[0] for each in asked]
    assert agree(expected, requests)
    shared = base["input_ids"].shape[1]
    assert [0, shared // 4 * 4, 4] == [each.cached_tokens for each in requests]


def test_a_prompt_seen_as_a_whole_is_found_as_a_whole():
    """Its first tokens see its last, so what begins alike is no prefix of it."""
    model = model_of("PaliGemma")
    base = media_models.picture("PaliGemma", 5, 4)
    asked = [asking(base, [20]), asking(base, [20, 21, 22]), asking(base, [20])]
    expected = [by_generate(model, each) for each in asked]
    with engine_of(model) as engine:
        requests = [ask(engine, each)[0] for each in asked]
    assert agree(expected, requests)
    assert [0, 0, (base["input_ids"].shape[1]) // 4 * 4] == [r.cached_tokens for r in requests]


@pytest.mark.parametrize("size", [1, 4, 256])
def test_prompts_seen_as_a_whole_in_chunks(size):
    """Wherever they are cut, beside others, each token sees the whole prompt."""
    model = model_of("PaliGemma")
    prompts = [media_models.picture("PaliGemma", *each) for each in ((5, 4, 1), (9, 2, 2))]
    expected = [by_generate(model, each) for each in prompts]
    causal = by_generate(model, prompts[0] | {"token_type_ids": torch.ones(1, 15).long()})
    assert (expected[0][1] - causal[1]).abs().max() > 1e-2
    for most in (1, 6, 99):
        with engine_of(model, size, max_step_tokens=most) as engine:
            assert agree(expected, ask(engine, *prompts))


@pytest.mark.parametrize("family", WHOLE)
def test_prompts_are_scored_as_a_whole(family):
    """How probable a prompt's tokens are is told of the whole prompt, in chunks of any size."""
    model = model_of(family)
    prompt = media_models.picture(family, 5, 4)
    ids = prompt["input_ids"][0].tolist()
    with torch.no_grad():
        found = model(**prompt).logits[0].log_softmax(-1)
    expected = found[:-1].gather(1, prompt["input_ids"][0, 1:, None])[:, 0]
    for most in (4, 99):
        with engine_of(model, max_step_tokens=most) as engine:
            params = SamplingParams(max_tokens=1, prompt_logprobs=0)
            (answer,) = engine.generate([ids], params, inputs=prompt)
        scores = torch.tensor([each.logprob for each in answer.prompt_logprobs[1:]])
        assert torch.allclose(expected, scores, atol=2e-5)


def test_decoders_that_hide_nothing_by_themselves():
    """Without a picture, or what says how it is seen, PaliGemma is refused."""
    model = model_of("PaliGemma")
    prompt = media_models.picture("PaliGemma", 5, 4)
    del prompt["token_type_ids"]
    with engine_of(model) as engine:
        for inputs in (prompt, None):
            with pytest.raises(UnsupportedModel, match="its tokens see later ones"):
                engine.submit(prompt["input_ids"][0].tolist(), inputs=inputs)


def test_passes_and_tokens_ahead():
    """Rows with a picture in the step have a pass each, to the end of the picture; others share."""
    model = model_of("Gemma3")
    prompt = media_models.picture("Gemma3", 5, 4)
    first = prompt["input_ids"][0].tolist().index(IMAGE)
    sizes = []
    decoder = model.get_decoder()
    with engine_of(model, max_step_tokens=first + 2) as engine:
        ids = prompt["input_ids"][0].tolist()
        engine.submit(ids, SamplingParams(max_tokens=1), inputs=prompt)
        hook = decoder.register_forward_pre_hook(
            lambda _m, _a, given: sizes.append(given["position_ids"].shape[-1]), with_kwargs=True
        )
        engine.run()
        hook.remove()
    assert [first + 4, len(ids) - first - 2] == sizes


def square(rows):
    """A mask [1, 1, n, n] of rows of 0 and 1."""
    return torch.tensor(rows, dtype=torch.bool)[None, None]


def test_what_masks_show():
    """None where all is causal; else the end of what each token sees, one for all layers."""
    assert seen_of(None, None) is None
    assert seen_of(torch.ones(1, 3), None) is None
    causal = square([[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    assert seen_of(causal, None) is None
    whole = square([[1, 0, 0], [1, 1, 1], [1, 1, 1]])
    seen = seen_of(whole, None)
    assert [1, 3, 3] == seen.until.tolist()
    assert [False, True, True] == seen.together.tolist()
    assert [None, 1, 0, None] == [seen.ahead(*at) for at in ((0, 1), (0, 2), (1, 3), (2, 3))]
    mixed = seen_of({"full_attention": None, "sliding_attention": whole}, 5)
    assert [1, 2, 3] == mixed.by_kind["full_attention"].until.tolist()
    assert ([1, 3, 3], 5) == (mixed.until.tolist(), mixed.by_kind["sliding_attention"].window)
    added = torch.where(whole, 0.0, -1e9)
    assert torch.float32 == seen_of({"full_attention": added}, None).dtype


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (square([[1, 0, 1], [1, 1, 0], [1, 1, 1]]), "no stretch"),
        (square([[1, 1, 0], [1, 1, 0], [0, 1, 1]]), "no stretch"),
        (torch.tensor([[0, 1]]), "hides some tokens"),
        ("causal", "is a str"),
    ],
)
def test_masks_that_are_refused(masks, message):
    """What is seen must be one stretch, up to an end."""
    with pytest.raises(UnsupportedModel, match=message):
        seen_of(masks, 2)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_no_adapters_beside_them():
    """A pass of one row has other rows than the step."""
    import peft

    prompt = media_models.picture("Gemma3", 5, 4)
    model = media_models.model_of("Gemma3")
    names = r".*language_model.*q_proj"
    config = peft.LoraConfig(target_modules=names, init_lora_weights=False)
    peft.get_peft_model(model, config, "voice")
    match = pytest.raises(UnsupportedModel, match="passes of one row")
    with engine_of(model) as engine, match:
        ask(engine, prompt)
