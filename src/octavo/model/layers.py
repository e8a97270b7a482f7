"""Kinds of layers: what one layer of a model keeps of the tokens it has seen.

Knows shapes and how long they are kept. Does not know pages, element types or whole models.
"""

from dataclasses import dataclass, field

from octavo.checks import check_int
from octavo.errors import ConfigError

__all__ = ["Attention", "Compressed", "Cross", "Latent", "Shared", "State", "kinds_in"]


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer that keeps a key and a value for every token.

    Attributes:
        kv_heads: key/value heads.
        k_dim: elements of one key head.
        v_dim: elements of one value head; may differ from ``k_dim``.
        window: keys a query sees, its own included; None: all of them.
        sink_tokens: first positions a windowed layer keeps seeing.
        sink_logits: whether the softmax denominator has a learned extra term (no KV).
        chunk: tokens of a chunk where a query sees its own chunk only; None: no chunks.
        indexer: elements of the key a sparse-attention indexer keeps beside it; 0: there is none.
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None
    sink_tokens: int = 0
    sink_logits: bool = False
    chunk: int | None = None
    indexer: int = 0

    def __post_init__(self) -> None:
        for name in ("kv_heads", "k_dim", "v_dim"):
            check_int(name, getattr(self, name), 1)
        check_int("sink_tokens", self.sink_tokens, 0)
        check_int("indexer", self.indexer, 0)
        for name in ("window", "chunk"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 1)
        if self.window is not None and self.chunk is not None:
            raise ConfigError("chunk", self.chunk, "a layer has a window or chunks, not both")
        if self.sink_tokens and self.window is None:
            raise ConfigError("sink_tokens", self.sink_tokens, "only a window has sinks")

    @property
    def elements_per_token(self) -> int:
        """Elements one token adds to this layer: keys and values of all heads."""
        return self.kv_heads * (self.k_dim + self.v_dim)


@dataclass(frozen=True, slots=True)
class Latent:
    """A layer that keeps one compressed row for every token (multi-head latent attention).

    Attributes:
        rank: elements of the latent, from which keys and values of all heads are expanded; 0: there
            is an indexer's key alone, beside another layer's latent.
        rope: elements of the key part that carries positions, shared by all heads.
        indexer: elements of the key a sparse-attention indexer keeps beside it; 0: there is none.
        window: rows a query sees, its own included; None: all of them.
    """

    rank: int
    rope: int = 0
    indexer: int = 0
    window: int | None = None

    def __post_init__(self) -> None:
        _check_row(self)
        if self.window is not None:
            check_int("window", self.window, 1)


@dataclass(frozen=True, slots=True)
class Compressed:
    """A layer that keeps one row for every few tokens.

    A cache counts tokens: a row's slot is that of any of its tokens divided by ``every``, of which
    ``page_size`` must be a multiple there.

    Attributes:
        every: tokens that one row stands for; fewer than so many leave none.
        rank: elements of the row without positions; 0: there is an indexer's key alone.
        rope: elements of the row that carry positions.
        indexer: elements of the key a sparse-attention indexer keeps beside it; 0: there is none.
    """

    every: int
    rank: int = 0
    rope: int = 0
    indexer: int = 0

    def __post_init__(self) -> None:
        check_int("every", self.every, 2)
        _check_row(self)


def _check_row(kind: Latent | Compressed) -> None:
    """A row holds a latent, or an indexer's key alone.

    Raises:
        ConfigError: it holds neither, or positions without a latent.
    """
    for name in ("rank", "rope", "indexer"):
        check_int(name, getattr(kind, name), 0)
    if not kind.rank and (kind.rope or not kind.indexer):
        raise ConfigError("rank", kind.rank, "a row holds something: at least 1")


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class State:
    """A layer that keeps tensors of constant size per sequence: recurrence, convolution.

    Attributes:
        recurrent: shape of the recurrent tensor; an int is a shape of one axis.
        conv: shape of the convolution's last inputs, (channels, kernel - 1); empty: there is none.
        groups: sets of channels of the convolution that several heads share; no layer differs from
            another by them, but ranks that they do not divide over each keep one.
        group_channels: channels of one set; 0: heads share none.
        rows: shape of the last rows, in the element type of keys and values, (tokens, elements);
            empty: there are none.
        buffer: shape of what a row is computed from once it is whole, in fp32; empty: there is
            none.
    """

    recurrent: Shape | int
    conv: Shape = ()
    groups: int = field(default=0, compare=False)
    group_channels: int = field(default=0, compare=False)
    rows: Shape = ()
    buffer: Shape = ()

    def __post_init__(self) -> None:
        recurrent = self.recurrent
        if not isinstance(recurrent, tuple):
            object.__setattr__(self, "recurrent", (check_int("recurrent", recurrent, 1),))
        for name in ("recurrent", "conv", "rows", "buffer"):
            shape = getattr(self, name)
            if not isinstance(shape, tuple):
                raise ConfigError(name, shape, "it must be a tuple of sizes")
            for size in shape:
                check_int(name, size, 1)
        if not (self.recurrent or self.conv or self.rows or self.buffer):
            raise ConfigError("recurrent", self.recurrent, "a state has at least one tensor")
        for name in ("groups", "group_channels"):
            check_int(name, getattr(self, name), 0)
        shared = self.groups * self.group_channels
        if shared and (not self.conv or shared >= self.conv[0]):
            raise ConfigError("groups", self.groups, "heads share less than all channels")


@dataclass(frozen=True, slots=True)
class Cross:
    """A layer that attends to another input of fixed length, such as an encoded recording.

    Attributes:
        kv_heads: key/value heads.
        k_dim: elements of one key head.
        v_dim: elements of one value head.
        length: positions of that input where it is always as long; None: it differs.
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    length: int | None = None

    def __post_init__(self) -> None:
        for name in ("kv_heads", "k_dim", "v_dim"):
            check_int(name, getattr(self, name), 1)
        if self.length is not None:
            check_int("length", self.length, 1)


@dataclass(frozen=True, slots=True)
class Shared:
    """A layer that reads the cache of an earlier layer and keeps nothing of its own.

    Attributes:
        layer: index of that layer.
        kind: what this layer would keep by itself, which must be what that one keeps; None: the
            same by definition.
    """

    layer: int
    kind: "Attention | Latent | None" = None

    def __post_init__(self) -> None:
        check_int("layer", self.layer, 0)


LayerKind = Attention | Latent | Compressed | State | Cross | Shared
"""Everything a layer can keep."""
Layer = LayerKind | tuple[LayerKind, ...]
"""A layer: one kind, several side by side, or none at all."""


def kinds_in(layer: Layer) -> tuple[LayerKind, ...]:
    """What one layer keeps: its kind, or its several kinds, or none. O(1)."""
    return layer if isinstance(layer, tuple) else (layer,)
