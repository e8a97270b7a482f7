"""Published configs to exact bytes, and what packed plans of them hold (configs/expected.yaml)."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import yaml

import octavo
from octavo import Cache, ModelSpec
from octavo.model.lifetimes import group_name
from octavo.planner import pools, sizes
from octavo.planner.request import memory_for

DATA = Path(__file__).parent / "data"
FIGURES = yaml.safe_load((DATA / "configs/expected.yaml").read_text(encoding="utf-8"))
LENGTHS = (1, 100, 4096, 32768, 131072)
STATES = {"bf16": "bf16", "fp32_state": "fp32"}
CHOICES = [
    (model, choice) for model, row in FIGURES.items() for choice in row["exact_bytes_at_32768"]
]


def spec_of(model):
    """The model as its config.json says."""
    return ModelSpec.from_config(DATA / "configs" / f"{model}.json")


def planned(model, choice="fp32_state", **options):
    """A plan of 16 GiB in pages of 16 tokens."""
    return octavo.plan(spec_of(model), "16GiB", state_dtype=STATES[choice], **options)


@pytest.mark.parametrize(("model", "choice"), CHOICES)
def test_ideal_bytes(model, choice):
    """Bytes a token, beyond windows, fixed, and of a sequence, exactly."""
    row, plan = FIGURES[model], planned(model, choice)
    exact = {at: sizes[choice] for at, sizes in row["exact_bytes_at"].items()}
    exact[32768] = row["exact_bytes_at_32768"][choice]

    assert row["bytes_per_token_all_layers"] == plan.bytes_per_token
    assert row["bytes_per_token_beyond_windows"] == sizes.bytes_per_token_beyond_windows(plan)
    assert row["fixed_bytes_per_sequence"][choice] == sizes.fixed_bytes_per_sequence(plan)
    assert exact == {length: sizes.kept_bytes(plan, length) for length in LENGTHS}


@pytest.mark.parametrize("model", FIGURES)
def test_ideal_bytes_of_groups(model):
    """Each group by itself: bytes per token, or of a state per layer."""
    kinds = [kind for _, kind in spec_of(model).kinds()]
    for group in FIGURES[model]["groups"]:
        name = {"window": f"window_{group.get('window')}", "state": "state"}.get(
            group["kind"], "full"
        )
        layers = tuple(kind for kind in kinds if group_name(kind) == name)
        plan = octavo.plan(ModelSpec(model, layers), "16GiB")
        for choice, size in group.get("bytes_per_layer", {}).items():
            part = octavo.plan(plan.spec, "16GiB", state_dtype=STATES[choice])
            assert size * group["layers"] == sizes.fixed_bytes_per_sequence(part)
        assert group.get("bytes_per_token", 0) == plan.bytes_per_token
        assert group.get("window") == plan.to_dict()["groups"][0]["window"]


@pytest.mark.parametrize(("model", "choice"), CHOICES)
def test_sequences_in_16_gib(model, choice):
    """The ideal count as printed; the plan's is below it by page rounding and the null page."""
    row, plan = FIGURES[model], planned(model, choice, max_length=32768)
    ideal = Fraction(16 * 2**30, sizes.kept_bytes(plan, 32768))
    found = plan.max_sequences(32768)

    assert row["exact_max_sequences_16GiB_at_32768"][choice] == round(float(ideal), 2)
    assert found <= ideal
    assert found >= Fraction(97, 100) * ideal
    assert plan.budget.total == sum(plan.budget[1:]) == 16 * 2**30


@pytest.mark.parametrize("model", [m for m, row in FIGURES.items() if "variants" in row])
def test_variants(model):
    """A prediction layer more, and latents in fp8 with scales and bf16 position parts."""
    for name, row in FIGURES[model]["variants"].items():
        spec = spec_of(model)
        plan = octavo.plan(
            spec.with_mtp(1) if "mtp" in name else spec,
            "16GiB",
            dtype="fp8" if "fp8" in name else "bf16",
        )
        ideal = Fraction(16 * 2**30, sizes.kept_bytes(plan, 32768))

        assert row["bytes_per_token"] == plan.bytes_per_token
        assert row["exact_bytes_at_32768"] == sizes.kept_bytes(plan, 32768)
        assert row["exact_max_sequences_16GiB_at_32768"] == round(float(ideal), 2)


@pytest.mark.parametrize("model", [m for m, row in FIGURES.items() if "depth_decoder" in row])
def test_depth_decoders(model):
    """The second decoder of a speech model holds a frame's positions beside the plan."""
    row, spec = FIGURES[model]["depth_decoder"], spec_of(model)
    plan = octavo.plan(spec, "16GiB")

    alone = octavo.plan(spec.depth, "1GiB", page_size=1)
    assert row["bytes_per_position"] == alone.bytes_per_token
    assert row["bytes_per_running_sequence"] == sizes.depth_bytes(plan)
    assert sizes.depth_bytes(plan) == plan.to_dict()["depth_bytes_per_sequence"]


def computed(plan, sequences, *, prefix):
    """A cache in which so many prompts of 32,768 tokens were computed 2,048 at a time, and them."""
    cache, rows = Cache(plan, max_sequences=32, prefix=prefix), []
    for number in range(sequences):
        rows.append(cache.admit(np.full(32768, number, np.int32), limit=32768))
        while rows[-1].computed < 32768:
            stop = min(rows[-1].computed + 2048, rows[-1].next_stop or 32768)
            cache.commit(cache.extend([rows[-1]], stop - rows[-1].computed))
    cache.check()
    return cache, rows


@pytest.mark.parametrize(
    ("model", "sequences", "engine"),
    [
        ("Gemma-3-27B", 5.4, 2.38),
        ("gpt-oss-20b", 21.2, 17.01),
        ("Qwen3-Next-80B-A3B", 19.4, 18.89),
    ],
)
@pytest.mark.parametrize("prefix", [True, False])
def test_promised_sequences_are_held(model, sequences, engine, prefix):
    """As many sequences of 32,768 tokens as promised, computed in chunks and all held at the end.

    ``engine``: what vLLM says of the same memory; Qwen3-Next there with pages of 1,056 tokens.
    """
    plan = planned(model, max_length=32768)
    cache, rows = computed(plan, int(plan.max_sequences(32768)), prefix=prefix)

    assert plan.max_sequences(32768) >= Fraction(str(sequences)) > engine
    assert [32768] * int(sequences) == [row.computed for row in rows]
    assert 0 == cache.stats().preemptions


@pytest.mark.parametrize(
    ("model", "sequences"),
    [("gpt-oss-20b", 20), ("Gemma-3-27B", 5), ("Phi-3-mini-4k", 21), ("Qwen3-Next-80B-A3B", 19)],
)
@pytest.mark.parametrize("prefix", [True, False])
def test_a_wish_is_held_in_the_memory_that_is_enough(model, sequences, prefix):
    """What windows hold while a prompt runs in chunks is in the memory that is said to do."""
    memory = memory_for(spec_of(model), sequences=sequences, length=32768)
    plan = octavo.plan(spec_of(model), memory, max_length=32768, sequences=sequences)
    cache, rows = computed(plan, sequences, prefix=prefix)

    assert [32768] * sequences == [row.computed for row in rows]
    assert 0 == cache.stats().preemptions
    assert sequences <= pools.max_sequences_in_flight(plan, 32768) <= plan.max_sequences(32768)


@pytest.mark.parametrize("model", FIGURES)
@pytest.mark.parametrize("layout", ["packed", "slab", "component"])
@pytest.mark.parametrize("length", [None, 1000, 32768])
def test_the_longest_sequence_that_fits_alone_is_accepted(model, layout, length):
    """What a plan of any length calls the longest is what may be asked for, and no token more."""
    options = {"layout": layout, "max_length": length}
    try:
        memory, plan = "16GiB", planned(model, **options)
    except octavo.BudgetTooSmall as refused:  # then in the memory that is said to be enough
        memory = refused.need
        plan = octavo.plan(spec_of(model), memory, **options)
    longest, options["max_length"] = plan.tokens, plan.tokens

    assert longest == octavo.plan(spec_of(model), memory, **options).tokens
    if longest < 2**31 - 1:
        options["max_length"] = longest + 1
        with pytest.raises(octavo.PlanError):
            octavo.plan(spec_of(model), memory, **options)
