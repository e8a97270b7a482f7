"""OctavoCache: what it refuses and how, whom it follows, and that nothing is left behind."""

import gc
import weakref

import pytest
import torch
import transformers
from drop_in_models import SHAPE, generate, ids_of, model_of, padded
from transformers import DynamicCache

from octavo.errors import (
    BudgetTooSmall,
    CapacityError,
    LengthError,
    NeverFits,
    OutOfPages,
    PlanError,
    RollbackUnsupported,
    StepError,
    UnsupportedModel,
)
from octavo.integrations.transformers import TESTED_WITH, OctavoCache

PAGE = 8


@pytest.fixture
def model():
    """A tiny Llama."""
    return model_of("llama")


def cache_for(model, memory="1MiB", **options):
    """A small cache."""
    return OctavoCache.for_model(model, memory, page_size=PAGE, **options)


def hooks(model):
    """Hooks on a model."""
    return len(model._forward_pre_hooks) + len(model._forward_hooks)


def test_it_was_tested_with_the_version_that_is_here():
    """The versions the package names are those its tests ran with."""
    assert transformers.__version__ in TESTED_WITH


def test_the_older_name_of_the_argument_works(model):
    """`past_key_values=` is what most scripts say; transformers warns and goes on."""
    cache, ids = cache_for(model), ids_of(1, 9)
    with pytest.warns(FutureWarning):
        model.generate(ids, past_key_values=cache, max_new_tokens=2)
    assert cache.get_seq_length() == 10


def test_a_model_run_by_hand_goes_on_where_it_stands(model):
    """Passes outside generate() append, with and without a mask."""
    cache, ids = cache_for(model), ids_of(2, 12)
    with torch.no_grad():
        expected = model(ids).logits[:, -1]
        model(ids[:, :5], cache=cache)
        model(ids[:, 5:9], cache=cache, attention_mask=torch.ones(2, 9, dtype=torch.long))
        found = model(ids[:, 9:], cache=cache).logits[:, -1]
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_embeddings_run_and_are_never_shared(model):
    """Without ids nothing is known of a prompt: it runs, and is not found again."""
    cache, ids = cache_for(model), ids_of(1, 19)
    embeds = model.get_input_embeddings()(ids).detach()
    own = DynamicCache(config=model.config)
    found = [
        model.generate(
            inputs_embeds=embeds,
            attention_mask=torch.ones_like(ids),
            cache=each,
            max_new_tokens=6,
            do_sample=False,
        )
        for each in (own, cache, cache)
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    generate(model, torch.zeros_like(ids), cache)
    assert cache.pages.stats().cached_tokens == 0


def test_rows_of_embeddings_go_on_by_new_ids_alone(model):
    """Ids tell nothing of what is there, and positions tell how much that is."""
    cache, ids = cache_for(model), ids_of(1, 19)
    embeds = model.get_input_embeddings()(ids).detach()
    own, found = DynamicCache(config=model.config), []
    for each in (own, cache):
        first = {"inputs_embeds": embeds, "attention_mask": torch.ones_like(ids)}
        model.generate(**first, cache=each, max_new_tokens=6, do_sample=False)
        mask = torch.ones(1, 19 + 5 + 4, dtype=torch.long)
        found.append(generate(model, ids_of(1, 4, seed=3), each, mask))
    assert torch.equal(found[0][0], found[1][0])
    assert (found[0][1] - found[1][1]).abs().max() < 1e-5 * found[0][1].abs().max()


def test_positions_of_their_own_are_not_found_by_ids(model):
    """Equal ids at other positions have other keys: nothing is reused, in either direction."""
    cache, ids = cache_for(model), ids_of(1, 20)
    moved = {"position_ids": torch.arange(20)[None].clone()}
    moved["position_ids"][0, :9] += 7
    expected = generate(model, ids, DynamicCache(config=model.config), **moved)
    generate(model, ids, cache)
    assert torch.equal(generate(model, ids, cache, **moved)[0], expected[0])
    generate(model, ids_of(1, 20, seed=9), cache)
    generate(model, ids, cache)
    assert cache.pages.stats().cached_tokens == 16  # of the first call's pages alone


# -- refusals ----------------------------------------------------------------------------------


def test_memory_for_less_than_a_sequence_is_refused(model):
    """The planner says how much would do."""
    with pytest.raises(BudgetTooSmall, match="bytes"):
        cache_for(model, 100, max_length=64)


def test_a_prompt_that_never_fits_is_refused_before_anything_is_written(model):
    """Both numbers are named, and the cache goes on with a smaller one."""
    cache = cache_for(model, "80KiB", max_length=64)
    with pytest.raises((NeverFits, CapacityError)):
        generate(model, ids_of(1, 200), cache)
    assert cache.pages.stats().live == 0
    generate(model, ids_of(1, 20), cache)


def test_running_out_of_pages_names_them_and_leaves_none_live(model):
    """A batch that grows beyond the pool: the rows go, and the cache can be used again."""
    cache = cache_for(model, "80KiB", max_length=64)
    with pytest.raises(OutOfPages, match=r"need \d+ pages but"):
        generate(model, ids_of(4, 20), cache, new=40)
    assert cache.pages.stats().live == 0
    cache.pages.check()
    generate(model, ids_of(1, 20), cache)


def test_a_longer_answer_than_max_length_is_refused(model):
    """The limit is a number of tokens, padding left out."""
    cache = cache_for(model, max_length=24)
    with pytest.raises(CapacityError):
        generate(model, ids_of(1, 20), cache, new=10)


def test_more_rows_than_allowed_are_refused(model):
    """Beams count as rows."""
    cache = cache_for(model, max_sequences=3)
    with pytest.raises(CapacityError, match="batch size is 4"):
        generate(model, ids_of(1, 9), cache, num_beams=4)
    assert cache.pages.stats().sequences == 0


def test_another_models_cache_is_refused(model):
    """The model a cache was not made for tells it nothing, and the cache says so."""
    cache = cache_for(model_of("qwen3"))
    with pytest.raises(StepError, match="made for"):
        generate(model, ids_of(1, 9), cache)


def test_a_model_that_has_changed_its_type_is_refused():
    """Keys of another dtype are not written."""
    config = transformers.LlamaConfig(**SHAPE)
    model = transformers.LlamaForCausalLM(config).eval()
    cache = cache_for(model)
    model.to(torch.bfloat16)
    with pytest.raises(PlanError, match="bfloat16"):
        generate(model, ids_of(1, 9), cache)
    assert torch.count_nonzero(cache.storage.arena) == 0


def test_another_batch_on_the_same_rows_is_refused(model):
    """A pass by hand with fewer rows than there are."""
    cache = cache_for(model)
    with torch.no_grad():
        model(ids_of(2, 9), cache=cache)
        with pytest.raises(LengthError, match="batch size"):
            model(ids_of(1, 1), cache=cache)


def test_new_ids_alone_must_follow_what_is_there(model):
    """The mask says how many columns there are before the new ids."""
    cache = cache_for(model)
    generate(model, ids_of(1, 9), cache)
    with pytest.raises(LengthError, match="attention_mask"):
        generate(model, ids_of(1, 2), cache, mask=torch.ones(1, 40, dtype=torch.long))


def test_other_ids_than_the_prompt_was_said_to_have_are_refused(model):
    """prompt() and generate() must be told the same."""
    cache = cache_for(model)
    cache.prompt(ids_of(1, 30))
    with pytest.raises(StepError, match="prompt"):
        generate(model, ids_of(1, 30, seed=8), cache)
    generate(model, ids_of(1, 30), cache)


def test_assisted_decoding_of_recurrent_models_is_refused_as_by_transformers():
    """A recurrent state cannot be taken back."""
    model = model_of("bamba")
    with pytest.raises(ValueError, match=r"(?i)assisted"):
        generate(model, ids_of(1, 9), cache_for(model, "4MiB"), prompt_lookup_num_tokens=3)


def test_drafts_beyond_the_rollback_are_refused():
    """Convolution states go back as far as for_model was told."""
    model = model_of("lfm2")
    cache, ids = cache_for(model, "4MiB"), ids_of(1, 6).repeat(1, 3)
    with pytest.raises(RollbackUnsupported):
        generate(model, ids, cache, prompt_lookup_num_tokens=6, new=12)
    assert cache.pages.stats().live == 0


def test_cropping_is_refused_by_name(model):
    """A positive count, and more than there is."""
    cache = cache_for(model)
    generate(model, ids_of(1, 9), cache)
    for count in (1, -99):
        with pytest.raises(LengthError):
            cache.crop(count)
    cache.crop(-3)
    assert cache.get_seq_length() == 12


def test_octavos_attention_refuses_what_it_would_not_honour():
    """Windows count tokens there and columns in a mask: padding on the right differs."""
    model = model_of("gemma3_text")
    cache = cache_for(model, "4MiB")
    ids, mask = padded([19, 12], "right")
    with cache.attend(), pytest.raises(UnsupportedModel, match="left"):
        generate(model, ids, cache, mask)


def test_passes_without_the_cache_run_beside_octavos_attention(model):
    """Under attend() a pass with another cache, or none, attends by transformers' masks."""
    cache, (ids, mask) = cache_for(model), padded([19, 12], "left")
    expected = generate(model, ids, None, mask)
    with cache.attend():
        found = generate(model, ids, DynamicCache(config=model.config), mask)
        paged = generate(model, ids, cache, mask)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(paged[0], expected[0])


def test_models_without_pages_are_refused():
    """All layers of Mamba keep states, none keeps tokens."""
    config = transformers.AutoConfig.for_model("mamba2", **SHAPE, num_heads=16, head_dim=8)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedModel, match="no layer keeps tokens"):
        cache_for(model)
    with pytest.raises(UnsupportedModel, match="causal language model"):
        cache_for(torch.nn.Linear(2, 2))


# -- whom it follows, and what is left ---------------------------------------------------------


def test_two_caches_follow_one_model(model):
    """Each is told of the passes that it is given to."""
    one, other = cache_for(model), cache_for(model)
    generate(model, ids_of(1, 9), one)
    generate(model, ids_of(1, 19), other)
    assert (one.get_seq_length(), other.get_seq_length()) == (15, 25)
    expected = generate(model, ids_of(1, 9), DynamicCache(config=model.config))
    assert torch.equal(generate(model, ids_of(1, 9), one)[0], expected[0])


def test_hooks_go_with_close_and_with_the_cache(model):
    """No pass is followed by a cache that is closed, or gone."""
    gc.collect()
    before = hooks(model)
    closed, dropped = cache_for(model), cache_for(model)
    assert hooks(model) == before + 4
    closed.close()
    gone = weakref.ref(dropped)
    del dropped
    gc.collect()
    assert gone() is None
    assert hooks(model) == before
    with pytest.raises(StepError):
        generate(model, ids_of(1, 9), closed)


def test_a_failed_pass_leaves_a_cache_that_works(model):
    """An exception in the middle of a model: its step is undone with the rows."""
    cache, expected = cache_for(model), generate(model, ids_of(1, 20), None)

    def fail(*_args):
        raise KeyboardInterrupt

    handle = model.model.layers[2].register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        generate(model, ids_of(1, 20), cache)
    handle.remove()
    assert torch.equal(generate(model, ids_of(1, 20), cache)[0], expected[0])
    cache.reset()
    assert cache.pages.stats().live == 0
    cache.pages.check()


def test_many_calls_leak_no_page_and_no_tensor(model):
    """Calls of every kind on one cache: no page stays live, and no tensor is left."""
    cache = cache_for(model)
    plain, (ids, mask) = ids_of(1, 20), padded([11, 7, 9], "left")

    def round_trip():
        generate(model, plain, cache, new=2)
        generate(model, ids, cache, mask, new=2)
        generate(model, plain, cache, new=2, num_beams=2)
        generate(model, plain, cache, new=3, prompt_lookup_num_tokens=2)

    def tensors():
        gc.collect()
        return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())

    round_trip()
    before = tensors()
    for _ in range(5):
        round_trip()
    cache.reset()
    stats = cache.pages.stats()
    assert (stats.live, stats.sequences) == (0, 0)
    assert stats.free + stats.evictable == stats.pages
    assert tensors() <= before
    cache.pages.check()


def test_prompt_tokens_not_computed_are_counted(model):
    """Those the rows hold and those found in pages, of all rows together."""
    cache, ids = cache_for(model), ids_of(2, 20)
    options = {"cache": cache, "max_new_tokens": 4, "do_sample": False}
    first = model.generate(ids, **options)
    fresh = cache.reused_tokens
    whole = torch.cat([first, ids_of(2, 3)], dim=1)
    model.generate(whole, **options)
    held = cache.reused_tokens
    cache.reset()
    model.generate(whole, **options)

    assert (0, 2 * (first.shape[1] - 1)) == (fresh, held)
    assert 2 * (whole.shape[1] // PAGE * PAGE) == cache.reused_tokens  # 27 tokens


@pytest.mark.parametrize(
    ("options", "prompt", "new", "why"),
    [
        ({"max_length": 24}, 20, 9, "max_length of for_model"),
        ({"max_length": 24}, 30, 9, "max_length of for_model"),
        ({"memory": None, "tokens": 48}, 40, 16, "give for_model more memory, or tokens="),
    ],
)
def test_a_row_that_is_too_long_says_what_to_give(model, options, prompt, new, why):
    """It names for_model's arguments, whether the prompt or the answer is too long."""
    cache = cache_for(model, **options)

    with pytest.raises(CapacityError, match=f"tokens of one row: .*{why}"):
        model.generate(ids_of(1, prompt), cache=cache, max_new_tokens=new, do_sample=False)


@pytest.mark.parametrize(("rows", "tokens", "error"), [(4, 30, OutOfPages), (1, 90, NeverFits)])
def test_too_few_pages_say_what_to_give(model, rows, tokens, error):
    """Errors about pages have a note in the words of for_model."""
    cache = cache_for(model, memory=None, tokens=48)

    with pytest.raises(error) as caught:
        model.generate(ids_of(rows, tokens), cache=cache, max_new_tokens=2, do_sample=False)

    assert "Give OctavoCache.for_model more memory" in caught.value.__notes__[0]


def test_why_no_pass_is_open(model):
    """One reason is given: a part of the model was run, a reset came within, or it is closed."""
    cache, ids = cache_for(model), ids_of(1, 9)

    def refused(run):
        with torch.no_grad(), pytest.raises(StepError) as caught:
            run(ids, cache=cache)
        return str(caught.value)

    part = refused(model.model)
    handle = model.model.layers[0].register_forward_pre_hook(lambda *_: cache.reset())
    within = refused(model)
    handle.remove()
    cache.close()

    assert "run the whole model" in part
    assert "ended it" in within
    assert "closed" in refused(model)
