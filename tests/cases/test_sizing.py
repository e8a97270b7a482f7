"""What published config.json files come to (data/configs)."""

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

import octavo
from octavo import ModelSpec

DATA = Path(__file__).parent / "data"
CONFIGS = yaml.safe_load((DATA / "configs/expected.yaml").read_text(encoding="utf-8"))
UNBOUNDED = {name: row for name, row in CONFIGS.items() if not row["windows"]}


@pytest.mark.parametrize("model", CONFIGS)
def test_configs_are_read(model):
    """Layers, heads, dims, windows and longest sequence of a published config.json."""
    expected, spec = CONFIGS[model], ModelSpec.from_config(DATA / "configs" / f"{model}.json")
    windows = Counter(layer.window for layer in spec.layers if layer.window)

    assert expected["layers"] == len(spec.layers)
    assert {(expected["kv_heads"], expected["k_dim"], expected["v_dim"])} == {
        (layer.kv_heads, layer.k_dim, layer.v_dim) for layer in spec.layers
    }
    assert expected["windows"] == dict(windows)
    assert expected["max_length"] == spec.max_length


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

    assert found | {32768: plan.pages(32768) * plan.page_bytes} == CONFIGS[model]["exact_bytes_at"]


@pytest.mark.parametrize("model", UNBOUNDED)
def test_sequences_in_16_gib(model):
    """As many as the exact bytes allow, less at most the null page and the last page's rest."""
    spec = ModelSpec.from_config(DATA / "configs" / f"{model}.json")
    plan = octavo.plan(spec, "16GiB", max_length=32768)
    exact = Fraction(16 * 2**30, CONFIGS[model]["exact_bytes_at"][32768])

    assert CONFIGS[model]["exact_max_sequences_16GiB_at_32768"] == round(float(exact), 2)
    assert exact - Fraction(3, 2048) < plan.max_sequences(32768) <= exact
