"""Configs of tiny models that see or hear, and the shapes of what their processors give."""

import torch

IMAGE, VIDEO, START, END = 90, 91, 92, 93
TEXT = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "head_dim": 16,
    "tie_word_embeddings": False,
}
LLAMA = {"model_type": "llama"} | TEXT
QWEN2 = {"model_type": "qwen2"} | TEXT
COHERE = {"model_type": "cohere2", "sliding_window": 8} | TEXT | {"num_hidden_layers": 4}
EYE = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 3,
}
CLIP = {"model_type": "clip_vision_model", "projection_dim": 32} | EYE
SIGLIP = {"model_type": "siglip_vision_model"} | EYE
PIXTRAL = {"model_type": "pixtral", "head_dim": 16} | EYE
GRID = {
    "depth": 1,
    "hidden_size": 32,
    "embed_dim": 32,
    "out_hidden_size": 64,
    "num_heads": 2,
    "intermediate_size": 32,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 1,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
GLM = ROPE | {"mrope_section": [1, 2, 1], "partial_rotary_factor": 0.5}
MOE = {
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}
MARKS = {"Ovis2": (86, 89)}
"""Tokens around a picture that the model gives embeddings of its own."""
VISION_MARKS = {"vision_start_token_id": START, "vision_end_token_id": END}
GLM_MARKS = {"image_start_token_id": START, "image_end_token_id": END}
GLM_MARKS |= {"video_start_token_id": 94, "video_end_token_id": 95}


def _patches(picture):
    """Pixels and sizes of one picture of 4 x 6 patches, by patch."""
    del picture
    return {"image_grid_thw": torch.tensor([[1, 4, 6]])}, (24, 48), 6


def _square(places, *shape, **more):
    """One picture that becomes so many tokens."""
    return more, shape or (1, 3, 8, 8), places


FAMILIES = {
    "Llava": ({"text_config": LLAMA, "vision_config": CLIP}, _square(4)),
    "VipLlava": (
        {"text_config": LLAMA, "vision_config": CLIP, "vision_feature_layers": [-1, -2]},
        _square(4),
    ),
    "LlavaNext": (
        {
            "text_config": LLAMA,
            "vision_config": CLIP,
            "image_grid_pinpoints": [[8, 8]],
        },
        _square(10, 1, 2, 3, 8, 8, image_sizes=torch.tensor([[8, 8]])),
    ),
    "LlavaOnevision": (
        {
            "text_config": QWEN2,
            "vision_config": SIGLIP,
            "image_grid_pinpoints": [[8, 8]],
        },
        _square(
            10,
            1,
            2,
            3,
            8,
            8,
            image_sizes=torch.tensor([[8, 8]]),
            batch_num_images=torch.tensor([1]),
        ),
    ),
    "Qwen2VL": (
        {
            "text_config": TEXT | {"rope_parameters": ROPE},
            "vision_config": GRID | {"hidden_size": 64, "mlp_ratio": 1},
            **VISION_MARKS,
        },
        _patches,
    ),
    "Qwen2_5_VL": (
        {
            "text_config": TEXT | {"rope_parameters": ROPE},
            "vision_config": GRID | {"window_size": 16, "fullatt_block_indexes": [0]},
            **VISION_MARKS,
        },
        _patches,
    ),
    "Qwen3VL": (
        {
            "text_config": TEXT | {"rope_parameters": ROPE | {"mrope_interleaved": True}},
            "vision_config": GRID
            | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
            **VISION_MARKS,
        },
        _patches,
    ),
    "Qwen3VLMoe": (
        {
            "text_config": TEXT | MOE | {"rope_parameters": ROPE | {"mrope_interleaved": True}},
            "vision_config": GRID
            | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
            **VISION_MARKS,
        },
        _patches,
    ),
    "Glm4v": (
        {
            "text_config": TEXT | {"rope_parameters": GLM},
            "vision_config": GRID | {"image_size": 16},
            **GLM_MARKS,
        },
        _patches,
    ),
    "Glm46V": (
        {
            "text_config": {"model_type": "glm4v_text"} | TEXT | {"rope_parameters": GLM},
            "vision_config": {"model_type": "glm4v_vision"} | GRID | {"image_size": 16},
            **GLM_MARKS,
        },
        _patches,
    ),
    "Glm4vMoe": (
        {
            "text_config": TEXT
            | MOE
            | {"rope_parameters": GLM, "first_k_dense_replace": 1, "n_shared_experts": 1},
            "vision_config": GRID | {"image_size": 16},
            **GLM_MARKS,
        },
        _patches,
    ),
    "InternVL": (
        {
            "text_config": QWEN2,
            "vision_config": EYE | {"image_size": [8, 8], "patch_size": [2, 2]},
        },
        _square(4),
    ),
    "AyaVision": ({"text_config": COHERE, "vision_config": SIGLIP}, _square(1)),
    "Cohere2Vision": ({"text_config": COHERE, "vision_config": SIGLIP}, _square(1)),
    "Mistral3": (
        {
            "text_config": {"model_type": "mistral", "sliding_window": None} | TEXT,
            "vision_config": PIXTRAL | {"image_size": 16},
            "spatial_merge_size": 2,
            "vision_feature_layer": -1,
        },
        _square(4, 1, 3, 16, 16, image_sizes=torch.tensor([[16, 16]])),
    ),
    "LightOnOcr": (
        {"text_config": {"model_type": "qwen3"} | TEXT, "vision_config": PIXTRAL},
        _square(1, image_sizes=torch.tensor([[8, 8]])),
    ),
    "Idefics2": (
        {
            "text_config": {"model_type": "mistral", "sliding_window": None} | TEXT,
            "vision_config": EYE,
            "perceiver_config": {
                "hidden_size": 64,
                "resampler_n_latents": 3,
                "resampler_depth": 1,
                "resampler_n_heads": 2,
                "resampler_head_dim": 32,
                "num_key_value_heads": 1,
            },
        },
        _square(3, 1, 1, 3, 8, 8),
    ),
    "Idefics3": (
        {"text_config": LLAMA, "vision_config": EYE, "scale_factor": 2},
        _square(1, 1, 1, 3, 8, 8),
    ),
    "SmolVLM": (
        {"text_config": LLAMA, "vision_config": EYE, "scale_factor": 2},
        _square(1, 1, 1, 3, 8, 8),
    ),
    "DeepseekVL": ({"text_config": LLAMA, "vision_config": SIGLIP}, _square(4)),
    "Ovis2": (
        {
            "text_config": {"model_type": "qwen2"} | TEXT,
            "vision_config": EYE
            | {"vocab_size": 40, "hidden_stride": 1, "num_visual_indicator_tokens": 5},
            "visual_indicator_token_ids": [85, 86, 87, 88, 89],
            "hidden_size": 64,
            "vocab_size": 97,
        },
        _square(4),
    ),
    "Janus": (
        {
            "text_config": LLAMA,
            "vision_config": EYE | {"mlp_ratio": 1.0, "projection_dim": 64, "num_image_tokens": 4},
            "vq_config": {
                "embed_dim": 8,
                "num_embeddings": 16,
                "latent_channels": 8,
                "base_channels": 32,
                "channel_multiplier": [1, 1],
                "num_res_blocks": 1,
                "num_patches": 4,
            },
        },
        _square(4),
    ),
    "Aria": (
        {
            "text_config": TEXT
            | {
                "moe_num_experts": 4,
                "moe_topk": 2,
                "moe_num_shared_experts": 1,
                "intermediate_size": 32,
            },
            "vision_config": {"model_type": "idefics3_vision"} | EYE,
            "projector_patch_to_query_dict": {4: 3},
        },
        _square(3),
    ),
    "VideoLlama3": (
        {
            "text_config": QWEN2,
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "patch_size": 4,
            },
        },
        (
            {
                "image_grid_thw": torch.tensor([[1, 4, 6]]),
                "image_merge_sizes": torch.tensor([2]),
            },
            (24, 48),
            6,
        ),
    ),
    "PaddleOCRVL": (
        {
            "text_config": TEXT | {"rope_parameters": ROPE},
            "vision_config": EYE | {"spatial_merge_size": 2, "image_size": 16},
            **VISION_MARKS,
        },
        ({"image_grid_thw": torch.tensor([[1, 4, 6]])}, (24, 3, 4, 4), 6),
    ),
    "Qwen3_5": (
        {
            "text_config": TEXT
            | {
                "rope_parameters": ROPE | {"mrope_interleaved": True, "partial_rotary_factor": 1.0},
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 12,
                "layer_types": ["linear_attention", "full_attention"],
            },
            "vision_config": GRID | {"num_position_embeddings": 16, "deepstack_visual_indexes": []},
            **VISION_MARKS,
        },
        _patches,
    ),
    "Lfm2Vl": (
        {
            "text_config": {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]} | TEXT,
            "vision_config": {"model_type": "siglip2_vision_model", "num_patches": 4} | EYE,
            "downsample_factor": 1,
            "projector_hidden_size": 32,
        },
        (
            {
                "spatial_shapes": torch.tensor([[2, 2]]),
                "pixel_attention_mask": torch.ones(1, 4, dtype=torch.long),
            },
            (1, 4, 48),
            4,
        ),
    ),
}

FAMILIES |= {
    "Exaone4_5_": (
        {
            "text_config": {"model_type": "exaone4", "sliding_window": 8} | TEXT,
            "vision_config": FAMILIES["Qwen2_5_VL"][0]["vision_config"]
            | {"num_key_value_heads": 2},
            **VISION_MARKS,
        },
        _patches,
    ),
    "GlmOcr": (
        {
            "text_config": TEXT | {"rope_parameters": GLM},
            "vision_config": GRID | {"image_size": 16},
            **GLM_MARKS,
        },
        _patches,
    ),
    "LlavaNextVideo": FAMILIES["LlavaNext"],
    "Qwen3_5Moe": (
        FAMILIES["Qwen3_5"][0]
        | {
            "text_config": FAMILIES["Qwen3_5"][0]["text_config"]
            | MOE
            | {"shared_expert_intermediate_size": 32},
        },
        _patches,
    ),
    "Qwen4Exp": (
        {
            "text_config": TEXT
            | MOE
            | {
                "num_hidden_layers": 4,
                "rope_parameters": ROPE | {"mrope_interleaved": True, "partial_rotary_factor": 1.0},
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 12,
                "indexer_n_heads": 32,
                "indexer_kv_heads": 1,
                "indexer_head_dim": 16,
                "indexer_budget": 4,
                "indexer_compress_ratio": 2,
                "hc_count": 2,
                "hc_lowrank": 8,
            },
            "vision_config": GRID | {"num_position_embeddings": 16, "deepstack_visual_indexes": []},
            **VISION_MARKS,
        },
        _patches,
    ),
    "MiniMaxM3VL": (
        {
            "text_config": TEXT
            | MOE
            | {
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "layer_types": ["full_attention", "minimax_m3_sparse"],
                "index_head_dim": 16,
                "index_n_heads": 2,
                "index_block_size": 4,
                "rotary_dim": 8,
            },
            "vision_config": EYE | {"patch_size": 4, "image_size": 16},
            "projector_hidden_size": 64,
        },
        ({"image_grid_thw": torch.tensor([[1, 4, 4]])}, (16, 96), 4),
    ),
    "GotOcr2": (
        {
            "text_config": QWEN2,
            "vision_config": EYE
            | {"output_channels": 16, "window_size": 2, "global_attn_indexes": [1]},
        },
        _square(1),
    ),
    "Gemma3": (
        {
            "text_config": TEXT
            | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
            "vision_config": SIGLIP,
            "mm_tokens_per_image": 4,
        },
        _square(4),
    ),
    "Gemma4": (
        {
            "text_config": TEXT
            | {
                "layer_types": ["sliding_attention", "full_attention"],
                "sliding_window": 6,
                "hidden_size_per_layer_input": 0,
                "vocab_size_per_layer_input": 97,
                "num_kv_shared_layers": 0,
                "global_head_dim": 32,
                "use_bidirectional_attention": "vision",
            },
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "patch_size": 2,
                "pooling_kernel_size": 2,
                "position_embedding_size": 16,
            },
            "audio_config": None,
        },
        (
            {"image_position_ids": torch.tensor([[[x, y] for y in range(4) for x in range(4)]])},
            (1, 16, 12),
            4,
        ),
    ),
    "PaliGemma": (
        {
            "text_config": {"model_type": "gemma"} | TEXT,
            "vision_config": SIGLIP | {"projection_dim": 64},
            "projection_dim": 64,
        },
        _square(4),
    ),
}


def _sound(count, mask=None):
    """One recording that becomes so many tokens."""
    more = {mask: torch.ones(1, 16, dtype=torch.long)} if mask else {}
    return more, (1, 8, 16), count


EAR = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_mel_bins": 8,
    "max_source_positions": 8,
}
WHISPER = {
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "max_source_positions": 8,
}
HEARING = {
    "Qwen2Audio": (
        {
            "text_config": QWEN2,
            "audio_config": {"model_type": "qwen2_audio_encoder"} | WHISPER,
            "audio_token_index": IMAGE,
        },
        _sound(4, "feature_attention_mask"),
    ),
    "Voxtral": (
        {"text_config": LLAMA, "audio_config": EAR, "audio_token_id": IMAGE},
        _sound(2),
    ),
    "MossTranscribeDiarize": (
        {
            "text_config": {"model_type": "qwen3"} | TEXT,
            "audio_config": EAR,
            "audio_token_id": IMAGE,
            "audio_chunk_size": 2560,
        },
        _sound(2, "input_features_mask"),
    ),
    "AudioFlamingo3": (
        {
            "text_config": QWEN2,
            "audio_config": {"model_type": "audioflamingo3_encoder"} | EAR,
            "audio_token_id": IMAGE,
        },
        _sound(4, "input_features_mask"),
    ),
}
"""Families that hear."""
FAMILIES |= HEARING
