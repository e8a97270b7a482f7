"""Block tables: what vLLM and FlashAttention take, and a dense mask for everything else."""

from typing import NamedTuple, Unpack, cast

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.step import Step
from octavo.cache.views import Ints
from octavo.core.emit import Base, Keys, KeyStarts, QueryStarts, Table
from octavo.index.addresses import Addresses
from octavo.index.arguments import Options
from octavo.index.emit import COMMON, Emission, Format
from octavo.index.out import fill
from octavo.planner.plan import Plan


class Vllm(NamedTuple):
    """What vLLM's backends take, for R rows and M tokens, padding included. All int32.

    Attributes:
        block_table: [R, width], kernel pages of each row; 0 where unmapped, dropped or padded.
        slot_mapping: [M], where each new token's KV goes; -1: nowhere (padding).
        input_ids: [M], token ids as the step has them now; 0 where unknown and in padding.
        seq_lens: [R], keys of each row once the step's are written (the step's ``context`` less
            ``base``); 0 in padded rows.
        query_start_loc: [R + 1], where each row's tokens begin; padded rows begin at the end.
        positions: [M], position of each token in its sequence; 0 in padding.
        logit_rows: [R], index of each row's last token (the step's ``last``); -1 where there is
            none.
        base: [R], positions left out behind the sinks in the compact form; else 0.
        max_query_len, max_seq_len: the largest of the rows', as ints (the step's ``max_query`` and
            ``max_context`` less ``base``), or the bounds that were named.
    """

    block_table: Ints
    slot_mapping: Ints
    input_ids: Ints
    seq_lens: Ints
    query_start_loc: Ints
    positions: Ints
    logit_rows: Ints
    base: Ints
    max_query_len: int
    max_seq_len: int


class Flash(NamedTuple):
    """What FlashAttention's varlen and paged functions take. All int32.

    Attributes:
        cu_seqlens_q: [R + 1], cumulative new tokens; padded rows repeat the last entry.
        cu_seqlens_k: [R + 1], cumulative keys; the same.
        cache_seqlens: [R], what ``seq_lens`` is in `Vllm`. A call that appends the new keys itself
            wants what was there before: less the row's new tokens.
        block_table: [R, width]; 0 where unmapped, dropped or padded.
        max_seqlen_q, max_seqlen_k: what ``max_query_len`` and ``max_seq_len`` are in `Vllm`.
        slot_mapping, input_ids, positions, logit_rows, base: as of `Vllm`.
    """

    cu_seqlens_q: Ints
    cu_seqlens_k: Ints
    cache_seqlens: Ints
    block_table: Ints
    slot_mapping: Ints
    input_ids: Ints
    positions: Ints
    logit_rows: Ints
    base: Ints
    max_seqlen_q: int
    max_seqlen_k: int


class Dense(NamedTuple):
    """A mask over gathered pages, for scaled-dot-product attention of padded queries. int32.

    Attributes:
        mask: bool[R, max_query_len, width * page], whether query j of a row sees key k of its
            ``block_table`` row, gathered column after column. All False for queries a row has not.
        block_table: [R, width]; -1 where unmapped, dropped or padded.
        seq_lens, query_start_loc, slot_mapping, input_ids, positions, logit_rows, base: as of
            `Vllm`.
        max_query_len, max_seq_len: the largest of the rows', as ints.
    """

    mask: NDArray[np.bool_]
    block_table: Ints
    slot_mapping: Ints
    input_ids: Ints
    seq_lens: Ints
    query_start_loc: Ints
    positions: Ints
    logit_rows: Ints
    base: Ints
    max_query_len: int
    max_seq_len: int


_TABLE = COMMON | {"block_table": Table, "seq_lens": Keys, "query_start_loc": QueryStarts}
VLLM = Format("vllm", Vllm, _TABLE)
FLASH = Format(
    "flash",
    Flash,
    COMMON
    | {
        "cu_seqlens_q": QueryStarts,
        "cu_seqlens_k": KeyStarts,
        "cache_seqlens": Keys,
        "block_table": Table,
    },
)
DENSE = Format("dense", Dense, _TABLE, page_fill=-1, by_entry=False)


def vllm(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Vllm | None = None,
    **options: Unpack[Options],
) -> Vllm:
    """The arrays of vLLM's backends, as `Vllm` lists them.

    ``help(octavo.index)`` explains the arguments, the options, errors and cost.
    """
    return cast("Vllm", Emission(VLLM, step, plan, group, options).give(out))


def flash(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Flash | None = None,
    **options: Unpack[Options],
) -> Flash:
    """The arrays of FlashAttention, as `Flash` lists them.

    ``help(octavo.index)`` explains the arguments, the options, errors and cost.
    """
    return cast("Flash", Emission(FLASH, step, plan, group, options).give(out))


def dense(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Dense | None = None,
    **options: Unpack[Options],
) -> Dense:
    """A boolean mask for every query and key, as `Dense` says.

    ``help(octavo.index)`` explains the arguments, the options and errors.

    Cost: O(rows x longest query x keys).
    """
    emission = Emission(DENSE, step, plan, group, options)
    shape = (emission.rows, emission.most, emission.columns * emission.found.page)
    emission.check_rows(shape)
    padded = np.zeros(shape, np.bool_)
    fill(padded, _mask(emission.found))
    return cast("Dense", emission.give(out, {"mask": padded}))


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
