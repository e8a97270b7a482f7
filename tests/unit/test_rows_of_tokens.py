"""Rows that stand for several tokens in caches and storages, as DeepSeek-V4's layers keep them."""

import numpy as np
import pytest
import torch

import octavo
from octavo import Cache, Compressed, ModelSpec, State
from octavo.errors import LengthError, PlanError
from octavo.storage import Storage
from octavo.storage.prefixes import load_prefix, save_prefix

LAYERS = (
    (Compressed(4, 12, 4, 8), State((), rows=(8, 16), buffer=(2, 4, 16))),
    Compressed(8, 16),
)


def planned(page_size=16, **options):
    """A plan of two layers with rows of four and of eight tokens."""
    spec = ModelSpec("v4", LAYERS, 256)
    return octavo.plan(spec, "1MiB", page_size=page_size, dtype="fp32", **options)


def rows_written(step, group, every):
    """The slots of rows that end in a step's tokens, and which tokens end them."""
    whole = np.flatnonzero((step.positions + 1) % every == 0)
    return step.group(group).slots[whole] // every, whole


def test_pages_that_part_a_rows_tokens_are_refused():
    """A cache's pages hold whole rows: the error names the size that does."""
    with pytest.raises(PlanError, match="rows stand for up to 8 tokens") as caught:
        Cache(planned(page_size=4))

    assert ("page_size", 4) == (caught.value.field, caught.value.value)


@pytest.mark.parametrize("page_size", [8, 16])
def test_rows_are_where_their_tokens_pages_are(page_size):
    """A slot of rows is a token's slot divided by how many a row stands for; all read back."""
    plan = planned(page_size)
    cache, storage = Cache(plan, max_sequences=4), Storage(plan)
    seq, seen = cache.admit(list(range(1, 50))), {}
    for count in (30, 19):
        step = cache.extend([seq], [count])
        for group, every, layer in (("every_4", 4, 0), ("every_8", 8, 1)):
            slots, whole = rows_written(step, group, every)
            rows = torch.from_numpy(step.positions[whole].astype(np.float32))[:, None]
            storage.write_latent(
                layer, rows.expand(-1, 16).contiguous(), storage.index(slots, group)
            )
        cache.commit(step)
        seen = {group: step.group(group).table[0].copy() for group in ("every_4", "every_8")}

    for group, every, layer in (("every_4", 4, 0), ("every_8", 8, 1)):
        found = storage.gather_latent(layer, storage.page_index(seen[group], group), 0, 49 // every)
        assert [every * (at + 1) - 1 for at in range(49 // every)] == found[:, 0].tolist()
    with pytest.raises(LengthError, match="slot"):
        storage.index(np.array([plan.ids("every_8") * page_size]), "every_8")
    cache.check()


def test_a_prefix_of_rows_is_reused():
    """Another sequence of the same prompt begins where rows and state of the first are kept."""
    plan = planned(8)
    cache = Cache(plan, max_sequences=4, snapshots="grid")
    first = cache.admit(list(range(1, 40)))
    while first.computed < first.length:
        stop = first.next_stop or first.length
        cache.commit(cache.extend([first], [stop - first.computed]))
    second = cache.admit(list(range(1, 40)))

    assert 0 < second.computed < 39
    assert 0 == second.computed % 8
    cache.check()


def test_a_prefix_of_rows_is_saved_and_loaded(tmp_path):
    """Pages of rows lie in files as pages of tokens do."""
    plan = octavo.plan(ModelSpec("rows", LAYERS[1:], 256), "64KiB", page_size=16, dtype="fp32")
    tokens, path = list(range(1, 34)), tmp_path / "prefix.safetensors"
    cache, storage = Cache(plan), Storage(plan)
    step = cache.extend([cache.admit(tokens)], [33])
    slots, whole = rows_written(step, "every_8", 8)
    rows = torch.arange(len(whole) * 16, dtype=torch.float32).view(-1, 16)
    storage.write_latent(0, rows, storage.index(slots, "every_8"))
    cache.commit(step)
    save_prefix(path, cache, storage, tokens, model="m")
    other, held = Cache(plan), Storage(plan)
    load_prefix(path, other, held, model="m")
    again = other.admit(tokens)

    assert 32 == again.computed
    table = other.extend([again], [1]).group("every_8").table[0]
    assert torch.equal(rows, held.gather_latent(0, held.page_index(table, "every_8"), 0, 4))
