"""A model as options of Megatron-LM: norms, positions, biases, attention, experts, windows, hybrid, vocabulary."""

from jaxscale.launch.writers.launch_values import RunSettings
from jaxscale.launch.writers.model_shape import ModelShape, padded_vocabulary, run_lengths, vocabulary_divisor
from jaxscale.launch.writers.setting_lines import SettingLines

MAMBA_HEAD = 64
"""Width of a head of a state-space layer, the program's default [1]."""


def megatron_model(run: RunSettings, lines: SettingLines) -> None:
    """Options of the model of a run."""
    shape = run.shape
    _layers(run, lines)
    lines.add("--hidden-size", shape.count("d_model"))
    lines.add("--ffn-hidden-size", shape.count("d_ff"))
    lines.add("--num-attention-heads", shape.count("n_heads"))
    _attention(shape, lines)
    _windows(shape, lines)
    _norms_and_positions(run, lines)
    if shape.is_mixture:
        _experts(run, lines)
    if shape.has("n_predict_layers"):
        lines.add("--mtp-num-layers", shape.count("n_predict_layers"), "layers that predict further tokens")
    _vocabulary(run, lines)
    for part in shape.unlike():
        lines.lacks_model(part)
    if float(shape.model.trainable_share) < 1.0:
        lines.lacks(f"trainable_share = {float(shape.model.trainable_share):g}: adapters; all weights are trained")


def _layers(run: RunSettings, lines: SettingLines) -> None:
    """Number of layers, or the pattern of a hybrid with a bar between the stages of a pipeline."""
    shape = run.shape
    if not shape.is_hybrid:
        lines.add("--num-layers", shape.count("n_layers"))
        return
    letters = shape.hybrid_letters()
    chunks = run.count("pp") * run.count("vpp")
    # Chunks as equal as possible.
    bounds = [len(letters) * chunk // chunks for chunk in range(chunks + 1)]
    pattern = "|".join(letters[start:end] for start, end in zip(bounds, bounds[1:], strict=False))
    lines.add("--hybrid-layer-pattern", pattern, "M state space, * attention, - MLP, E experts; of pretrain_hybrid.py")
    if shape.has("ssm_share"):
        inner, groups = shape.count("ssm_d_inner"), max(1, shape.count("ssm_groups"))
        # The option states the state of a group.
        state = shape.count("ssm_state") // groups
        lines.add("--mamba-state-dim", state)
        lines.add("--mamba-num-groups", groups)
        lines.add("--mamba-head-dim", MAMBA_HEAD)
        lines.add("--mamba-num-heads", inner // MAMBA_HEAD)
        if not shape.is_mamba2(MAMBA_HEAD):
            lines.lacks_model("recurrent layers that are no Mamba-2: linear attention, or Mamba-1; Mamba-2 is written")
    if shape.has("n_predict_layers"):
        lines.lacks_model("prediction layers of a hybrid")


def _attention(shape: ModelShape, lines: SettingLines) -> None:
    """Grouped or latent attention."""
    head = shape.count("head_dim")
    if not shape.is_latent:
        if shape.count("n_kv_heads") != shape.count("n_heads"):
            lines.add("--group-query-attention", True)
            lines.add("--num-query-groups", shape.count("n_kv_heads"), "key/value heads")
        lines.add("--kv-channels", head, "width of a head")
        if float(shape.model.attention_gate):
            lines.add("--attention-output-gate", True)
        return
    lines.add("--multi-latent-attention", True)
    if shape.has("q_lora_rank"):
        lines.add("--q-lora-rank", shape.count("q_lora_rank"))
    lines.add("--kv-lora-rank", shape.count("kv_lora_rank"))
    lines.add("--qk-head-dim", head - shape.count("rope_head_dim"), "part of a head without position")
    lines.add("--qk-pos-emb-head-dim", shape.count("rope_head_dim"))
    lines.add("--v-head-dim", shape.count("v_head_dim"))
    lines.add("--kv-channels", shape.count("v_head_dim"))
    lines.add("--qk-layernorm", True)
    lines.add("--rope-type", "rope")
    lines.add("--no-rope-fusion", True, "latent attention with plain rotary positions takes no fused ones")


def _windows(shape: ModelShape, lines: SettingLines) -> None:
    """Options of sliding windows, by the pattern of the windowed layers."""
    windows = shape.n_window_layers()
    if not windows:
        return
    if shape.is_hybrid:
        lines.lacks_model(f"windows of {shape.count('window')} tokens in {windows} layers of a hybrid")
        return
    # A window counts the token too.
    lines.add("--window-size", f"{shape.count('window') - 1},0", "tokens before, tokens after")
    if windows < shape.count("n_layers"):
        lines.add("--window-attn-skip-freq", run_lengths(shape.window_pattern()), "1: a layer with a window")


def _norms_and_positions(run: RunSettings, lines: SettingLines) -> None:
    """Norms, activation, biases, positions, dropout."""
    shape = run.shape
    lines.add("--seq-length", run.tokens)
    positions = shape.count("position_embeddings")
    if positions:
        if positions < run.tokens:
            lines.lacks(
                f"position_embeddings = {positions}: {run.tokens} are written, one for each token of a sequence"
            )
        # Learned positions must cover the sequence.
        lines.add("--max-position-embeddings", max(positions, run.tokens))
        lines.add("--position-embedding-type", "learned_absolute")
    else:
        lines.add("--max-position-embeddings", run.tokens)
        lines.add("--position-embedding-type", "rope")
    lines.add("--normalization", "LayerNorm" if shape.has_layer_norm else "RMSNorm")
    if shape.is_gated:
        lines.add("--swiglu", True, "gated MLP of three matrices")
    if not _has_biases(run):
        lines.add("--disable-bias-linear", True)
    if shape.has_biases and not _has_biases(run):
        lines.lacks("biases: with tp inside experts the program refuses them; none are written")
    if not float(shape.model.causal):
        lines.lacks_model("attention to later tokens: pretrain_gpt.py is causal")
    lines.add("--attention-dropout", 0.0)
    lines.add("--hidden-dropout", 0.0)


def _has_biases(run: RunSettings) -> bool:
    """Whether biases are enabled; Megatron-LM refuses biases with experts split by tp."""
    return run.shape.has_biases and not (run.shape.is_mixture and run.expert_tensor > 1)


def _experts(run: RunSettings, lines: SettingLines) -> None:
    """Options of the mixture: experts, router, shared experts."""
    shape = run.shape
    lines.add("--num-experts", shape.count("n_experts"))
    lines.add("--moe-router-topk", shape.count("moe_top_k"), "experts of a token")
    lines.add("--moe-ffn-hidden-size", shape.count("d_ff_expert"), "width of an expert")
    # Softmax after the choice of a single expert is 1 and refused; DeepSeek-V3 scores by sigmoid.
    if shape.count("moe_top_k") == 1 or shape.is_latent:
        lines.add("--moe-router-score-function", "sigmoid")
    if shape.n_dense_layers and not shape.is_hybrid:
        lines.add("--moe-layer-freq", run_lengths(shape.dense_pattern()), "0: a dense layer")
    # The option takes the total width.
    if shared := shape.count("n_shared_experts"):
        lines.add("--moe-shared-expert-intermediate-size", shared * shape.count("d_ff_expert"), f"{shared} in all")
    if shape.has("moe_latent_size"):
        lines.add("--moe-latent-size", shape.count("moe_latent_size"))
    lines.add("--moe-router-load-balancing-type", "aux_loss")
    lines.add("--moe-aux-loss-coeff", 0.01)
    lines.add("--moe-grouped-gemm", True)


def _vocabulary(run: RunSettings, lines: SettingLines) -> None:
    """Options of the embeddings, and of the vocabulary padded to a multiple of tp."""
    shape, vocabulary, tp = run.shape, run.shape.count("vocab_size"), run.count("tp")
    if not shape.is_tied:
        lines.add("--untie-embeddings-and-output-weights", True)
    lines.add("--tokenizer-type", "NullTokenizer", "put the tokenizer of the model here, with --tokenizer-model")
    lines.add("--vocab-size", vocabulary)
    lines.add("--make-vocab-size-divisible-by", vocabulary_divisor(vocabulary, tp))
    if vocabulary % tp:
        lines.lacks(f"vocab_size = {vocabulary}: {padded_vocabulary(vocabulary, tp)}, which tp divides, is built")
