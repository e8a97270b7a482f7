"""docs/models.md says how the engine answers each family: some of them, run again."""

import answers
import pytest
import served_models
from matrix import CONDITIONS, refusals

RECORDED = answers.recorded()
SAMPLE = {
    "causal": [
        *("llama", "mistral", "bert", "deepseek_v3", "gemma3n_text", "gpt_oss", "mllama"),
        *("bloom", "diffllama", "gpt_neo", "glm_moe_dsa", "kosmos_2_5_text_model"),
        *("llama4_text", "whisper"),
        *("bailing_hybrid", "falcon_h1", "jamba", "kimi_linear", "lfm2", "mamba", "minimax"),
        *("inkling2_text", "qwen3_next", "recurrent_gemma", "rwkv", "xlstm", "zamba2", "zaya"),
        *("cpmant", "csm", "openai-gpt"),
    ],
    "see": ["Llava", "Qwen3VL"],
    "hear": ["Qwen2Audio"],
    "encode and decode": ["Bart", "T5", "Whisper"],
}
"""One for each kind of layer, and for each way of running it."""


def test_every_family_is_answered():
    """Those that the installed transformers names, and those that are given something else."""
    assert {group: sorted(names) for group, (names, _) in answers.GROUPS.items()} == {
        group: list(found) for group, found in RECORDED.items()
    }


def test_what_a_family_is_not_answered_for_has_a_reason():
    """Of all that run, each meets most conditions, and each that it lacks is explained."""
    for found in RECORDED.values():
        for each in found.values():
            assert each.how in ("together", "by rows", "refused")
            assert bool(each.why) == (each.how != "together")
            assert all(each.lacks.values())


@pytest.mark.parametrize(
    ("group", "family"), [(group, name) for group, names in SAMPLE.items() for name in names]
)
def test_the_engine_answers_as_the_page_says(group, family):
    """It runs a tiny model under every condition to its own tokens, or says the same as then."""
    assert RECORDED[group][family] == answers.answer_of(group, family)


@pytest.mark.parametrize("family", ["llama", "qwen4_exp_text"])
def test_kernels_of_float32(family, monkeypatch):
    """Where C computes norms and turns, of queries with keys or alone, the tokens are the same."""
    monkeypatch.setattr(served_models, "SINGLE", served_models.FAMILIES)

    assert {} == refusals(served_models.case_of(family))


def test_other_tokens_are_seen_under_every_condition():
    """A case whose answers are not those of its model meets no condition."""
    case = served_models.case_of("llama")
    case.expected = [[*answer[:-1], (answer[-1] + 1) % 97] for answer in case.expected]

    assert list(CONDITIONS) == list(refusals(case))
