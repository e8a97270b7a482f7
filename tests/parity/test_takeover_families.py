"""The engine's tokens in float32, where kernels compute what lies between linear layers."""

import pytest
import served_models

import octavo
from octavo.engine import Engine, SamplingParams

FAMILIES = {
    "llama": {"LlamaRMSNorm", "LlamaAttention"},
    "qwen3": {"Qwen3RMSNorm", "Qwen3Attention"},
    "gemma2": {"Gemma2RMSNorm", "Gemma2Attention"},
    "gemma3_text": {"Gemma3RMSNorm", "Gemma3Attention"},
    "gpt_oss": {"GptOssRMSNorm"},
    "deepseek_v3": {"DeepseekV3RMSNorm", "DeepseekV3Attention"},
    "jamba": {"JambaRMSNorm"},
    "falcon_h1": {"FalconH1RMSNorm", "FalconH1Attention"},
    "bloom": set(),
}
"""What of each is taken; the rest is torch's."""


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_generate(family):
    """Rows of several lengths together answer as each does under generate()."""
    model, prompts = served_models.model_of(family).float(), served_models.prompts()
    expected = [served_models.reference(model, prompt) for prompt in prompts]
    spec = octavo.ModelSpec.from_config(model.config)
    plan = octavo.plan(spec, "16MiB", dtype="fp32", order="head", max_length=128)
    params = SamplingParams(max_tokens=len(expected[0]))
    with Engine(model, plan) as engine:
        found = [each.token_ids for each in engine.generate(prompts, params)]
        names = {type(each).__name__ for each in model.modules() if "forward" in vars(each)}

    assert expected == found
    assert FAMILIES[family] == {n for n in names if n.endswith(("Norm", "Attention"))}
