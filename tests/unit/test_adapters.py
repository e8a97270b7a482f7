"""LoRA adapters by request: each row of a step runs with its own, and pages are kept apart."""

from contextlib import nullcontext

import peft
import pytest
import torch
import transformers

import octavo
from octavo.engine import Engine, SamplingParams
from octavo.engine.adapters import Adapters, unwrapped
from octavo.errors import IdentityError, LengthError, UnsupportedModel

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")

PROMPTS = [[5, 6, 7], list(range(1, 24)), [9] * 11]
GREEDY = SamplingParams(max_tokens=6)
TARGETS = ["q_proj", "v_proj", "down_proj", "lm_head"]


def tiny(family="Llama", **changes):
    """A tiny random model whose answers differ from prompt to prompt."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "eos_token_id": None,
        "tie_word_embeddings": False,
    }
    config = getattr(transformers, f"{family}Config")(**shape | changes)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    return widen(model, model.parameters())


def widen(model, parameters):
    """Add noise to matrices."""
    with torch.no_grad():
        for parameter in parameters:
            if parameter.ndim > 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def add(model, name, **options):
    """The same with one more adapter of random weights, as a peft model."""
    torch.manual_seed(1)
    config = peft.LoraConfig(**{"r": 4, "target_modules": TARGETS} | options)
    if isinstance(model, peft.PeftModel):
        model.add_adapter(name, config)
    else:
        model = peft.get_peft_model(model, config, name)
    own = [p for path, p in model.named_parameters() if f".{name}." in f".{path}."]
    assert own
    return widen(model, own).eval()


@pytest.fixture(scope="module")
def model():
    """A model with two adapters, of other layers and ranks."""
    found = add(tiny(), "sql")
    return add(found, "poem", r=8, lora_alpha=32, use_rslora=True, target_modules=["k_proj"])


def plan_of(model, pages=60, page_size=4):
    """A plan of so many usable pages."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    token = sum(layer.elements_per_token for layer in spec.layers) * 4
    memory = (pages + 1) * page_size * token
    return octavo.plan(spec, memory, page_size=page_size, dtype="fp32", order="head")


def by_generate(model, prompt, name):
    """What transformers answers with that adapter active, or none."""
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": ids * 0 + 1}
    model.set_adapter(name or next(iter(model.peft_config)))
    with nullcontext() if name else model.disable_adapter():
        found = model.generate(input_ids=ids, **options)
    return found[0, len(prompt) :].tolist()


def run(engine, asked):
    """The answers to (prompt, adapter) pairs submitted together."""
    requests = [engine.submit(prompt, GREEDY, adapter=name) for prompt, name in asked]
    engine.run()
    return [request.output for request in requests]


ASKED = [(prompt, name) for prompt in PROMPTS for name in (None, "sql", "poem")]


@pytest.fixture(scope="module")
def answers(model):
    """What transformers answers to each."""
    return [by_generate(model, *each) for each in ASKED]


@pytest.mark.parametrize("max_step_tokens", [2, 7, 2048])
def test_rows_of_one_step_have_adapters_of_their_own(model, answers, max_step_tokens):
    """As in generate() with each adapter, beside others, in chunks, and whichever is active."""
    with Engine(model, plan_of(model), max_step_tokens=max_step_tokens) as engine:
        assert answers == run(engine, ASKED)
        assert answers == run(engine, ASKED)
        engine.cache.check()
    assert 9 == len({tuple(answer) for answer in answers})
    assert answers[4] == by_generate(model, *ASKED[4])  # the model is as it was


def test_generate_takes_an_adapter_for_all_or_one_per_prompt(model, answers):
    """As submit does, in the order of the prompts."""
    with Engine(model, plan_of(model)) as engine:
        each = engine.generate(
            [prompt for prompt, _ in ASKED], GREEDY, adapter=[name for _, name in ASKED]
        )
        assert answers == [found.token_ids for found in each]
        both = engine.generate(PROMPTS, GREEDY, adapter="sql")
        assert answers[1::3] == [found.token_ids for found in both]
        with pytest.raises(LengthError, match=r"len\(adapter\) is 1"):
            engine.generate(PROMPTS, GREEDY, adapter=["sql"])


def test_models_run_by_rows():
    """They take no adapters, and say why."""
    config = transformers.MptConfig(d_model=32, n_heads=4, n_layers=2, vocab_size=61)
    base = transformers.MptForCausalLM(config).eval()
    model = add(base, "sql", target_modules=["Wqkv"])
    match = pytest.raises(UnsupportedModel, match="run by rows, without adapters: ")
    with Engine(model, plan_of(base)) as engine, match:
        engine.submit([1, 2], adapter="sql")


def test_preempted_rows_keep_their_adapter(model, answers):
    """A pool for two requests computes again what it has lost."""
    with Engine(model, plan_of(model, pages=12), prefix=False, watermark=0) as engine:
        assert answers == run(engine, ASKED)


def test_pages_are_shared_within_an_adapter_alone(model):
    """A prompt computed with one adapter is no prefix of the same prompt with another."""
    with Engine(model, plan_of(model)) as engine:
        hits = []
        for name in (None, "sql", "poem", "sql", None):
            request = engine.submit(PROMPTS[1], GREEDY, adapter=name)
            engine.run()
            hits.append(request.cached_tokens)
        assert [0, 0, 0, 20, 20] == hits
        assert ("sql", "poem") == tuple(
            engine.submit([1], GREEDY, adapter=name).condition.adapter.id
            for name in ("sql", "poem")
        )


def test_embeddings_and_modules_saved_whole(answers):
    """An adapter may reach the embeddings, and have a head of its own; others keep the model's."""
    options = {"modules_to_save": ["lm_head"], "target_modules": ["k_proj", "embed_tokens"]}
    model = add(tiny(), "whole", **options)
    asked = [(PROMPTS[1], "whole"), (PROMPTS[1], None), (PROMPTS[2], "whole")]
    with Engine(model, plan_of(model)) as engine:
        found = run(engine, asked)
    assert [by_generate(model, *each) for each in asked] == found
    assert answers[3] == found[1] != found[0]


def test_adapters_loaded_and_unloaded_while_the_engine_lives():
    """What is loaded later can be asked for; what another was loaded over has pages of its own."""
    base = tiny()
    expected = by_generate(add(tiny(), "mine"), PROMPTS[1], "mine")
    with Engine(base, plan_of(base)) as engine:
        plain = run(engine, [(PROMPTS[1], None)])
        with pytest.raises(IdentityError, match=r"adapter is .mine..*loaded: none"):
            engine.submit([1, 2], adapter="mine")
        model = add(add(base, "mine"), "other")
        first = engine.submit(PROMPTS[1], GREEDY, adapter="mine")
        engine.run()
        assert expected == first.output != plain[0]
        assert plain == run(engine, [(PROMPTS[1], None)])

        waits = engine.submit(PROMPTS[1], GREEDY, adapter="mine")
        model.set_adapter("other")
        model.delete_adapter("mine")
        with pytest.raises(IdentityError, match="loaded: other"):
            engine.submit([1, 2], adapter="mine")
        add(model, "mine", r=2)
        with pytest.raises(IdentityError, match="submit it again"):
            engine.run()
        engine.cancel(waits)
        again = engine.submit(PROMPTS[1], GREEDY, adapter="mine")
        engine.run()
        assert 0 == again.cached_tokens
        assert first.condition != again.condition


def test_the_same_weights_are_the_same_adapter_everywhere(model):
    """Name and content make an adapter's identity, in every engine and process."""
    other = add(tiny(), "sql")
    with Engine(model, plan_of(model)) as one, Engine(other, plan_of(other)) as two:
        keys = [
            engine.submit([1], GREEDY, adapter="sql").condition.adapter for engine in (one, two)
        ]
    assert keys[0] == keys[1]


def test_a_variant_of_lora():
    """What peft does not choose by row is refused by name; the model's own answers go on."""
    model = add(tiny(), "x", use_dora=True)
    plain = by_generate(model, [1, 2], None)
    with Engine(model, plan_of(model)) as engine:
        with pytest.raises(UnsupportedModel, match="'x'.*a variant such as DoRA"):
            engine.submit([1, 2], adapter="x")
        assert [plain] == run(engine, [([1, 2], None)])


def test_adapters_of_another_kind():
    """They would be computed for every row."""
    config = peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[])
    model = peft.get_peft_model(tiny(), config, "other")
    with pytest.raises(UnsupportedModel, match="adapter .other.*IA3"):
        Engine(model, plan_of(model))


def test_prompts_that_are_learned():
    """peft puts them in a cache of its own."""
    config = peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    model = peft.get_peft_model(tiny(), config, "other")
    with pytest.raises(UnsupportedModel, match="adapter .other.*PREFIX_TUNING"):
        Engine(model, plan_of(model))


@pytest.mark.parametrize("name", ["no", 3, ["sql"]])
def test_names_of_no_adapter(model, name):
    """The adapters that are loaded are named."""
    match = pytest.raises(IdentityError, match="loaded: sql, poem")
    with Engine(model, plan_of(model)) as engine, match:
        engine.submit([1, 2], adapter=name)


def test_disabled_adapters(model):
    """peft would leave them out without a word."""
    match = pytest.raises(UnsupportedModel, match="disabled, or merged")
    with Engine(model, plan_of(model)) as engine, model.disable_adapter(), match:
        engine.submit([1, 2], adapter="sql")


def test_layers_that_see_other_rows(model):
    """A layer that gets part of the tokens, as an expert does, cannot tell whose they are."""
    adapters = Adapters(unwrapped(model))
    layer = unwrapped(model).model.layers[0].self_attn.q_proj
    spec = plan_of(model)
    cache = octavo.Cache(spec)
    step = cache.extend([cache.admit([1, 2, 3], limit=8)], [3])
    with adapters.applied(step, [None]), pytest.raises(UnsupportedModel, match="layers.0.*q_proj"):
        layer(torch.zeros(2, 32))
    adapters.close()
    assert torch.equal(layer(torch.zeros(2, 32)), torch.zeros(2, 32))


def test_adapters_within_modules_that_keep_states():
    """Mamba's projections run for rows of equal length, each with its own adapter."""
    sizes = {"num_heads": 4, "head_dim": 16, "state_size": 4, "n_groups": 1, "chunk_size": 8}
    model = add(tiny("Mamba2", **sizes), "sql", target_modules=["in_proj", "lm_head"])
    plan = octavo.plan(octavo.ModelSpec.from_config(model.config.to_dict()), "1MiB", dtype="fp32")
    names = ["sql", None, "sql"]
    expected = [by_generate(model, *pair) for pair in zip(PROMPTS, names, strict=True)]
    with Engine(model, plan, max_step_tokens=9) as engine:
        pairs = zip(PROMPTS, names, strict=True)
        requests = [engine.submit(prompt, GREEDY, adapter=name) for prompt, name in pairs]
        engine.run()

    assert expected == [request.output for request in requests]
    assert expected[1] != by_generate(model, PROMPTS[1], "sql")
