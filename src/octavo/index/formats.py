"""The arrays each kernel's format is made of; documented field by field."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import Ints


class Vllm(NamedTuple):
    """What vLLM's backends take, for R rows and M tokens, padding included. All int32.

    Attributes:
        block_table: [R, width], kernel pages of each row; 0 where unmapped, dropped or padded.
        slot_mapping: [M], where each new token's KV goes; -1: nowhere (padding).
        seq_lens: [R], keys of each row once the step's are written; 0 in padded rows.
        query_start_loc: [R + 1], where each row's tokens begin; padded rows begin at the end.
        positions: [M], position of each token in its sequence; 0 in padding.
        logit_rows: [R], index of each row's last token; -1 where there is none.
        base: [R], positions left out behind the sinks in the compact form; else 0.
        max_query_len, max_seq_len: the largest of the rows', as ints.
    """

    block_table: Ints
    slot_mapping: Ints
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
        cache_seqlens: [R], keys of each row once the step's are written; 0 in padded rows. A call
            that appends the new ones itself wants what was there before: less the row's new tokens.
        block_table: [R, width]; 0 where unmapped, dropped or padded.
        max_seqlen_q, max_seqlen_k: the largest of the rows', as ints.
        slot_mapping, positions, logit_rows, base: as of `Vllm`.
    """

    cu_seqlens_q: Ints
    cu_seqlens_k: Ints
    cache_seqlens: Ints
    block_table: Ints
    slot_mapping: Ints
    positions: Ints
    logit_rows: Ints
    base: Ints
    max_seqlen_q: int
    max_seqlen_k: int


class Flashinfer(NamedTuple):
    """What FlashInfer's paged wrappers plan with. All int32.

    Attributes:
        qo_indptr: [R + 1], cumulative new tokens; padded rows repeat the last entry.
        kv_indptr: [R + 1], cumulative kernel pages; the same.
        kv_indices: [pages of all rows], row after row; 0, the null page, where a window dropped
            one, and behind ``kv_indptr[-1]``.
        kv_last_page_len: [R], 1..page tokens in each row's last page; 1 for rows without pages.
        slot_mapping, positions, logit_rows, base: as of `Vllm`.
        max_query_len, max_seq_len: the largest of the rows', as ints.
    """

    qo_indptr: Ints
    kv_indptr: Ints
    kv_indices: Ints
    kv_last_page_len: Ints
    slot_mapping: Ints
    positions: Ints
    logit_rows: Ints
    base: Ints
    max_query_len: int
    max_seq_len: int


class Cascade(NamedTuple):
    """Two levels for FlashInfer's cascade: pages all rows share, and each row's own. All int32.

    Attributes:
        shared_qo_indptr: [2], all of the step's tokens.
        shared_kv_indptr: [2], the shared kernel pages; all of their keys come before every query.
        shared_kv_indices: [shared pages].
        shared_kv_last_page_len: [1], a full page; 1 where none is shared.
        qo_indptr, kv_indptr, kv_indices, kv_last_page_len: as of `Flashinfer`, of what is left.
        slot_mapping, positions, logit_rows, base: as of `Vllm`.
        max_query_len, max_seq_len: the largest of the rows', shared keys included, as ints.
    """

    shared_qo_indptr: Ints
    shared_kv_indptr: Ints
    shared_kv_indices: Ints
    shared_kv_last_page_len: Ints
    qo_indptr: Ints
    kv_indptr: Ints
    kv_indices: Ints
    kv_last_page_len: Ints
    slot_mapping: Ints
    positions: Ints
    logit_rows: Ints
    base: Ints
    max_query_len: int
    max_seq_len: int


class Onnxruntime(NamedTuple):
    """Inputs of com.microsoft::PagedAttention. All int32.

    Attributes:
        block_table: [R, width], input 7; 0 where unmapped, dropped or padded.
        slot_mapping: [M], input 10; -1: the token's KV is not written.
        cumulative_sequence_length: [R + 1], input 5: cumulative new tokens.
        past_seqlens: [R], input 6: keys before the step; 0 in padded rows.
        attention_metadata: [3], input 16, of which releases before the lower bound take [:2]: upper
            bound of a row's new tokens, upper and lower bound of the most keys of a row. Exact, but
            where the caller names ``max_seq_len`` for graphs: then the lower bound is 0, unknown.
        positions, logit_rows, base: as of `Vllm`.
    """

    block_table: Ints
    slot_mapping: Ints
    cumulative_sequence_length: Ints
    past_seqlens: Ints
    attention_metadata: Ints
    positions: Ints
    logit_rows: Ints
    base: Ints


class Tensorrt(NamedTuple):
    """What TensorRT-LLM's attention plugin takes. All int32.

    Attributes:
        block_offsets: [R, 2, width], [row, 0] the key blocks and [row, 1] the value blocks of each
            page: page * layers * kv_factor, and kv_factor - 1 more for values; 0 where unmapped,
            dropped or padded. One pool of the plugin's [pools, R, 2, width].
        sequence_length: [R], keys of each row once the step's are written; 0 in padded rows.
        host_request_types: [R], 1 for a row that generates (one new token behind others), 0 for one
            in its context phase and for padded rows. The plugin wants all of the latter first.
        host_past_key_value_lengths: [R], keys before the step; in the context phase those once it
            is written, as the plugin has it; 0 in padded rows.
        context_lengths: [R], new tokens of a row in its context phase; of one that generates its
            keys before the step, as a step does not know where a prompt ended; 0 in padded rows.
        slot_mapping, positions, logit_rows, base: as of `Vllm`.
        max_query_len, max_seq_len: the largest of the rows', as ints.
    """

    block_offsets: Ints
    sequence_length: Ints
    host_past_key_value_lengths: Ints
    context_lengths: Ints
    host_request_types: Ints
    slot_mapping: Ints
    positions: Ints
    logit_rows: Ints
    base: Ints
    max_query_len: int
    max_seq_len: int


class Dense(NamedTuple):
    """A mask over gathered pages, for scaled-dot-product attention of padded queries. int32.

    Attributes:
        mask: bool[R, max_query_len, width * page], whether query j of a row sees key k of its
            ``block_table`` row, gathered column after column. All False for queries a row has not.
        block_table: [R, width]; -1 where unmapped, dropped or padded.
        seq_lens, query_start_loc, slot_mapping, positions, logit_rows, base: as of `Vllm`.
        max_query_len, max_seq_len: the largest of the rows', as ints.
    """

    mask: NDArray[np.bool_]
    block_table: Ints
    slot_mapping: Ints
    seq_lens: Ints
    query_start_loc: Ints
    positions: Ints
    logit_rows: Ints
    base: Ints
    max_query_len: int
    max_seq_len: int


class Flex(NamedTuple):
    """What torch's flex attention takes: T queries against all slots of a layer's pool.

    Q blocks of queries; pages are kernel pages where ``kv_block`` is less than the page size. All
    int32.

    Attributes:
        kv_num_blocks: [1, 1, Q], key blocks of which some query sees some key, but not each all.
        kv_indices: [1, 1, Q, most of them], which, ascending; 0 behind them.
        full_kv_num_blocks: [1, 1, Q], those of which every query sees every key.
        full_kv_indices: [1, 1, Q, most of them], which.
        block_table: [n, width], page of each row and column; 0 where there is none.
        columns: [pages of the pool], the column each page stands in, in whichever row; else 0.
        token_rows: [T], row of each token.
        first_keys: [T], first position each token sees, sinks apart.
        last_keys: [T], the last one.
        slot_mapping, positions, logit_rows: as of `Vllm`, without padding.
        page: tokens a page of these arrays holds.
        sink_tokens: leading positions that all see.
        query_block, kv_block: queries and keys of a block.
        kv_len: slots of the pool.
    """

    kv_num_blocks: Ints
    kv_indices: Ints
    full_kv_num_blocks: Ints
    full_kv_indices: Ints
    block_table: Ints
    columns: Ints
    token_rows: Ints
    first_keys: Ints
    last_keys: Ints
    slot_mapping: Ints
    positions: Ints
    logit_rows: Ints
    page: int
    sink_tokens: int
    query_block: int
    kv_block: int
    kv_len: int
