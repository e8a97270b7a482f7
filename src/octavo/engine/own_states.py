"""Families that keep states in a way of their own, taught to ask a cache as all others do.

MiniMax insists on a class of cache, RecurrentGemma's blocks hold their states, RWKV and xLSTM hand
theirs from block to block, Mamba 1's mixers forget them where several tokens follow, and two of
Mamba 2's compute prompts otherwise than answers. Each function here runs a block's own forward on
the states of some rows. Knows these families' code; no pages and no steps.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import torch

from octavo.engine.scans import bounding_prompts, scanning_on

Forward = Callable[..., Any]
C = TypeVar("C", bound=type[Any])


def cache_class(model: Any, base: C) -> C:
    """``base``, as the model takes it for its cache. O(1)."""
    family = model.config.model_type
    if family == "minimax":
        own = import_module(type(model).__module__).MiniMaxCache
        return type(base.__name__, (base, own), {"__len__": lambda _: 0})  # type: ignore[return-value]
    if family == "xlstm":  # its blocks are handed what stands here, and it counts tokens
        handed = {"rnn_state": property(lambda cache: defaultdict(lambda: cache))}
        return type(base.__name__, (base,), handed | {"seqlen_offset": 0})  # type: ignore[return-value]
    return base


def cache_name(model: Any) -> str:
    """The keyword by which a model hands on what its blocks take for a cache. O(1)."""
    return "state" if model.config.model_type == "rwkv" else "cache"


def asking(name: str, module: Any) -> Callable[[Forward], Forward] | None:
    """How a module's own forward is made one that asks a cache; None: it has no way of its own.

    Args:
        name: of the module in its model, where its layer stands.
        module: any.
    """
    run = _RUNS.get(type(module).__name__)
    layer = re.search(r"\.(\d+)(\.|$)", name)
    return None if run is None or layer is None else partial(_asking, run, int(layer[1]))


def _asking(run: Forward, layer: int, own: Forward) -> Forward:
    return partial(run, layer, own)


def _recurrent_gemma(
    layer: int, own: Forward, hidden: torch.Tensor, *args: Any, cache: Any, **kwargs: Any
) -> Any:
    """The block has its states in two attributes."""
    block: Any = own.__self__  # type: ignore[attr-defined]
    conv, sums = cache.get_conv_state(layer), cache.get_recurrent_state(layer)
    if conv is None:  # the block would begin as wide as the model, not as its recurrence
        shape = len(hidden), block.lru_width
        conv = hidden.new_zeros(*shape, block.conv1d_width - 1)
        sums = hidden.new_zeros(shape, dtype=torch.float32)
    try:
        block.conv1d_state, block.rg_lru.recurrent_states = conv, sums
        found = own(hidden, *args, cache=cache, **kwargs)
        cache.update_conv_state(block.conv1d_state, layer)
        cache.update_recurrent_state(block.rg_lru.recurrent_states, layer)
    finally:
        block.conv1d_state = block.rg_lru.recurrent_states = None
    return found


def _rwkv(layer: int, own: Forward, hidden: torch.Tensor, state: Any, **kwargs: Any) -> Any:
    """The block takes five tensors [n, width, layers]: both last inputs, and those of the sum."""
    shape = len(hidden), hidden.shape[-1]
    inputs, sums = state.get_conv_state(layer), state.get_recurrent_state(layer)
    if inputs is None:
        inputs = hidden.new_zeros(shape[0], 2 * shape[1], 1)
        sums = hidden.new_zeros(*shape, 3, dtype=torch.float32)
        sums[..., 2] = -1e30  # as transformers begins
    # one new token's last inputs are [n, 1, width]: of [n, width] transformers makes [n, n, width]
    one = hidden.shape[1] == 1
    handed = [OneLayer(tensor[..., 0], spread=one) for tensor in inputs.chunk(2, dim=1)]
    handed += [OneLayer(sums[..., at], spread=False) for at in range(3)]
    found, _, weights = own(hidden, state=handed, **kwargs)
    given = [layer_state.tensor for layer_state in handed]
    state.update_conv_state(torch.cat(given[:2], dim=1)[..., None], layer)
    state.update_recurrent_state(torch.stack(given[2:], dim=-1), layer)
    return found, state, weights


def _xlstm(layer: int, own: Forward, hidden: torch.Tensor, state: Any) -> Any:
    """The block takes a matrix, a vector and a number of each head."""
    config: Any = own.__self__.config  # type: ignore[attr-defined]
    heads, keys, values = config.num_heads, config.qk_head_dim, config.v_head_dim
    kept = state.get_recurrent_state(layer)
    if kept is None:
        kept = hidden.new_zeros(len(hidden), heads, keys * values + keys + 1)
    matrix, vector, number = kept.split([keys * values, keys, 1], dim=-1)
    found, given = own(hidden, (matrix.unflatten(-1, (keys, values)), vector, number))
    state.update_recurrent_state(torch.cat([given[0].flatten(-2), *given[1:]], dim=-1), layer)
    return found, state


class OneLayer:
    """A tensor [n, width] where RWKV takes one of [n, width, layers]: every layer is this one.

    Args:
        tensor: of one layer.
        spread: whether it is read as [n, 1, width].
    """

    def __init__(self, tensor: torch.Tensor, *, spread: bool) -> None:
        self.tensor, self._spread = tensor, spread

    def __getitem__(self, _at: object) -> torch.Tensor:
        return self.tensor[:, None] if self._spread else self.tensor

    def __setitem__(self, _at: object, value: torch.Tensor) -> None:
        self.tensor = value


_RUNS: dict[str, Forward] = {
    "RecurrentGemmaRecurrentBlock": _recurrent_gemma,
    "RwkvBlock": _rwkv,
    "xLSTMBlock": _xlstm,
    **dict.fromkeys(
        ("MambaMixer", "FalconMambaMixer", "JambaMambaMixer", "ZambaMambaMixer"), scanning_on
    ),
    **dict.fromkeys(("NemotronHMamba2Mixer", "Zamba2MambaMixer"), bounding_prompts),
}
