"""A dual autoregressive model of speech in plain PyTorch: the shapes of a real one, random weights.

A frame is 1 + CODEBOOKS ids: a token and one code of each codebook. The slow transformer reads
frames over time and gives the next token; the fast one reads over the codebooks of a frame, from
the slow one's hidden state, and gives its codes. Tokens below TEXT are text and have no codes;
token TEXT + c is speech and its first code is c; END ends an utterance.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from octavo.active_prefix.cache import ActivePrefixCache
from octavo.active_prefix.prefix import Prefix

TEXT, CODES, CODEBOOKS = 64, 32, 4
END = TEXT + CODES  # the last token of the slow vocabulary


@dataclass(frozen=True)
class Size:
    """One transformer's shape."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Elements of a hidden state."""
        return self.heads * self.head_dim

    def cache(self, capacity: int, *, batch: int = 1, bucket: int = 1) -> ActivePrefixCache:
        """An empty cache for it."""
        return ActivePrefixCache(
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            capacity=capacity,
            batch=batch,
            bucket=bucket,
        )


SLOW = Size(layers=4, heads=6, kv_heads=2, head_dim=16)
FAST = Size(layers=2, heads=6, kv_heads=3, head_dim=16)


class Layer(nn.Module):
    """Attention and a gated MLP, each behind a norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        heads = size.heads + 2 * size.kv_heads
        self.qkv = nn.Linear(size.width, heads * size.head_dim, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.down = nn.Linear(2 * size.width, size.width, bias=False)

    def forward(self, x: Tensor, turn: Tensor, number: int, prefix: Prefix | None) -> Tensor:
        """[batch, tokens, width] to the same; the cache is optional."""
        size = self.size
        heads = self.qkv(_norm(x)).unflatten(-1, (-1, size.head_dim)).transpose(1, 2)
        query, key, value = heads.split([size.heads, size.kv_heads, size.kv_heads], 1)
        query, key = _rotate(query, turn), _rotate(key, turn)
        if prefix is None:
            seen = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            seen = prefix.attend(number, query, key, value)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        gate, up = self.up(_norm(x)).chunk(2, -1)
        return x + self.down(silu(gate) * up)


class Transformer(nn.Module):
    """Hidden states in, hidden states out. Without a prefix: whole sequences, as in training."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))

    def forward(self, x: Tensor, prefix: Prefix | None = None) -> Tensor:
        """[batch, tokens, width] to the same."""
        where = torch.arange(x.shape[1], device=x.device) if prefix is None else prefix.positions
        turn = _turn(where, self.size.head_dim)
        for number, layer in enumerate(self.layers):
            x = layer(x, turn, number, prefix)
        return _norm(x)


class DualAR(nn.Module):
    """Both transformers, with what leads into and out of them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(END + 1, SLOW.width)
        self.codes = nn.Embedding(CODEBOOKS * CODES, SLOW.width)
        self.slow, self.fast = Transformer(SLOW), Transformer(FAST)
        self.next_token = nn.Linear(SLOW.width, END + 1, bias=False)
        self.into_fast = nn.Linear(SLOW.width, FAST.width, bias=False)
        self.fast_codes = nn.Embedding(CODES, FAST.width)
        self.next_code = nn.Linear(FAST.width, CODES, bias=False)

    def embed(self, frames: Tensor) -> Tensor:
        """Frames [batch, tokens, 1 + CODEBOOKS] to what the slow transformer takes."""
        offsets = torch.arange(CODEBOOKS, device=frames.device) * CODES
        codes = self.codes(frames[..., 1:] + offsets).sum(-2)
        speech = (frames[..., :1] >= TEXT) & (frames[..., :1] < END)
        return self.tokens(frames[..., 0]) + codes * speech

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of whole sequences, as in training; no cache.

        Args:
            frames: int64[batch, tokens, 1 + CODEBOOKS].

        Returns:
            Token logits [batch, tokens, END + 1], of the token after each frame, and code logits
            [batch, tokens - 1, CODEBOOKS - 1, CODES], of each next frame's codes after its first.
        """
        hidden = self.slow(self.embed(frames))
        first = self.into_fast(hidden[:, :-1]).unsqueeze(2)
        codes = self.fast_codes(frames[:, 1:, 1:-1])
        over = torch.cat([first, codes], 2).flatten(0, 1)
        logits = self.next_code(self.fast(over)[:, 1:]).unflatten(0, codes.shape[:2])
        return self.next_token(hidden), logits


def _norm(x: Tensor) -> Tensor:
    return rms_norm(x, x.shape[-1:])


def _turn(positions: Tensor, head_dim: int) -> Tensor:
    """Cosines and sines of rotary position embedding, [2, ..., 1, tokens, head_dim / 2]."""
    rates = 10_000.0 ** -torch.arange(0, 1, 2 / head_dim, device=positions.device)
    angle = (positions[..., None] * rates).unsqueeze(-3)
    return torch.stack([angle.cos(), angle.sin()])


def _rotate(heads: Tensor, turn: Tensor) -> Tensor:
    (a, b), (cos, sin) = heads.chunk(2, -1), turn
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
