"""The inputs and attributes of com.microsoft::PagedAttention (version 1), and what they may be.

The rules are those of ONNX Runtime 1.32: its schema, and what its kernels refuse with
INVALID_ARGUMENT. Where a kernel would leave wrong numbers undefined (slots and pages out of range,
lengths that do not fit, NaN scales), they are refused too. Nothing is computed here.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.checks import as_reals, check_choice, check_int, check_number, check_positive
from octavo.errors import LengthError, PlanError
from octavo.index import LatentGeometry

Array = NDArray[Any]

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_LOGICAL = {"int8": "int8", "float8_e4m3fn": "float8e4m3fn"}  # quantised tensors, as the op says
_KV_DTYPES = {"int8": "int8", "float8e4m3fn": "fp8", "int4": "int4"}  # as octavo says
_QUANT_TYPES = ("NONE", "PER_TENSOR", "PER_CHANNEL")
_INT64 = 2**63 - 1
_INTS = {
    "num_heads": (1, _INT64),
    "kv_num_heads": (1, _INT64),
    "local_window_size": (-1, _INT64),
    "is_causal": (0, 1),
    "do_rotary": (0, 1),
    "rotary_interleaved": (0, 1),
    "rotary_offset": (0, _INT64),
    "v_head_size": (0, _INT64),
}
"""Attributes that are ints, and their ranges."""
_STRINGS = {
    "kv_cache_layout": ("SEPARATE", "LATENT"),
    "k_quant_type": _QUANT_TYPES,
    "v_quant_type": _QUANT_TYPES,
}
_NOT_LATENT = ("value", "value_cache", "head_sink", "q_norm_weight", "k_norm_weight", "v_scale")


class Inputs(NamedTuple):
    """The op's 17 inputs in its order; None where an optional one is absent.

    T is float16 or bfloat16, here also float32 and float64; S is int32.

    Attributes:
        query: T[tokens, num_heads * head_size]; without key and value all three, packed along the
            last axis: T[tokens, (num_heads + 2 * kv_num_heads) * head_size].
        key: T[tokens, kv_num_heads * head_size].
        value: likewise; absent in LATENT.
        key_cache: [pages, page_size, kv_num_heads, head_size] of T, int8 or float8_e4m3fn, or uint8
            with half as many bytes (rounded up) for int4; written in place.
        value_cache: likewise; absent in LATENT.
        cumulative_sequence_length: S[n + 1], where each sequence's tokens begin.
        past_seqlens: S[n], tokens cached before.
        block_table: S[n, width], page of each ``page_size`` positions; -1: not mapped, not seen.
        cos_cache, sin_cache: T[positions, rotary_dim / 2].
        slot_mapping: S[tokens], page * page_size + offset to write to, -1: do not write; absent:
            what the block table says.
        head_sink: T[num_heads], a logit in each head's denominator.
        q_norm_weight, k_norm_weight: T[head_size].
        k_scale, v_scale: float32[1] if PER_TENSOR, float32[kv_num_heads, 1, head_size] if
            PER_CHANNEL.
        attention_metadata: S[2] or S[3], bounds that help a kernel to launch; they change nothing.
    """

    query: Array
    key: Array | None
    value: Array | None
    key_cache: Array
    value_cache: Array | None
    cumulative_sequence_length: Array
    past_seqlens: Array
    block_table: Array
    cos_cache: Array | None = None
    sin_cache: Array | None = None
    slot_mapping: Array | None = None
    head_sink: Array | None = None
    q_norm_weight: Array | None = None
    k_norm_weight: Array | None = None
    k_scale: Array | None = None
    v_scale: Array | None = None
    attention_metadata: Array | None = None


class Attributes(NamedTuple):
    """The op's attributes.

    Attributes:
        num_heads: query heads.
        kv_num_heads: key/value heads; 1 in LATENT.
        scale: factor of the scores; 0: 1 / sqrt(head_size).
        softcap: bound of the scores; 0: none.
        local_window_size: keys a query sees, its own included; -1: all.
        is_causal: 0: queries see all new tokens of their sequence.
        do_rotary: 1: queries and new keys are rotated.
        rotary_interleaved: 1: neighbouring elements make a pair.
        rotary_offset: first element of a head that is rotated.
        qk_norm_epsilon: of the norm of queries and keys.
        kv_cache_layout: SEPARATE, or LATENT: one cache, whose rows are keys and, by their first
            ``v_head_size`` elements, values.
        v_head_size: elements of a value in LATENT; 0: head_size.
        k_quant_type, v_quant_type: NONE, PER_TENSOR or PER_CHANNEL.
        k_cache_dtype, v_cache_dtype: ``int4`` for a uint8 cache; else empty or the cache's own.
    """

    num_heads: int
    kv_num_heads: int
    scale: float = 0.0
    softcap: float = 0.0
    local_window_size: int = -1
    is_causal: int = 1
    do_rotary: int = 0
    rotary_interleaved: int = 0
    rotary_offset: int = 0
    qk_norm_epsilon: float = 1e-6
    kv_cache_layout: str = "SEPARATE"
    v_head_size: int = 0
    k_quant_type: str = "NONE"
    v_quant_type: str = "NONE"
    k_cache_dtype: str = ""
    v_cache_dtype: str = ""


class Extents(NamedTuple):
    """Sizes that follow from the inputs.

    Attributes:
        tokens: new tokens of all sequences.
        head_size: elements of a query and key head.
        v_head_size: elements of a value and output head.
        pages: pages of the cache.
        page_size: tokens per page.
        packed: whether ``query`` holds keys and values too.
        kv_dtype: how the caches are quantised, as `octavo.attention.stored` calls it; or None.
    """

    tokens: int
    head_size: int
    v_head_size: int
    pages: int
    page_size: int
    packed: bool
    kv_dtype: str | None


def read_attributes(given: Mapping[str, Any], dtype: str) -> Attributes:
    """A node's attributes as Python's ints, floats and strings. O(1).

    Args:
        given: by name.
        dtype: float64 or float32, which must hold the numbers.

    Raises:
        PlanError: an unknown attribute, a required one missing, or a value it cannot have.
        LengthError: an int out of range.
    """
    for name in given:
        if name not in Attributes._fields:
            raise PlanError("attribute", name, f"one of {', '.join(Attributes._fields)}")
    for name in ("num_heads", "kv_num_heads"):
        if name not in given:
            raise PlanError(name, None, "this attribute is required")
    values = {**Attributes._field_defaults, **given}
    values |= {name: check_int(name, values[name], *span) for name, span in _INTS.items()}
    values |= {name: check_number(name, values[name], dtype) for name in ("scale", "softcap")}
    values["qk_norm_epsilon"] = check_positive("qk_norm_epsilon", values["qk_norm_epsilon"], dtype)
    for name, known in _STRINGS.items():
        check_choice(name, values[name], known)
    attributes = Attributes(**values)
    _check_attributes(attributes)
    return attributes


def _check_attributes(attributes: Attributes) -> None:
    """Refuse what ranges alone do not."""
    if attributes.num_heads % attributes.kv_num_heads:
        why = f"a multiple of kv_num_heads, {attributes.kv_num_heads}"
        raise LengthError("num_heads", attributes.num_heads, attributes.kv_num_heads, None, why)
    if attributes.local_window_size == 0:
        raise LengthError("local_window_size", 0, 1, None, "or -1")
    if attributes.softcap < 0:
        raise PlanError("softcap", attributes.softcap, "it must be a number of at least 0")
    for name in ("k_cache_dtype", "v_cache_dtype"):
        if not isinstance(getattr(attributes, name), str):
            raise PlanError(name, getattr(attributes, name), "it must be a string")


def check_operands(inputs: Inputs, attributes: Attributes) -> Extents:
    """The sizes of a call the op takes. O(tokens + entries of the block table).

    Raises:
        PlanError: an input that is missing or must not be there, of the wrong dtype or not
            contiguous; a vector that is not finite; attributes that do not fit the inputs.
        LengthError: an input of the wrong shape, or an entry or attribute out of range.
    """
    latent = attributes.kv_cache_layout == "LATENT"
    packed = _check_presence(inputs, latent=latent)
    kv_dtype = _kv_dtype("k", inputs.query, inputs.key_cache, attributes)
    if inputs.value_cache is not None and kv_dtype != _kv_dtype(
        "v", inputs.query, inputs.value_cache, attributes
    ):
        raise PlanError("v_cache_dtype", attributes.v_cache_dtype, "that of the key cache")
    tokens, head_size = _check_projections(inputs, attributes, packed=packed)
    pages, page_size = _check_caches(inputs, attributes, head_size, kv_dtype)
    v_head_size = _v_head_size(attributes, head_size, page_size)
    _check_lengths(inputs, tokens, pages, page_size)
    _check_rotary(inputs, attributes, head_size)
    _check_vectors(inputs, attributes, head_size)
    for side, scale in (("k", inputs.k_scale), ("v", inputs.v_scale)):
        _check_scale(side, scale, attributes, head_size, kv_dtype)
    return Extents(tokens, head_size, v_head_size, pages, page_size, packed, kv_dtype)


def _check_presence(inputs: Inputs, *, latent: bool) -> bool:
    """Whether queries, keys and values are packed in one input."""
    given = {name for name, array in inputs._asdict().items() if array is not None}
    for name in given:
        if type(getattr(inputs, name)) not in (np.ndarray, np.memmap):  # no mask is lost
            raise PlanError(name, type(getattr(inputs, name)).__name__, "it must be a NumPy array")
    needed = set(Inputs._fields) - set(Inputs._field_defaults) - {"key", "value", "value_cache"}
    needed |= {"key"} if latent else {"value_cache"}
    for name in needed - given:
        raise PlanError(name, None, "this input is required")
    for name in given & set(_NOT_LATENT) if latent else ():
        raise PlanError(name, "given", "LATENT has no such input")
    together = [("cos_cache", "sin_cache"), ("q_norm_weight", "k_norm_weight")]
    for pair in together if latent else [*together, ("key", "value")]:
        if len(given & set(pair)) == 1:
            (absent,) = set(pair) - given
            raise PlanError(absent, None, f"{' and '.join(pair)} are given together")
    return not latent and inputs.key is None


def _kv_dtype(side: str, query: Array, cache: Array, attributes: Attributes) -> str | None:
    """How ``cache`` is quantised; None: it holds numbers of the query's type."""
    _check_type("query", query, *_FLOATS)
    said, own = getattr(attributes, f"{side}_cache_dtype"), cache.dtype.name
    quantised = getattr(attributes, f"{side}_quant_type") != "NONE"
    if own == query.dtype.name:
        if said not in ("", own):
            raise PlanError(f"{side}_cache_dtype", said, f"the cache holds {own}")
        if quantised:
            raise PlanError(f"{side}_quant_type", "set", f"a cache of {own} is not quantised")
        return None
    if own == "uint8" and said != "int4":
        raise PlanError(f"{side}_cache_dtype", said, "int4 is what a uint8 cache can hold")
    logical = "int4" if own == "uint8" else _LOGICAL.get(own)
    if logical is None:
        right = f"{query.dtype.name} as the query, int8, float8_e4m3fn or uint8"
        raise PlanError(f"dtype of {side} cache", own, right)
    if said not in ("", logical):
        raise PlanError(f"{side}_cache_dtype", said, f"the cache holds {logical}")
    if not quantised:
        right = f"PER_TENSOR or PER_CHANNEL, as the cache holds {logical}"
        raise PlanError(f"{side}_quant_type", "NONE", right)
    return _KV_DTYPES[logical]


def _check_projections(inputs: Inputs, attributes: Attributes, *, packed: bool) -> tuple[int, int]:
    """Tokens and head size."""
    heads, kv_heads = attributes.num_heads, attributes.kv_num_heads
    parts = heads + 2 * kv_heads if packed else heads
    if inputs.query.ndim != 2 or inputs.query.shape[1] % parts or not inputs.query.shape[1]:
        right = f"it must be [tokens, a multiple of {parts} heads]"
        raise LengthError("shape of query", inputs.query.shape, None, None, right)
    tokens, head_size = inputs.query.shape[0], inputs.query.shape[1] // parts
    if head_size % 8:
        raise LengthError("head_size", head_size, 8, None, "a multiple of 8")
    for name in ("key", "value"):
        array = getattr(inputs, name)
        if array is not None:
            _check_type(name, array, inputs.query.dtype.name)
            _check_shape(name, array, (tokens, kv_heads * head_size))
    return tokens, head_size


def _check_caches(
    inputs: Inputs, attributes: Attributes, head_size: int, kv_dtype: str | None
) -> tuple[int, int]:
    """Pages and page size."""
    width = (head_size + 1) // 2 if kv_dtype == "int4" else head_size
    if inputs.key_cache.ndim != 4:
        right = "it must be [pages, page_size, kv_num_heads, head_size]"
        raise LengthError("shape of key_cache", inputs.key_cache.shape, None, None, right)
    pages, page_size = inputs.key_cache.shape[:2]
    if page_size < 16 or page_size & (page_size - 1):
        raise LengthError("page_size of key_cache", page_size, 16, None, "a power of two")
    for name in ("key_cache", "value_cache"):
        cache = getattr(inputs, name)
        if cache is None:
            continue
        _check_type(name, cache, inputs.key_cache.dtype.name)
        _check_shape(name, cache, (pages, page_size, attributes.kv_num_heads, width))
        if not cache.flags.c_contiguous or not cache.flags.writeable:
            raise PlanError(name, f"of strides {cache.strides}", "a contiguous, writeable array")
    if inputs.value_cache is not None and np.may_share_memory(inputs.key_cache, inputs.value_cache):
        raise PlanError("value_cache", "of key_cache's memory", "keys would be lost: its own")
    return pages, page_size


def _v_head_size(attributes: Attributes, head_size: int, page_size: int) -> int:
    size = check_int("v_head_size", attributes.v_head_size, 0, head_size) or head_size
    if attributes.kv_cache_layout == "LATENT":
        offset, heads = attributes.rotary_offset, attributes.kv_num_heads
        LatentGeometry(head_size, 0, size, offset, page_size, heads).validate()
        if (attributes.v_quant_type, attributes.v_cache_dtype) != ("NONE", ""):
            raise PlanError("v_quant_type", attributes.v_quant_type, "LATENT has no value cache")
        if size != head_size and not attributes.scale:
            right = f"a number, as values of {size} hide the size of the heads before absorption"
            raise PlanError("scale", attributes.scale, right)
    elif size != head_size:
        raise LengthError("v_head_size", size, 0, 0, "values are as wide as keys in SEPARATE")
    return size


def _check_lengths(inputs: Inputs, tokens: int, pages: int, page_size: int) -> None:
    starts, past, table = (
        inputs.cumulative_sequence_length,
        inputs.past_seqlens,
        inputs.block_table,
    )
    for name in ("cumulative_sequence_length", "past_seqlens", "block_table", "slot_mapping"):
        if getattr(inputs, name) is not None:
            _check_type(name, getattr(inputs, name), "int32")
    if starts.ndim != 1 or starts.size < 2:
        right = "it must be [sequences + 1]"
        raise LengthError("shape of cumulative_sequence_length", starts.shape, None, None, right)
    rows = starts.size - 1
    _check_shape("past_seqlens", past, (rows,))
    if table.ndim != 2 or table.shape[0] != rows:
        right = f"it must be [{rows}, pages a sequence may have]"
        raise LengthError("shape of block_table", table.shape, None, None, right)
    if starts[0] != 0 or starts[-1] != tokens or (np.diff(starts) < 0).any():
        right = f"it must rise from 0 to the {tokens} tokens of query and never fall"
        raise LengthError("cumulative_sequence_length", starts.tolist(), None, None, right)
    _check_entries("past_seqlens", past, 0, table.shape[1] * page_size)
    _check_entries("block_table", table, -1, pages - 1)
    context = past.astype(np.int64) + np.diff(starts)
    _check_entries("past_seqlens + new tokens", context, 0, table.shape[1] * page_size)
    if inputs.slot_mapping is not None:
        _check_shape("slot_mapping", inputs.slot_mapping, (tokens,))
        _check_entries("slot_mapping", inputs.slot_mapping, -1, pages * page_size - 1)
    if inputs.attention_metadata is not None:
        _check_type("attention_metadata", inputs.attention_metadata, "int32")
        if inputs.attention_metadata.shape not in ((2,), (3,)):
            shape = inputs.attention_metadata.shape
            raise LengthError(
                "shape of attention_metadata", shape, None, None, "it must be [2] or [3]"
            )
        _check_entries("attention_metadata", inputs.attention_metadata, 0, None)


def _check_rotary(inputs: Inputs, attributes: Attributes, head_size: int) -> None:
    cos, sin = inputs.cos_cache, inputs.sin_cache
    if attributes.rotary_offset % 8:
        raise LengthError("rotary_offset", attributes.rotary_offset, 0, None, "a multiple of 8")
    if cos is None or sin is None:
        if attributes.do_rotary:
            raise PlanError("cos_cache", None, "do_rotary needs cos_cache and sin_cache")
        return
    if head_size % 16 and attributes.kv_cache_layout == "SEPARATE":  # a latent row: of 8
        raise LengthError("head_size", head_size, 16, None, "a multiple of 16 with cos_cache")
    for name, table in (("cos_cache", cos), ("sin_cache", sin)):
        _check_type(name, table, inputs.query.dtype.name)
        fits = table.ndim == 2 and table.shape[1] % 8 == 0 and table.shape == cos.shape
        room = head_size - attributes.rotary_offset
        if not fits or not 0 < 2 * table.shape[1] <= room:
            right = f"it must be [positions, a multiple of 8, at most {room // 2}], both alike"
            raise LengthError(f"shape of {name}", table.shape, None, None, right)
    if attributes.do_rotary:
        longest = inputs.past_seqlens + np.diff(inputs.cumulative_sequence_length)
        _check_entries("past_seqlens + new tokens", longest, 0, cos.shape[0])


def _check_vectors(inputs: Inputs, attributes: Attributes, head_size: int) -> None:
    vectors = {
        "head_sink": attributes.num_heads,
        "q_norm_weight": head_size,
        "k_norm_weight": head_size,
    }
    for name, size in vectors.items():
        vector = getattr(inputs, name)
        if vector is not None:
            _check_type(name, vector, inputs.query.dtype.name)
            _check_shape(name, vector, (size,))
            as_reals(name, vector, finite=True)


def _check_scale(
    side: str, scale: Array | None, attributes: Attributes, head_size: int, kv_dtype: str | None
) -> None:
    quant_type = getattr(attributes, f"{side}_quant_type")
    if (quant_type == "NONE") != (scale is None):
        right = f"given exactly if {side}_quant_type is not NONE; it is {quant_type}"
        raise PlanError(f"{side}_scale", None if scale is None else "given", right)
    if scale is None or kv_dtype is None:
        return
    _check_type(f"{side}_scale", scale, "float32")
    channels = (attributes.kv_num_heads, 1, head_size)
    _check_shape(f"{side}_scale", scale, (1,) if quant_type == "PER_TENSOR" else channels)
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise PlanError(f"{side}_scale", scale.tolist(), "each must be a finite number above 0")


def _check_type(name: str, array: Array, *wanted: str) -> None:
    if array.dtype.name not in wanted:
        raise PlanError(f"dtype of {name}", array.dtype.name, f"it must be {' or '.join(wanted)}")


def _check_shape(name: str, array: Array, wanted: tuple[int, ...]) -> None:
    if array.shape != wanted:
        raise LengthError(f"shape of {name}", array.shape, None, None, f"it must be {wanted}")


def _check_entries(name: str, entries: Array, low: int, high: int | None) -> None:
    """Refuse the first entry outside ``low..high``."""
    wrong = entries < low if high is None else (entries < low) | (entries > high)
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        where = f"{name}[{', '.join(map(str, at))}]"
        raise LengthError(where, int(entries[at]), low, high)
