"""A decoder of SmolLM2-135M's shape, written by hand, and the cache octavo is compared with."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, silu
from torch.nn.functional import scaled_dot_product_attention as attention

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB = 30, 576, 9, 3, 64, 1536, 49_152


class Layer(nn.Module):
    """Attention and gated MLP, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor, turn: Tensor, number: int, prefix: Any) -> Tensor:
        """[batch, tokens, WIDTH] to the same."""
        heads = self.qkv(rms_norm(x, (WIDTH,))).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
        query, key, value = heads.split([HEADS, KV_HEADS, KV_HEADS], 1)
        seen = prefix.attend(number, rotate(query, turn), rotate(key, turn), value)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(rms_norm(x, (WIDTH,))).chunk(2, -1)
        return x + self.down(silu(gate) * up)


class Decoder(nn.Module):
    """Logits of the last token; embedding and head are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.randn(VOCAB, WIDTH) * 0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, tokens: Tensor, prefix: Any) -> Tensor:
        """[batch, VOCAB] for tokens [batch, tokens] at ``prefix.positions``."""
        x = embedding(tokens, self.embed)
        rates = 10_000.0 ** (-torch.arange(0, 1, 2 / HEAD_DIM, device=x.device))
        angle = (prefix.positions[..., None] * rates)[:, None]
        turn = torch.stack([angle.cos(), angle.sin()]).to(x.dtype)
        for number, layer in enumerate(self.layers):
            x = layer(x, turn, number, prefix)
        return linear(rms_norm(x[:, -1], (WIDTH,)), self.embed)


def rotate(heads: Tensor, turn: Tensor) -> Tensor:
    """Rotary position embedding by halves; ``turn`` holds cosines and sines."""
    (a, b), (cos, sin) = heads.chunk(2, -1), turn
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@dataclass(frozen=True, eq=False)
class FullPrefix:
    """One pass over a FullCache."""

    positions: Tensor
    slots: Tensor
    mask: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    repeated: bool

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write, then attend to the whole capacity behind the mask.

        A prompt attends to itself alone: a kindness, since only steps are compared.
        """
        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(2, self.slots, key)
        values.index_copy_(2, self.slots, value)
        if query.shape[2] > 1:
            return attention(query, repeat(key), repeat(value), is_causal=True)
        if self.repeated:
            return attention(query, repeat(keys), repeat(values), self.mask)
        rows = query.reshape(1, KV_HEADS, -1, HEAD_DIM)
        return attention(rows, keys, values, self.mask).reshape(query.shape)


def repeat(heads: Tensor) -> Tensor:
    """Each key/value head once for every query head of its group."""
    return heads.repeat_interleave(HEADS // KV_HEADS, 1)


class FullCache:
    """Keys and values of full capacity, as static caches keep them; one row.

    Args:
        capacity: positions.
        dtype: of keys and values.
        repeated: whether heads are repeated for their group, as fish-speech did;
            otherwise a step takes them as query rows, as transformers does since 5.24.
    """

    def __init__(self, capacity: int, dtype: torch.dtype, *, repeated: bool) -> None:
        shape = (1, KV_HEADS, capacity, HEAD_DIM)
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(LAYERS)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(LAYERS)]
        self.repeated, self.kv_len = repeated, 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def begin(self, count: int = 1) -> FullPrefix:
        """The next ``count`` positions."""
        slots = torch.arange(self.kv_len, self.kv_len + count)
        self.kv_len += count
        mask = torch.arange(self.keys[0].shape[2]) <= slots[:, None]
        return FullPrefix(slots[None], slots, mask, self.keys, self.values, self.repeated)
