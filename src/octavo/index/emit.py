"""Steps in the format of each kernel: which numbers its arrays hold, and who fills them."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import Ints, Step
from octavo.checks import check_int
from octavo.core.emit import (
    Base,
    Keys,
    KeyStarts,
    Last,
    LastLengths,
    PageBlocks,
    Pages,
    PageStarts,
    PastKeys,
    Positions,
    QueryStarts,
    RequestContext,
    RequestPast,
    Requests,
    Slots,
    Table,
    Target,
)
from octavo.errors import CapacityError, LengthError
from octavo.index.addresses import Addresses
from octavo.index.buffers import BOOL, Arrays, Shape, arrays_of, fill
from octavo.index.checks import MOST, check_rows
from octavo.index.formats import (
    Cascade,
    Dense,
    Flash,
    Flashinfer,
    Onnxruntime,
    Tensorrt,
    Vllm,
)
from octavo.index.options import Options, bounded, check_fill, read_options
from octavo.planner.plan import Plan

NULL, NONE = 0, -1


class Format(NamedTuple):
    """How the arrays of a kernel's format are filled.

    Attributes:
        kind: what it is handed out as.
        roles: by field, what fills it; where pages begin before the pages. Other fields depend on
            more than a row.
        kernel: the kernel, if its rule for pages always holds.
        page_fill: what stands in tables where there is no page, unless the caller says.
    """

    kind: type[Any]
    roles: Mapping[str, type[Target]]
    kernel: str | None = None
    page_fill: int = NULL


_COMMON = {"slot_mapping": Slots, "positions": Positions, "logit_rows": Last, "base": Base}
_VLLM = _COMMON | {"block_table": Table, "seq_lens": Keys, "query_start_loc": QueryStarts}
_PAGES = _COMMON | {
    "qo_indptr": QueryStarts,
    "kv_indptr": PageStarts,
    "kv_indices": Pages,
    "kv_last_page_len": LastLengths,
}
_FLASH = _COMMON | {
    "cu_seqlens_q": QueryStarts,
    "cu_seqlens_k": KeyStarts,
    "cache_seqlens": Keys,
    "block_table": Table,
}
_ONNXRUNTIME = _COMMON | {
    "block_table": Table,
    "cumulative_sequence_length": QueryStarts,
    "past_seqlens": PastKeys,
}
_TENSORRT = _COMMON | {
    "block_offsets": PageBlocks,
    "sequence_length": Keys,
    "host_past_key_value_lengths": RequestPast,
    "context_lengths": RequestContext,
    "host_request_types": Requests,
}
FORMATS = {
    "vllm": Format(Vllm, _VLLM),
    "flash": Format(Flash, _FLASH),
    "flashinfer": Format(Flashinfer, _PAGES),
    "cascade": Format(Cascade, _PAGES),
    "onnxruntime": Format(Onnxruntime, _ONNXRUNTIME, "onnxruntime"),
    "tensorrt": Format(Tensorrt, _TENSORRT, "tensorrt"),
    "dense": Format(Dense, _VLLM, page_fill=NONE),
}
"""By function."""
_BY_TOKEN = (Slots, Positions)
_STARTS = (QueryStarts, KeyStarts, PageStarts)
_TABLES = (Table, PageBlocks)


class Emission:
    """A step on its way into the arrays of one format.

    Args:
        name: of the format.
        step, plan, group, options: as `octavo.index` says.
        layers, kv_factor: as of `tensorrt`.

    Attributes:
        format, options: the format, and what the caller chose.
        found: the addresses, checked.
        changes_by_entry: whether arrays of another step differ by what changed in the page table.
        rows: rows, padding included.
        most, longest: most new tokens and keys of a row, or the bounds the caller named.

    Raises:
        As `octavo.index` says.
    """

    def __init__(
        self,
        name: str,
        step: Step,
        plan: Plan,
        group: str | None,
        options: Options,
        layers: int = 1,
        kv_factor: int = 2,
    ) -> None:
        self.format, self.options = FORMATS[name], read_options(options)
        asked = self.options
        none = self.format.page_fill if asked.page_fill is None else asked.page_fill
        self._no_slot = check_fill("slot_fill", asked.slot_fill)
        self._no_page = check_fill("page_fill", none)
        self._stride, self._values = layers * kv_factor, kv_factor - 1
        kernels = (self.format.kernel, asked.kernel)
        self.found = Addresses(step, plan, group, kernels, asked.kernel_page, asked.form)
        plain = self.found.source.ratio == 1 and not self.found.source.compact
        self.changes_by_entry = plain and name not in ("cascade", "dense")
        self.measure()

    def measure(self) -> None:
        """Check the sizes of the step that was read last. O(1).

        Raises:
            LengthError, CapacityError: as `octavo.index` says.
        """
        found, options = self.found, self.options
        self.rows = check_rows(found.step, options.rows)
        source = found.source
        self.most = bounded("max_query_len", source.most, options.max_query_len)
        self.longest = bounded("max_seq_len", source.longest, options.max_seq_len)
        roles = self.format.roles
        if source.keys > MOST and "cu_seqlens_k" in roles:
            raise CapacityError("keys of all rows", source.keys, MOST, "beyond int32")
        if found.pages * self._stride > MOST + 1 and "block_offsets" in roles:
            last = found.top() * self._stride + self._values
            if last > MOST:
                raise CapacityError("block offset", last, MOST, f"{self._stride} blocks a page")

    def shapes(self) -> dict[str, Shape]:
        """Least shapes of the arrays with a role. O(arrays).

        Raises:
            LengthError: rows of which a table cannot have so many.
        """
        source, rows = self.found.source, (self.rows,)
        by_token, starts = (source.tokens + self.rows - source.count,), (self.rows + 1,)
        found: dict[str, Shape] = {}
        for name, role in self.format.roles.items():
            if role in _BY_TOKEN:
                found[name] = by_token
            elif role in _STARTS:
                found[name] = starts
            elif role is Pages:
                found[name] = (source.pages - source.skip * source.count,)
            elif role in _TABLES:
                sides = (2,) if role is PageBlocks else ()
                found[name] = (self.rows, *sides, source.width)
                self.check_rows(found[name])
            else:
                found[name] = rows
        return found

    def check_rows(self, shape: Shape) -> None:
        """Refuse rows of which an array cannot have so many. O(1).

        Raises:
            LengthError: it names how many there may be.
        """
        if prod(shape) > MOST:
            each = prod(shape[1:])
            real = self.found.source.count
            raise LengthError("rows", self.rows, real, MOST // each, f"{each} entries a row")

    def targets(self, arrays: Arrays) -> list[Target]:
        """The arrays with a role, for loops to fill. O(arrays)."""
        return [self.target(name, arrays[name]) for name in self.format.roles]

    def target(self, name: str, array: NDArray[Any]) -> Target:
        """The array of a field with a role, for loops to fill. O(1)."""
        role = self.format.roles[name]
        if role is Slots:
            return Slots(array, self._no_slot)
        if role is PageBlocks:
            return PageBlocks(array.reshape(-1), array.shape[2], self._stride, self._values)
        if role is Table:
            width = array.shape[1]
            return Table(array.reshape(-1), self._no_page, width, width)
        return role(array)

    def give(self, out: Any, others: Mapping[str, NDArray[Any]] | None = None) -> Any:
        """The format, in ``out``'s arrays where given.

        Args:
            others: arrays of fields without a role, copied; 0 stands behind them.

        Raises:
            LengthError, CapacityError: as `octavo.index` says of ``out``; nothing was written.
        """
        others = others or {}
        shapes = self.shapes() | {name: array.shape for name, array in others.items()}
        dtypes = {"mask": BOOL} if "mask" in others else {}
        found, kind = self.found, self.format.kind
        arrays = arrays_of(kind, shapes, out, found.step, dtypes, found.widest)
        found.source.write(self.targets(arrays), None, True)
        for name, values in others.items():
            fill(arrays[name], values)
        in_order = [arrays[name] for name in kind._fields if name in arrays]
        return kind._make((*in_order, *self.numbers()))

    def bounds(self) -> Ints:
        """int32[3], ONNX Runtime's bounds; the last is 0, unknown, where the caller named it."""
        least = 0 if self.options.max_seq_len is not None else self.longest
        return np.array([self.most, self.longest, least], np.int32)

    def numbers(self) -> tuple[int, ...]:
        """What stands behind the arrays, where the format has numbers."""
        has = self.format.kind._fields[-1].startswith("max_")
        return (self.most, self.longest) if has else ()


def vllm(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Vllm | None = None,
    **options: Unpack[Options],
) -> Vllm:
    """The arrays of vLLM's backends; arguments, errors and cost as `octavo.index` says."""
    return cast("Vllm", Emission("vllm", step, plan, group, options).give(out))


def flash(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Flash | None = None,
    **options: Unpack[Options],
) -> Flash:
    """The arrays of FlashAttention; arguments, errors and cost as `octavo.index` says."""
    return cast("Flash", Emission("flash", step, plan, group, options).give(out))


def flashinfer(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Flashinfer | None = None,
    **options: Unpack[Options],
) -> Flashinfer:
    """The arrays of FlashInfer; arguments, errors and cost as `octavo.index` says."""
    return cast("Flashinfer", Emission("flashinfer", step, plan, group, options).give(out))


def cascade(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Cascade | None = None,
    **options: Unpack[Options],
) -> Cascade:
    """The arrays of FlashInfer's cascade: one level of pages that all rows share, one of the rest.

    Shared are leading pages that every row holds and that end before the step's first new position
    of any row, so that all queries see all of them; in groups that drop tokens none.
    Arguments, errors and cost as `octavo.index` says.
    """
    emission = Emission("cascade", step, plan, group, options)
    found = emission.found
    pages = np.zeros(0, np.int32) if found.lifetime.slides else _shared_pages(found)
    found.source.skip = skip = pages.size
    shared = {
        "shared_qo_indptr": [0, step.positions.size],
        "shared_kv_indptr": [0, skip],
        "shared_kv_indices": pages,
        "shared_kv_last_page_len": [found.page if skip else 1],
    }
    arrays = {name: np.array(numbers, np.int32) for name, numbers in shared.items()}
    return cast("Cascade", emission.give(out, arrays))


def onnxruntime(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Onnxruntime | None = None,
    **options: Unpack[Options],
) -> Onnxruntime:
    """The inputs of com.microsoft::PagedAttention; arguments and cost as `octavo.index` says.

    Raises:
        PlanError: pages that are no power of two of at least 16 tokens.
        others: as `octavo.index` says.
    """
    emission = Emission("onnxruntime", step, plan, group, options)
    return cast("Onnxruntime", emission.give(out, {"attention_metadata": emission.bounds()}))


def tensorrt(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Tensorrt | None = None,
    layers: int = 1,
    kv_factor: int = 2,
    **options: Unpack[Options],
) -> Tensorrt:
    """The arrays of TensorRT-LLM; arguments and cost as `octavo.index` says.

    Args:
        layers: layers whose blocks lie beside each other in a page of the kernel's pool.
        kv_factor: blocks of one page and layer: 2, keys and values; 1 where one latent row is both.

    Raises:
        PlanError: pages that are no power of two.
        CapacityError: a block offset beyond int32.
        others: as `octavo.index` says.
    """
    check_int("kv_factor", kv_factor, 1, 2)
    check_int("layers", layers, 1)
    emission = Emission("tensorrt", step, plan, group, options, layers, kv_factor)
    return cast("Tensorrt", emission.give(out))


def dense(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Dense | None = None,
    **options: Unpack[Options],
) -> Dense:
    """A boolean mask for every query and key; arguments and errors as `octavo.index` says.

    Cost: O(rows x longest query x keys).
    """
    emission = Emission("dense", step, plan, group, options)
    mask = _mask(emission.found)
    emission.check_rows((emission.rows, *mask.shape[1:]))
    padded = np.zeros((emission.rows, *mask.shape[1:]), np.bool_)
    padded[: len(mask)] = mask
    return cast("Dense", emission.give(out, {"mask": padded}))


def _shared_pages(found: Addresses) -> Ints:
    """Leading columns that are the same page in every row and lie before all new positions."""
    before = int(found.step.past.min()) // found.page
    table = found.table()[:, :before]
    differ = (table != table[0]).any(axis=0)
    return table[0, : int(differ.argmax()) if differ.any() else before]


def _mask(found: Addresses) -> NDArray[np.bool_]:
    """Whether query j of row i sees key k: not after it, and in its window or a sink."""
    step, source = found.step, found.source
    base = found.array(Base, source.count)
    order = np.arange(source.width * found.page)
    keys = (order + np.where(order >= found.sinks, base[:, None], 0))[:, None, :]
    ahead = np.arange(source.most)
    queries = (step.past[:, None] + ahead).astype(np.int64)
    floors = found.lifetime.floors(queries)[:, :, None]
    seen = (keys <= queries[:, :, None]) & ((keys >= floors) | (keys < found.lifetime.sinks))
    there: NDArray[np.bool_] = ahead < step.counts[:, None]
    return seen & there[:, :, None]
