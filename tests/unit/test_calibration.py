"""Steps of an engine, timed: what they did is known, and the engine is left with nothing to do."""

import pytest
import torch
import transformers

import octavo
from octavo import PlanError
from octavo.engine import Engine
from octavo.engine.calibration import measure
from octavo.simulation import StepWork, TimeModel, fit

SHAPE = {
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "eos_token_id": None,
}


@pytest.fixture(scope="module")
def model():
    """A tiny random Llama with a context of 300 tokens."""
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SHAPE, max_position_embeddings=300)
    )


def engine_for(model, tokens, **options):
    """An engine with room for so many tokens."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    memory = octavo.memory_for(spec, sequences=1, length=tokens, dtype="fp32", max_step_tokens=1)
    plan = octavo.plan(spec, memory, dtype="fp32", order="head")
    return Engine(model, plan, **options)


def test_steps_are_told_by_their_tokens(model):
    """On a clock that ticks once per token computed, each costs one tick, and nothing else does."""
    with engine_for(model, 2500) as engine:
        steps = measure(engine, clock=lambda: float(engine.stats.computed_tokens))
        stats = engine.cache.stats()

    assert (0, 0) == (stats.live, stats.sequences)
    works = [step.work for step in steps]
    assert StepWork(prefill=64, prefill_context=64 * 65 // 2) in works
    assert StepWork(prefill=64, prefill_context=64 * 64 + 64 * 65 // 2) in works
    assert {1, 4, 16, 64} == {work.decode for work in works if work.decode}
    assert all(
        work.prefill + work.decode == step.seconds for work, step in zip(works, steps, strict=True)
    )
    assert fit(steps, TimeModel()).worst_error < 1e-6


def test_no_room_for_a_step(model):
    """An engine too small for any of the steps is refused."""
    with engine_for(model, 16) as engine, pytest.raises(PlanError, match="no room for a step"):
        measure(engine)


def test_chunks_that_take_several_steps_are_left_out(model):
    """A prompt of more tokens than a step has is not one step."""
    with engine_for(model, 2500, max_step_tokens=32, max_sequences=8, prefix=False) as engine:
        works = [step.work for step in measure(engine, max_step_tokens=32)]

    assert {0, 16, 32} == {work.prefill for work in works}
    assert 4 == max(work.decode for work in works)
