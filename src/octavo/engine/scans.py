"""Mamba 1's scan from a state: transformers' own begins without one, whatever the cache holds.

The recurrence is linear, so what a state adds to every output is its share that has not decayed.
Knows the code of four families' mixers; no pages and no steps.
"""

from collections.abc import Callable, Iterator
from functools import partial
from inspect import unwrap
from types import FunctionType
from typing import Any, cast

import torch
from torch.nn.functional import silu, softplus

_SCAN = "mamba_selective_scan"
"""The function of the mixer's own file that begins without a state."""
_BLOCK = 64
"""Tokens whose decays are held at once."""


def scanning_on(
    _layer: int, own: Callable[..., Any], hidden_states: torch.Tensor, **kwargs: Any
) -> Any:
    """A mixer's own forward of several tokens [n, t, width], on the state that its cache has.

    Args:
        own: the mixer's forward, bound to it.
        hidden_states: as the mixer takes them.
        kwargs: its cache among them.

    Cost: as the mixer's own, and O(n t width d) for what a state of d per channel adds.
    """
    mixer: Any = own.__self__  # type: ignore[attr-defined]
    state = kwargs["cache"].get_recurrent_state(mixer.layer_idx)
    if state is None or hidden_states.shape[1] == 1:
        return own(hidden_states, **kwargs)
    code = cast("FunctionType", unwrap(type(mixer).forward))
    states = iter(state.unbind(1) if state.ndim == 4 else [state])  # Zamba scans by heads
    scan = partial(_scan_on, code.__globals__[_SCAN], states)
    names = code.__globals__ | {_SCAN: scan}  # the file's own stay as they are
    forward = FunctionType(code.__code__, names, code.__name__, code.__defaults__, code.__closure__)
    return forward(mixer, hidden_states, **kwargs)


def _scan_on(
    own: Callable[..., Any],
    states: Iterator[torch.Tensor],
    hidden: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,  # noqa: N803, as the mixers' papers and code name them
    B: torch.Tensor,  # noqa: N803
    C: torch.Tensor,  # noqa: N803
    *,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    **rest: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scan's outputs [n, width, t] and last state [n, width, d], from a state on.

    ``dt`` is [n, width, t], ``A`` [width, d], ``B`` and ``C`` [n, d, t].
    """
    options = {"z": z, "delta_bias": delta_bias, "delta_softplus": delta_softplus}
    found, last = own(hidden, dt, A, B, C, **options, **rest)
    state = next(states)
    if delta_bias is not None:
        dt = dt + delta_bias.to(dt.dtype)[..., None]
    gone = (softplus(dt) if delta_softplus else dt).cumsum(-1)
    more = torch.empty_like(found)
    for start in range(0, gone.shape[-1], _BLOCK):
        at = slice(start, start + _BLOCK)
        left = torch.exp(A[:, None] * gone[:, :, at, None]) * state[:, :, None]
        more[..., at] = torch.einsum("nwtd,ndt->nwt", left, C[..., at].to(left.dtype))
    kept = torch.exp(A * gone[..., -1:]) * state
    return found + (more if z is None else more * silu(z)), last + kept.to(last.dtype)
