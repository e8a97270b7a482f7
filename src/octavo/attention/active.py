"""A static cache whose attention sees the active prefix alone, for decoders written by hand.

A static cache of S positions makes every step attend to S keys behind a mask. This one gives
attention the positions that exist: K, V and mask are cut before the heads of a group share them,
so a step costs what its prefix costs, whatever the capacity. Storage grows and shrinks with the
prefix, in whole grains of positions.

Law: every position at or beyond a row's length holds zeros, so what a mask hides is finite.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from octavo.errors import CapacityError, LengthError, PlanError, StepError
from octavo.spec import check_int

GRAIN = 256  # positions by which storage grows at least: one copy of the prefix in as many steps


class ActivePrefixCache:
    """Keys and values of one batch in a decoder, up to ``capacity`` positions a row.

    Args:
        layers: attention layers.
        kv_heads: key/value heads of a layer.
        head_dim: elements of a head.
        capacity: positions a row may hold.
        batch: rows; each has a length of its own.
        dtype: of keys and values.
        device: where they lie.
        bucket: attention sees the prefix rounded up to a multiple of it. 1: exactly the prefix, for
            eager code; 256, say, for compiled code, which then sees one shape a bucket.

    Raises:
        LengthError: a size below 1.
        PlanError: ``dtype`` is no floating-point type.

    Cost: memory is ``layers * 2 * batch * kv_heads * head_dim`` elements a position, for the
    longest row's length rounded up to a whole grain.
    """

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        batch: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        bucket: int = 1,
    ) -> None:
        self.capacity = check_int("capacity", capacity, 1)
        self.bucket = check_int("bucket", bucket, 1)
        self.batch = check_int("batch", batch, 1)
        check_int("layers", layers, 1)
        check_int("kv_heads", kv_heads, 1)
        check_int("head_dim", head_dim, 1)
        if not dtype.is_floating_point:
            raise PlanError("dtype", str(dtype), "it must be a floating-point type")
        self._lengths = [0] * self.batch
        self._turn = 0
        empty = torch.empty(batch, kv_heads, 0, head_dim, dtype=dtype, device=device)
        self._keys, self._values = [empty] * layers, [empty] * layers
        self._resize(0)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Positions each row holds."""
        return tuple(self._lengths)

    @property
    def kv_len(self) -> int:
        """Positions the longest row holds: what a step's attention sees, before rounding."""
        return max(self._lengths)

    @property
    def nbytes(self) -> int:
        """Bytes allocated now. O(layers)."""
        return sum(tensor.nbytes for tensor in (*self._keys, *self._values))

    def require(self, tokens: int) -> None:
        """Refuse now what could not be finished: ``tokens`` more positions in every row. O(batch).

        Args:
            tokens: of the prompt and the most that will be generated, together.

        Raises:
            CapacityError: a row would exceed the capacity.
        """
        end = self.kv_len + check_int("tokens", tokens, 0)
        if end > self.capacity:
            why = f"{tokens} more after {self.kv_len}; make the cache with a larger capacity"
            raise CapacityError("kv_len", end, self.capacity, why)

    def begin(self, counts: int | Sequence[int] = 1) -> "Prefix":
        """The next ``counts`` positions of each row, for one forward pass.

        Args:
            counts: tokens of every row, or of each. Rows with fewer than the most are padded on the
                right in all that the pass takes and gives: nothing is kept of the padding, and what
                comes out for it means nothing.

        Raises:
            LengthError: no token at all, a count below 0, or a length outside 1..capacity; nothing
                has changed.

        Cost: O(batch * tokens * kv_len) for a mask where one is needed, and a copy of the prefix
        where it outgrows its storage: once in GRAIN steps at most.
        """
        rows = self._each("counts", counts)
        check_int("tokens of the step", max(rows), 1)
        ends = [length + count for length, count in zip(self._lengths, rows, strict=True)]
        check_int("kv_len", max(ends), 1, self.capacity)
        return self._open(self._lengths, rows, ends)

    def begin_at(self, positions: Iterable[int], kv_len: int) -> "Prefix":
        """The caller's own positions, the same in every row, which then holds ``kv_len``.

        A prefill of T tokens is ``begin_at(range(T), T)``, decode step i after it
        ``begin_at([T + i], T + i + 1)``. What a row holds at ``positions`` is written over, what it
        holds at and beyond ``kv_len`` is dropped.

        Args:
            positions: consecutive, ascending.
            kv_len: positions that attention sees, the new ones included.

        Raises:
            LengthError: ``kv_len`` outside 1..capacity, a position outside 0..kv_len - 1, positions
                that do not follow on each other, or a ``kv_len`` beyond what has been written;
                nothing has changed.

        Cost: as `begin`.
        """
        kv_len = check_int("kv_len", kv_len, 1, self.capacity)
        named = [check_int("position", each, 0, kv_len - 1) for each in positions]
        count = check_int("tokens of the step", len(named), 1)
        for index, each in enumerate(named):
            check_int("position", each, named[0] + index, named[0] + index, "they are consecutive")
        held = min(self._lengths)
        check_int("position", named[0], 0, held, f"a row holds {held}; none may be left out")
        check_int("kv_len", kv_len, 1, max(held, named[-1] + 1), "beyond it nothing is written")
        self.truncate([min(length, kv_len) for length in self._lengths])
        return self._open(named[:1] * self.batch, [count] * self.batch, [kv_len] * self.batch)

    def truncate(self, lengths: int | Sequence[int]) -> None:
        """Keep the first ``lengths`` positions of every row, or of each, and drop the rest.

        Raises:
            LengthError: more than a row holds, or below 0; nothing has changed.

        Cost: O(elements dropped), and a copy of what is kept where storage shrinks.
        """
        kept = self._each("lengths", lengths)
        for length, held in zip(kept, self._lengths, strict=True):
            check_int("lengths", length, 0, held, "what the row holds")
        low, high = min(kept), self.kv_len
        if kept != self._lengths:
            where = torch.arange(low, high, device=self._device)
            dropped = where >= torch.tensor(kept, device=self._device)[:, None]
            for tensor in self._tensors():
                tensor[:, :, low:high].masked_fill_(dropped[:, None, :, None], 0)
        self._lengths = kept
        self._turn += 1
        self._resize(max(kept))

    def reset(self) -> None:
        """Drop everything, as between requests; the memory of long rows is given back."""
        self.truncate(0)

    def copy_prefix(
        self,
        source: "ActivePrefixCache",
        length: int | None = None,
        *,
        row: int = 0,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Let rows hold what one row holds, in place of what they held: a prefix computed once.

        Args:
            source: the cache to copy from, with the same layers, heads and dtype; may be this one.
            length: its first positions to copy; None: all.
            row: the source's row.
            rows: the rows that get them; None: all.

        Raises:
            LengthError: sizes that differ, or a row or length out of range.
            PlanError: another dtype.

        Cost: O(elements copied).
        """
        self._check_source(source)
        row = check_int("row", row, 0, source.batch - 1)
        most = min(source._lengths[row], self.capacity)
        length = check_int("length", most if length is None else length, 0, most)
        chosen = range(self.batch) if rows is None else rows
        targets = [check_int("rows", each, 0, self.batch - 1) for each in chosen]
        if source is self:
            targets = [each for each in targets if each != row]
        lengths = list(self._lengths)
        for each in targets:
            lengths[each] = min(lengths[each], length)
        self.truncate(lengths)
        for each in targets:
            lengths[each] = length
        self._resize(max(lengths))
        index = torch.tensor(targets, dtype=torch.int64, device=self._device)
        for mine, theirs in zip(self._tensors(), source._tensors(), strict=True):
            mine[index, :, :length] = theirs[row, :, :length].to(mine.device)
        self._lengths = lengths

    @property
    def _device(self) -> torch.device:
        return self._keys[0].device

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from self._keys
        yield from self._values

    def _each(self, name: str, numbers: int | Sequence[int]) -> list[int]:
        """One number a row, each an int of at least 0."""
        if not isinstance(numbers, Sequence):
            return [check_int(name, numbers, 0)] * self.batch
        check_int(f"rows of {name}", len(numbers), self.batch, self.batch, "the batch")
        return [check_int(name, number, 0) for number in numbers]

    def _check_source(self, source: "ActivePrefixCache") -> None:
        check_int("layers of source", len(source._keys), len(self._keys), len(self._keys))
        theirs, own = source._keys[0], self._keys[0]
        for name, axis in (("kv_heads", 1), ("head_dim", 3)):
            check_int(f"{name} of source", theirs.shape[axis], own.shape[axis], own.shape[axis])
        if theirs.dtype != own.dtype:
            raise PlanError("dtype of source", str(theirs.dtype), f"this cache has {own.dtype}")

    def _open(self, starts: list[int], counts: list[int], ends: list[int]) -> "Prefix":
        """A pass over ``counts`` positions from ``starts``, after which rows hold ``ends``."""
        seen = min(-(-max(ends) // self.bucket) * self.bucket, self.capacity)
        self._resize(seen)
        first = torch.tensor(starts, device=self._device)
        positions = first[:, None] + torch.arange(max(counts), device=self._device)
        fresh = not any(starts)
        exact = self.bucket == 1  # else a mask in each step: its absence would be another shape
        whole = fresh or (exact and max(counts) == 1 and min(starts) + 1 == seen)
        self._lengths = ends
        self._turn += 1
        return Prefix(
            positions=positions,
            keys=[tensor[:, :, :seen] for tensor in self._keys],
            values=[tensor[:, :, :seen] for tensor in self._values],
            _slots=_slots(positions, counts),
            _mask=None if whole else _visible(positions, seen),
            _fresh=fresh,
            _cache=self,
            _turn=self._turn,
        )

    def _resize(self, positions: int) -> None:
        """Storage for ``positions`` in whole grains, one at least; a layer at a time."""
        grain = -(-GRAIN // self.bucket) * self.bucket
        size = min(self.capacity, max(1, -(-positions // grain)) * grain)
        with torch.inference_mode(mode=False), torch.no_grad():  # writable in any mode later
            for tensors in (self._keys, self._values):
                for layer, old in enumerate(tensors):
                    if old.shape[2] != size:
                        kept = min(size, old.shape[2])
                        new = old.new_zeros(*old.shape[:2], size, old.shape[3])
                        new[:, :, :kept] = old[:, :, :kept]
                        tensors[layer] = new


@dataclass(frozen=True, eq=False)
class Prefix:
    """What the attention layers of one forward pass write and see; valid for that pass.

    It holds tensors alone and fits into a function that torch compiles: begin outside of it.

    Attributes:
        positions: int64[batch, tokens], of the pass's tokens, for position embeddings.
        keys: by layer, [batch, kv_heads, kv_len, head_dim]: views of the active prefix, kv_len
            rounded up to the cache's bucket.
        values: likewise.
    """

    positions: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    _slots: tuple[torch.Tensor, ...]
    _mask: torch.Tensor | None  # None: `attend` needs none
    _fresh: bool  # nothing came before: the pass's own keys are all there is to see
    _cache: ActivePrefixCache
    _turn: int

    @property
    def mask(self) -> torch.Tensor:
        """bool[batch, 1, tokens, kv_len]: the positions each token sees, its own and before."""
        return _visible(self.positions, self.keys[0].shape[2])

    def update(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's new keys and values; what its attention sees, together with `mask`.

        Args:
            layer: its number, from 0.
            key: [batch, kv_heads, tokens, head_dim], position embedding applied.
            value: likewise.

        Returns:
            The layer's ``keys`` and ``values``, heads not expanded.

        Raises:
            LengthError: no such layer, or sizes that are not the cache's.
            PlanError: another dtype or device.
            StepError: the cache has moved on since, or autograd would record the write. Nothing is
                written in any of these cases.

        Cost: O(elements written).
        """
        self._check_open()
        keys = self.keys[check_int("layer", layer, 0, len(self.keys) - 1)]
        values = self.values[layer]
        for name, given in (("key", key), ("value", value)):
            _check_like(name, given, keys, kv_heads=keys.shape[1], tokens=self.positions.shape[1])
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            raise StepError("a cache is not differentiated through; run under torch.no_grad()")
        _write(keys, key, self._slots)
        _write(values, value, self._slots)
        return keys, values

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float | None = None,
    ) -> torch.Tensor:
        """`update`, then causal attention of the pass's tokens over the active prefix.

        Args:
            layer: its number, from 0.
            query: [batch, heads, tokens, head_dim]; ``heads`` is a multiple of ``kv_heads``.
            key: [batch, kv_heads, tokens, head_dim].
            value: likewise.
            scale: factor of the scores; None: 1 / sqrt(head_dim).

        Returns:
            [batch, heads, tokens, head_dim].

        Raises:
            LengthError: as `update`, or query sizes that do not fit.
            PlanError: as `update`, for the query too.
            StepError: as `update`.

        Cost: O(batch * heads * tokens * kv_len * head_dim); no head is copied for its group.
        """
        kv_heads, tokens = self.keys[0].shape[1], self.positions.shape[1]
        heads = query.shape[1] if query.ndim == 4 else kv_heads
        _check_like("query", query, self.keys[0], kv_heads=heads, tokens=tokens)
        check_int("heads of query", heads % kv_heads, 0, 0, f"modulo {kv_heads} kv_heads")
        keys, values = self.update(layer, key, value)
        if self._fresh:
            return _attend(query, key, value, None, scale=scale)
        return _attend(query, keys, values, self._mask, scale=scale)

    def _check_open(self) -> None:
        """Refuse a pass whose cache has begun another one, been cut or been filled since."""
        if not torch.compiler.is_compiling() and self._cache._turn != self._turn:
            raise StepError("the cache has moved on since this prefix was begun; begin anew")


def _check_like(
    name: str, given: torch.Tensor, keys: torch.Tensor, *, kv_heads: int, tokens: int
) -> None:
    """Refuse what is not [batch, kv_heads, tokens, head_dim] of ``keys`` own dtype and device."""
    check_int(f"axes of {name}", given.ndim, 4, 4, "[batch, heads, tokens, head_dim]")
    sizes = (keys.shape[0], kv_heads, tokens, keys.shape[3])
    for axis, size in zip(("batch", "heads", "tokens", "head_dim"), sizes, strict=True):
        found = given.shape[("batch", "heads", "tokens", "head_dim").index(axis)]
        if found != size:
            raise LengthError(f"{axis} of {name}", found, size, size)
    for what in ("dtype", "device"):
        if getattr(given, what) != getattr(keys, what):
            wanted = f"the cache's is {getattr(keys, what)}"
            raise PlanError(f"{what} of {name}", str(getattr(given, what)), wanted)


def _visible(positions: torch.Tensor, kv_len: int) -> torch.Tensor:
    """bool[batch, 1, tokens, kv_len]: keys at or before each token's own position."""
    return torch.arange(kv_len, device=positions.device) <= positions[:, None, :, None]


def _slots(positions: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, ...]:
    """Where a pass writes: positions, or (row, position, token) of each that is no padding."""
    if len(counts) == 1:
        return (positions[0],)
    tokens = torch.arange(positions.shape[1]) < torch.tensor(counts)[:, None]
    row, token = (index.to(positions.device) for index in tokens.nonzero(as_tuple=True))
    return row, positions[row, token], token


def _write(storage: torch.Tensor, new: torch.Tensor, slots: tuple[torch.Tensor, ...]) -> None:
    """Put ``new`` [batch, kv_heads, tokens, head_dim] where ``slots`` say."""
    if len(slots) == 1:
        storage.index_copy_(2, slots[0], new)
        return
    row, position, token = slots
    storage[row, :, position] = new[row, :, token]


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scale: float | None,
) -> torch.Tensor:
    """Attention without head expansion, [batch, heads, tokens, head_dim].

    One token a row takes the heads of a group as its query rows: up to 4 times faster in bf16 on
    CPU than enable_gqa. Several tokens see their group's keys with stride 0; without a mask they
    are a prompt from position 0.
    """
    (batch, heads, tokens, dim), kv_heads = query.shape, keys.shape[1]
    group = heads // kv_heads
    if tokens == 1:
        rows = query.reshape(batch, kv_heads, group, dim)
        out = scaled_dot_product_attention(rows, keys, values, mask, scale=scale)
        return out.reshape(batch, heads, 1, dim)
    if mask is not None and batch > 1:
        mask = mask.repeat_interleave(kv_heads, 0)
    out = scaled_dot_product_attention(
        query.reshape(batch * kv_heads, group, tokens, dim),
        keys.flatten(0, 1)[:, None].expand(-1, group, -1, -1),
        values.flatten(0, 1)[:, None].expand(-1, group, -1, -1),
        mask,
        is_causal=mask is None,
        scale=scale,
    )
    return out.reshape(batch, heads, tokens, dim)
