"""What `octavo.engine.Engine` says of prompts that it refuses: what was given, and what to give."""

import pytest

import octavo
from octavo.engine import Engine, SamplingParams
from octavo.errors import NeverFits, OctavoError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SHAPE = {
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "eos_token_id": None,
    "max_position_embeddings": 800,
}


@pytest.fixture(scope="module")
def engine():
    """A tiny random Llama with a context of 800 tokens, in 40 pages of 16."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE))
    spec = octavo.ModelSpec.from_config(model.config)
    memory = octavo.memory_for(spec, sequences=1, length=640, dtype="fp32", max_step_tokens=1)
    with Engine(model, octavo.plan(spec, memory, dtype="fp32", order="head")) as engine:
        yield engine


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "asked"),
    [
        (600, 100, "a prompt of 600 tokens + max_tokens 100; "),
        (600, 256, "a prompt of 600 tokens + max_tokens 256, at most the model's 800; "),
    ],
)
def test_room_is_that_of_prompt_and_answer(engine, prompt, max_tokens, asked):
    """What does not fit is both together, and as many tokens as would are named."""
    with pytest.raises(NeverFits) as found:
        engine.submit([9] * prompt, SamplingParams(max_tokens=max_tokens))

    assert str(found.value).endswith(f"can never fit ({asked}640 together would fit)")
    engine.cancel(engine.submit([9] * prompt, SamplingParams(max_tokens=640 - prompt)))
    with pytest.raises(NeverFits):
        engine.submit([9] * prompt, SamplingParams(max_tokens=641 - prompt))


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda e: e.submit("Hi"), "tokens is 'Hi'; encode it: tokenizer(text).input_ids"),
        (lambda e: e.generate(["Hi"]), "tokens is 'Hi'; encode it: tokenizer(text).input_ids"),
        (
            lambda e: e.generate("Hi"),
            "prompts is 'Hi'; encode it: tokenizer(text).input_ids, in a list of prompts",
        ),
        (
            lambda e: e.generate([1, 2]),
            "prompts is [1, 2]; it must be a list of prompts, each a list of token ids: [tokens]",
        ),
        (
            lambda e: e.generate(torch.tensor([1, 2])),
            "prompts is tensor([1, 2]); it must be a list of prompts, each a list of token ids",
        ),
        (
            lambda e: e.submit(transformers.BatchEncoding({"input_ids": [1]})),
            "tokens is {'input_ids': [1]}; give its input_ids",
        ),
        (
            lambda e: e.generate(transformers.BatchEncoding({"input_ids": [[1]]})),
            "prompts is {'input_ids': [[1]]}; give its input_ids",
        ),
        (lambda e: e.submit([-1]), "token 0 is -1; token ids are ints in 0..23"),
        (lambda e: e.submit([24]), "token 0 is 24; token ids are ints in 0..23"),
        (
            lambda e: e.submit([1], deadline=-1),
            "deadline is -1; it must be at least 0: seconds from now",
        ),
        (
            lambda e: SamplingParams(stop_token_ids=2),
            "stop_token_ids is 2; it must be a list or array of token ids",
        ),
    ],
)
def test_errors_say_what_to_give(engine, ask, said):
    """By the name of the argument, within the model's vocabulary."""
    with pytest.raises(OctavoError) as found:
        ask(engine)

    assert str(found.value).startswith(said)
