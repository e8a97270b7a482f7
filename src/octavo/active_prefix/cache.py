"""A static cache whose attention sees the active prefix alone, for decoders written by hand.

A static cache of S positions makes every step attend to S keys behind a mask. This one gives
attention the positions that exist: K, V and mask are cut before the heads of a group share them,
so a step costs what its prefix costs, whatever the capacity. Storage grows and shrinks with the
prefix, in whole grains of positions.

Law: every position at or beyond a row's length holds zeros, so what a mask hides is finite. The
positions of a pass count when every layer has attended.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from octavo.active_prefix.prefix import Prefix, slots, visible
from octavo.checks import check_int
from octavo.errors import CapacityError, LengthError, PlanError, StepError

GRAIN = 256  # positions by which storage grows at least: one copy of the prefix in as many steps


class ActivePrefixCache:
    """Keys and values of one batch in a decoder, up to ``capacity`` positions per row.

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
        PlanError: ``dtype`` is no floating-point type of 16 bits or more, or ``device`` is none.

    Cost: memory is ``layers * 2 * batch * kv_heads * head_dim`` elements per position, for the
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
        self._lengths = [0] * self.batch
        self._open: Prefix | None = None
        empty = _empty((batch, kv_heads, 0, head_dim), dtype, device)
        self._keys, self._values = [empty] * layers, [empty] * layers
        self._resize(0)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Positions each row holds; those of a pass from when every layer has attended."""
        return tuple(self._held())

    @property
    def kv_len(self) -> int:
        """Positions the longest row holds: what a step's attention sees, before rounding."""
        return max(self._held())

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

    def begin(self, counts: int | Sequence[int] = 1) -> Prefix:
        """The next ``counts`` positions of each row, for one forward pass.

        They count once every layer has attended. A pass begun before and not written is dropped.

        Args:
            counts: tokens of every row, or of each. Rows with fewer than the most are padded on the
                right in all that the pass takes and gives: nothing is kept of the padding, and what
                comes out for it means nothing.

        Raises:
            LengthError: no token at all, a count below 0, or a length outside 1..capacity; nothing
                has changed.
            StepError: of the pass before some layers have attended, and others have not: it raised,
                or does not run them all. ``truncate(cache.lengths)`` drops it.

        Cost: O(batch * tokens * kv_len) for a mask where one is needed, and a copy of the prefix
        where it outgrows its storage: once in GRAIN steps at most.
        """
        rows = self._each("counts", counts)
        check_int("tokens of the step", max(rows), 1)
        held = self._held()
        ends = [length + count for length, count in zip(held, rows, strict=True)]
        check_int("kv_len", max(ends), 1, self.capacity)
        self._check_whole()
        return self._pass(held, rows, ends)

    def begin_at(self, positions: Iterable[int], kv_len: int) -> Prefix:
        """The caller's own positions, the same in every row, which then holds ``kv_len``.

        A prefill of T tokens is ``begin_at(range(T), T)``, decode step i after it
        ``begin_at([T + i], T + i + 1)``. What a row holds at ``positions`` is written over, what it
        holds at and beyond ``kv_len`` is dropped. A pass that raises leaves what comes before the
        first of ``positions``.

        Args:
            positions: consecutive, ascending.
            kv_len: positions that attention sees, the new ones included.

        Raises:
            LengthError: ``kv_len`` outside 1..capacity, a position outside 0..kv_len - 1, positions
                that do not follow on each other, or a ``kv_len`` beyond what has been written;
                nothing has changed.
            StepError: as `begin`.

        Cost: as `begin`.
        """
        kv_len = check_int("kv_len", kv_len, 1, self.capacity)
        positions = _listed("positions", positions)
        named = [check_int("position", each, 0, kv_len - 1) for each in positions]
        count = check_int("tokens of the step", len(named), 1)
        for index, each in enumerate(named):
            check_int("position", each, named[0] + index, named[0] + index, "they are consecutive")
        held = min(self._held())
        check_int("position", named[0], 0, held, f"a row holds {held}; none may be left out")
        check_int("kv_len", kv_len, 1, max(held, named[-1] + 1), "beyond it nothing is written")
        self._check_whole()
        self.truncate([min(length, kv_len) for length in self._held()])
        return self._pass(named[:1] * self.batch, [count] * self.batch, [kv_len] * self.batch)

    def truncate(self, lengths: int | Sequence[int]) -> None:
        """Keep the first ``lengths`` positions of every row, or of each, and drop the rest.

        That includes a pass that raised: ``truncate(cache.lengths)`` before the next `begin`. A
        pass that raised behind its last layer counts; truncate to what was held before it.

        Raises:
            LengthError: more than a row holds, or below 0; nothing has changed.

        Cost: O(elements dropped), and a copy of what is kept where storage shrinks.
        """
        kept = self._each("lengths", lengths)
        for length, held in zip(kept, self._held(), strict=True):
            check_int("lengths", length, 0, held, "what the row holds")
        self._settle()
        self._cut(kept)
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
            LengthError: sizes that differ, or a row or length out of range. Nothing has changed.
            PlanError: no such cache, or of another dtype. Nothing has changed.

        Cost: O(elements copied).
        """
        self._check_source(source)
        row = check_int("row", row, 0, source.batch - 1)
        most = min(source.lengths[row], self.capacity)
        length = check_int("length", most if length is None else length, 0, most)
        chosen = range(self.batch) if rows is None else _listed("rows", rows)
        targets = {check_int("rows", each, 0, self.batch - 1) for each in chosen}
        if source is self:
            targets.discard(row)
        self._settle()
        held = self._lengths
        lengths = [length if at in targets else each for at, each in enumerate(held)]
        self._resize(max(*lengths, self.kv_len))  # first, as memory may be short
        self._cut([min(pair) for pair in zip(held, lengths, strict=True)])
        index = torch.tensor(sorted(targets), dtype=torch.int64, device=self._device)
        for mine, theirs in zip(self._tensors(), source._tensors(), strict=True):
            mine[index, :, :length] = theirs[row, :, :length].to(mine.device, copy=True)
        self._lengths = lengths
        self._resize(max(lengths))

    @property
    def _device(self) -> torch.device:
        return self._keys[0].device

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from self._keys
        yield from self._values

    def _each(self, name: str, numbers: int | Sequence[int]) -> list[int]:
        """One number per row, each an int of at least 0."""
        if not isinstance(numbers, Sequence):
            return [check_int(name, numbers, 0)] * self.batch
        check_int(f"rows of {name}", len(numbers), self.batch, self.batch, "the batch")
        return [check_int(name, number, 0) for number in numbers]

    def _check_source(self, source: "ActivePrefixCache") -> None:
        if not isinstance(source, ActivePrefixCache):
            raise PlanError("source", type(source).__name__, "it must be an ActivePrefixCache")
        check_int("layers of source", len(source._keys), len(self._keys), len(self._keys))
        theirs, own = source._keys[0], self._keys[0]
        for name, axis in (("kv_heads", 1), ("head_dim", 3)):
            check_int(f"{name} of source", theirs.shape[axis], own.shape[axis], own.shape[axis])
        if theirs.dtype != own.dtype:
            raise PlanError("dtype of source", str(theirs.dtype), f"this cache has {own.dtype}")

    def _pass(self, starts: list[int], counts: list[int], ends: list[int]) -> Prefix:
        """A pass over ``counts`` positions from ``starts``, after which rows hold ``ends``."""
        seen = min(-(-max(ends) // self.bucket) * self.bucket, self.capacity)
        self._settle()
        self._resize(seen)
        first = torch.tensor(starts, device=self._device)
        positions = first[:, None] + torch.arange(max(counts), device=self._device)
        fresh = not any(starts)
        exact = self.bucket == 1  # else a mask in each step: its absence would be another shape
        whole = fresh or (exact and max(counts) == 1 and min(starts) + 1 == seen)
        self._open = Prefix(
            positions=positions,
            keys=[tensor[:, :, :seen] for tensor in self._keys],
            values=[tensor[:, :, :seen] for tensor in self._values],
            slots=slots(positions, counts),
            starts=starts,
            ends=ends,
            masked=None if whole else visible(positions, seen),
            fresh=fresh,
        )
        return self._open

    def _held(self) -> list[int]:
        """Positions each row holds: a pass takes what it writes over, and gives all when whole."""
        now = self._open
        if now is None or not now.written:
            return self._lengths
        return now.starts if now.torn else now.ends

    def _check_whole(self) -> None:
        """Refuse to go on from a pass that has written and of which a layer has not attended."""
        now = self._open
        if now is not None and now.torn:
            lacks = [layer for layer, attended in enumerate(now.attended) if not attended]
            why = f"in the last pass layers {lacks} have not attended, and others have"
            raise StepError(f"{why}; truncate({now.starts}) drops it")

    def _settle(self) -> None:
        """End the pass begun last: it counts, or is as if it had not been."""
        now, held = self._open, self._held()
        if now is None:
            return
        now.closed = True
        if now.torn:
            self._zero(held, max(*self._lengths, *now.ends))
        self._lengths, self._open = held, None

    def _cut(self, kept: list[int]) -> None:
        """Hold ``kept`` positions of each row; storage stays as large as it is."""
        held, self._lengths = self._lengths, kept
        if kept != held:
            self._zero(kept, max(held))

    def _zero(self, kept: list[int], high: int) -> None:
        """Zero every row from ``kept`` up to ``high``."""
        low = min(kept)
        where = torch.arange(low, high, device=self._device)
        dropped = where >= torch.tensor(kept, device=self._device)[:, None]
        for tensor in self._tensors():
            tensor[:, :, low:high].masked_fill_(dropped[:, None, :, None], 0)

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


def _empty(shape: tuple[int, ...], dtype: object, device: object) -> torch.Tensor:
    """Storage of no position; PlanError where there can be none of that dtype, or there."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise PlanError("dtype", str(dtype), "it must be a floating-point type of 16 bits or more")
    try:
        return torch.empty(shape, dtype=dtype, device=device)  # type: ignore[call-overload,no-any-return]
    except (RuntimeError, AssertionError, TypeError) as error:
        raise PlanError("device", str(device), str(error).partition("\n")[0]) from None


def _listed(name: str, numbers: Any) -> list[Any]:
    """What ``numbers`` has, one by one; LengthError where it has no items."""
    try:
        return list(numbers)
    except TypeError:
        raise LengthError(name, numbers, None, None, "it must be a list of ints") from None
