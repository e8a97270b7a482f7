"""Decoders that also attend to another input: encoded text, speech, images.

Only the decoder keeps a cache: its own tokens, and the keys and values of the encoded input, which
are made once.
"""

from octavo.errors import ConfigError
from octavo.model.configs.fields import Fields, keys_and_values
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


def mllama(fields: Fields) -> list[Layer]:
    """The layers of ``cross_attention_layers`` attend to the image alone and keep no tokens."""
    own = keys_and_values(fields)
    cross = fields.layer_indices("cross_attention_layers", _cross_layers(fields.layers))
    image = Cross(own.kv_heads, own.k_dim, own.v_dim)
    return [image if layer in cross else own for layer in range(fields.layers)]


def _cross_layers(layers: int) -> list[int]:
    """Which layers attend to the image where the file does not say: each fifth from 3 to 38."""
    return [layer for layer in (3, 8, 13, 18, 23, 28, 33, 38) if layer < layers]
