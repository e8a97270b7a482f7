"""What the operators of ONNX Runtime and of TensorRT-LLM take."""

from typing import NamedTuple, Unpack, cast

from octavo.cache.step import Step
from octavo.cache.views import Ints
from octavo.checks import check_int
from octavo.core.emit import (
    Keys,
    PageBlocks,
    PastKeys,
    QueryStarts,
    RequestContext,
    RequestPast,
    Requests,
    Table,
)
from octavo.index.arguments import Options
from octavo.index.emit import COMMON, Emission, Format
from octavo.planner.plan import Plan


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
        input_ids, positions, logit_rows, base: as of `Vllm`.
    """

    block_table: Ints
    slot_mapping: Ints
    input_ids: Ints
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
        slot_mapping, input_ids, positions, logit_rows, base: as of `Vllm`.
        max_query_len, max_seq_len: the largest of the rows', as ints.
    """

    block_offsets: Ints
    sequence_length: Ints
    host_past_key_value_lengths: Ints
    context_lengths: Ints
    host_request_types: Ints
    slot_mapping: Ints
    input_ids: Ints
    positions: Ints
    logit_rows: Ints
    base: Ints
    max_query_len: int
    max_seq_len: int


ONNXRUNTIME = Format(
    "onnxruntime",
    Onnxruntime,
    COMMON
    | {
        "block_table": Table,
        "cumulative_sequence_length": QueryStarts,
        "past_seqlens": PastKeys,
    },
    kernel="onnxruntime",
)
TENSORRT = Format(
    "tensorrt",
    Tensorrt,
    COMMON
    | {
        "block_offsets": PageBlocks,
        "sequence_length": Keys,
        "host_past_key_value_lengths": RequestPast,
        "context_lengths": RequestContext,
        "host_request_types": Requests,
    },
    kernel="tensorrt",
)


def onnxruntime(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Onnxruntime | None = None,
    **options: Unpack[Options],
) -> Onnxruntime:
    """The inputs of com.microsoft::PagedAttention, as `Onnxruntime` lists them.

    ``help(octavo.index)`` explains the arguments, the options and cost.

    Raises:
        PlanError: pages that are no power of two of at least 16 tokens.
        others: as `octavo.index` says.
    """
    emission = Emission(ONNXRUNTIME, step, plan, group, options)
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
    """The arrays of TensorRT-LLM, as `Tensorrt` lists them.

    ``help(octavo.index)`` explains the other arguments, the options and cost.

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
    emission = Emission(TENSORRT, step, plan, group, options, layers, kv_factor)
    return cast("Tensorrt", emission.give(out))
