"""Steps of backends that take torch tensors: what all of them check, and what some share."""

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import torch

from octavo.attention.base import LayerCall, PreparedStep
from octavo.attention.parameters import Parameters
from octavo.attention.sizes import LayerArrays
from octavo.cache.step import Step
from octavo.errors import PlanError, StepError
from octavo.model.dtypes import dtype

Tensors = LayerArrays[torch.Tensor]
TensorCall = LayerCall[torch.Tensor]

STORED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}
"""What the element types of quantised caches are in torch; int4 is two to a byte, low half first,
each with 8 added."""


class TensorStep(PreparedStep[torch.Tensor]):
    """A step prepared for a backend of torch.

    Attributes:
        in_place: whether the kernel reads by address, elements of the last axis being neighbours.
        has_backward: whether autograd may follow a call.
        device: where the keys and values are.
    """

    in_place: ClassVar[bool] = True
    has_backward: ClassVar[bool] = True

    def __init__(
        self,
        step: Step,
        *,
        page_size: int,
        group: str | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(step, page_size=page_size, group=group)
        self.device = torch.device(device or (*self.backend.devices, "cpu")[0])
        self._make()

    def _make(self) -> None:
        """What the backend makes of the rows, once per step."""

    def again(self, call: TensorCall, out: torch.Tensor) -> Callable[[Any], None]:
        """What computes ``call`` in a step of as many tokens.

        Args:
            call: one that `check` made for this step, without the lse; its arrays may change.
            out: [T, H, v_dim], contiguous; what is written to.

        Returns:
            A function of a step prepared by the same backend. For one thread at a time.
        """

        def run(step: "TensorStep") -> None:
            out.copy_(step.attend(call)[0])

        return run

    @classmethod
    def _check_arrays(cls, arrays: Tensors, parameters: Parameters) -> None:
        given = {"query": arrays.query, "key_cache": arrays.keys}
        if arrays.values is not None:
            given["value_cache"] = arrays.values
        for name, tensor in given.items():
            cls._check_tensor(name, tensor, arrays.query)
        if parameters.sink_logits is not None:
            cls._check_tensor("sink_logits", parameters.sink_logits, arrays.query)
        cls._check_dtypes(given, parameters.kv_dtype)
        if cls.in_place:
            for name, tensor in given.items():
                _check_plain(name, tensor)

    @classmethod
    def _check_tensor(cls, name: str, tensor: object, query: torch.Tensor) -> None:
        """Refuse what is no tensor, is elsewhere, or what autograd would follow in vain."""
        if not isinstance(tensor, torch.Tensor):
            raise PlanError(name, type(tensor).__name__, "it must be a torch.Tensor")
        if tensor.device != query.device:
            right = f"the query's is {query.device}"
            raise PlanError(f"device of {name}", str(tensor.device), right)
        if not cls.has_backward and tensor.requires_grad and torch.is_grad_enabled():
            right = f"the {cls.backend.name} backend has no backward; run under torch.no_grad()"
            raise StepError(f"{name} requires a gradient; {right}")

    @classmethod
    def _check_dtypes(cls, given: dict[str, torch.Tensor], kv_dtype: str | None) -> None:
        query, allowed = given["query"].dtype, _dtypes(cls.backend.dtypes)
        if query not in allowed if allowed else not query.is_floating_point:
            right = f"one of {', '.join(map(str, allowed))}" if allowed else "a type of floats"
            raise PlanError("dtype of query", str(query), right)
        wanted, right = query, f"the query's is {query}"
        if kv_dtype is not None:
            wanted = STORED[kv_dtype]
            right = f"a cache of kv_dtype {kv_dtype} holds {wanted}"
        for name in ("key_cache", "value_cache"):
            if name in given and given[name].dtype != wanted:
                raise PlanError(f"dtype of {name}", str(given[name].dtype), right)

    def _computed_in(self, query: torch.Tensor) -> str:
        return "float64" if query.dtype == torch.float64 else "float32"


@cache
def _dtypes(names: tuple[str, ...]) -> tuple[torch.dtype, ...]:
    """torch's element types of octavo's names."""
    return tuple(getattr(torch, dtype(name).torch_name) for name in names)


def _check_plain(name: str, tensor: torch.Tensor) -> None:
    """Refuse what a kernel that is given an address and strides would misread. O(1)."""
    if tensor.layout != torch.strided or tensor.is_neg():
        found = "a negated view" if tensor.is_neg() else str(tensor.layout)
        raise PlanError(f"layout of {name}", found, "it must be a plain tensor: see resolve_neg()")
    if tensor.ndim and tensor.shape[-1] > 1 and tensor.numel() and tensor.stride(-1) != 1:
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


def no_cuda() -> str | None:
    """Why kernels for CUDA do not run here, or None: they do."""
    return None if torch.cuda.is_available() else "there is no CUDA device"
