"""The signature that backends for torch tensors share, as a type checker sees it."""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, Unpack, cast, overload

import torch

from octavo.attention.arguments import Options
from octavo.cache.step import Step


class Attended(NamedTuple):
    """What attention gives.

    Attributes:
        out: [T, H, v_dim] in the query's dtype.
        lse: float32[T, H] (float64 for a float64 query), log of the sum of exp(score) over the keys
            a query sees, without the sink logit.
    """

    out: torch.Tensor
    lse: torch.Tensor


class Prepared(Protocol):
    """A step as a backend's ``prepare`` makes it, once for all layers.

    Attributes:
        tokens: query tokens.
        page_size: tokens a page holds.
    """

    tokens: int
    page_size: int


class PagedAttention(Protocol):
    """`paged_attention` of one backend: ``return_lse`` decides what it returns."""

    @overload
    def __call__(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor | None,
        step: Step | Prepared,
        *,
        return_lse: Literal[True],
        **options: Unpack[Options],
    ) -> Attended: ...

    @overload
    def __call__(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor | None,
        step: Step | Prepared,
        *,
        return_lse: Literal[False] = ...,
        **options: Unpack[Options],
    ) -> torch.Tensor: ...


def one_signature(function: Callable[..., torch.Tensor | Attended]) -> PagedAttention:
    """The function itself, under the shared signature."""
    return cast("PagedAttention", function)
