"""octavo.ActivePrefixCache: a pass counts when every layer has attended, once."""

import pytest
import torch
from active_prefixes import DIM, KV_HEADS, LAYERS, cache, fill, frozen, held

import octavo
from octavo.active_prefix import prefix as onepass


def attend(prefix, layer, tokens=2):
    """A layer's turn, with keys and values of ones."""
    new = torch.ones(prefix.positions.shape[0], KV_HEADS, tokens, DIM)
    return prefix.attend(layer, new, new, new)


def test_positions_count_when_every_layer_has_attended():
    """Not when the pass begins, and not before its last layer."""
    kept, seen = cache(), []
    prefix = kept.begin(2)
    for layer in reversed(range(LAYERS)):
        seen.append((kept.lengths, kept.kv_len))
        attend(prefix, layer)

    assert [((0,), 0)] * LAYERS == seen
    assert ((2,), 2) == (kept.lengths, kept.kv_len)


def test_pass_that_was_not_written_is_dropped():
    """`begin(5); begin(5)` is one pass, and what a row held before stays."""
    kept = cache()
    fill(kept, 2)
    kept.begin(5)
    prefix = fill(kept, 5, start=50.0)

    assert [[2, 3, 4, 5, 6]] == prefix.positions.tolist()
    assert [1.0, 2.0, 50.0, 51.0, 52.0, 53.0, 54.0] == held(kept)


def test_pass_written_in_part_is_refused_by_the_next():
    """It raised between two layers, or leaves layers out: the next says so until it is dropped."""
    kept = cache(bucket=4)
    fill(kept, 3)
    before = frozen(kept)
    attend(kept.begin(2), 0)

    assert (3,) == kept.lengths
    for begin in (kept.begin, lambda: kept.begin_at([3], 4)):
        with pytest.raises(octavo.StepError, match=r"layers \[1\] have not .* truncate\(\[3\]\)"):
            begin()
    kept.truncate(kept.lengths)
    assert before == frozen(kept)
    fill(kept, 1, start=70.0)
    assert [1.0, 2.0, 3.0, 70.0] == held(kept)


@pytest.mark.parametrize("drop", [lambda c: c.reset(), lambda c: c.copy_prefix(cache(), 0)])
def test_pass_written_in_part_is_dropped_with_its_rows(drop):
    """Nothing of it is left where rows are emptied."""
    kept = cache(bucket=4)
    attend(kept.begin(3), 1, tokens=3)
    drop(kept)

    assert frozen(cache(bucket=4)) == frozen(kept)
    fill(kept, 2)
    assert [1.0, 2.0] == held(kept)


def test_pass_that_writes_over_and_raises_leaves_what_came_before():
    """Positions a pass has written over in some layers are of no use."""
    kept = cache()
    fill(kept, 6)
    prefix = kept.begin_at([2, 3], 6)
    assert (6,) == kept.lengths
    attend(prefix, 0)

    assert (2,) == kept.lengths
    kept.truncate(kept.lengths)
    assert [1.0, 2.0] == held(kept)
    assert 0 == sum(tensor[:, :, 2:].abs().sum().item() for tensor in kept._tensors())


def test_layer_that_attends_twice_is_refused():
    """Two layers of one number: the second would take the place of the first."""
    kept = cache()
    prefix = kept.begin(2)
    attend(prefix, 0)
    for act in (
        attend,
        lambda prefix, layer: prefix.update(layer, *[torch.zeros(1, 2, 2, DIM)] * 2),
    ):
        with pytest.raises(octavo.StepError, match="layer 0 has attended"):
            act(prefix, 0)
    attend(prefix, 1)

    assert (2,) == kept.lengths
    assert [1.0, 1.0] == held(kept)


def test_layer_whose_attention_raises_has_not_attended(monkeypatch):
    """Its keys are written and of no use: the pass is not whole, and leaves nothing behind."""
    kept = cache(bucket=4)
    monkeypatch.setattr(onepass, "scaled_dot_product_attention", lambda *_, **__: 1 / 0)
    prefix = kept.begin(2)
    with pytest.raises(ZeroDivisionError):
        attend(prefix, 0)
    monkeypatch.undo()

    with pytest.raises(octavo.StepError, match=r"layers \[0, 1\]"):
        kept.begin()
    kept.reset()
    assert frozen(cache(bucket=4)) == frozen(kept)


def test_copies_take_what_counts_alone():
    """A pass that is open in the source gives nothing before it is whole."""
    voice, kept = cache(), cache()
    fill(voice, 3)
    attend(voice.begin(2), 0)
    kept.copy_prefix(voice)

    assert (3,) == kept.lengths
