"""Formats with a rectangular table: a row's pages beside each other."""

from typing import Unpack

import numpy as np

from octavo.cache.step import Ints, Step
from octavo.checks import check_int
from octavo.errors import CapacityError
from octavo.index.addresses import Addresses
from octavo.index.buffers import deliver
from octavo.index.formats import Flash, Onnxruntime, Tensorrt, Vllm
from octavo.index.options import Options
from octavo.index.parts import Parts, whole
from octavo.index.rows import running_sums
from octavo.planner.plan import Plan


def vllm(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Vllm | None = None,
    **options: Unpack[Options],
) -> Vllm:
    """The arrays of vLLM's backends; arguments, errors and cost as `octavo.index` says."""
    parts = Parts(step, plan, group, options)
    fields = parts.common() | {
        "block_table": parts.table(),
        "seq_lens": parts.by_row(parts.found.keys),
        "query_start_loc": parts.query_start(),
    }
    numbers = {"max_query_len": parts.max_query, "max_seq_len": parts.max_keys}
    return deliver(Vllm, fields, out, numbers, step)


def flash(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Flash | None = None,
    **options: Unpack[Options],
) -> Flash:
    """The arrays of FlashAttention; arguments, errors and cost as `octavo.index` says."""
    parts = Parts(step, plan, group, options)
    fields = parts.common() | {
        "cu_seqlens_q": parts.query_start(),
        "cu_seqlens_k": parts.running(running_sums(parts.found.keys)),
        "cache_seqlens": parts.by_row(parts.found.keys),
        "block_table": parts.table(),
    }
    numbers = {"max_seqlen_q": parts.max_query, "max_seqlen_k": parts.max_keys}
    return deliver(Flash, fields, out, numbers, step)


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
    parts = Parts(step, plan, group, options, "onnxruntime")
    least = 0 if parts.is_bounded else parts.found.longest
    fields = parts.common() | {
        "block_table": parts.table(),
        "cumulative_sequence_length": parts.query_start(),
        "past_seqlens": parts.by_row(parts.found.keys - step.counts, fresh=True),
        "attention_metadata": whole([parts.max_query, parts.max_keys, least]),
    }
    return deliver(Onnxruntime, fields, out, {}, step)


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
    parts = Parts(step, plan, group, options, "tensorrt")
    past = parts.found.keys - step.counts
    generates = (step.counts == 1) & (past > 0)
    offsets = _block_offsets(parts.found, layers, kv_factor)
    fields = parts.common() | {
        "block_offsets": parts.by_row(offsets, fresh=True, columns=parts.found.ends),
        "sequence_length": parts.by_row(parts.found.keys),
        "host_past_key_value_lengths": parts.by_row(
            np.where(generates, past, parts.found.keys), fresh=True
        ),
        "context_lengths": parts.by_row(np.where(generates, past, step.counts), fresh=True),
        "host_request_types": parts.by_row(generates.astype(np.int32), fresh=True),
    }
    numbers = {"max_query_len": parts.max_query, "max_seq_len": parts.max_keys}
    return deliver(Tensorrt, fields, out, numbers, step)


def _block_offsets(found: Addresses, layers: int, kv_factor: int) -> Ints:
    """The first layer's blocks: of keys page * layers * kv_factor, of values the one behind."""
    stride, table = kv_factor * check_int("layers", layers, 1), found.table
    if found.pages * stride > 2**31:
        last = int(table.max(initial=0)) * stride + kv_factor - 1
        if last > 2**31 - 1:
            raise CapacityError("block offset", last, 2**31 - 1, f"{stride} blocks a page")
    offsets = np.empty((len(table), 2, table.shape[1]), np.int32)
    keys, values = offsets[:, 0], offsets[:, 1]
    np.multiply(table, np.int32(stride), out=keys)
    np.minimum(table, np.int32(kv_factor - 1), out=values)
    values += keys
    return offsets
