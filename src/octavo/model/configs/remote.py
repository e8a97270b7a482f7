"""Readers of families whose code comes with the model's files, where no other reader fits."""

from dataclasses import replace

from octavo.errors import ConfigError
from octavo.model.configs.dense import full
from octavo.model.configs.fields import FULL, LINEAR, Fields, Kinds, keys_and_values
from octavo.model.configs.latent import latent, longcat
from octavo.model.configs.windowed import every_layer
from octavo.model.layers import Attention, Latent, Layer, Shared, State


def grouped_linear(fields: Fields) -> list[Layer]:
    """The last of every ``layer_group_size`` layers attends, and what no group is left for."""
    size = fields.count("layer_group_size")
    whole = fields.layers // size * size
    dim = fields.head_dim()
    kinds: Kinds = {
        FULL: lambda: keys_and_values(fields),
        LINEAR: lambda: State((fields.heads, dim, dim)),
    }
    return fields.by_type(
        kinds, lambda layer: FULL if (layer + 1) % size == 0 or layer >= whole else LINEAR
    )


def shared_across(fields: Fields) -> list[Layer]:
    """With ``use_cla`` each group of ``cla_share_factor`` layers reads its first one's keys."""
    plain, every = keys_and_values(fields), 1
    if fields.flag("use_cla"):
        every = fields.count("cla_share_factor", default=2)
    return [Shared(at - at % every) if at % every else plain for at in range(fields.layers)]


def reused_last(fields: Fields) -> list[Layer]:
    """The last ``num_kv_reuse_layers`` layers read what the last one before them keeps."""
    reused = fields.count("num_kv_reuse_layers", low=0)
    own = fields.layers - reused
    if own < 1:
        right = f"it must be less than the {fields.layers} layers"
        raise ConfigError("num_kv_reuse_layers", reused, right)
    layers: list[Layer] = [keys_and_values(fields)] * own
    return layers + [Shared(own - 1)] * reused


def looped_window(fields: Fields) -> list[Layer]:
    """Every layer runs ``loop_num`` times: once over everything, then over a window."""
    plain = keys_and_values(fields)
    window = replace(plain, window=fields.count("loop_window_size", default=64))
    again = fields.count("loop_num", default=2) - 1
    layers: list[Layer] = [plain] * fields.layers
    return layers + [window] * (fields.layers * again)


def heads_by_list(fields: Fields) -> list[Layer]:
    """``num_kv_heads`` lists the key/value heads of each layer (OpenELM)."""
    layers, dim = fields.layer_count("num_transformer_layers"), fields.count("head_dim")
    heads = fields.listed("num_kv_heads")
    if len(heads) != layers or any(type(item) is not int for item in heads):
        raise ConfigError("num_kv_heads", heads, f"it must hold a number for each of {layers}")
    return [Attention(item, dim, dim) for item in heads]


def shared_heads(fields: Fields) -> list[Layer]:
    """``n_shared_head`` query heads go to a key/value head (PLaMo)."""
    dim = fields.head_dim()
    heads = -(-fields.heads // fields.count("n_shared_head", default=8))
    return [Attention(heads, dim, dim)] * fields.layers


def with_last_ids(fields: Fields) -> list[Layer]:
    """As LongCat; the n-grams before the first layer keep the last ids."""
    first, *others = longcat(fields)
    ids = fields.count("emb_neighbor_num", default=4) - 1
    assert isinstance(first, Latent)
    return [(first, State((), buffer=(ids, 2))), *others] if ids else [first, *others]


def convolved_keys(fields: Fields) -> list[Layer]:
    """Keys and values pass a convolution of two; ``sliding_window_layers`` have own heads."""
    slides = fields.layer_indices("sliding_window_layers")
    layers: list[Layer] = []
    for layer in range(fields.layers):
        own, window = fields, None
        if layer in slides:
            changed = {
                "num_attention_heads": fields.count(
                    "num_swa_attention_heads", default=fields.heads
                ),
                "num_key_value_heads": fields.count(
                    "num_swa_key_value_heads", default=fields.kv_heads()
                ),
            }
            own, window = fields.replaced(changed), fields.window()
        kind = replace(keys_and_values(own), window=window)
        columns = fields.count("conv_window", default=2) - 1
        layers.append((kind, State((), (kind.elements_per_token, columns))))
    return layers


def rwkv7(fields: Fields) -> list[Layer]:
    """A matrix a head, and the last input of both mixers."""
    dim = fields.count("head_dim", default=64)
    heads = fields.divide("hidden_size", fields.width, dim)
    return [State((heads, dim, dim), (2 * fields.width, 1))] * fields.layers


def plain_or_latent(fields: Fields) -> list[Layer]:
    """A ``params.json``: latents where it has ``kv_lora_rank``, else keys, values and a window."""
    if fields.get("kv_lora_rank") is not None:
        return latent(fields)
    return every_layer(fields) if fields.get("sliding_window") is not None else full(fields)
