"""Families in which every layer sees every token."""

from octavo.errors import ConfigError
from octavo.model.configs.fields import Fields, with_windows
from octavo.model.layers import Attention, Layer


def full(fields: Fields) -> list[Layer]:
    """Keys and values of every token in every layer, unless ``layer_types`` says otherwise."""
    return with_windows(fields, lambda layer: False)


def unshared(fields: Fields) -> list[Layer]:
    """Every query head has a key and a value of its own, whatever else the file may say."""
    dim = fields.divide("hidden_size", fields.width, fields.heads)
    return [Attention(fields.heads, dim, dim)] * fields.layers


def unshared_wide(fields: Fields) -> list[Layer]:
    """As above; how wide a head is, the file says by itself (CPM-Ant)."""
    dim = fields.head_dim()
    return [Attention(fields.heads, dim, dim)] * fields.layers


def referring(fields: Fields) -> list[Layer]:
    """A window over what is written; all that it refers to is kept, so it counts as everything."""
    fields.ignore("sliding_window")
    return full(fields)


def one_or_all_heads(fields: Fields) -> list[Layer]:
    """As a plain decoder, but ``multi_query`` says one key/value head, else each has its own."""
    for name in ("num_attention_heads", "num_key_value_heads"):
        fields.ignore(name)
    heads = 1 if fields.get("multi_query", True) else fields.heads
    dim = fields.head_dim()
    return [Attention(heads, dim, dim)] * fields.layers


def falcon(fields: Fields) -> list[Layer]:
    """``num_kv_heads`` counts in the new architecture or without ``multi_query``, else it is 1.

    transformers repeats the heads of the new architecture before it stores them; the model, and
    with it this spec, has no more than the file says.
    """
    grouped = fields.flag("new_decoder_architecture") or not fields.flag("multi_query")
    fields.ignore("num_key_value_heads")
    heads = fields.kv_heads() if grouped else 1
    dim = fields.divide("hidden_size", fields.width, fields.heads)
    return [Attention(heads, dim, dim)] * fields.layers


def mpt(fields: Fields) -> list[Layer]:
    """``attn_type`` says whether heads share one key/value head, or some, of ``kv_n_heads``.

    transformers knows models alone in which every head has its own.
    """
    dim, heads = fields.head_dim(), fields.heads
    inner = fields.inner("attn_config", {"num_attention_heads": heads})
    inner.ignore("num_key_value_heads")
    name = inner.get("attn_type", "multihead_attention")
    if name == "grouped_query_attention":
        heads = inner.kv_heads()
    elif name == "multiquery_attention":
        heads = 1
    elif name != "multihead_attention":
        right = "it must be multihead_attention, multiquery_attention or grouped_query_attention"
        raise ConfigError("attn_type", name, right)
    return [Attention(heads, dim, dim)] * fields.layers


def nested_heads(fields: Fields) -> list[Layer]:
    """Key/value heads stand in ``attn_config``; by its class's default there is one (DBRX)."""
    fields.ignore("num_key_value_heads")
    inner = fields.inner("attn_config", {"kv_n_heads": 1, "num_attention_heads": fields.heads})
    dim = fields.head_dim()
    return [Attention(inner.kv_heads(), dim, dim)] * fields.layers


def heads_by_expert(fields: Fields) -> list[Layer]:
    """Every expert has query heads of its own over the same keys; ``kv_channels`` wide (JetMoE)."""
    fields.ignore("num_attention_heads")
    dim = fields.count("head_dim")
    return [Attention(fields.count("num_key_value_heads"), dim, dim)] * fields.layers


def chatglm(fields: Fields) -> list[Layer]:
    """``multi_query_group_num`` heads, ``kv_channels`` wide, where ``multi_query_attention``."""
    multi = fields.flag("multi_query_attention")
    heads = fields.kv_heads("multi_query_group_num") if multi else fields.heads
    dim = fields.count("head_dim")
    return [Attention(heads, dim, dim)] * fields.layers


def causal(fields: Fields) -> list[Layer]:
    """As a plain decoder; refused where the file makes it look ahead."""
    only_causal(fields)
    return full(fields)


def only_causal(fields: Fields) -> None:
    """Refuse a decoder in which tokens see later ones: there is nothing to keep.

    Raises:
        ConfigError: ``use_bidirectional_attention`` says so.
    """
    ahead = fields.get("use_bidirectional_attention", default=False)
    if ahead not in (False, "vision"):  # "vision": within an image: its tokens come together
        right = "a cache needs a model in which no token sees a later one"
        raise ConfigError("use_bidirectional_attention", ahead, right)
