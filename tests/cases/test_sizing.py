"""Published figures a planner must reproduce (data/sizing.yaml, data/configs)."""

from fractions import Fraction
from pathlib import Path

import pytest
import yaml

import octavo
from octavo import Attention, BudgetTooSmall, ModelSpec, Plan

DATA = Path(__file__).parent / "data"
SIZING = yaml.safe_load((DATA / "sizing.yaml").read_text(encoding="utf-8"))
CONFIGS = {
    name: row
    for name, row in yaml.safe_load(
        (DATA / "configs/expected.yaml").read_text(encoding="utf-8")
    ).items()
    if {"full", "window"} >= {group["kind"] for group in row["groups"]}
}
UNBOUNDED = {name: row for name, row in CONFIGS.items() if not row["windows"]}
MODELS = {row["model"]: row for row in SIZING["models"]}


def name(row):
    """What a row of the data is about."""
    return f"{row.get('model', row.get('src'))} {row.get('tokens', '')}".strip()


def spec_of(row):
    """A model of equal layers."""
    return ModelSpec(row["model"], (Attention(row["kv"], row["d"], row["d"]),) * row["layers"])


@pytest.mark.parametrize("row", SIZING["models"], ids=name)
def test_bytes_per_token_of_models(row):
    """Layers x heads x (key + value) x 2 bytes, as published."""
    assert row["per_token"] == octavo.plan(spec_of(row), "64GiB").bytes_per_token


@pytest.mark.parametrize("row", SIZING["printed"], ids=name)
def test_pages_an_engine_printed(row):
    """The pages lie between those of the printed budget's lower and upper rounding."""
    spec, gib = spec_of(MODELS[row["model"]]), Fraction(row["kv_GiB"]) * 2**30
    rounding = Fraction(2**30, 200)
    low, high = (octavo.plan(spec, int(gib + by)) for by in (-rounding, rounding))

    assert low.num_pages <= row["pages16"] <= high.num_pages
    assert row["tokens"] == row["pages16"] * 16


@pytest.mark.parametrize("row", [row for row in SIZING["printed"] if "max_len" in row], ids=name)
def test_what_an_engine_accepted_and_refused(row):
    """1.56 sequences of 20,000 fit; one of 29,000 does not, and the error says what would."""
    spec = spec_of(MODELS[row["model"]])
    memory, length = row["pages16"] * 16 * MODELS[row["model"]]["per_token"], row["max_len"]
    if row.get("verdict") == "refused":
        with pytest.raises(BudgetTooSmall) as caught:
            octavo.plan(spec, memory, max_length=length)
        assert octavo.plan(spec, caught.value.need, max_length=length)
    else:
        plan = octavo.plan(spec, memory, max_length=length)
        assert row["concurrency"] == round(float(plan.max_sequences(length)), 2)


@pytest.mark.parametrize("row", SIZING["concurrency"], ids=name)
def test_concurrency_of_pages(row):
    """Pages to sequences, the null page beside them."""
    plan = Plan.from_pages(row["pages16"] + 1, 16)

    assert row["tokens"] == plan.tokens
    assert row["concurrency"] == round(float(plan.max_sequences(row["max_len"])), 2)


@pytest.mark.parametrize("row", SIZING["sizes"], ids=name)
def test_bytes_of_a_context(row):
    """All layers for a number of tokens, in MiB."""
    plan = octavo.plan(spec_of(row), "300GiB", dtype="fp16")

    assert row["MiB"] * 2**20 == plan.pages(row["tokens"]) * plan.page_bytes


@pytest.mark.parametrize("model", CONFIGS)
def test_bytes_per_token_of_configs(model):
    """What one token adds while every layer keeps it, exactly."""
    spec = ModelSpec.from_config(DATA / "configs" / f"{model}.json")
    plan = octavo.plan(spec, "16GiB")

    assert CONFIGS[model]["bytes_per_token_all_layers"] == plan.bytes_per_token
    assert sum(plan.budget[1:]) == plan.budget.total == 16 * 2**30


@pytest.mark.parametrize("model", UNBOUNDED)
def test_exact_bytes_of_configs(model):
    """Without page rounding a sequence takes its tokens' bytes and nothing else."""
    spec = ModelSpec.from_config(DATA / "configs" / f"{model}.json")
    plan = octavo.plan(spec, "16GiB", page_size=1)
    found = {length: plan.pages(length) * plan.page_bytes for length in (1, 100, 4096, 131072)}

    expected = {length: row["bf16"] for length, row in CONFIGS[model]["exact_bytes_at"].items()}

    assert expected == found
    assert plan.pages(32768) * plan.page_bytes == CONFIGS[model]["exact_bytes_at_32768"]["bf16"]


@pytest.mark.parametrize("model", UNBOUNDED)
def test_sequences_in_16_gib(model):
    """As many as the exact bytes allow, less at most the null page and the last page's rest."""
    spec = ModelSpec.from_config(DATA / "configs" / f"{model}.json")
    plan = octavo.plan(spec, "16GiB", max_length=32768)
    exact = Fraction(16 * 2**30, CONFIGS[model]["exact_bytes_at_32768"]["bf16"])

    assert CONFIGS[model]["exact_max_sequences_16GiB_at_32768"]["bf16"] == round(float(exact), 2)
    assert exact - Fraction(3, 2048) < plan.max_sequences(32768) <= exact
