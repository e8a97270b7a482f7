"""The real model: in float32 the engine's greedy tokens are those of transformers' generate()."""

import pytest
import torch

import octavo
from octavo.checkpoints.loading import load
from octavo.engine import Engine, SamplingParams

pytestmark = pytest.mark.model

NEW = 64
STORY = (
    "The old lighthouse keeper had three rules. First, the lamp is lit before the sun is gone. "
    "Second, nobody sleeps while it burns. Third, "
)
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    STORY + "every ship that passes is written down in",
    STORY + "no letter",
]


@pytest.fixture(scope="module")
def loaded():
    """The model in float32."""
    return load("smollm2-135m", dtype="fp32")


@pytest.fixture(scope="module")
def prompts(loaded):
    """Token ids of the prompts; the last two share their first page of 16."""
    return [loaded.tokenizer.encode(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected(loaded, prompts):
    """What generate() makes of each prompt; no token hangs on a rounding error."""
    tokens = []
    for prompt in prompts:
        found = loaded.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = torch.cat(found.logits).topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > 1e-3
        tokens.append(found.sequences[0, len(prompt) :].tolist())
    return tokens


def plan_for(loaded, page_size, pages):
    """A plan of exactly ``pages`` usable pages."""
    token = sum(layer.elements_per_token for layer in loaded.spec.layers) * 4
    plan = octavo.plan(
        loaded.spec,
        (pages + 1) * page_size * token,
        page_size=page_size,
        dtype="fp32",
        order="head",
    )
    assert plan.usable_pages == pages
    return plan


def run(engine, prompts, poison):
    """Tokens of all prompts as one batch, every unowned slot NaN before each step."""
    requests = [engine.submit(prompt, SamplingParams(max_tokens=NEW)) for prompt in prompts]
    poison(engine)
    while engine.step():
        poison(engine)
    engine.cache.check()
    return [request.output for request in requests]


@pytest.mark.parametrize(
    ("page_size", "prefix"), [(1, True), (16, True), (16, False), (256, False)]
)
def test_one_batch(loaded, prompts, expected, poison, page_size, prefix):
    """All prompts at once in a pool just large enough for them: every token is generate()'s."""
    pages = sum(-(-(len(prompt) + NEW) // page_size) for prompt in prompts)
    with Engine(loaded.model, plan_for(loaded, page_size, pages), prefix=prefix) as engine:
        assert expected == run(engine, prompts, poison)
        assert engine.cache.stats().live == 0


@pytest.mark.parametrize(
    ("page_size", "first", "prefix"),
    [(1, 3, True), (16, 0, True), (16, 0, False), (256, 3, False)],
)
def test_alone(loaded, prompts, expected, poison, page_size, first, prefix):
    """One prompt after the other in a pool just large enough for the longest: the same tokens.

    Pages of 16 take all prompts, the others those two that share their beginning.
    """
    pages = max(-(-(len(prompt) + NEW) // page_size) for prompt in prompts)
    with Engine(loaded.model, plan_for(loaded, page_size, pages), prefix=prefix) as engine:
        for prompt, tokens in zip(prompts[first:], expected[first:], strict=True):
            assert [tokens] == run(engine, [prompt], poison)
        assert (engine.stats.cached_tokens > 0) == prefix
