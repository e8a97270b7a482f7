"""Ctrl-C at each line of octavo that a generate() reaches: after a reset the cache works."""

import sys
from pathlib import Path

import pytest
import torch
import transformers
from drop_in_models import SHAPE, generate, ids_of, padded

import octavo
from octavo.integrations.transformers import OctavoCache

HOME = str(Path(octavo.__file__).parent)
CORE = str(Path(HOME, "core"))  # compiled where a compiler is, then without lines
IDS = ids_of(1, 13)
BATCH = padded([11, 7], "left", seed=3)


class Lines:
    """Notes octavo's lines as they are reached, and raises KeyboardInterrupt at one of them."""

    def __init__(self, wanted=None):
        self.wanted, self.seen = wanted, {}

    def __enter__(self):
        sys.settrace(self.enter)
        return self

    def __exit__(self, *_raised):
        sys.settrace(None)

    def enter(self, frame, _event, _argument):
        """Follow octavo's functions alone."""
        name = frame.f_code.co_filename
        return self.line if name.startswith(HOME) and not name.startswith(CORE) else None

    def line(self, frame, event, _argument):
        """One line, the first time it is reached."""
        at = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and at not in self.seen:
            self.seen[at] = True
            if at == self.wanted:
                raise KeyboardInterrupt
        return self.line


def alone(model, cache):
    """One prompt, which begins as an earlier one."""
    return generate(model, IDS, cache, new=2)


def batch(model, cache):
    """Two rows, of which one is padded."""
    return generate(model, BATCH[0], cache, BATCH[1], new=2)


def chunks(model, cache):
    """A prompt that is said, and computed in chunks."""
    if cache is not None:
        cache.prompt(IDS)
    return generate(model, IDS, cache, new=2, prefill_chunk_size=4)


def drafts(model, cache):
    """Drafts, some of which are taken back."""
    return generate(model, IDS.repeat(1, 2), cache, new=3, prompt_lookup_num_tokens=2)


def beams(model, cache):
    """Rows that change places, and pages that are copied."""
    return generate(model, IDS, cache, new=3, num_beams=2)


def in_place(model, cache):
    """octavo's own attention."""
    if cache is None:
        return generate(model, IDS, None, new=2)
    with cache.attend():
        return generate(model, IDS, cache, new=2)


def again(model, cache):
    """Ctrl-C in what makes it usable again."""
    if cache is not None:
        cache.reset()
        cache.forget()
    return alone(model, cache)


CALLS = (alone, batch, chunks, drafts, beams, in_place, again)


@pytest.fixture(scope="module")
def model():
    """A Llama of one layer."""
    torch.manual_seed(5)
    shape = SHAPE | {"num_hidden_layers": 1, "initializer_range": 0.2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).eval()


def interrupted(call, model, cache, at):
    """Whether Ctrl-C at a line ended the call; a finaliser swallows it."""
    with Lines(at):
        try:
            call(model, cache)
        except KeyboardInterrupt:
            return True
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_reset_makes_the_cache_usable_after_any_interrupt(model):
    """Empty, with the right tokens, and with the model's own attention, whichever line it was."""
    cache, done, ended = OctavoCache.for_model(model, "64KiB", page_size=4), set(), 0
    for call in CALLS:
        expected = call(model, None)[0]
        with Lines() as lines:
            call(model, cache)
        for at in lines.seen.keys() - done:
            ended += interrupted(call, model, cache, at)
            cache.reset()
            assert (0, 0) == (cache.pages.stats().live, cache.pages.stats().sequences), at
            assert torch.equal(expected, call(model, cache)[0]), at
            assert "sdpa" == model.config._attn_implementation, at
        done |= lines.seen.keys()
        cache.pages.check()
    assert ended > 400


def test_a_call_after_an_interrupt_needs_no_reset(model):
    """generate() begins anew by itself, in the middle of a commit as of an admission."""
    cache = OctavoCache.for_model(model, "64KiB", page_size=4)
    with Lines() as lines:
        alone(model, cache)
    expected = alone(model, None)[0]
    for at in [each for each in lines.seen if each[0].endswith(("rows.py", "cache.py"))][::5]:
        interrupted(alone, model, cache, at)
        assert torch.equal(expected, alone(model, cache)[0]), at
