"""One rank's share of a model: heads by tensor parallelism, layers by pipeline stages.

Key/value heads are divided where there are enough and replicated where there are fewer than ranks;
a latent, a row of several tokens and an indexer's key are replicated, never divided. Knows specs
and numbers.
"""

from dataclasses import replace
from itertools import pairwise

from octavo.errors import PlanError
from octavo.model.layers import Attention, Compressed, Latent, Layer, LayerKind, Shared, State
from octavo.model.spec import ModelSpec


def shard(spec: ModelSpec, tp: int) -> ModelSpec:
    """What one of ``tp`` ranks keeps of every layer. O(layers).

    Raises:
        PlanError: heads or states that do not divide.
    """
    if tp == 1:
        return spec
    return replace(
        spec,
        layers=_sharded(spec.layers, tp),
        mtp=_sharded(spec.mtp, tp),
        depth=None if spec.depth is None else shard(spec.depth, tp),
    )


def _sharded(layers: tuple[Layer, ...], tp: int) -> tuple[Layer, ...]:
    return tuple(
        tuple(_share(kind, tp) for kind in item) if isinstance(item, tuple) else _share(item, tp)
        for item in layers
    )


def _share(kind: LayerKind, tp: int) -> LayerKind:
    if isinstance(kind, Attention | Latent):
        return _share_tokens(kind, tp)
    if isinstance(kind, Shared):
        return kind if kind.kind is None else Shared(kind.layer, _share_tokens(kind.kind, tp))
    if isinstance(kind, State):
        return _share_state(kind, tp)
    if isinstance(kind, Compressed):
        return kind
    return replace(kind, kv_heads=rank_heads(kind.kv_heads, tp))


def _share_tokens(kind: Attention | Latent, tp: int) -> Attention | Latent:
    if isinstance(kind, Latent):
        return kind
    return replace(kind, kv_heads=rank_heads(kind.kv_heads, tp))


def rank_heads(kv_heads: int, tp: int, what: str = "key/value heads") -> int:
    """Key/value heads of one rank: its part of them, or one that others have too. O(1).

    Raises:
        PlanError: ranks and heads of which neither divides the other.
    """
    if kv_heads % tp and tp % kv_heads:
        right = f"it must divide the {kv_heads} {what} or be a multiple of them"
        raise PlanError("tp", tp, right)
    return max(1, kv_heads // tp)


def _share_state(kind: State, tp: int) -> State:
    """A state's heads are divided; channels that heads share are where ranks do not divide them."""
    recurrent = kind.recurrent if isinstance(kind.recurrent, tuple) else (kind.recurrent,)
    recurrent = _divide(recurrent, tp)
    shared = kind.groups * kind.group_channels
    if not shared:
        return replace(kind, recurrent=recurrent, conv=_divide(kind.conv, tp))
    groups = rank_heads(kind.groups, tp, "groups of a state")
    own, *rest = _divide((kind.conv[0] - shared, *kind.conv[1:]), tp)
    conv = (own + groups * kind.group_channels, *rest)
    return replace(kind, recurrent=recurrent, conv=conv, groups=groups)


def _divide(shape: tuple[int, ...], tp: int) -> tuple[int, ...]:
    if not shape:
        return shape
    if shape[0] % tp:
        raise PlanError("tp", tp, f"it must divide the first axis of a state of shape {shape}")
    return (shape[0] // tp, *shape[1:])


def stages_of(spec: ModelSpec, pp: int) -> list[ModelSpec]:
    """The model in ``pp`` stages of consecutive layers, the first ones longer by one at most.

    Layers keep their numbers: those of other stages keep nothing. O(layers x stages).

    Raises:
        PlanError: a stage without anything to keep, or one that shares another stage's cache.
    """
    if pp == 1:
        return [spec]
    count = len(spec.layers)
    ends = [count * stage // pp for stage in range(pp + 1)]
    stages = []
    for start, stop in pairwise(ends):
        kept = tuple(
            layer if start <= number < stop else () for number, layer in enumerate(spec.layers)
        )
        _check_stage(spec, pp, start, stop)
        stages.append(replace(spec, layers=kept))
    return stages


def _check_stage(spec: ModelSpec, pp: int, start: int, stop: int) -> None:
    kinds = [kind for number, kind in spec.kinds() if start <= number < stop]
    for kind in kinds:
        if isinstance(kind, Shared) and kind.layer < start:
            right = f"a layer from {start} on shares the cache of layer {kind.layer}, another stage"
            raise PlanError("pp", pp, right)
    if not kinds:
        raise PlanError("pp", pp, f"layers {start} to {stop - 1} keep nothing")
