"""Scans of Mamba, where those of transformers are others in chunks than whole.

Mamba 1's scan begins without a state, whatever the cache holds. The recurrence is linear, so what a
state adds to every output is its share that has not decayed. Two of Mamba 2's mixers keep their
steps in time above a least one where they compute several tokens, and not where they compute one:
`generate` so computes prompts with it and answers without. Knows the code of six families' mixers;
no pages and no steps.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import unwrap
from types import FunctionType
from typing import Any, cast

import torch
from torch.nn.functional import silu, softplus

_SCAN = "mamba_selective_scan"
"""The function of the mixer's own file that begins without a state."""
_SCAN_2, _STEP_2 = "mamba2_chunk_scan", "mamba2_selective_state_update"
"""Those of Mamba 2's: over several tokens, and over one."""
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
    states = iter(state.unbind(1) if state.ndim == 4 else [state])  # Zamba scans by heads
    return _with(mixer, {_SCAN: partial(_scan_on, states)})(hidden_states, **kwargs)


def bounding_prompts(_layer: int, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A mixer's own forward [n, t, width] that bounds the steps in time of prompts alone.

    Args:
        own: the mixer's forward, bound to it.
        args, kwargs: as the mixer takes them; its cache says which tokens are of prompts.

    Cost: as the mixer's own.
    """
    mixer: Any = own.__self__  # type: ignore[attr-defined]
    prompt = torch.from_numpy(kwargs["cache"].prompt).to(mixer.dt_bias.device)
    least = (mixer.time_step_limit[0] * prompt)[..., None]
    names = {_SCAN_2: partial(_bounded, least, 1), _STEP_2: partial(_bounded, least, 2)}
    return _with(mixer, names)(*args, **kwargs)


def _with(mixer: Any, ours: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """A mixer's own forward with functions of its file wrapped; the file stays as it is."""
    code = cast("FunctionType", unwrap(type(mixer).forward))
    file = code.__globals__
    names = file | {name: partial(ours[name], file[name]) for name in ours}
    forward = FunctionType(code.__code__, names, code.__name__, code.__defaults__, code.__closure__)
    return partial(forward, mixer)


def _bounded(
    least: torch.Tensor,
    at: int,
    own: Callable[..., Any],
    *args: Any,
    dt_bias: torch.Tensor,
    dt_limit: object = None,
    **rest: Any,
) -> Any:
    """Mamba 2's scan or step, argument ``at`` (steps in time) at least ``least`` [n, t, 1]."""
    del dt_limit  # the mixer's own bound, of all tokens
    dt = softplus(args[at] + dt_bias.to(args[at].dtype)).maximum(least.to(args[at].dtype))
    return own(*args[:at], dt, *args[at + 1 :], **rest | {"dt_softplus": False})


def _scan_on(
    states: Iterator[torch.Tensor],
    own: Callable[..., Any],
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
