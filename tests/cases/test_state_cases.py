"""Handed cases of going back, forking and states, answered by the drop-in for transformers."""

import pytest
import torch
from drop_in_models import ids_of, model_of, padded

from octavo.errors import LengthError, OutOfPages
from octavo.integrations.transformers import OctavoCache


def cache_for(model, page_size=4, memory="2MiB", **options):
    """A small cache."""
    return OctavoCache.for_model(model, memory, page_size=page_size, **options)


def run(model, ids, cache=None, mask=None):
    """Logits of one pass."""
    with torch.no_grad():
        return model(ids, cache=cache, attention_mask=mask).logits


def same(found, expected):
    """Equal but for rounding."""
    return (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_e20_padding_is_in_no_page():
    """Rows of 2 and 5 tokens under a window: each is what it is alone, and holds its tokens."""
    model = model_of("gemma3_text")
    ids, mask = padded([2, 5], "left")
    cache = cache_for(model)
    found = run(model, ids, cache, mask)[:, -1]
    for row, length in enumerate((2, 5)):
        assert same(found[row], run(model, ids[row : row + 1, 5 - length :])[0, -1])
    assert [seq.computed for seq in cache._rows.sequences] == [2, 5]


def test_f03_crop_has_one_sign():
    """Of three tokens crop(0) keeps all, crop(-5) and crop(1) are errors, crop(-3) leaves none."""
    model = model_of("llama")
    cache = cache_for(model)
    run(model, ids_of(1, 3), cache)
    cache.crop(0)
    for count in (-5, 1):
        with pytest.raises(LengthError):
            cache.crop(count)
    assert cache.get_seq_length() == 3
    cache.crop(-3)
    assert cache.get_seq_length() == 0


def test_f04_drafts_behind_a_full_window_are_taken_back():
    """Three drafts behind a full window, two of them wrong: what follows is as without them."""
    model = model_of("mistral")
    ids, cache = ids_of(1, 20), cache_for(model)
    cache.activate_past_recording()
    run(model, ids[:, :12], cache)
    cache.crop(0)
    run(model, torch.cat([ids[:, 12:13], ids_of(1, 2, seed=9)], dim=1), cache)
    cache.crop(-2)
    assert same(run(model, ids[:, 13:], cache), run(model, ids)[:, 13:])


def test_f07_a_fork_copies_the_open_page_alone():
    """Ten tokens in pages of 4 as three rows: 3 pages, and 5 once each has taken its own token."""
    model = model_of("llama")
    ids, cache = ids_of(1, 10), cache_for(model)
    run(model, ids, cache)
    cache.batch_repeat_interleave(3)
    assert cache.pages.stats().live == 3
    turns = torch.tensor([[5], [6], [7]])
    found = run(model, turns, cache)
    assert cache.pages.stats().live == 5
    assert same(found, run(model, torch.cat([ids.repeat(3, 1), turns], dim=1))[:, -1:])


def test_f08_a_row_that_goes_on_takes_no_page_from_its_forks():
    """One of two rows of a window runs far ahead before the other goes on."""
    model = model_of("mistral")
    ids, cache = ids_of(1, 10), cache_for(model)
    run(model, ids, cache)
    cache.batch_repeat_interleave(2)
    ahead = cache._rows.sequences[0]
    (child,) = cache.pages.fork(ahead)
    cache.pages.learn(ahead, range(3, 23))
    cache.pages.commit(cache.pages.extend(ahead, 20))
    cache._rows.batch.remove(ahead)
    cache.pages.release(ahead)
    cache._rows.batch.add(child)
    cache._rows.sequences = [child]
    cache._rows.real = cache._rows.real[:1]
    turn = ids_of(1, 1, seed=9)
    assert same(run(model, turn, cache), run(model, torch.cat([ids, turn], dim=1))[:, -1:])


@pytest.mark.parametrize(("chunks", "kept"), [((16, 4), 16), ((20,), 0)])
def test_f13_states_are_kept_at_page_ends_only(chunks, kept):
    """Twenty tokens in pages of 16: a state after 16 where a chunk ends there, none after 20."""
    model = model_of("qwen3_next")
    ids, cache = ids_of(1, 20), cache_for(model, page_size=16)
    cache.prompt(ids)
    for part in ids.split(chunks, dim=1):
        run(model, part, cache)
    cache.reset()
    cache.prompt(torch.cat([ids, ids_of(1, 5, seed=9)], dim=1))
    assert cache.get_seq_length() == kept


def test_f14_an_edit_goes_back_to_the_last_state():
    """States after 16 and 32, a prompt that differs from 20 on: 16 are there, and it says so."""
    model = model_of("qwen3_next")
    ids, cache = ids_of(1, 40), cache_for(model, page_size=16)
    cache.prompt(ids)
    for part in ids.split(16, dim=1):
        run(model, part, cache)
    cache.reset()
    edited = torch.cat([ids[:, :20], ids_of(1, 9, seed=9)], dim=1)
    cache.prompt(edited)
    assert cache.get_seq_length() == 16
    assert same(run(model, edited[:, 16:], cache), run(model, edited)[:, 16:])


def test_g04_a_prompt_beyond_the_pool_is_no_empty_answer():
    """OutOfPages with both numbers; nothing was written."""
    model = model_of("llama")
    cache = cache_for(model, memory="44KiB", max_length=40)
    with pytest.raises(OutOfPages) as caught:
        run(model, ids_of(3, 30), cache)
    assert (caught.value.need, caught.value.free) == (24, 10)
    assert torch.count_nonzero(cache.storage.arena) == 0
