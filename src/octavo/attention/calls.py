"""A call of a backend that hands pages to a kernel: its keywords, and what is checked beforehand.

Knows shapes, dtypes and devices; computes nothing.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.attention.arguments import Sizes, check_arguments, check_order
from octavo.attention.rows import Rows
from octavo.checks import check_int
from octavo.errors import CapacityError, PlanError, UnsupportedModel


class Asked(NamedTuple):
    """The keywords of `paged_attention` with their defaults; the oracle explains them."""

    group: str | None = None
    order: str = "token"
    scale: float | None = None
    causal: bool = True
    softcap: float | None = None
    window: int | None = None
    sink_tokens: int = 0
    sink_logits: Any = None
    v_dim: int | None = None
    key_scale: Any = None
    value_scale: Any = None
    kv_dtype: str | None = None


def page_size_of(key_cache: torch.Tensor, asked: Asked, *, latent: bool) -> int:
    """Tokens a page of ``key_cache`` holds. O(1).

    Raises:
        PlanError, LengthError: no such order, or other axes.
    """
    return key_cache.shape[check_order(key_cache, asked.order, latent=latent)]


def check_call(
    backend: str,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None,
    step: Rows,
    asked: Asked,
    *,
    dtypes: Sequence[torch.dtype],
) -> Sizes:
    """The sizes of a call whose arguments fit each other, the step and the kernel. O(1).

    Args:
        backend: its name, for messages.
        step: the rows, made for the pages' size and group.
        dtypes: element types the kernel takes.

    Raises:
        UnsupportedModel: a ``kv_dtype``.
        PlanError: a dtype, device or stride the kernel does not take, or as `check_arguments`.
        LengthError: sizes that do not fit each other or the step, a page that does not exist, or
            keys that a query sees and no page holds.
    """
    if asked.kv_dtype is not None:
        why = f"the {backend} backend reads no quantised caches"
        raise UnsupportedModel(f"kv_dtype {asked.kv_dtype}", why)
    page_size = page_size_of(key_cache, asked, latent=value_cache is None)
    check_int("page_size of key_cache", page_size, step.page_size, step.page_size, "the step's")
    options = asked._asdict()
    del options["group"]
    computed = "float64" if query.dtype == torch.float64 else "float32"
    sizes = check_arguments(
        query, key_cache, value_cache, tokens=step.tokens, dtype=computed, **options
    )
    tensors = {"query": query, "key_cache": key_cache, "value_cache": value_cache}
    for name, tensor in tensors.items():
        if tensor is not None:
            _check_readable(name, tensor, query, dtypes)
    step.require(key_cache.shape[0])
    step.require_seen(sizes.window, sizes.sink_tokens)
    return sizes


def _check_readable(
    name: str, tensor: torch.Tensor, query: torch.Tensor, dtypes: Sequence[torch.dtype]
) -> None:
    """Refuse what a kernel would misread."""
    if tensor.dtype not in dtypes:
        raise PlanError(
            f"dtype of {name}", str(tensor.dtype), f"one of {', '.join(map(str, dtypes))}"
        )
    for what in ("dtype", "device"):
        found, wanted = getattr(tensor, what), getattr(query, what)
        if found != wanted:
            raise PlanError(f"{what} of {name}", str(found), f"the query's is {wanted}")
    if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        right = "elements of the last axis must lie next to each other"
        raise PlanError(f"strides of {name}", tensor.stride(), right)


def strides(cache: torch.Tensor, order: str) -> tuple[int, int, int]:
    """Elements from a page, a head and a token to the next; a latent cache has no heads. O(1)."""
    if cache.ndim == 3:
        page, token, _ = cache.stride()
        return page, 0, token
    page, first, second, _ = cache.stride()
    return (page, first, second) if order == "head" else (page, second, first)


def with_sinks(out: torch.Tensor, lse: torch.Tensor, sink_logits: Any) -> torch.Tensor:
    """The output with a sink logit in each denominator, from the one without and its lse.

    Args:
        out: [T, H, v_dim].
        lse: [T, H].
        sink_logits: [H], or None: ``out`` is as it was.

    out * exp(lse) / (exp(lse) + exp(sink)) = out * sigmoid(lse - sink). O(T * H * v_dim).
    """
    if sink_logits is None:
        return out
    return (out * torch.sigmoid(lse - sink_logits.to(lse.dtype)).unsqueeze(-1)).to(out.dtype)


def summed(lengths: NDArray[np.int64]) -> torch.Tensor:
    """int32[n + 1], running sums of n lengths, from 0. O(n).

    Raises:
        CapacityError: the sum is beyond int32.
    """
    sums = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=sums[1:])
    if sums[-1] > 2**31 - 1:
        raise CapacityError("tokens of all rows", int(sums[-1]), 2**31 - 1, "beyond int32")
    return torch.from_numpy(sums.astype(np.int32))


def refuse(backend: str, what: str, why: str) -> NoReturn:
    """Raise UnsupportedModel: the kernel of ``backend`` lacks ``what``."""
    raise UnsupportedModel(f"{what} in the {backend} backend", why)


def no_cuda() -> str | None:
    """Why kernels for CUDA do not run here, or None: they do."""
    return None if torch.cuda.is_available() else "there is no CUDA device"
