"""The families of models that are exported, and what becomes of each field of their configs.

A field is mapped (by a family, or by all), must have a value under which nothing changes (`FIXED`),
or does not touch the forward pass (`INERT`). There is no fourth kind: another field is refused.
Defaults are those of the family's class in transformers, which a test compares.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GEOMETRY = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
)
"""Fields that every family maps, beside its own and `ROPE`."""
ROPE = (
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "partial_rotary_factor",
    "original_max_position_embeddings",
)
"""Rotary positions, as files of transformers 5 say them and as older ones do."""

FIXED: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),
    "attn_logit_softcapping": (None,),
    "cross_attention_hidden_size": (None,),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "mlp_bias": (False,),
    "per_layer_config": (None, {}),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "rope_interleaved": (False,),
    "tie_encoder_decoder": (False,),
    "use_bidirectional_attention": (None, False),
    "use_mrope": (False,),
}
"""Fields that must have one of these values, where a family does not map them."""

INERT = frozenset(
    [
        # where the model comes from, element types, what else is put out
        "_name_or_path",
        "auto_map",
        "cache_implementation",
        "chunk_size_feed_forward",
        "dtype",
        "finetuning_task",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_llama_config",
        "label2id",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "transformers.js_config",
        "use_bfloat16",
        "use_cache",
        # training
        "attention_dropout",
        "classifier_dropout",
        "embd_pdrop",
        "hidden_dropout",
        "resid_pdrop",
        # special tokens
        "bos_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "pad_token_id",
        "prefix",
        "sep_token_id",
        # how tokens are drawn from logits
        "assistant_confidence_threshold",
        "assistant_lookbehind",
        "bad_words_ids",
        "begin_suppress_tokens",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty",
        "epsilon_cutoff",
        "eta_cutoff",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_scores",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict_in_generate",
        "suppress_tokens",
        "target_lookbehind",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    ]
)
"""Fields that do not touch the forward pass: this is the one list of them."""


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    Attributes:
        architecture: its class in transformers.
        defaults: the fields it maps beside `GEOMETRY` and `ROPE`, with what they are where a file
            leaves them out; of `GEOMETRY` those that are needed here.
        traits: fields of `Decoder` that its code says and no field of a config.
        activation: the field that names the activation.
        biased: linear maps with a bias whatever the config says.
        by_flag: field -> linear maps that have a bias where it is true.
        scales: field -> (field of `Decoder`, whether it divides).
        same: field -> the field it must agree with; its class does not read it. Patterns of windows
            need not where ``layer_types`` says them.
        thetas: base of the rotary frequencies where the file says none, by type of layer; all alike
            where there is but ``""``.
        rope_types: of the rotary positions its class knows; empty: all.
        partial: whether it rotates a part of each head where ``partial_rotary_factor`` says so.
    """

    architecture: str
    defaults: Mapping[str, Any]
    traits: Mapping[str, Any] = field(default_factory=dict)
    activation: str = "hidden_act"
    biased: tuple[str, ...] = ()
    by_flag: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scales: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)
    thetas: Mapping[str, float] = field(default_factory=lambda: {"": 10000.0})
    rope_types: tuple[str, ...] = ()
    partial: bool = False

    @property
    def mapped(self) -> frozenset[str]:
        """The fields that are mapped."""
        own = {*GEOMETRY, *ROPE, *self.defaults, self.activation, *self.by_flag, *self.scales}
        return frozenset(own | set(self.same))


_QKV = ("q_proj", "k_proj", "v_proj")
_Maps = dict[str, tuple[str, ...]]
_ATTENTION: _Maps = {"attention_bias": (*_QKV, "o_proj")}
_MLP: _Maps = {"mlp_bias": ("gate_proj", "up_proj", "down_proj")}
_SLIDING = {
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}


def _sizes(
    vocab: int, mlp: int, act: str = "silu", epsilon: float = 1e-6, *, tied: bool = False
) -> dict[str, Any]:
    """What every family has, with the defaults of one."""
    return {
        "vocab_size": vocab,
        "intermediate_size": mlp,
        "hidden_act": act,
        "rms_norm_eps": epsilon,
        "tie_word_embeddings": tied,
    }


def _gemma2(vocab: int, **own: Any) -> dict[str, Any]:
    """Gemma 2 and 3."""
    sizes = _sizes(vocab, 9216, "gelu_pytorch_tanh", tied=True)
    act = sizes.pop("hidden_act")
    common = {"hidden_activation": act, "attention_bias": False, "query_pre_attn_scalar": 256}
    return {**sizes, **common, "sliding_window": 4096, "layer_types": None, **own}


_GEMMA_TRAITS = {"norm_offset": 1.0}
_GEMMA2_TRAITS = {**_GEMMA_TRAITS, "post_norms": True}
_GEMMA2_SAME = {"hidden_act": "hidden_activation", "sliding_window_size": "sliding_window"}

FAMILIES: Mapping[str, Family] = {
    "gemma": Family(
        "GemmaForCausalLM",
        {**_sizes(256000, 24576, "gelu_pytorch_tanh", tied=True), "attention_bias": False},
        _GEMMA_TRAITS,
        by_flag=_ATTENTION,
        same={"hidden_activation": "hidden_act"},
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        _gemma2(256000, final_logit_softcapping=30.0, attn_logit_softcapping=50.0),
        _GEMMA2_TRAITS,
        activation="hidden_activation",
        by_flag=_ATTENTION,
        same=_GEMMA2_SAME,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        _gemma2(
            262208,
            final_logit_softcapping=None,
            sliding_window_pattern=6,
            rope_local_base_freq=None,
        ),
        {**_GEMMA2_TRAITS, "qk_norm": True},
        activation="hidden_activation",
        by_flag=_ATTENTION,
        same={**_GEMMA2_SAME, "_sliding_window_pattern": "sliding_window_pattern"},
        thetas={"full_attention": 1000000.0, "sliding_attention": 10000.0},
    ),
    "granite": Family(
        "GraniteForCausalLM",
        {
            **_sizes(32000, 11008),
            "attention_bias": False,
            "mlp_bias": False,
            "attention_multiplier": 1.0,
            "embedding_multiplier": 1.0,
            "logits_scaling": 1.0,
            "residual_multiplier": 1.0,
        },
        by_flag=_ATTENTION | _MLP,
        scales={
            "attention_multiplier": ("score_scale", False),
            "embedding_multiplier": ("embedding_scale", False),
            "logits_scaling": ("logit_scale", True),
            "residual_multiplier": ("residual_scale", False),
        },
    ),
    "llama": Family(
        "LlamaForCausalLM",
        {**_sizes(32000, 11008), "attention_bias": False, "mlp_bias": False},
        by_flag=_ATTENTION | _MLP,
    ),
    "mistral": Family("MistralForCausalLM", {**_sizes(32000, 14336), "sliding_window": 4096}),
    "phi3": Family(
        "Phi3ForCausalLM",
        {**_sizes(32064, 8192, epsilon=1e-5), "sliding_window": None},
        {"fused": True},
        rope_types=("default",),
        partial=True,
    ),
    "qwen2": Family("Qwen2ForCausalLM", {**_sizes(151936, 22016), **_SLIDING}, biased=_QKV),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        {**_sizes(151936, 22016), **_SLIDING, "attention_bias": False},
        {"qk_norm": True},
        by_flag=_ATTENTION,
    ),
}
"""By ``model_type``."""
