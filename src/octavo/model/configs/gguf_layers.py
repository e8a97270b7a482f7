"""The layers of a GGUF file, by the keys that llama.cpp reads and what it knows by architecture.

Heads, widths, windows and states stand in the metadata for every architecture alike; which layers
slide or keep a state, the file says, or else a rule of the architecture. Blocks count prediction
layers too. An architecture that is not listed is refused, never guessed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.errors import ConfigError, UnknownArchitecture
from octavo.model.configs.fields import Fields
from octavo.model.configs.gguf_file import ARCHITECTURE
from octavo.model.configs.notes import unread_sizes
from octavo.model.configs.registry import BY_HAND, ModelLayers, nearest_first
from octavo.model.configs.windowed import share
from octavo.model.layers import Attention, Cross, Latent, Layer, LayerKind, Shape, State

PLAIN = frozenset(
    (
        *("apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bitnet", "bloom"),
        *("chameleon", "chatglm", "codeshell", "cogvlm", "command-r", "dbrx", "deci", "deepseek"),
        *("deepseek2", "deepseek2-ocr", "deepseek32", "dots1", "ernie4_5", "ernie4_5-moe"),
        *("exaone", "falcon", "gemma", "glm-dsa", "glm4", "glm4moe", "gpt2", "gptj", "gptneox"),
        *("granite", "granitemoe", "grok", "grovemoe", "hunyuan-dense", "hunyuan-moe"),
        *("hunyuan_vl", "internlm2", "jais", "jais2", "llama", "maincoder", "minicpm", "minicpm3"),
        *("minimax-m2", "mistral3", "mistral4", "mpt", "nemotron", "olmo", "olmoe", "openelm"),
        *("orion", "paddleocr", "pangu-embedded", "phi2", "plamo", "plm", "qwen", "qwen2"),
        *("qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "refact"),
        *("seed_oss", "smollm3", "stablelm", "starcoder", "starcoder2", "t5", "xverse"),
    )
)
"""Architectures of which the metadata says everything."""

_SAID = 0
PERIODS: Mapping[str, int] = {
    "afmoe": 4,
    "cohere2": 4,
    "cohere2moe": _SAID,
    "exaone-moe": 4,
    "exaone4": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gemma4": _SAID,
    "gpt-oss": 2,
    "llama4": 4,
    "mimo2": _SAID,
    "olmo2": 4,
    "phi3": 1,
    "phimoe": 1,
    "plamo3": _SAID,
    "smallthinker": -4,
    "step35": _SAID,
}
"""Architectures with windows: the last of so many layers sees everything where the file does not
say which; of fewer than 0 the first one, of 1 none, of 0 the file must say."""

STATES = frozenset(
    (
        *("arwkv7", "falcon-h1", "granitehybrid", "jamba", "kimi-linear", "lfm2", "lfm2moe"),
        *("mamba", "mamba2", "nemotron_h", "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe"),
        *("qwen3next", "rwkv6", "rwkv6qwen2", "rwkv7"),
    )
)
"""Architectures with states of constant size."""
_STATES_ALONE = ("arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7")
_BY_INTERVAL = ("qwen35", "qwen35moe", "qwen3next")
_FEED_FORWARDS = ("nemotron_h", "nemotron_h_moe")
"""Architectures with blocks that are a feed-forward alone."""
_WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"

_ENCODES = "an encoder reads all its input at once and keeps no cache"
_DENOISES = "it rewrites all tokens again and again; nothing is kept by token"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("bert", "clip", "eurobert", "gemma-embedding", "jina-bert-v2"), _ENCODES),
    **dict.fromkeys(("jina-bert-v3", "llama-embed", "modern-bert", "neo-bert"), _ENCODES),
    **dict.fromkeys(("nomic-bert", "nomic-bert-moe", "t5encoder", "wavtokenizer-dec"), _ENCODES),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DENOISES),
}
"""Architectures that keep no cache, and why."""

_WINDOWS: Mapping[str, int] = {"gemma2": 4096, "llama4": 8192}
"""Windows that a file may leave out."""
_GEMMA3N_OWN = 20
"""Blocks of Gemma 3n that keep keys and values, where the file does not say how many do not."""
_NO_SIZES = frozenset(
    (
        *("head_count", "key_length", "value_length", "key_length_mla", "value_length_mla"),
        *("n_deepstack_layers", "time_mix_extra_dim", "time_decay_extra_dim", "decay_lora_rank"),
        *("iclr_lora_rank", "value_residual_mix_lora_rank", "gate_lora_rank", "time_step_rank"),
    )
)
"""Last parts of keys that have the words of a size and are none of the cache."""


def read_gguf(metadata: Mapping[str, Any]) -> ModelLayers:
    """What the metadata of a GGUF file says that each block keeps. O(layers).

    Raises:
        UnknownArchitecture: no architecture that is known here.
        ConfigError: a key is missing or wrong, or the model keeps no cache.
    """
    name = metadata.get(ARCHITECTURE)
    if isinstance(name, str) and name in REFUSED:
        raise ConfigError(ARCHITECTURE, name, REFUSED[name])
    known = PLAIN | set(PERIODS) | STATES
    if not isinstance(name, str) or name not in known:
        raise UnknownArchitecture(name, nearest_first(name, known), ARCHITECTURE, BY_HAND)
    if metadata.get("attention.causal") is False:
        raise ConfigError("attention.causal", value=False, right=_ENCODES)
    fields = Fields(metadata, {})
    layers = _Blocks(fields, name).layers()
    ahead = fields.count("nextn_predict_layers", default=0, low=0)
    if ahead >= len(layers):
        right = f"it must be less than the {len(layers)} blocks"
        raise ConfigError("nextn_predict_layers", ahead, right)
    own, mtp = layers[: len(layers) - ahead], layers[len(layers) - ahead :]
    length = None if fields.get("context_length") is None else fields.count("context_length")
    notes = tuple(unread_sizes(fields.unread(), _NO_SIZES))
    return ModelLayers(name, tuple(own), length, tuple(mtp), notes=notes)


class _Blocks:
    """What each block keeps; its number decides where the file has a list."""

    def __init__(self, fields: Fields, architecture: str) -> None:
        self._fields, self._architecture = fields, architecture
        self._count = fields.layer_count("block_count")
        if architecture == "t5":
            self._count = fields.layer_count("decoder_block_count", default=self._count)
        self._ahead = fields.count("nextn_predict_layers", default=0, low=0)
        self._heads = self._listed("attention.head_count", 0)
        self._kv_heads = self._listed("attention.head_count_kv", self._heads)
        self._slides = self._windows()

    def layers(self) -> list[Layer]:
        """Those of every block, prediction layers at the end."""
        layers = [self._layer(block) for block in range(self._count)]
        name = "attention.shared_kv_layers"
        if self._architecture == "gemma3n" and self._fields.get(name) is None:
            shared = max(0, self._count - _GEMMA3N_OWN)
            return share(self._fields.replaced({name: shared}), layers, name)
        return share(self._fields, layers, name)

    def _layer(self, block: int) -> Layer:
        """A state, attention, both, or nothing."""
        name, state = self._architecture, self._keeps_state(block)
        attends = bool(self._kv_heads[block]) and name not in _STATES_ALONE
        if state and name != "falcon-h1":
            return self._state()
        if not attends:
            return ()
        kind = self._attention(block)
        if name == "falcon-h1":
            return kind, self._state()
        if name == "t5":
            assert isinstance(kind, Attention)
            return kind, Cross(kind.kv_heads, kind.k_dim, kind.v_dim)
        return kind

    def _keeps_state(self, block: int) -> bool:
        """By the file's list, by a rule, or where there are no key/value heads."""
        name, fields = self._architecture, self._fields
        if name not in STATES or block >= self._count - self._ahead:
            return False
        if fields.get("attention.recurrent_layers") is not None:
            return bool(self._listed("attention.recurrent_layers", 0)[block])
        if name in _BY_INTERVAL and min(self._kv_heads):
            return (block + 1) % fields.count("full_attention_interval", default=4) != 0
        if name in _STATES_ALONE or name == "falcon-h1":
            return True
        feeds = name in _FEED_FORWARDS and bool(self._listed("feed_forward_length", 0)[block])
        return not self._kv_heads[block] and not feeds

    def _attention(self, block: int) -> LayerKind:
        fields, slides = self._fields, self._slides[block]
        if fields.get("attention.kv_lora_rank") is not None:
            indexer = fields.count("attention.indexer.key_length", default=0, low=0)
            rope = fields.count("rope.dimension_count", low=0)
            return Latent(fields.count("attention.kv_lora_rank"), rope, indexer)
        k_dim, v_dim = (self._dim(side, block) for side in ("key", "value"))
        kind = Attention(self._kv_heads[block], k_dim, v_dim)
        if self._architecture == "gpt-oss":
            kind = replace(kind, sink_logits=True)
        if not slides:
            return kind
        window = fields.count(_WINDOW, default=_WINDOWS.get(self._architecture))
        if self._architecture == "llama4":
            return replace(kind, chunk=window)
        sinks = self._architecture in ("gpt-oss", "mimo2")
        return replace(kind, window=window, sink_logits=sinks)

    def _dim(self, side: str, block: int) -> int:
        """Elements of a key or value head; blocks that slide may have their own."""
        fields, name = self._fields, f"attention.{side}_length"
        if self._slides[block] and fields.get(f"{name}_swa") is not None:
            return fields.count(f"{name}_swa")
        if fields.get(name) is not None:
            return fields.count(name)
        width = fields.count("embedding_length")
        return fields.divide("embedding_length", width, max(1, self._heads[block]))

    def _windows(self) -> list[bool]:
        """Whether each block slides: the file's list, its period, or the architecture's."""
        fields, name = self._fields, self._architecture
        size = fields.get(_WINDOW) if name in PERIODS or fields.get(_PATTERN) is not None else 0
        if size == 0 or (size is None and name not in _WINDOWS):
            return [False] * self._count
        given = fields.get(_PATTERN)
        if isinstance(given, list):
            return [bool(item) for item in self._listed(_PATTERN, 0)]
        period = PERIODS.get(name, 0)
        if given is not None:
            period = fields.count(_PATTERN) * (-1 if period < 0 else 1)
        if not period:
            raise ConfigError(_PATTERN, given, "it must say which blocks have the window")
        last = 0 if period < 0 else period - 1
        if period == 1:
            return [True] * self._count
        return [block % abs(period) != last for block in range(self._count)]

    def _state(self) -> State:
        """RWKV's matrices, short convolutions, Kimi delta attention, or a mixer's state."""
        fields = self._fields
        width = fields.count("embedding_length")
        if fields.get("wkv.head_size") is not None:
            dim = fields.count("wkv.head_size")
            heads = fields.divide("embedding_length", width, dim)
            return State((heads, dim, dim), (fields.count("token_shift_count", 2) * width, 1))
        if fields.get("shortconv.l_cache") is not None:
            return State((), _conv(width, fields.count("shortconv.l_cache")))
        kernel = fields.count("ssm.conv_kernel")
        if fields.get("kda.head_dim") is not None:
            heads, dim = max(self._heads), fields.count("kda.head_dim")
            return State((heads, dim, dim), _conv(3 * heads * dim, kernel))
        inner, size = fields.count("ssm.inner_size"), fields.count("ssm.state_size")
        groups = fields.count("ssm.group_count", default=0, low=0)
        if not groups:  # Mamba 1
            return State((inner, size), _conv(inner, kernel))
        heads = fields.count("ssm.time_step_rank")
        recurrent = (heads, fields.divide("ssm.inner_size", inner, heads), size)
        conv = _conv(inner + 2 * groups * size, kernel)
        return State(recurrent, conv, groups if conv else 0, 2 * size)

    def _listed(self, name: str, default: Any) -> list[int]:
        """``name`` for each block: one number for all of them, or a list.

        Raises:
            ConfigError: a list of another length, or what is no number of at least 0.
        """
        value = self._fields.get(name, default)
        if not isinstance(value, list):
            return [self._fields.count(name, default=default, low=0)] * self._count
        if len(value) < self._count or any(item < 0 for item in value):
            right = f"it must hold a number for each of the {self._count} blocks"
            raise ConfigError(name, value, right)
        return value[: self._count]


def _conv(channels: int, kernel: int) -> Shape:
    return (channels, kernel - 1) if kernel > 1 else ()
