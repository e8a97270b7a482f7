"""Models the planner's benchmarks are about, by hand: what their published configs say."""

from octavo import Attention, Latent, ModelSpec, State
from octavo.model.layers import Layer

FULL = Attention(8, 128, 128)


def every(count: int, period: int, special: Layer, other: Layer) -> tuple[Layer, ...]:
    """``count`` layers, each ``period``-th one special."""
    return tuple(special if (i + 1) % period == 0 else other for i in range(count))


GEMMA_3_27B = ModelSpec(
    "Gemma-3-27B",
    every(62, 6, Attention(16, 128, 128), Attention(16, 128, 128, window=1024)),
    131072,
)
GPT_OSS_20B = ModelSpec(
    "gpt-oss-20b",
    every(24, 2, Attention(8, 64, 64), Attention(8, 64, 64, window=128)),
    131072,
)
QWEN3_NEXT = ModelSpec(
    "Qwen3-Next-80B-A3B",
    every(48, 4, Attention(2, 256, 256), State((32, 128, 128), (8192, 3))),
    262144,
)
MIXED = (GEMMA_3_27B, GPT_OSS_20B, QWEN3_NEXT)
PLAIN = (
    ModelSpec("Llama-3.1-8B", (FULL,) * 32, 131072),
    ModelSpec("Llama-3.1-70B", (FULL,) * 80, 131072),
    ModelSpec("DeepSeek-V3", (Latent(512, 64),) * 61, 163840),
)
"""Packed plans, and plans of one group."""
