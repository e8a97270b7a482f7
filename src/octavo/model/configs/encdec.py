"""Decoders that also attend to another input: encoded text, speech, images.

Only the decoder keeps a cache: its own tokens, and the keys and values of the encoded input, which
are made once.
"""

from octavo.errors import ConfigError
from octavo.model.configs.dense import unshared
from octavo.model.configs.fields import Fields, keys_and_values, with_windows
from octavo.model.layers import Attention, Cross, Layer


def _both(layers: int, kv_heads: int, dim: int, length: int | None = None) -> list[Layer]:
    """Attention to the decoder's own tokens beside attention to the encoded input."""
    return [(Attention(kv_heads, dim, dim), Cross(kv_heads, dim, dim, length))] * layers


def whisper(fields: Fields) -> list[Layer]:
    """As bart; every recording is padded to as many positions as the encoder has."""
    return bart(fields, fields.count("max_source_positions", default=1500))


def bart(fields: Fields, length: int | None = None) -> list[Layer]:
    """``decoder_layers`` layers with ``decoder_attention_heads`` heads, none of them shared."""
    heads = fields.count("decoder_attention_heads")
    dim = fields.divide("d_model", fields.width, heads)
    return _both(fields.layer_count("decoder_layers"), heads, dim, length)


def t5(fields: Fields) -> list[Layer]:
    """As many decoder as encoder layers unless the file says otherwise; heads are ``d_kv`` wide."""
    layers = fields.layer_count("num_decoder_layers", default=fields.layers)
    return _both(layers, fields.heads, fields.count("head_dim"))


def moonshine(fields: Fields) -> list[Layer]:
    """``decoder_num_hidden_layers`` layers with key/value heads of their own number."""
    heads = fields.count("decoder_num_attention_heads")
    kv_heads = fields.count("decoder_num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ConfigError("decoder_num_key_value_heads", kv_heads, f"it must divide {heads} heads")
    dim = fields.divide("hidden_size", fields.width, heads)
    return _both(fields.layer_count("decoder_num_hidden_layers"), kv_heads, dim)


def crossed(fields: Fields) -> list[Layer]:
    """A plain decoder whose layers also attend to the encoded input, with as many heads."""
    own = keys_and_values(fields)
    return [(own, Cross(own.kv_heads, own.k_dim, own.v_dim))] * fields.layers


def as_decoder(fields: Fields) -> list[Layer]:
    """An encoder's family as a decoder: no heads shared, the input's beside them where it says."""
    own = unshared(fields)
    if not fields.flag("add_cross_attention"):
        return own
    kind = own[0]
    assert isinstance(kind, Attention)
    return [(kind, Cross(kind.kv_heads, kind.k_dim, kind.v_dim))] * len(own)


def dia(fields: Fields) -> list[Layer]:
    """As above; heads of the encoded input are of their own number and width."""
    dim = fields.count("cross_head_dim")
    cross = Cross(fields.count("cross_num_key_value_heads"), dim, dim)
    return [(keys_and_values(fields), cross)] * fields.layers


def t5gemma(fields: Fields) -> list[Layer]:
    """Every other layer has a window, as in Gemma 2; all attend to the encoded input too."""
    return _beside_input(with_windows(fields, lambda layer: layer % 2 == 0))


def t5gemma2(fields: Fields) -> list[Layer]:
    """All but each sixth layer have a window, as in Gemma 3; all attend to the input too."""
    period = fields.count("sliding_window_pattern", default=6)
    return _beside_input(with_windows(fields, lambda layer: (layer + 1) % period != 0))


def _beside_input(layers: list[Layer]) -> list[Layer]:
    own = [kind for kind in layers if isinstance(kind, Attention)]
    return [(kind, Cross(kind.kv_heads, kind.k_dim, kind.v_dim)) for kind in own]


def mllama(fields: Fields) -> list[Layer]:
    """The layers of ``cross_attention_layers`` attend to the image alone and keep no tokens."""
    own = keys_and_values(fields)
    cross = fields.layer_indices("cross_attention_layers", _cross_layers(fields.layers))
    image = Cross(own.kv_heads, own.k_dim, own.v_dim)
    return [image if layer in cross else own for layer in range(fields.layers)]


def _cross_layers(layers: int) -> list[int]:
    """Which layers attend to the image where the file does not say: each fifth from 3 to 38."""
    return [layer for layer in (3, 8, 13, 18, 23, 28, 33, 38) if layer < layers]
