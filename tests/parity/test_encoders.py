"""The engine answers as transformers does where a decoder attends to another, encoded input."""

from functools import cache as once

import encoder_models
import numpy as np
import pytest
import torch
import transformers
from encoder_models import BART, FAMILIES, START, text
from transformers import GenerationMixin

import octavo
from octavo.engine import Engine, HostMemory, SamplingParams
from octavo.errors import IdentityError, NeverFits, PlanError, UnsupportedModel

GREEDY = SamplingParams(max_tokens=6)
STARTS = [[START], [START, 8, 9, 10, 11], [START, 8]]
model_of = once(encoder_models.model_of)


def engine_of(model, pages=80, **options):
    """An engine of so many pages of 4 tokens, of its own or of a source."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    made = {"page_size": 4, "dtype": "fp32", "order": "head", "input_tokens": 24}
    memory = octavo.memory_for(spec, sequences=1, length=4 * pages, **made)
    return Engine(model, octavo.plan(spec, memory, **made), **options)


def by_generate(model, start, source):
    """What transformers answers."""
    options = {"max_new_tokens": 6, "do_sample": False}
    ids = torch.tensor([start])
    found = GenerationMixin.generate(model, **source, decoder_input_ids=ids, **options)
    return found[0, len(start) :].tolist()


def answers(engine, asked):
    """The answers to pairs of a start and a source submitted together."""
    requests = [engine.submit(start, GREEDY, inputs=source) for start, source in asked]
    engine.run()
    return [request.output for request in requests]


def asked_of(family):
    """Starts of several lengths, two sources of one length and one of another."""
    source = FAMILIES[family][2]
    return list(zip(STARTS, [source(1), source(2, 14), source(3)], strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_of_generate(family):
    """Beside others, in chunks, and from pages that were kept."""
    model, asked = model_of(family), asked_of(family)
    expected = [by_generate(model, *each) for each in asked]
    assert len({tuple(answer) for answer in expected}) > 1
    with engine_of(model, max_step_tokens=4) as engine:
        assert expected == answers(engine, asked)
        starts, sources = zip(*asked, strict=True)
        found = engine.generate(starts, GREEDY, inputs=sources)
        assert expected == [each.token_ids for each in found]
        again = engine.submit(starts[1], GREEDY, inputs=sources[1])
        engine.run()
        assert (expected[1], 4) == (again.output, again.cached_tokens)
        engine.cache.check()


@pytest.mark.parametrize("family", ["Bart", "T5", "Whisper"])
def test_answers_when_preempted(family):
    """A pool for two of three: what is lost is computed again, sources too."""
    model = model_of(family)
    source = FAMILIES[family][2]
    asked = [([START, 5 + n, 7, 9], source(n)) for n in range(3)]
    expected = [by_generate(model, *each) for each in asked]
    with engine_of(model, pages=6, prefix=False, watermark=0) as engine:
        assert expected == answers(engine, asked)
        engine.cache.check()


@pytest.mark.parametrize("family", ["Bart", "T5", "Whisper"])
def test_answers_copied_back_at_every_step(family):
    """The last that runs loses its pages to host memory, those of its source too."""
    model, asked = model_of(family), asked_of(family)
    expected = [by_generate(model, *each) for each in asked]
    host = HostMemory("64MiB", copy_rate=1e15, prefill_rate=1e-3)  # copying always pays
    with engine_of(model, max_step_tokens=4, prefix=False, host=host) as engine:
        requests = [engine.submit(start, GREEDY, inputs=source) for start, source in asked]
        while engine.step():
            if len(engine._core.scheduler.running) > 1:
                engine._core.scheduler._preempt_last()
            engine.cache.check()

        assert engine.stats.restored_tokens > 0
    assert expected == [request.output for request in requests]


def test_rows_that_stand_alike_run_together():
    """Requests that begin together are one pass of the decoder a step, whatever their sources."""
    model = model_of("Bart")
    calls = []
    hook = model.get_decoder().register_forward_pre_hook(lambda *_: calls.append(1))
    asked = [([START], text(n)) for n in range(4)]
    with engine_of(model) as engine:
        answers(engine, asked)
        assert engine.stats.steps == len(calls) == 6
    hook.remove()


def test_a_source_is_encoded_into_pages_once():
    """Equal sources share their cross pages and the decoder's prefix; others share nothing."""
    model = model_of("Bart")
    written = []
    layer = model.model.decoder.layers[0].encoder_attn.k_proj
    hook = layer.register_forward_hook(lambda _m, _a, out: written.append(tuple(out.shape[:2])))
    with engine_of(model) as engine:
        start = [START, *range(10, 18)]
        first = engine.submit(start, GREEDY, inputs=text(1))
        engine.run()
        same, other = (engine.submit(start, GREEDY, inputs=text(n)) for n in (1, 2))
        engine.run()
        assert [0, 8, 0] == [each.cached_tokens for each in (first, same, other)]
        assert first.output == same.output
    assert [(1, 9), (1, 9)] == written
    hook.remove()


def test_padded_sources():
    """What the mask of a source hides is not attended to, and is part of its identity."""
    model, source = model_of("T5"), text(1, 12)
    hidden = {"input_ids": source["input_ids"], "attention_mask": source["attention_mask"].clone()}
    hidden["attention_mask"][:, 8:] = 0
    asked = [([START], source), ([START], hidden)]
    expected = [by_generate(model, *each) for each in asked]
    with engine_of(model) as engine:
        assert expected == answers(engine, asked)


@pytest.mark.filterwarnings("ignore:At least one mel filter:UserWarning")
def test_what_a_processor_returns():
    """A recording goes through the model's own feature extractor."""
    hear = transformers.WhisperFeatureExtractor(
        feature_size=8, n_fft=64, hop_length=16, chunk_length=1, sampling_rate=384
    )
    sound = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    source = hear(sound, sampling_rate=384, return_tensors="pt")
    model = model_of("Whisper")
    with engine_of(model) as engine:
        assert [by_generate(model, STARTS[1], source)] == answers(engine, [(STARTS[1], source)])


def test_what_is_not_given_or_does_not_fit():
    """Refused when it is submitted, and nothing waits."""
    with engine_of(model_of("Bart")) as engine:
        for inputs, error, message in (
            (None, IdentityError, "what the encoder is given"),
            ({"input_ids": [[1]]}, IdentityError, "return_tensors='pt'"),
            ({"pixels": torch.zeros(1)}, UnsupportedModel, "encoder fails on .'pixels'"),
            (text(1, 4000), UnsupportedModel, "encoder fails on"),
        ):
            with pytest.raises(error, match=message):
                engine.submit([START], GREEDY, inputs=inputs)
        with pytest.raises(UnsupportedModel, match="without adapters"):
            engine.submit([START], GREEDY, inputs=text(1), adapter="sql")
        assert not engine.step()
    with engine_of(model_of("Bart"), pages=6) as engine:
        with pytest.raises(NeverFits):
            engine.submit([START], GREEDY, inputs=text(1, 100))
        assert not engine.step()


def test_plans_and_models_that_do_not_fit():
    """A plan of another model; prompts that cannot be cut; answers that depend on the batch."""
    other = transformers.BartForConditionalGeneration(
        transformers.BartConfig(**BART | {"decoder_layers": 3})
    )
    with engine_of(other) as engine, pytest.raises(PlanError, match="has other layers"):
        Engine(model_of("Bart"), engine.cache.plan)
    config = transformers.FSMTConfig(
        **BART | {"src_vocab_size": 97, "tgt_vocab_size": 97, "langs": ["a", "b"]}
    )
    with pytest.raises(UnsupportedModel, match="fsmt.*cannot be cut"):
        engine_of(transformers.FSMTForConditionalGeneration(config))
    few = FAMILIES["NllbMoe"][1] | {"moe_eval_capacity_token_fraction": 0.5}
    model = transformers.NllbMoeForConditionalGeneration(transformers.NllbMoeConfig(**few))
    with pytest.raises(UnsupportedModel, match="leave out tokens by how many come at once"):
        engine_of(model)
