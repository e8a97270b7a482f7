"""The engine answers in frames of speech as transformers' CSM does."""

from functools import cache as once
from unittest.mock import patch

import pytest
import speech_models
import torch
import transformers
from drop_in_models import SHAPE
from speech_models import AUDIO, END, HOP, codes_of, reference, spoken
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

import octavo
from octavo.engine import Draft, Engine, PromptLookup, SamplingParams
from octavo.engine.frames import Frames
from octavo.errors import CapacityError, IdentityError, SamplingError, UnsupportedModel

TEXT = list(range(5, 14))
model_of = once(speech_models.model_of)


def engine_of(model, memory="1MiB", **options):
    """An engine of pages of 4 positions."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    dtype = str(model.dtype).removeprefix("torch.")
    made = {"page_size": 4, "dtype": dtype, "order": "head"}
    return Engine(model, octavo.plan(spec, memory, **made), **options)


def ask(engine, prompt, frames=5, **options):
    """A request, run to its end."""
    request = engine.submit(
        prompt[0], SamplingParams(max_tokens=frames, **options), inputs=prompt[1]
    )
    engine.run()
    return request


def codes_in(model, prompt):
    """The codes of a prompt's recordings, as the codec gives them: [frames, codebooks]."""
    values, ends = prompt[1]["input_values"].to(model.dtype), prompt[1]["input_values_cutoffs"][0]
    parts = values.tensor_split(ends[:-1], dim=2)
    return torch.cat([model.codec_model.encode(part).audio_codes[0].T for part in parts])


@pytest.mark.filterwarnings("ignore:.*generation flags:UserWarning")
def test_many_together_in_single_precision():
    """Eight at once, in chunks, with kernels of float32: each frame is that of generate()."""
    model = model_of(torch.float32)
    asked = [(TEXT[at:], None) for at in range(5)] + [spoken(at, TEXT, [5, 4]) for at in range(3)]
    expected = [reference(model, 12, *each) for each in asked]
    with engine_of(model, max_step_tokens=20) as engine:
        params = SamplingParams(max_tokens=12)
        requests = [engine.submit(ids, params, inputs=given) for ids, given in asked]
        engine.run()
        assert expected == [codes_of(each) for each in requests]
        completions = engine.generate(
            [ids for ids, _ in asked], params, inputs=[given for _, given in asked]
        )
        assert expected == [[frame.codes for frame in each.frames] for each in completions]
        engine.cache.check()
    assert "sdpa" == model.config._attn_implementation
    assert expected[0] == reference(model, 12, *asked[0])


def test_pages_are_shared_up_to_the_frame_that_differs():
    """A recording is known by its codes: equal ones are found, and no others."""
    model = model_of()
    first, second, other = (spoken(seed, TEXT, [8, 4]) for seed in (1, 1, 2))
    assert first[0] == second[0]
    assert first[0][:17] == other[0][:17]
    second[1]["input_values"][..., 8 * HOP :] *= -1
    asked = (first, second, other, first, (TEXT, None))
    expected = [reference(model, 5, *prompt) for prompt in asked]
    with engine_of(model) as engine:
        requests = [ask(engine, prompt) for prompt in asked]
    assert expected == [codes_of(request) for request in requests]
    hits = [request.cached_tokens for request in requests]
    before = len(TEXT) + 8 + 1 + 3  # the second recordings
    assert [0, before // 4 * 4, len(TEXT) // 4 * 4, (len(first[0]) - 1) // 4 * 4, 8] == hits


def test_one_code_makes_another_frame():
    """Codes in place of a recording, and the same but for the last code of one frame."""
    model = model_of()
    prompt = spoken(1, TEXT, [8])
    codes = codes_in(model, prompt)
    changed = codes.clone()
    changed[3, -1] = (changed[3, -1] + 1) % 30
    with engine_of(model) as engine:
        recorded = ask(engine, prompt)
        given = ask(engine, (prompt[0], {"audio_codes": codes}))
        different = ask(engine, (prompt[0], {"audio_codes": changed}))
    assert codes_of(recorded) == codes_of(given) == reference(model, 5, *prompt)
    assert (len(prompt[0]) - 1) // 4 * 4 == given.cached_tokens
    assert (len(TEXT) + 3) // 4 * 4 == different.cached_tokens
    assert codes_of(different) != codes_of(given)


def heard(model, codes):
    """What the codec makes of an answer, while an engine has the model."""
    return model.codec_model.decode(codes.T[None] % 32).audio_values


def test_an_answer_as_context_is_found():
    """What was said is not computed again where the conversation goes on with its codes."""
    model = model_of()
    with engine_of(model) as engine:
        said = ask(engine, (TEXT, None), frames=8)
        codes = torch.tensor(codes_of(said))
        assert torch.Size([1, 1, 8 * HOP]) == heard(model, codes).shape
        prompt = [*TEXT, *[AUDIO] * 8, END, 20, 21]
        found = ask(engine, (prompt, {"audio_codes": codes}))
        with engine_of(model, prefix=False) as anew:
            assert codes_of(ask(anew, (prompt, {"audio_codes": codes}))) == codes_of(found)
    assert (len(TEXT) + 7) // 4 * 4 == found.cached_tokens


def ending():
    """A model that often says the code 0, and always in all other codebooks but the last."""
    model = speech_models.model_of()
    model.config.codebook_eos_token_id = 0
    with torch.no_grad():
        model.lm_head.weight[[0, *range(4, 33)]] = 0
        model.depth_decoder.codebooks_head.weight[:-1] = 0
    return model


def test_the_last_frame():
    """It ends where generate() ends: whatever code the last codebook has."""
    model = ending()
    asked = [(TEXT[at:], None) for at in range(6)]
    expected = [reference(model, 30, *each) for each in asked]
    lengths = [len(each) for each in expected]
    assert min(lengths) < max(lengths)
    with engine_of(model) as engine:
        params = SamplingParams(max_tokens=30)
        requests = [engine.submit(ids, params) for ids, _ in asked]
        engine.run()
        assert expected == [codes_of(each) for each in requests]
        reasons = ["length" if n == 30 else "stop" for n in lengths]
        assert reasons == [each.finish_reason for each in requests]
        lasts = [each.frames[-1].last for each in requests]
    assert lasts == [reason == "stop" for reason in reasons]
    assert any(frames[-1][-1] for frames in expected)


def test_the_end_of_the_context():
    """An answer ends where the model's positions do."""
    model = model_of()
    with engine_of(model) as engine:
        request = ask(engine, (TEXT * 28, None), frames=20)
    assert (256 - 28 * len(TEXT), "length") == (len(request.frames), request.finish_reason)


def test_sampled_frames_are_the_same_in_any_batch():
    """A seed gives the same frames alone, beside others and after a fork; another seed others."""
    model = model_of()
    warm = {"temperature": 1.0, "seed": 3}
    with engine_of(model) as engine:
        alone = codes_of(ask(engine, (TEXT, None), **warm))
    with engine_of(model, max_step_tokens=7) as engine:
        asked = [engine.submit(TEXT[at:], SamplingParams(max_tokens=5, **warm)) for at in range(3)]
        forks = engine.submit(TEXT, SamplingParams(max_tokens=5, n=3, **warm)).samples
        engine.run()
        answers = [codes_of(each) for each in forks]
        nearly = codes_of(ask(engine, (TEXT, None), temperature=5.0, top_k=1))
    assert alone == codes_of(asked[0]) == answers[0]
    assert 3 == len({tuple(each) for each in answers})
    for book in range(4):  # each has random numbers of its own
        assert len({frame[book] for each in answers for frame in each}) > 1
    assert nearly == reference(model, 5, TEXT)


def test_a_frame_is_one_pass_per_codebook():
    """The decoder in depth runs once per codebook but the first, however many rows there are."""
    model = model_of()
    passes = []
    hook = model.depth_decoder.register_forward_hook(lambda *_: passes.append(1))
    with engine_of(model) as engine:
        for at in range(6):
            engine.submit(TEXT[at:], SamplingParams(max_tokens=4))
        engine.run()
        steps = engine.stats.steps
    hook.remove()
    assert 4 == steps
    assert steps * 3 == len(passes)


def test_an_interrupt_costs_no_frame():
    """Ctrl-C while a step is booked: it is computed again, and the frames are the same."""
    model = model_of()
    prompt = spoken(1, TEXT, [6])
    expected = reference(model, 6, *prompt)
    with engine_of(model) as engine:
        request = engine.submit(prompt[0], SamplingParams(max_tokens=6), inputs=prompt[1])
        for _ in range(3):
            engine.step()
        with (
            patch.object(engine._core, "_book", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            engine.step()
        engine.run()
        assert expected == codes_of(request)
        engine.cache.check()


def test_numbers_that_are_none_cost_one_request():
    """Where the decoder in depth gives NaN for a row, that request ends with the error."""
    model = model_of()
    expected = reference(model, 4, TEXT[1:])
    broken = []

    def spoil(_module, _args, found):
        if len(found.logits) == 2 and not broken:
            broken.append(found.logits[0].fill_(torch.nan))

    hook = model.depth_decoder.register_forward_hook(spoil)
    with engine_of(model) as engine:
        requests = [engine.submit(TEXT[at:], SamplingParams(max_tokens=4)) for at in range(2)]
        with pytest.raises(UnsupportedModel, match="largest"):
            engine.run()
        engine.run()
        hook.remove()
        assert isinstance(requests[0].error, UnsupportedModel)
        assert expected == codes_of(requests[1])
        engine.cache.check()


def test_what_a_processor_returns():
    """Text and recordings go through the model's own processor; text alone has no more than ids."""
    model = model_of()
    words = {f"w{at}": at for at in range(AUDIO)} | {"<|AUDIO|>": AUDIO, "<|audio_eos|>": END}
    unknown, padding = {"unk_token": "w0"}, {"pad_token": "w0"}
    split = Tokenizer(WordLevel(words, **unknown))
    split.pre_tokenizer = WhitespaceSplit()
    split.add_special_tokens(["<|AUDIO|>", "<|audio_eos|>"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=split, **unknown, **padding)
    hears = transformers.EncodecFeatureExtractor(feature_size=1, sampling_rate=24_000)
    processor = transformers.CsmProcessor(hears, tokenizer)
    frames = {"kernel_sizes": [HOP], "strides": [HOP], "dilations": [1], "use_causal_conv": True}
    recording = torch.randn(6 * HOP, generator=torch.Generator().manual_seed(1)).numpy()
    text = "w5 w6 <|AUDIO|> <|audio_eos|> w9 w10"
    spoken = processor(text=text, audio=[recording], encoded_length_kwargs=frames)
    asked = [(each["input_ids"][0].tolist(), each) for each in (spoken, processor(text="w5 w6"))]
    given = {name: spoken[name] for name in ("input_values", "input_values_cutoffs")}
    expected = [reference(model, 5, asked[0][0], given), reference(model, 5, asked[1][0])]
    with engine_of(model) as engine:
        assert expected == [codes_of(ask(engine, each)) for each in asked]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("stop_token_ids", (3,)), ("stop", "x"), ("logit_bias", {1: 2.0}), ("logprobs", 1)),
        *(("repetition_penalty", 1.1), ("bad_words_ids", [[3]]), ("min_tokens", 2)),
        *(("regex", "a"), ("prompt_logprobs", 0), ("presence_penalty", 1.0)),
        ("logits_processors", [lambda _ids, scores: scores]),
    ],
)
def test_parameters_that_mean_nothing_for_frames(name, value):
    """They are refused by name when they are submitted."""
    with engine_of(model_of()) as engine:
        with pytest.raises(SamplingError, match=f"^{name} is .*tokens of this model are frames"):
            engine.submit(TEXT, SamplingParams(**{name: value}), inputs=None)
        assert not engine.step()


def test_engines_that_frames_have_not():
    """Guesses, texts and adapters are refused; so is CSM as a draft model."""
    model = model_of()
    for options in ({"speculation": PromptLookup()}, {"tokenizer": Words()}):
        with pytest.raises(UnsupportedModel, match="frame"):
            engine_of(model, **options)
    with engine_of(model) as engine, pytest.raises(UnsupportedModel, match="decoder in depth"):
        engine.submit(TEXT, adapter="voice")
    text = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).double()
    specs = [octavo.ModelSpec.from_config(each.config.to_dict()) for each in (text, model)]
    plan = octavo.plan(specs[0], "1MiB", dtype="fp64", draft=specs[1], max_length=64)
    with pytest.raises(UnsupportedModel, match="answers in frames"):
        Engine(text, plan, speculation=Draft(model))


class Words:
    """A tokenizer."""

    def decode(self, ids):
        """Ids in figures."""
        return " ".join(map(str, ids))


@pytest.mark.parametrize(
    ("ids", "inputs", "error", "message"),
    [
        (TEXT, {"audio_codes": torch.zeros(1, 4)}, IdentityError, "tokens 95 has input_values and"),
        ([AUDIO], {"pixels": torch.zeros(1)}, IdentityError, "or audio_codes of its frames"),
        ([AUDIO], {"audio_codes": torch.zeros(1, 4)}, IdentityError, "codes are integers"),
        ([AUDIO], {"audio_codes": torch.zeros(2, 4).long()}, IdentityError, r"shape \(1, 4\)"),
        ([AUDIO], {"audio_codes": torch.full((1, 4), 33)}, IdentityError, r"are 0\.\.32"),
        ([AUDIO], {"audio_codes": torch.full((1, 4), -1)}, IdentityError, "is -1"),
        ([AUDIO] * 3, spoken(1, [], [2])[1], UnsupportedModel, "the model fails on"),
    ],
)
def test_inputs_that_do_not_fit(ids, inputs, error, message):
    """They are refused when they are submitted, and nothing waits."""
    with engine_of(model_of()) as engine:
        with pytest.raises(error, match=message):
            engine.submit(ids, inputs=inputs)
        assert not engine.step()


def test_ids_of_frames():
    """One for each frame, above those of text; one that was forgotten gets another, a new one."""
    frames = Frames(model_of(), most=2)
    first, second = frames.id_of([1, 2, 3, 4]), frames.id_of([1, 2, 3, 5])
    assert [97, 98] == [first, second]
    assert first == frames.id_of((1, 2, 3, 4))
    assert 99 == frames.id_of([0, 0, 0, 0])
    assert [97, 99, 100] == [
        frames.id_of([1, 2, 3, 4]),
        frames.id_of([0] * 4),
        frames.id_of([1, 2, 3, 5]),
    ]
    frames._next = 2**31
    with pytest.raises(CapacityError, match="make another engine"):
        frames.id_of([9, 9, 9, 9])
    assert 99 == frames.id_of([0] * 4)


def test_ids_mean_nothing_in_another_engine():
    """What pages are known by outside of the process differs from engine to engine."""
    model = model_of()
    salts = set()
    for _ in range(2):
        with engine_of(model) as engine:
            salts.update(ask(engine, (TEXT, None)).prompt.extra)
    assert 2 == len(salts)
