"""What a transformers model asks of a cache: its spec, a plan for it, and what cannot be served.

Knows configs and plans; no tensors and no sequences.
"""

from inspect import signature
from typing import Any

import octavo
from octavo.checks import check_int
from octavo.errors import PlanError, UnsupportedModel
from octavo.model.spec import Attention, Latent, ModelSpec, Shared, State
from octavo.planner.plan import Plan

FORGETFUL = ("mamba", "falcon_mamba", "jamba", "zamba", "recurrent_gemma")
"""Families of which several tokens on a used cache start again from no state in transformers."""
KEEPING = ("recurrent_gemma",)
"""Families whose modules keep states themselves, whatever the cache."""


BY_ROWS = {
    "diffllama": "each layer attends twice, to halves of its values",
    "doge": "its layers make masks of what they compute",
    "git": "its code picks attention by itself",
    **dict.fromkeys(
        ("inkling_text", "inkling2_text", "inkling2_loop_text"),
        "its scores have a bias by distance",
    ),
    "jetmoe": "each expert of a layer attends to the same keys",
}
"""Families whose code uses the attention interface, but not as octavo's attention serves it."""


REFUSED = {
    "csm_depth_decoder_model": "its positions are the codebooks of one frame, one for all rows",
    "cpmant": "it puts tokens of its own before every prompt",
    "prophetnet": "its code computes no part of a prompt behind another",
}
"""Families that no engine can cut into chunks, or run beside others."""


COUNTING = ("kosmos_2_text_model", "kosmos_2_5_text_model")
"""Families that count positions from elsewhere than 0: by themselves, as generate() has them do."""


def taken_by(model: Any) -> frozenset[str]:
    """What a model's forward takes of what generate() gives it. O(parameters)."""
    taken = frozenset(signature(model.forward).parameters)
    name = model.config.get_text_config(decoder=True).model_type
    return taken - {"position_ids"} if name in COUNTING else taken


def why_by_rows(model: Any, spec: ModelSpec) -> str | None:
    """Why a model runs one sequence at a time, by its own attention; None: all run together.

    O(modules).
    """
    kinds = [kind for _, kind in spec.kinds()]
    if not any(isinstance(kind, Attention | Latent) for kind in kinds):
        return None
    causal = [getattr(module, "is_causal", True) for module in model.get_decoder().modules()]
    reasons = {
        "its code does not use transformers' attention interface": not takes_attention(model),
        "an indexer chooses among the keys of one sequence": any(
            getattr(kind, "indexer", 0) for kind in kinds
        ),
        "its layers attend by chunks": any(getattr(kind, "chunk", None) for kind in kinds),
        "its positions follow from the length of its cache": "position_ids" not in taken_by(model),
        "its attention is causal by a mask alone": not all(causal),
    }
    name = model.config.get_text_config(decoder=True).model_type
    return next((why for why, is_so in reasons.items() if is_so), BY_ROWS.get(name))


def takes_attention(model: Any) -> bool:
    """Whether the model's code uses transformers' attention interface. O(1)."""
    return bool(type(model)._can_set_attn_implementation())


def spec_of(model: Any) -> ModelSpec:
    """What the layers of a decoder of transformers keep. O(layers).

    Raises:
        UnknownArchitecture: octavo cannot read the model's config.
        UnsupportedModel: it is no such decoder.
    """
    if not hasattr(getattr(model, "config", None), "get_text_config"):
        raise UnsupportedModel("model", "it must be a causal language model of transformers")
    return ModelSpec.from_config(model.config)


def read_model(model: Any) -> ModelSpec:
    """The same of a model that the drop-in has pages for. O(layers).

    Raises:
        UnknownArchitecture, UnsupportedModel: as `spec_of`, or it keeps the keys of an indexer,
            cross attention, or nothing of a token.
    """
    spec = spec_of(model)
    for _, kind in spec.kinds():
        if isinstance(kind, Attention | Latent) and kind.indexer:
            raise UnsupportedModel(spec.name, "the keys of its indexer have no pages here")
        if isinstance(kind, State) and (kind.rows or kind.buffer):
            raise UnsupportedModel(spec.name, "rows of several tokens have no pages here")
        if not isinstance(kind, Attention | Latent | State | Shared):
            raise UnsupportedModel(
                spec.name, f"its {type(kind).__name__} layers have no pages here"
            )
    if not any(isinstance(kind, Attention | Latent) for _, kind in spec.kinds()):
        raise UnsupportedModel(spec.name, "no layer keeps tokens, so there is nothing to page")
    return spec


def plan_for(
    model: Any, memory: int | str | None, tokens: int | None = None, **options: Any
) -> Plan:
    """A plan of ``memory`` for ``model``, head-major and in the model's own dtype.

    Args:
        memory: bytes, or text such as ``"1GiB"``; None: what ``tokens`` take.
        tokens: of one sequence that must fit; None: as many as ``memory`` takes.
        options: others of `octavo.plan`.

    Raises:
        PlanError: an option is out of range. BudgetTooSmall: not even one sequence fits.
        UnknownArchitecture, UnsupportedModel: see `read_model`.
    """
    for name in options.keys() & {"dtype", "order"}:
        raise PlanError(name, options[name], "leave it out: it follows from the model")
    if (memory is None) == (tokens is None):
        raise PlanError("memory", memory, "give memory or tokens, one of them")
    spec, dtype = read_model(model), str(model.dtype).removeprefix("torch.")
    options |= {"dtype": dtype, "order": "head"}
    if memory is None:
        memory = _memory_of(spec, tokens, **options)
    return octavo.plan(spec, memory, **options)


def _memory_of(
    spec: ModelSpec,
    tokens: object,
    *,
    page_size: int,
    max_length: int | None = None,
    **options: Any,
) -> int:
    """Bytes for so many tokens, and a page at least, in sequences as long as they may be."""
    wanted = max(check_int("tokens", tokens, 1), check_int("page_size", page_size, 1))
    length = min(wanted, max_length or spec.max_length or wanted)
    many, options = -(-wanted // length), options | {"page_size": page_size}
    return octavo.memory_for(spec, sequences=many, length=length, **options)


def forgets(model: Any) -> bool:
    """Whether a chunk that follows on a cached prefix is computed without its state. O(1)."""
    return model.config.get_text_config(decoder=True).model_type in FORGETFUL


def keeps_states(model: Any) -> bool:
    """Whether states are the model's and not the cache's, so that rows cannot go on. O(1)."""
    return model.config.get_text_config(decoder=True).model_type in KEEPING


def shares(model: Any, plan: Plan) -> bool:
    """Whether keys follow from the ids before them. O(modules).

    Not where speech models read frames of several ids, where position codes change with the length
    of what is computed beside them, nor where tokens see those behind them.
    """
    config = model.config.get_text_config(decoder=True)
    bound = length_bound_rope(config, plan.max_length or plan.tokens)
    modules = model.get_decoder().modules()
    causal = all(getattr(module, "is_causal", True) is not False for module in modules)
    return plan.spec is not None and plan.spec.depth is None and bound is None and causal


def length_bound_rope(config: Any, longest: int) -> str | None:
    """Why position codes of rows up to ``longest`` tokens depend on the longest of a pass, or None.

    Such codes would make a row's result depend on others. O(kinds of layers).
    """
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = rope.values() if all(isinstance(v, dict) for v in rope.values()) else (rope,)
    for kind in kinds:
        native = kind.get("original_max_position_embeddings")
        if kind.get("rope_type") not in ("dynamic", "longrope"):
            continue
        if "long_factor" in kind and kind["long_factor"] == kind.get("short_factor"):
            continue
        if native is None or longest > native:
            why = f"{kind['rope_type']} positions change with length beyond {native}"
            return f"{why}; plan with max_length={native} or less"
    return None
