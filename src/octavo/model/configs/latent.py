"""Families that keep one compressed row for every token (multi-head latent attention)."""

from octavo.errors import ConfigError
from octavo.model.configs.dense import full
from octavo.model.configs.fields import Fields
from octavo.model.layers import Latent, Layer


def row(fields: Fields, indexer: int = 0) -> Latent:
    """The latent and the key part that carries positions, shared by all heads.

    ``num_key_value_heads`` counts the heads after expansion, which nothing keeps.
    """
    for name in ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim"):
        fields.ignore(name)
    rope = fields.count("qk_rope_head_dim", low=0)
    return Latent(fields.count("kv_lora_rank"), rope, indexer)


def latent(fields: Fields) -> list[Layer]:
    """One latent row for every token in every layer."""
    return [row(fields)] * fields.layers


def deepseek_v2(fields: Fields) -> list[Layer]:
    """Latent rows, or keys and values where ``use_mla`` is false (small vision-language ones)."""
    return latent(fields) if fields.get("use_mla", True) else full(fields)


def longcat(fields: Fields) -> list[Layer]:
    """Every layer attends twice and keeps a row for each, so there are two where one is counted."""
    return [row(fields)] * (2 * fields.layers)


def indexed(fields: Fields) -> list[Layer]:
    """Beside the latent row, the key of an indexer that picks the tokens to attend to."""
    return [row(fields, fields.count("index_head_dim"))] * fields.layers


def glm_dsa(fields: Fields) -> list[Layer]:
    """As indexed, but layers that reuse an earlier layer's picks have no indexer."""
    with_key, without = row(fields, fields.count("index_head_dim")), row(fields)
    return [with_key if own else without for own in own_indexers(fields)]


def glm_dsa_mtp(fields: Fields, _: list[Layer]) -> tuple[Layer, ...]:
    """Prediction layers have an indexer of their own."""
    count = fields.layer_count("num_nextn_predict_layers", default=0, low=0)
    return (row(fields, fields.count("index_head_dim")),) * count


def hy_v4(fields: Fields) -> list[Layer]:
    """As GLM's, but by rule the first layer and each fourth from the second have an indexer."""
    if fields.get("indexer_types") is not None:
        return glm_dsa(fields)
    with_key, without = row(fields, fields.count("index_head_dim")), row(fields)
    return [with_key if layer == 0 or layer % 4 == 1 else without for layer in range(fields.layers)]


def own_indexers(fields: Fields) -> list[bool]:
    """Whether each layer picks by itself: ``indexer_types``, or a pattern of F and S, or a rule.

    By rule it is each ``index_topk_freq``-th layer, the first ``index_skip_topk_offset`` too.
    """
    name = "index_topk_pattern" if fields.get("indexer_types") is None else "indexer_types"
    listed = fields.get(name)
    if listed is None:
        every = fields.count("index_topk_freq", default=1, low=0) or 1
        offset = fields.count("index_skip_topk_offset", default=2, low=0)
        return [max(layer - offset + 1, 0) % every == 0 for layer in range(fields.layers)]
    if not isinstance(listed, str | list) or len(listed) != fields.layers:
        raise ConfigError(name, listed, f"it must list all {fields.layers} layers")
    if set(map(str, listed)) - {"full", "shared", "F", "S"}:
        raise ConfigError(name, listed, "each must be full or shared, or F or S")
    return [item in ("full", "F") for item in listed]
