"""Configurations of released dense models, their keys that bear on the shape, with the published counts."""

from hf_builders import Released, decoder

DENSE = {
    "Llama-3.1-8B": Released(decoder("llama", 32, 4096, 32, 8, 14336, 128256), 8.03),
    "Llama-2-70B": Released(decoder("llama", 80, 8192, 64, 8, 28672, 32000), 68.98),
    "Mistral-7B": Released(decoder("mistral", 32, 4096, 32, 8, 14336, 32000, sliding_window=4096), 7.24),
    "Qwen2.5-7B": Released(decoder("qwen2", 28, 3584, 28, 4, 18944, 152064, use_sliding_window=False), 7.61),
    "Qwen3-0.6B": Released(
        decoder("qwen3", 28, 1024, 16, 8, 3072, 151936, head_dim=128, tie_word_embeddings=True), 0.596
    ),
    "gemma-2-27b": Released(
        decoder("gemma2", 46, 4608, 32, 16, 36864, 256000, head_dim=128, sliding_window=4096), 27.2
    ),
    "gemma-3-27b": Released(
        {
            "model_type": "gemma3",
            "text_config": decoder("gemma3_text", 62, 5376, 32, 16, 21504, 262208, head_dim=128, sliding_window=1024),
            "vision_config": {
                "num_hidden_layers": 27,
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "patch_size": 14,
                "model_type": "siglip_vision_model",
            },
        },
        27.0,
    ),
    "Phi-4": Released(decoder("phi3", 40, 5120, 40, 10, 17920, 100352, tie_word_embeddings=False), 14.66),
    "Phi-4-mini": Released(decoder("phi3", 32, 3072, 24, 8, 8192, 200064, tie_word_embeddings=True), 3.84),
    "OLMo-2-13B": Released(decoder("olmo2", 40, 5120, 40, 40, 13824, 100352), 13.72),
    "granite-3.3-8b": Released(decoder("granite", 40, 4096, 32, 8, 12800, 49159, tie_word_embeddings=True), 8.17),
    "falcon-40b": Released(
        {
            "model_type": "falcon",
            "num_hidden_layers": 60,
            "hidden_size": 8192,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "vocab_size": 65024,
        },
        41.3,
    ),
    "starcoder2-15b": Released(
        decoder("starcoder2", 40, 6144, 48, 4, 24576, 49152, sliding_window=4096, tie_word_embeddings=False), 15.96
    ),
    "gpt2-xl": Released(
        {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_positions": 1024, "vocab_size": 50257},
        1.558,
    ),
    "pythia-6.9b": Released(
        {
            "model_type": "gpt_neox",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "intermediate_size": 16384,
            "vocab_size": 50432,
            "tie_word_embeddings": False,
        },
        6.86,
    ),
    "bert-large": Released(
        {
            "model_type": "bert",
            "num_hidden_layers": 24,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "vocab_size": 30522,
            "max_position_embeddings": 512,
        },
        0.334,
    ),
    "vit-base": Released(
        {
            "model_type": "vit",
            "num_hidden_layers": 12,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "image_size": 224,
            "patch_size": 16,
        },
        0.0864,
    ),
    "Nemotron-Super-49B, of its kind": Released(
        decoder(
            "nemotron-nas",
            3,
            8192,
            64,
            8,
            0,
            128256,
            block_configs=[
                {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 5.25}},
                {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
                {"attention": {"n_heads_in_group": 8}, "ffn": {"no_op": True}},
            ],
        ),
        # Two embeddings, two attentions of 2 d^2 (1 + 1/8), MLPs of 28672 and 5632.
        (2 * 128256 * 8192 + 2 * 2.25 * 8192**2 + 3 * 8192 * (28672 + 5632)) / 1e9,
        None,
        0.001,
    ),
    "DeBERTa-v3-large": Released(decoder("deberta-v2", 24, 1024, 16, 16, 4096, 128100), 0.434),
    "Arcee-4.5B": Released(decoder("arcee", 36, 2560, 20, 4, 18432, 128004, head_dim=128), 4.62),
    "Apertus-70B": Released(decoder("apertus", 80, 8192, 64, 8, 43008, 131072), 70.6),
    "Qwen-72B": Released(
        {"model_type": "qwen", "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64}
        | {"intermediate_size": 49152, "vocab_size": 152064},
        72.3,
    ),
    "gemma-3-4b": Released(
        {
            "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560}
            | {"intermediate_size": 10240, "sliding_window": 1024},
        },
        3.88,
    ),
}
