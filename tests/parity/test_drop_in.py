"""OctavoCache under generate(): DynamicCache's tokens and logits, in each mode of each family."""

import pytest
import torch
from drop_in_models import CONFIGS, STATEFUL, generate, ids_of, model_of, padded
from transformers import DynamicCache

from octavo.integrations.transformers import OctavoCache

PAGE = 8
DRAFTS = 6


def modes():
    """(family, mode) of all that transformers runs with its own cache."""
    for family in CONFIGS:
        for name, mode in MODES.items():
            if family not in STATEFUL or name not in ("assisted", "lookup"):
                yield pytest.param(family, mode, id=f"{family}-{name}")


def alone(model, cache):
    """One prompt."""
    return generate(model, ids_of(1, 21), cache)


def batch(model, cache):
    """Three prompts of one length."""
    return generate(model, ids_of(3, 19), cache)


def left(model, cache):
    """Prompts padded on the left."""
    ids, mask = padded([19, 12, 5], "left")
    return generate(model, ids, cache, mask)


def right(model, cache):
    """Prompts padded on the right by less than a window; transformers warns of it and runs."""
    ids, mask = padded([19, 16, 13], "right")
    return generate(model, ids, cache, mask)


def beams(model, cache):
    """Four beams for each of two prompts."""
    return generate(model, ids_of(2, 19), cache, num_beams=4)


def several(model, cache):
    """Four beams, all returned."""
    return generate(model, ids_of(1, 19), cache, num_beams=4, num_return_sequences=4)


def lookup(model, cache):
    """Drafts looked up in the prompt, which repeats itself."""
    ids = ids_of(1, 12).repeat(1, 2)
    return generate(model, ids, cache, prompt_lookup_num_tokens=DRAFTS, new=10)


def assisted(model, cache):
    """Drafts of a second model, here of the same: they are right, or nearly."""
    model.generation_config.num_assistant_tokens = DRAFTS
    return generate(model, ids_of(1, 19), cache, assistant_model=model, new=10)


def chunks(model, cache):
    """A prompt computed in chunks."""
    return generate(model, ids_of(2, 37), cache, prefill_chunk_size=16)


def going_on(model, cache):
    """A second turn on the same cache, its ids whole."""
    first, _ = generate(model, ids_of(2, 19), cache)
    return generate(model, torch.cat([first, ids_of(2, 9, seed=8)], dim=1), cache)


def new_ids(model, cache):
    """A second turn on the same cache, of which only the new ids are given."""
    first, _ = generate(model, ids_of(2, 19), cache)
    whole = torch.cat([first, ids_of(2, 9, seed=8)], dim=1)
    return generate(model, whole[:, first.shape[1] - 1 :], cache, mask=torch.ones_like(whole))


MODES = {
    "alone": alone,
    "batch": batch,
    "left": left,
    "right": right,
    "beams": beams,
    "several": several,
    "lookup": lookup,
    "assisted": assisted,
    "chunks": chunks,
    "going_on": going_on,
    "new_ids": new_ids,
}


def cache_for(model, **options):
    """A small cache."""
    return OctavoCache.for_model(model, "4MiB", page_size=PAGE, **options)


def own_cache(model):
    """transformers' own."""
    return DynamicCache(config=model.config.get_text_config(decoder=True))


def agree(found, expected, error=1e-5):
    """Equal tokens, and logits that differ by rounding."""
    assert torch.equal(found[0], expected[0])
    assert (found[1] - expected[1]).abs().max() <= error * expected[1].abs().max()


@pytest.mark.parametrize(("family", "mode"), list(modes()))
def test_equals_transformers_own_cache(family, mode):
    """Each mode gives DynamicCache's tokens and logits, and leaves no page live."""
    model = model_of(family)
    rollback = DRAFTS + 14 if family == "lfm2" else 0
    cache = cache_for(model, rollback=rollback)
    agree(mode(model, cache), mode(model, own_cache(model)))
    cache.pages.check()
    cache.close()
    assert cache.pages.stats().live == 0
