"""OctavoCache used against its rules: refused by name, or answered without a wrong token."""

import copy
import pickle
import threading

import pytest
import torch
import transformers
from drop_in_models import SHAPE, generate, ids_of, model_of, padded

from octavo.errors import (
    CopyError,
    LengthError,
    OctavoError,
    PlanError,
    StepError,
    UnsupportedModel,
)
from octavo.integrations.transformers import OctavoCache

PAGE = 8
IDS = ids_of(1, 20)
AFTER = torch.cat([IDS[:, :17], ids_of(1, 3, seed=8)], dim=1)


@pytest.fixture
def model():
    """A tiny Llama."""
    return model_of("llama")


def cache_for(model, memory="1MiB", **options):
    """A small cache."""
    return OctavoCache.for_model(model, memory, page_size=PAGE, **options)


def tiny(**options):
    """A Llama of its own, for tests that change it."""
    torch.manual_seed(5)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SHAPE | {"initializer_range": 0.2} | options)
    ).eval()


def agrees(model, cache, ids):
    """Whether a call on the cache gives what one without it gives."""
    found, expected = generate(model, ids, cache), generate(model, ids, None)
    near = (found[1] - expected[1]).abs().max() < 2e-5 * expected[1].abs().max()
    return bool(near) and torch.equal(found[0], expected[0])


def cached(cache):
    """Prompt tokens found again so far."""
    return cache.pages.stats().cached_tokens


# -- what ids do not tell ----------------------------------------------------------------------

PADDED = torch.cat([torch.zeros(1, 7, dtype=torch.long), IDS], dim=1)
PASSES = {
    "positions": (IDS, {"position_ids": 3 * torch.arange(100, 120)[None]}),
    "padding": (PADDED, {"attention_mask": (PADDED > 0).long()}),
    "mask": (IDS, {"attention_mask": torch.zeros(1, 1, 20, 20)}),
}


@pytest.mark.parametrize("kind", PASSES)
def test_passes_that_ids_do_not_tell_are_shared_with_nobody(model, kind):
    """Positions of their own, columns counted with padding, masks of pairs: equal ids miss."""
    cache, (ids, options) = cache_for(model), PASSES[kind]
    with torch.no_grad():
        model(ids, cache=cache, **options)
    cache.reset()
    assert agrees(model, cache, AFTER)
    assert cached(cache) == 0
    cache.reset()
    with torch.no_grad():
        found, expected = (model(ids, cache=each, **options).logits for each in (cache, None))
    assert torch.equal(found, expected)


def test_rows_become_private_where_positions_leave_their_order(model):
    """After padding on the right transformers counts on from 0: the answer is not found again."""
    cache, (ids, mask) = cache_for(model), padded([20, 13], "right")
    answer = generate(model, ids, cache, mask, new=2 * PAGE)[0]
    cache.reset()
    assert agrees(model, cache, torch.cat([ids[1:, :13], answer[1:, 20:]], dim=1))
    assert cached(cache) == PAGE


def test_a_mask_that_hides_more_of_the_past_makes_rows_private(model):
    """Keys that follow on a hole are of another text than their ids say."""
    cache, mask = cache_for(model), torch.ones(1, 20, dtype=torch.long)
    mask[0, 3] = 0
    with torch.no_grad():
        model(IDS[:, :8], cache=cache)
        model(IDS[:, 8:], cache=cache, attention_mask=mask)
    cache.reset()
    assert agrees(model, cache, AFTER)
    assert cached(cache) == PAGE


def test_a_prompt_is_run_at_the_positions_it_was_told_for(model):
    """Padding without position_ids: the model would count columns, and the pages count tokens."""
    cache, mask = cache_for(model), (PADDED > 0).long()
    generate(model, IDS, cache)
    cache.prompt(PADDED, mask)
    start = cache.get_seq_length()
    assert start == 7 + 16
    with pytest.raises(StepError, match="position_ids"):
        model(PADDED[:, start:], attention_mask=mask, cache=cache)


@pytest.mark.parametrize(("longest", "hits"), [(256, 0), (64, 16)])
def test_codes_that_change_with_length_are_not_shared(longest, hits):
    """LongRoPE has other codes beyond a length: nothing is shared where a row may pass it."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0}
    rope |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    model = tiny(rope_parameters=rope | {"original_max_position_embeddings": 64})
    cache = cache_for(model, max_length=longest)
    generate(model, torch.cat([IDS, ids_of(1, longest - 40)], dim=1), cache)
    cache.reset()
    assert agrees(model, cache, AFTER)
    assert cached(cache) == hits


def test_dropout_is_shared_with_nobody():
    """In training mode keys are drawn: none of them is found later."""
    model = tiny(attention_dropout=0.5)
    cache = cache_for(model)
    model.train()
    generate(model, IDS, cache)
    model.eval()
    cache.reset()
    assert agrees(model, cache, AFTER)
    assert cached(cache) == 0


def test_forget_drops_the_pages_of_other_weights():
    """After weights have changed: nothing of the old ones is found."""
    model = tiny()
    cache = cache_for(model)
    generate(model, IDS, cache)
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
        model.model.layers[0].self_attn.k_proj.weight.mul_(2)
    cache.forget()
    assert agrees(model, cache, AFTER)
    assert cached(cache) == 0


# -- rows that vanish --------------------------------------------------------------------------


class Streamer:
    """Does something once, at the fourth token."""

    def __init__(self, act):
        self.act, self.count = act, 0

    def put(self, _tokens):
        """Count, and act."""
        self.count += 1
        if self.count == 4:
            self.act()

    def end(self):
        """Nothing."""


@pytest.mark.parametrize("what", ["reset", "generate"])
def test_rows_that_vanish_within_a_call_end_it(model, what):
    """reset(), or another call, from within generate(): refused, and the cache goes on."""
    cache = cache_for(model)
    acts = {"reset": cache.reset, "generate": lambda: generate(model, ids_of(1, 9, seed=3), cache)}
    with pytest.raises(LengthError, match="computed is"):
        generate(model, IDS, cache, streamer=Streamer(acts[what]))
    assert agrees(model, cache, IDS)


def test_a_failed_pass_by_hand_takes_the_rows_along(model):
    """The length says so at once, and no pass goes on before the rows were begun again."""
    cache = cache_for(model)
    with torch.no_grad():
        model(IDS, cache=cache)
        handle = model.model.layers[1].register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(IDS[:, :1], cache=cache)
        handle.remove()
        assert cache.get_seq_length() == cache.pages.stats().live == 0
        with pytest.raises(LengthError, match="must be 20"):
            model(IDS[:, :1], cache=cache, attention_mask=torch.ones(1, 21, dtype=torch.long))
        with pytest.raises(StepError, match="reset"):
            model(IDS[:, :1], cache=cache)
        cache.reset()
        model(IDS[:, :1], cache=cache)


def test_masks_and_positions_tell_how_much_is_there(model):
    """Every pass is checked, not a call's first alone."""
    cache, late = cache_for(model), {"position_ids": torch.tensor([[20]])}
    with torch.no_grad():
        model(IDS, cache=cache)
        cache.reset()
        for told in (late, {"attention_mask": torch.ones(1, 21, dtype=torch.long)}):
            with pytest.raises(LengthError, match="computed is 0; it must be 20"):
                model(IDS[:, :1], cache=cache, **told)
        model(IDS, cache=cache)
        model(IDS[:, :1], cache=cache, **late)
    assert cache.get_seq_length() == 21


def test_octavos_attention_refuses_answers_to_padding():
    """Padding on the right: the logits asked for are those of padding, which it does not make."""
    model = model_of("llama")
    cache = cache_for(model)
    ids, mask = padded([19, 12], "right")
    with cache.attend(), pytest.raises(UnsupportedModel, match="left"):
        generate(model, ids, cache, mask)


# -- prompt, threads, copies, arguments --------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"prefill_chunk_size": PAGE}], ids=["whole", "chunks"])
def test_a_prompt_that_was_said_goes_on_as_beams(model, more):
    """prompt() is told rows before generate() makes beams of them."""
    cache = cache_for(model)
    cache.prompt(IDS)
    found = generate(model, IDS, cache, num_beams=2, **more)
    expected = generate(model, IDS, None, num_beams=2)
    assert torch.equal(found[0], expected[0])


def test_another_prompt_takes_the_place_of_the_one_before(model):
    """Two prompts that begin alike: the later counts."""
    cache = cache_for(model)
    generate(model, IDS, cache)
    cache.reset()
    cache.prompt(IDS)
    cache.prompt(AFTER)
    assert agrees(model, cache, AFTER)


def in_thread(act):
    """Run it in another thread; the errors of octavo that it met."""
    errors = []

    def run():
        try:
            act()
        except OctavoError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors


def test_a_call_of_another_thread_ends_the_call_before(model):
    """Between two passes another thread begins: the first is refused, the other is answered."""
    cache = cache_for(model)
    act = Streamer(lambda: in_thread(lambda: generate(model, ids_of(1, 17, seed=3), cache)))
    with pytest.raises(StepError, match="another thread"):
        generate(model, IDS, cache, streamer=act)
    assert agrees(model, cache, IDS)


def test_a_pass_of_another_thread_is_refused_and_harms_nothing(model):
    """Within a pass no other thread begins anything; the pass goes on."""
    cache, errors = cache_for(model), []
    handle = model.model.layers[1].register_forward_hook(
        lambda *_: errors.extend(in_thread(lambda: generate(model, AFTER, cache, new=1)))
    )
    found = generate(model, IDS, cache, new=2)
    handle.remove()
    assert all(isinstance(error, StepError) for error in errors)
    assert len(errors) == 2
    assert torch.equal(found[0], generate(model, IDS, None, new=2)[0])


def test_reset_recovers_from_a_step_that_was_left_open(model):
    """An interrupt between opening a step and knowing it."""
    cache = cache_for(model)
    cache.pages.extend(cache.pages.admit([1, 2, 3]), 3)
    cache.reset()
    assert agrees(model, cache, IDS)


def test_copies_of_a_cache_are_refused_in_words(model):
    """Neither deepcopy nor pickle knows whose pages they would be."""
    cache = cache_for(model)
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(CopyError, match="batch_repeat_interleave"):
            make(cache)


ONE = torch.ones(1, 20, dtype=torch.long)
WRONG = {
    "crop text": lambda c: c.crop("x"),
    "crop nothing": lambda c: c.crop(None),
    "crop half": lambda c: c.crop(-1.5),
    "prompt nothing": lambda c: c.prompt(None),
    "prompt list": lambda c: c.prompt([1, 2]),
    "prompt row": lambda c: c.prompt(IDS[0]),
    "prompt floats": lambda c: c.prompt(IDS.float()),
    "prompt empty": lambda c: c.prompt(IDS[:, :0]),
    "short mask": lambda c: c.prompt(IDS, ONE[:, :3]),
    "long mask": lambda c: c.prompt(IDS, ONE.repeat(1, 2)),
    "tall mask": lambda c: c.prompt(IDS, ONE.repeat(2, 1)),
    "deep mask": lambda c: c.prompt(IDS, ONE[None, None]),
    "reorder": lambda c: c.reorder_cache(torch.tensor([5])),
    "reorder below": lambda c: c.reorder_cache(torch.tensor([-1])),
    "select": lambda c: c.batch_select_indices(torch.tensor([9])),
    "select none": lambda c: c.batch_select_indices(torch.tensor([False])),
    "select two": lambda c: c.batch_select_indices(torch.tensor([True, False])),
    "repeat none": lambda c: c.batch_repeat_interleave(0),
    "repeat below": lambda c: c.batch_repeat_interleave(-1),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arguments_are_refused_by_name_and_change_nothing(model, kind):
    """No error of NumPy or Python's own, and the rows stand as they stood."""
    cache = cache_for(model)
    generate(model, IDS, cache)
    with pytest.raises(OctavoError):
        WRONG[kind](cache)
    assert (cache.get_seq_length(), cache.batch_size) == (26, 1)


@pytest.mark.parametrize("option", [{"dtype": "int8"}, {"order": "token"}])
def test_what_follows_from_the_model_is_no_option(model, option):
    """The dtype is the model's, and pages are head-major."""
    with pytest.raises(PlanError, match="leave it out"):
        cache_for(model, **option)


def test_a_refused_pass_leaves_no_page_live():
    """Keys of another dtype: the pages go at once, not with the next call."""
    model = tiny()
    cache = cache_for(model)
    model.to(torch.bfloat16)
    with pytest.raises(PlanError, match="bfloat16"):
        generate(model, IDS, cache)
    assert cache.pages.stats().live == 0


def test_a_hook_that_is_being_added_disturbs_no_pass():
    """torch knows of a hook a moment before it knows that it takes keywords: other threads run."""
    model = tiny()
    cache = cache_for(model)
    model._forward_pre_hooks_with_kwargs.clear()
    model._forward_hooks_with_kwargs.clear()
    assert torch.isfinite(model(IDS).logits).all()
    cache.close()
