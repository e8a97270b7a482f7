"""The engine answers prompts with pictures as transformers does."""

from functools import cache as once

import media_models
import numpy as np
import pytest
import torch
import transformers
from media_shapes import FAMILIES, LLAMA
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

import octavo
from octavo.engine import Engine, SamplingParams
from octavo.errors import IdentityError, UnsupportedModel

GREEDY = SamplingParams(max_tokens=5)
model_of = once(media_models.model_of)


def engine_of(model, pages=60, **options):
    """An engine of pages of 4 tokens."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    made = {"page_size": 4, "dtype": "fp32", "order": "head", "indexer_dtype": "fp32"}
    memory = octavo.memory_for(spec, sequences=1, length=4 * pages, **made)
    return Engine(model, octavo.plan(spec, memory, **made), **options)


def by_generate(model, prompt):
    """What transformers answers."""
    found = model.generate(**prompt, max_new_tokens=5, do_sample=False)
    return found[0, prompt["input_ids"].shape[1] :].tolist()


def ids_of(prompt):
    """Its token ids."""
    return prompt["input_ids"][0].tolist()


def submit(engine, prompt, **options):
    """A request for a prompt with a picture, or a list of ids."""
    if isinstance(prompt, list):
        return engine.submit(prompt, GREEDY, **options)
    return engine.submit(ids_of(prompt), GREEDY, inputs=prompt, **options)


def answers(engine, prompts):
    """The answers to prompts submitted together."""
    requests = [submit(engine, prompt) for prompt in prompts]
    engine.run()
    return [request.output for request in requests]


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_of_generate(family):
    """Pictures beside pictures and text, in chunks, and from pages that were kept."""
    model = model_of(family)
    first, other = (media_models.picture(family, *size) for size in ((5, 4, 1), (3, 9, 7)))
    text = torch.arange(3, 14)[None]
    plain = {"input_ids": text, "attention_mask": torch.ones_like(text)}
    alone = [] if family == "PaliGemma" else [plain]  # whose processor wants a picture
    expected = [by_generate(model, each) for each in (first, other, *alone)]
    assert expected[0] != expected[1]

    with engine_of(model, max_step_tokens=7) as engine:
        asked = [first, other, *(text[0].tolist() for _ in alone)]
        assert expected == answers(engine, asked)
        again = submit(engine, first)
        engine.run()
        assert expected[0] == again.output
        assert again.cached_tokens >= 4
        engine.cache.check()


@pytest.mark.parametrize("family", ["GotOcr2", "MiniMaxM3VL", "MossTranscribeDiarize", "Qwen4Exp"])
def test_rows_by_themselves(family):
    """Tokens are as probable as in generate(), where each row has a pass of its own."""
    model = model_of(family)
    prompts = [media_models.picture(family, *size) for size in ((5, 4, 1), (9, 9, 7))]
    expected = [media_models.scored(model, each) for each in prompts]
    told = SamplingParams(max_tokens=5, logprobs=0)
    for most in (99, 7):
        with engine_of(model, max_step_tokens=most) as engine:
            requests = [engine.submit(ids_of(each), told, inputs=each) for each in prompts]
            engine.run()
            assert media_models.agree(expected, requests)


@pytest.mark.parametrize("family", ["Llava", "Qwen3VL"])
def test_answers_when_preempted(family):
    """Pages for two of three: what is computed again has its pictures again."""
    model = model_of(family)
    prompts = [media_models.picture(family, 5, 4, seed) for seed in (1, 2, 3)]
    expected = [by_generate(model, each) for each in prompts]
    with engine_of(model, pages=12, prefix=False, watermark=0) as engine:
        assert expected == answers(engine, prompts)


def two_pictures(family, seeds):
    """A prompt with two pictures."""
    first, second = (media_models.picture(family, 4, 4, seed) for seed in seeds)
    texts = media_models.picture(family, 4, 4, 50)["input_ids"]
    both = {k: torch.cat([first[k], second[k]]) for k in first if k != "input_ids"}
    both["input_ids"] = torch.cat([texts, texts], dim=1)
    both["attention_mask"] = torch.ones_like(both["input_ids"])
    if "mm_token_type_ids" in both:
        both["mm_token_type_ids"] = both["mm_token_type_ids"].reshape(1, -1)
    return both


@pytest.mark.parametrize("family", ["Llava", "Qwen2VL"])
def test_pages_are_shared_up_to_the_picture_that_differs(family):
    """Each picture is known by its own content, wherever the processor puts it."""
    model = model_of(family)
    asked = [two_pictures(family, seeds) for seeds in ((1, 2), (1, 3), (4, 3), (1, 2))]
    each = len(ids_of(asked[0])) // 2
    expected = [by_generate(model, prompt) for prompt in asked]
    hits = []
    with engine_of(model) as engine:
        for prompt, answer in zip(asked, expected, strict=True):
            request = submit(engine, prompt)
            engine.run()
            assert answer == request.output
            hits.append(request.cached_tokens)
    before = 4  # the first page has no token of a picture
    assert hits == [0, (each + 5) // 4 * 4, before, (2 * each - 1) // 4 * 4]
    assert len({tuple(answer) for answer in expected}) > 1


@pytest.mark.parametrize("family", ["Qwen2VL", "Qwen3VL"])
def test_pages_are_of_one_kind_of_positions(family):
    """A picture that is counted as text is another to whoever comes behind it."""
    model = model_of(family)
    picture = media_models.picture(family, 5, 9)
    text = picture | {"mm_token_type_ids": torch.zeros_like(picture["mm_token_type_ids"])}
    expected = [media_models.scored(model, each) for each in (picture, text)]
    told = SamplingParams(max_tokens=5, logprobs=0)
    with engine_of(model) as engine:
        requests = []
        for each in (picture, text):
            requests.append(engine.submit(ids_of(each), told, inputs=each))
            engine.run()
    assert media_models.agree(expected, requests)
    assert [0, 4] == [each.cached_tokens for each in requests]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"input_ids": torch.tensor([[1, 2]])}, IdentityError, r"inputs\['input_ids'\]"),
        ({"pixel_values": [1.0]}, IdentityError, "return_tensors='pt'"),
        (
            {"pixel_values": torch.zeros(2, 3, 8, 8)},
            UnsupportedModel,
            "fails on .'pixel_values'.*do not match",
        ),
        ({"pixels": torch.zeros(1)}, UnsupportedModel, "is given pixels for media"),
    ],
)
def test_inputs_that_do_not_fit(change, error, message):
    """They are refused when they are submitted, and nothing waits."""
    prompt = media_models.picture("Llava", 5, 4)
    with engine_of(model_of("Llava")) as engine:
        with pytest.raises(error, match=message):
            engine.submit(ids_of(prompt), GREEDY, inputs=prompt | change)
        with pytest.raises(IdentityError, match="tokens that stand for media"):
            engine.submit([1, 2, 3], GREEDY, inputs={"pixel_values": prompt["pixel_values"]})
        with pytest.raises(IdentityError, match="what the model's processor returns"):
            engine.submit(ids_of(prompt), GREEDY, inputs=3)
        assert not engine.step()


def test_a_model_of_text():
    """It has no token for a picture."""
    config = transformers.LlamaConfig(**{k: v for k, v in LLAMA.items() if k != "model_type"})
    prompt = media_models.picture("Llava", 5, 4)
    match = pytest.raises(UnsupportedModel, match="no token of this model stands for media")
    with engine_of(transformers.LlamaForCausalLM(config)) as engine, match:
        submit(engine, prompt)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_adapters_beside_pictures():
    """One of the text is applied by request; one of the encoder would change all pictures."""
    import peft

    prompt = media_models.picture("Llava", 5, 4)
    model = media_models.model_of("Llava")
    plain = by_generate(model, prompt)
    torch.manual_seed(1)
    options = {"init_lora_weights": False, "target_modules": ["q_proj"]}
    wrapped = peft.get_peft_model(
        model, peft.LoraConfig(exclude_modules=".*vision.*", lora_alpha=64, **options), "text"
    ).eval()
    adapted = by_generate(wrapped, prompt)
    with engine_of(model) as engine:
        requests = [submit(engine, prompt, adapter=name) for name in ("text", None)]
        engine.run()
    assert [adapted, plain] == [request.output for request in requests]
    assert adapted != plain

    wrapped.add_adapter("eye", peft.LoraConfig(**options))
    match = pytest.raises(UnsupportedModel, match=r"adapter on .*vision.*q_proj")
    with engine_of(model) as engine, match:
        submit(engine, prompt)


def test_what_a_processor_returns():
    """Text and picture go through the model's own processor, batch encodings and all."""
    words = {f"w{at}": at for at in range(90)} | {"<image>": media_models.IMAGE, "<pad>": 91}
    unknown, padding = {"unk_token": "w0"}, {"pad_token": "<pad>"}
    split = Tokenizer(WordLevel(words, **unknown))
    split.pre_tokenizer = WhitespaceSplit()
    split.add_special_tokens(["<image>"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=split, **padding)
    square = {"height": 8, "width": 8}
    eye = transformers.CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size=square)
    options = {"num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    processor = transformers.LlavaProcessor(eye, tokenizer, patch_size=4, **options)

    picture = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    asked = processor(text="w5 w9 <image> w7 w11", images=picture, return_tensors="pt")
    assert [5, 9, 90, 90, 90, 90, 7, 11] == ids_of(asked)
    model = model_of("Llava")
    expected = by_generate(model, asked)
    with engine_of(model) as engine:
        assert [expected] == answers(engine, [asked])
