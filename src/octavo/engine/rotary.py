"""Rotary codes, which attention modules apply by a function of their own source, by one C kernel.

A module's ``forward`` is given anew with other globals, so that this one name leads to the kernel:
the module's code and decorators are the same, and no other module or thread sees a difference. The
function is taken only where it was seen to turn halves as the kernel does.
"""

from collections.abc import Callable
from functools import cache, partial
from inspect import unwrap
from types import CellType, FunctionType
from typing import Any

import torch

from octavo.engine.elementwise import is_same, kernel, launch, reads

_NAME = "apply_rotary_pos_emb"
_TRIALS = ((2, 1, 8, 8), (3, 3, 16, 16))  # query heads, key heads, elements, turned ones
_TOKENS = 3

Turned = tuple[torch.Tensor, torch.Tensor]
Apply = Callable[..., Turned]


def turning(module: Any) -> Callable[..., Any] | None:
    """A module's own ``forward`` that turns queries and keys by the kernel; None: it turns none so.

    Cost: O(1), and a trial of each function of transformers once.
    """
    forward = type(module).forward
    inner = unwrap(forward)
    if not isinstance(inner, FunctionType) or _NAME not in inner.__code__.co_names:
        return None
    apply = inner.__globals__.get(_NAME)
    if not isinstance(apply, FunctionType) or not _agrees(apply):
        return None
    ours = partial(_apply, apply, kernel("octavo_turn"))
    found = _with_globals(forward, inner, inner.__globals__ | {_NAME: ours})
    return None if found is None else partial(found, module)


def _with_globals(function: Any, inner: FunctionType, names: dict[str, Any]) -> FunctionType | None:
    """``inner`` with other globals, in the decorators of ``function``; None: not so simple."""
    if function is inner:
        return _copied(inner, names, inner.__closure__)
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is None or not isinstance(function, FunctionType):
        return None
    within = _with_globals(wrapped, inner, names)
    cells = function.__closure__ or ()
    if within is None or sum(cell.cell_contents is wrapped for cell in cells) != 1:
        return None
    others = (CellType(within) if cell.cell_contents is wrapped else cell for cell in cells)
    return _copied(function, function.__globals__, tuple(others))


def _copied(
    function: FunctionType, names: dict[str, Any], cells: tuple[CellType, ...] | None
) -> FunctionType:
    """A function of the same code with other globals and cells."""
    found = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    found.__kwdefaults__ = function.__kwdefaults__
    return found


def _apply(
    own: Apply,
    run: Any,
    q: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> Turned:
    """Queries and keys [1, heads, T, dim] turned by cos and sin [1, T, turned]; others by torch."""
    if kwargs or len(args) != 3 or not _takes(q, *args):
        return own(q, *args, **kwargs)
    k, cos, sin = args
    (_, q_heads, tokens, width), k_heads = q.shape, k.shape[1]
    _, q_head, q_token, _ = q.stride()
    _, k_head, k_token, _ = k.stride()
    q_out = q.new_empty(1, tokens, q_heads, width)
    k_out = q.new_empty(1, tokens, k_heads, width)
    launch(
        run,
        (
            *(q, q_out, q_heads, q_token, q_head),
            *(k, k_out, k_heads, k_token, k_head),
            *(cos, sin, tokens, width, cos.shape[2]),
            *(q.dtype == torch.bfloat16, torch.get_num_threads()),
        ),
    )
    return q_out.transpose(1, 2), k_out.transpose(1, 2)


def _takes(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether the kernel reads these."""
    shape, codes = q.shape, cos.shape
    return (
        reads(q)
        and q.dtype == k.dtype == cos.dtype == sin.dtype
        and len(shape) == 4
        and codes == sin.shape
        and codes[:-1] == (1, shape[2])
        and k.shape == (1, k.shape[1], *shape[2:])
        and shape[0] == 1
        and codes[2] <= shape[3]
        and q.stride(3) == k.stride(3) == 1
        and cos.is_contiguous()
        and sin.is_contiguous()
    )


@cache
def _agrees(apply: Apply) -> bool:
    """Whether a function of transformers turns as the kernel does; where there is one."""
    run = kernel("octavo_turn")
    if run is None:
        return False
    seeded = torch.Generator().manual_seed(1)

    def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(*shape, generator=seeded).to(dtype)

    with torch.inference_mode():
        for heads, of_keys, width, turned in _TRIALS:
            for dtype in (torch.float32, torch.bfloat16):
                q = random(1, heads, _TOKENS, width, dtype=dtype)
                k = random(1, of_keys, _TOKENS, width, dtype=dtype)
                cos, sin = (random(1, _TOKENS, turned, dtype=dtype) for _ in range(2))
                try:
                    expected = apply(q, k, cos, sin)
                except Exception:  # noqa: BLE001, it takes something else
                    return False
                found = _apply(apply, run, q, k, cos, sin)
                if len(expected) != 2 or not all(map(is_same, found, expected)):
                    return False
    return True
