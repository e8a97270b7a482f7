"""Rows of the table of families: decoders with another input, speech, and code beside weights."""

from octavo.model.configs import (
    dense,
    encdec,
    hybrid,
    latent,
    looped,
    pruned,
    remote,
    sparse,
    speech,
    windowed,
)
from octavo.model.configs.registry import Family, row
from octavo.model.configs.rows_attention import ATTENTION
from octavo.model.configs.rows_states import DEEPSEEK_V3, DELTA, MLA


# model_type: reader, (layers, width, heads, key/value heads, head dim, longest sequence), others
def _bart(layers: int, width: int, heads: int, length: int) -> Family:
    return row(
        encdec.bart,
        (None, width, None, None, None, length),
        {"decoder_layers": layers, "decoder_attention_heads": heads},
    )


def _t5(layers: int, width: int, heads: int, decoder: int | None = None) -> Family:
    return row(
        encdec.t5,
        (layers, width, heads, None, 64, None),
        {"num_decoder_layers": decoder},
    )


_ENCODER_DECODER: dict[str, Family] = {
    "bart": _bart(12, 1024, 16, 1024),
    "blenderbot": _bart(24, 2560, 32, 128),
    "blenderbot-small": _bart(8, 512, 16, 512),
    "longt5": _t5(6, 512, 8),
    "m2m_100": _bart(12, 1024, 16, 1024),
    "marian": _bart(12, 1024, 16, 1024),
    "mbart": _bart(12, 1024, 16, 1024),
    "mllama_text_model": row(encdec.mllama, (40, 4096, 32, 8, None, 131072)),
    "moonshine": row(
        encdec.moonshine,
        (None, 288, None, None, None, 512),
        {
            "decoder_num_hidden_layers": 6,
            "decoder_num_attention_heads": 8,
            "decoder_num_key_value_heads": None,
        },
    ),
    "mt5": _t5(8, 512, 6),
    "nllb-moe": _bart(12, 1024, 16, 1024),
    "pegasus": _bart(12, 1024, 16, 1024),
    "plbart": _bart(6, 768, 12, 1024),
    "speech_to_text": _bart(6, 256, 4, 1024),
    "switch_transformers": _t5(12, 768, 12, 12),
    "t5": _t5(6, 512, 8),
    "trocr": _bart(12, 1024, 16, 512),
    "umt5": _t5(8, 512, 6),
    "bigbird_pegasus": _bart(16, 1024, 16, 4096),
    "blip_text_model": row(encdec.crossed, (12, 768, 8, None, None, 512)),
    "canary_decoder": row(encdec.crossed, (8, 1024, 8, 8, 128, 1024)),
    "cohere_asr": row(encdec.crossed, (8, 1024, 8, None, None, 1024)),
    "dia_decoder": row(
        encdec.dia,
        (18, 2048, 16, 4, 128, 3072),
        {"cross_num_key_value_heads": 16, "cross_head_dim": 128},
    ),
    "fsmt": _bart(12, 1024, 16, 1024),
    "led": row(
        encdec.bart,
        (None, 1024, None, None, None, 1024),
        # the window is its encoder's
        {"decoder_layers": 12, "decoder_attention_heads": 16, "attention_window": 512},
    ),
    "moonshine_streaming": row(encdec.crossed, (6, 320, 8, None, None, 4096)),
    "musicgen_decoder": row(encdec.crossed, (24, 1024, 16, None, None, 2048)),
    "musicgen_melody_decoder": row(dense.unshared, (24, 1024, 16, None, None, 2048)),
    "mvp": _bart(12, 1024, 16, 1024),
    "pegasus_x": _bart(16, 1024, 16, 16384),
    "pix2struct_text_model": _t5(12, 768, 12),
    "pop2piano": _t5(6, 512, 8),
    "pp_formulanet_text": _bart(8, 512, 16, 2560),
    "prophetnet": _bart(12, 1024, 16, 512),
    "seamless_m4t": _bart(24, 1024, 16, 1024),
    "seamless_m4t_v2": _bart(24, 1024, 16, 4096),
    "speecht5": _bart(6, 768, 12, 4000),
    "t5_gemma_module": row(encdec.t5gemma, (26, 2304, 8, 4, 256, 8192), {"sliding_window": 4096}),
    "t5gemma2_decoder": row(
        encdec.t5gemma2, (26, 2304, 8, 4, 256, 131072), {"sliding_window": 4096}
    ),
    "udop": _t5(24, 1024, 16),
    "whisper": _bart(4, 384, 6, 448)._replace(read=encdec.whisper),
}

_SPEECH: dict[str, Family] = {
    "csm": row(speech.csm, (16, 2048, 32, 8, None, 2048)),
    "gradium_phonon_tts": row(dense.full, (6, 768, 12, None, None, 8192), {"latent_dim": 32}),
    "higgs_audio_v2": row(dense.full, (28, 3072, 24, 8, 128, 2048)),
    "kyutai_speech_to_text": row(
        windowed.every_layer, (48, 2048, 32, None, None, 750), {"sliding_window": 375}
    ),
    "moshi": row(windowed.every_layer, (32, 4096, 32, None, None, 3000), {"sliding_window": 3000}),
    "moshi_depth": row(windowed.every_layer, (6, 1024, 16, None, None, 9), {"sliding_window": 8}),
    "pocket_tts": row(dense.full, (6, 1024, 16, None, None, 8192), {"latent_dim": 32}),
    "qwen2_5_omni_talker": row(
        windowed.qwen,
        (28, 3584, 28, 4, 128, 32768),
        {"sliding_window": 32768, "max_window_layers": 28},
    ),
    "qwen3_omni_moe_talker_code_predictor": row(
        windowed.dots,
        (5, 1024, 16, 8, 128, 32768),
        {"sliding_window": None, "max_window_layers": 28},
    ),
    "qwen3_omni_moe_talker_text": row(
        windowed.qwen3_moe, (20, 1024, 16, 2, None, 32768), {"sliding_window": None}
    ),
    "csm_depth_decoder_model": row(dense.full, (4, 1024, 8, 2, None, 33)),
}

_NOTHING = (None, None, None, None, None, None)
_SAID = row(dense.full, _NOTHING)
REMOTE: dict[str, Family] = {
    # baichuan-inc/Baichuan2 configuration_baichuan.py: two sizes under one name, heads not shared
    "baichuan": row(dense.unshared, (32, 4096, None, None, None, None)),
    # LGAI-EXAONE/EXAONE-4.5-33B config.json: the name its own files have for the decoder
    "exaone4_5_text": ATTENTION["exaone4"],
    # THUDM/chatglm3-6b configuration_chatglm.py
    "chatglm": row(
        dense.chatglm,
        (28, 4096, 32, None, 128, 2048),
        {"multi_query_attention": False, "multi_query_group_num": 1},
    ),
    # fishaudio/fish-speech fish_speech/models/text2semantic/llama.py: nothing is left out there
    "dual_ar": row(speech.fish, (None, None, None, None, None, None)),
    "fish_qwen3": row(speech.fish, (None, None, None, None, None, None)),
    # internlm/internlm2-7b configuration_internlm2.py
    "internlm2": row(dense.full, (32, 4096, 32, None, None, 2048)),
    # moonshotai/Kimi-K2-Instruct configuration_deepseek.py: DeepSeek-V3's under another name
    "kimi_k2": DEEPSEEK_V3,
    # parts of suno/bark's config.json, which transformers knows as parts alone
    "coarse_acoustics": row(dense.unshared, (12, 768, 12, None, None, 1024)),
    "semantic": row(dense.unshared, (12, 768, 12, None, None, 1024)),
    # inclusionAI's Ling 1, Ling 2 and Ring-linear; Kwai-Klear; Tele-AI; as mlx-lm reads their files
    "Klear": _SAID,
    "bailing_moe": _SAID,
    "bailing_moe_linear": row(remote.grouped_linear, _NOTHING),
    "bailing_moe_v2": _SAID,
    "telechat3": _SAID,
    "minicpm": _SAID,
    "lille-130m": _SAID,
    "phi3small": _SAID,
    # Aquila, Orion, Tele-FLM, StableLM's first files, Yi, openPangu: plain decoders to vLLM too
    "PanguEmbedded": _SAID,
    "TeleFLM": _SAID,
    "Yi": _SAID,
    "aquila": _SAID,
    "orion": _SAID,
    "stablelm_epoch": _SAID,
    "telechat": _SAID,
    # hpcai-tech/grok-1 and xai-org/grok-2, of which the file of the latter says another family
    "grok-1": _SAID,
    # flat files of models with images or sound, as vLLM reads them: another family's fields
    "Keye": ATTENTION["qwen3"],
    "KeyeVL1_5": ATTENTION["qwen3"],
    "dots_ocr": ATTENTION["qwen2"],
    "ernie4_5_moe_vl": ATTENTION["ernie4_5_vl_moe_text"],
    "isaac": ATTENTION["qwen3"],
    "kimi_audio": ATTENTION["qwen2"],
    "llava_llama": ATTENTION["llama"],
    "llava_mistral": ATTENTION["mistral"],
    "llava_qwen": ATTENTION["qwen2"],
    "molmo": _SAID,
    # upstage/Solar-Open-2, ai-sage/GigaChat-3.5 and their configurations in vLLM
    "gigachat3_5": row(
        remote.gigachat, (40, 7168, 64, None, None, 131072), {**MLA, **DELTA}, hybrid.latent_mtp
    ),
    "solar_open2": row(remote.solar_open2, (48, 4096, 64, 8, 128, 1048576)),
    # Tiiny/SmallThinker-21BA3B-Instruct, RWKV/rwkv-6-world-1b6 and rwkv-5's
    "rwkv5": row(remote.rwkv7, _NOTHING),
    "rwkv6": row(remote.rwkv7, _NOTHING),
    "smallthinker": row(remote.by_layout, _NOTHING),
    # microsoft/phi-1_5 before transformers had it, and mlx-lm's phixtral of it
    "phi-msft": row(dense.unshared, _NOTHING),
    "phixtral": row(dense.unshared, _NOTHING),
    # WisdomShell/CodeShell-7B configuration_codeshell.py, smallcloudai/Refact-1_6B-fim
    "codeshell": row(remote.codeshell, (40, 4096, 32, None, None, 8192)),
    "gpt_refact": row(dense.one_or_all_heads, _NOTHING, {"multi_query": True}),
    # ByteDance/Ouro-2.6B modeling_ouro.py: every loop of every layer keeps its own
    "ouro": row(looped.ouro, _NOTHING),
    # openPangu-Ultra-MoE-718B: DeepSeek's latents by names of its own
    "pangu_ultra_moe": row(latent.latent, _NOTHING),
    # pfnet/plamo-2-8b modeling_plamo.py
    "plamo2": row(
        remote.plamo2,
        (32, 4096, 32, None, None, 2048),
        {"mamba_d_state": 64, "mamba_d_conv": 4, "mamba_num_heads": 64},
    ),
    # stepfun-ai/step3 configuration_step3.py: all heads share one of keys and values
    "step3_text": row(remote.one_head, (61, 7168, 64, None, 256, 8192)),
    "deepseek": row(dense.full, (30, 4096, 32, 32, None, 2048)),
    "hunyuan": row(remote.shared_across, _NOTHING),
    "iquestloopcoder": row(remote.looped_window, (None, None, None, None, None, 131072)),
    "afm7": row(remote.reused_last, _NOTHING),
    "baichuan_m1": row(remote.convolved_keys, _NOTHING),
    "openelm": row(remote.heads_by_list, _NOTHING),
    "plamo": row(remote.shared_heads, _NOTHING),
    "rwkv7": row(remote.rwkv7, _NOTHING),
    "youtu_llm": row(latent.latent, (32, 2048, 16, 16, None, 131072), MLA),
    "longcat_flash_ngram": row(remote.with_last_ids, (None, None, None, None, None, None), MLA),
    # XiaomiMiMo's MiMo-V2 after Flash: their files say the heads of layers that slide
    "mimo_v2": row(windowed.mimo_v2, _NOTHING, {"v_head_dim": 128}, mtp=windowed.mimo_v2_mtp),
    # Snowflake/snowflake-arctic-instruct, inceptionai/jais-13b, xverse/XVERSE-13B configurations
    "arctic": row(windowed.every_layer, (32, 4096, 32, None, None, 4096), {"sliding_window": None}),
    "jais": row(dense.unshared, (12, 768, 12, None, None, 1024)),
    "xverse": row(dense.full, (40, 5120, 40, None, None, 8192)),
    # Qwen/Qwen-7B configuration_qwen.py
    "qwen": row(dense.unshared_wide, (32, 4096, 32, None, 128, None)),
    # internlm/internlm-7b configuration_internlm.py
    "internlm": row(dense.full, (32, 4096, 32, None, None, 2048)),
    # Qwen/Qwen3-TTS config.json: the talker's part
    "qwen3_tts_talker": ATTENTION["qwen3"],
    # state-spaces/mamba-2.8b and mamba2-2.7b config.json, which name no family
    "mamba_ssm": row(hybrid.mamba_ssm, _NOTHING, {"d_conv": 4, "expand": 2}),
    # a params.json of Meta's or Mistral's release, which names no family
    "params": row(remote.params, _NOTHING),
    # XiaomiMiMo/MiMo-7B-Base configuration_mimo.py: Qwen 2 with prediction layers
    "mimo": row(
        windowed.qwen,
        (32, 4096, 32, 32, None, 32768),
        {"sliding_window": 4096, "max_window_layers": 28},
    ),
    # MiniMaxAI/MiniMax-M3 config.json: MiniMax-M3 without images
    "minimax_m3": row(sparse.minimax_m3, (60, 6144, 64, 4, 128, 1048576), {"index_head_dim": 128}),
    # nvidia/Llama-3_3-Nemotron-Super-49B-v1 configuration_decilm.py
    "nemotron-nas": row(pruned.blocks, (None, None, None, None, None, 2048)),
    # Deci/DeciLM-7B configuration_decilm.py
    "deci": row(pruned.by_layer, (32, 4096, 32, None, None, 8192)),
    # tiiuae/falcon-40b and falcon-7b, their first configuration_RW.py
    "RefinedWeb": row(
        dense.falcon,
        (32, 8192, 64, None, None, 2048),
        {"n_head_kv": 8, "new_decoder_architecture": True},
    ),
    "RefinedWebModel": row(dense.falcon, (2, 64, 8, None, None, 2048), {"multi_query": True}),
    # MiniMaxAI/MiniMax-Text-01 configuration_minimax_text_01.py, and MiniMax-M1's
    "minimax_m1": row(hybrid.minimax_listed, (32, 4096, 32, 8, None, 131072)),
    "minimax_text_01": row(hybrid.minimax_listed, (32, 4096, 32, 8, None, 131072)),
    # microsoft/Phi-4-multimodal-instruct configuration_phi4mm.py
    "phi4mm": row(windowed.every_layer, (32, 3072, 32, None, None, 4096), {"sliding_window": None}),
}
"""Families that transformers does not have: their code comes with the model's files."""

OTHERS = _ENCODER_DECODER | _SPEECH | REMOTE
"""Families by ``model_type``."""
