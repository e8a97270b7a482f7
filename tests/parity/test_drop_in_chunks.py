"""OctavoCache under layers that attend by chunks, which transformers counts in columns."""

import pytest
import torch
import transformers
from drop_in_models import DIM, SHAPE, generate, ids_of
from transformers import DynamicCache

from octavo.errors import UnsupportedModel
from octavo.integrations.transformers import OctavoCache

CHUNK = 8
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size_mlp": 64}


@pytest.fixture(scope="module")
def model():
    """A tiny Llama 4: three layers of chunks, one that sees all."""
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(
        "llama4_text", **SHAPE | DIM | EXPERTS, attention_chunk_size=CHUNK
    )
    found = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    return found


@pytest.fixture
def cache(model):
    """A small cache."""
    return OctavoCache.for_model(model, "4MiB", page_size=4)


def own(model):
    """transformers' own."""
    return DynamicCache(config=model.config)


def masked(rows, length, *holes):
    """(ids, mask): columns (row, from, to) are hidden."""
    ids = ids_of(rows, length)
    mask = torch.ones_like(ids)
    for row, start, stop in holes:
        mask[row, start:stop] = 0
    return ids, mask


def hole(model, cache):
    """Columns hidden inside a prompt."""
    ids, mask = masked(1, 21, (0, 5, 8))
    return generate(model, ids, cache, mask, new=9)


def wide(model, cache):
    """More than a chunk of them, in one row of two."""
    ids, mask = masked(2, 37, (0, 3, 15))
    return generate(model, ids, cache, mask)


def parts(model, cache):
    """The prompt is computed in parts."""
    ids, mask = masked(1, 37, (0, 9, 12))
    return generate(model, ids, cache, mask, prefill_chunk_size=8)


def left(model, cache):
    """Padding on the left moves a row's chunks, and beams with it."""
    ids, mask = masked(3, 29, (1, 0, 5), (2, 0, 11))
    return generate(model, ids, cache, mask, num_beams=2)


def right(model, cache):
    """Padding on the right is counted."""
    ids, mask = masked(3, 29, (1, 26, 29), (2, 23, 29))
    return generate(model, ids, cache, mask)


def chat(model, cache, *, alone=False):
    """Rows of a batch that ended early, and their next turn."""
    ids, mask = masked(3, 21, (1, 0, 3), (2, 0, 6))
    first, _ = generate(model, ids, cache, mask, new=20)
    mask = torch.cat([mask, torch.ones(3, 20 + 11, dtype=torch.long)], dim=1)
    for row, ended in ((0, 10), (2, 15)):
        first[row, -ended:] = 0
        mask[row, 41 - ended : 41] = 0
    ids = torch.cat([first, ids_of(3, 11, seed=8)], dim=1)
    return generate(model, ids[:, 40:] if alone else ids, cache, mask)


def turn(model, cache):
    """The same by the new ids alone."""
    return chat(model, cache, alone=True)


def by_hand(model, cache):
    """Passes of several lengths, with the positions of generate()."""
    ids, mask = masked(2, 40, (0, 6, 9), (1, 0, 4), (1, 12, 17))
    positions, logits = (mask.cumsum(dim=1) - 1).clamp(min=0), []
    with torch.no_grad():
        for start, stop in ((0, 10), (10, 11), (11, 20), (20, 21), (21, 22), (22, 33), (33, 40)):
            seen = {"attention_mask": mask[:, :stop], "position_ids": positions[:, start:stop]}
            logits.append(model(ids[:, start:stop], cache=cache, **seen).logits[:, -1])
    return ids, torch.stack(logits)


MODES = {f.__name__: f for f in (hole, wide, parts, left, right, chat, turn, by_hand)}


@pytest.mark.parametrize("name", MODES)
def test_chunks_count_columns(model, cache, name):
    """What a mask hides behind a row's first token is a place in a chunk, as in transformers."""
    found, expected = MODES[name](model, cache), MODES[name](model, own(model))
    assert torch.equal(found[0], expected[0])
    assert (found[1] - expected[1]).abs().max() <= 1e-5 * expected[1].abs().max()
    cache.pages.check()


def test_hidden_columns_are_shared_with_nobody(model, cache):
    """Ids do not tell of them: the same ids without a hole, and with it, miss."""
    ids, mask = masked(1, 37, (0, 5, 8))
    for shown in (mask, torch.ones_like(mask), mask):
        found, expected = (generate(model, ids, each, shown) for each in (cache, None))
        assert torch.equal(found[0], expected[0])
        cache.reset()
    assert cache.pages.stats().cached_tokens == 0


def test_prompts_with_hidden_columns_may_be_said(model, cache):
    """prompt() shares nothing of them either."""
    ids, mask = masked(1, 37, (0, 5, 8))
    generate(model, ids, cache)
    cache.prompt(ids, mask)
    assert cache.get_seq_length() == 0
    found = generate(model, ids, cache, mask, prefill_chunk_size=8)
    assert torch.equal(found[0], generate(model, ids, None, mask)[0])


def test_octavos_attention_refuses_hidden_columns(model, cache):
    """Layers that see all would see them there."""
    ids, mask = masked(1, 21, (0, 5, 8))
    with cache.attend(), pytest.raises(UnsupportedModel, match="hide nothing but padding"):
        generate(model, ids, cache, mask)


@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 1, 21)], ids=["none", "pairs"])
def test_chunks_that_would_begin_elsewhere_are_refused(model, cache, mask):
    """A first token hidden or shown later, and masks that do not say: rows stand as they stood."""
    ids, first = masked(1, 20, (0, 0, 3))
    with torch.no_grad():
        model(ids, cache=cache, attention_mask=first)
        with pytest.raises(UnsupportedModel, match="chunked attention"):
            model(ids[:, :1], cache=cache, attention_mask=mask)
    assert cache.get_seq_length() == 20
