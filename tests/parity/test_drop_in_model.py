"""The real model under generate(): OctavoCache's tokens are those of DynamicCache."""

import pytest
import torch
from transformers import DynamicCache

from octavo.checkpoints.loading import load
from octavo.integrations.transformers import OctavoCache

pytestmark = pytest.mark.model

STORY = (
    "The old lighthouse keeper had three rules. First, the lamp is lit before the sun is gone. "
    "Second, nobody sleeps while it burns. Third, "
)
PROMPTS = [STORY + "every ship that passes is written down in", STORY + "no letter"]


@pytest.fixture(scope="module")
def loaded():
    """The model in float32."""
    return load("smollm2-135m", dtype="fp32")


@pytest.fixture(scope="module")
def cache(loaded):
    """One cache for all tests: prompts of one are found again by the next."""
    with_pages = OctavoCache.for_model(loaded.model, "64MiB", max_length=512)
    yield with_pages
    with_pages.reset()
    with_pages.pages.check()
    assert with_pages.pages.stats().live == 0
    with_pages.close()


@pytest.fixture(scope="module")
def batch(loaded):
    """(ids, mask) of the prompts, padded on the left."""
    rows = [loaded.tokenizer.encode(prompt) for prompt in PROMPTS]
    longest = max(map(len, rows))
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor([[0] * (longest - len(row)) + row for row in rows]), torch.tensor(mask)


def tokens(loaded, cache, ids, mask, **options):
    """Greedy tokens."""
    return loaded.model.generate(
        ids,
        attention_mask=mask,
        cache=cache,
        max_new_tokens=options.pop("new", 8),
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 4, "new": 4}, {"prefill_chunk_size": 16}, {"prompt_lookup_num_tokens": 4}],
    ids=["batch", "beams", "chunks", "lookup"],
)
def test_tokens_are_those_of_transformers_own_cache(loaded, cache, batch, options):
    """A padded batch whose rows share a beginning, and one row where drafts are looked up."""
    rows = slice(1) if options.keys() & {"prompt_lookup_num_tokens", "num_beams"} else slice(None)
    ids, mask = batch[0][rows], batch[1][rows]
    expected = tokens(loaded, DynamicCache(config=loaded.model.config), ids, mask, **options)
    assert torch.equal(tokens(loaded, cache, ids, mask, **options), expected)
    if not options:
        with cache.attend():
            assert torch.equal(tokens(loaded, cache, ids, mask), expected)


def test_a_second_turn_computes_the_turn_alone(loaded, cache, batch):
    """First prompt, its answer and a new turn: a fresh run's tokens, and one page computed."""
    ids, mask = batch[0][:1], batch[1][:1]
    answered = tokens(loaded, cache, ids, mask)
    turn = torch.tensor([loaded.tokenizer.encode(" Why does he do that?")])
    second = torch.cat([answered, turn], dim=1)
    cache.reset()
    before = cache.pages.stats().cached_tokens
    expected = tokens(loaded, None, second, torch.ones_like(second))
    assert torch.equal(tokens(loaded, cache, second, torch.ones_like(second)), expected)
    assert cache.pages.stats().cached_tokens - before == (answered.shape[1] - 1) // 16 * 16
