"""Launch settings of Megatron-LM: environment, options of torchrun and options of the script."""

import shlex

from jaxscale.launch.writers.model_shape import ModelShape, padded_vocabulary, run_lengths, vocabulary_divisor
from jaxscale.launch.writers.setting_lines import RunSettings, SettingLines

MAMBA_HEAD = 64
"""Width of a head of a state-space layer, the program's default [1]."""


def megatron_model(run: RunSettings, lines: SettingLines) -> None:
    """Megatron-LM options of the model."""
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


DEGREES = {
    "tp": ("--tensor-model-parallel-size", "chips that split each matrix"),
    "pp": ("--pipeline-model-parallel-size", "stages of the pipeline"),
    "cp": ("--context-parallel-size", "chips that split each sequence"),
    "ep": ("--expert-model-parallel-size", "chips that share the experts"),
}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
ADAM_BYTES = 12.0
"""Of two moments and a copy of the weight in 32 bits, per trained weight [byte]."""


def megatron_settings(run: RunSettings, lines: SettingLines) -> None:
    """Environment variables and Megatron-LM options of a plan."""
    megatron_model(run, lines)
    # Required by tp and cp, refused by Megatron-FSDP.
    if run.zero_stage < 2:
        lines.environment["CUDA_DEVICE_MAX_CONNECTIONS"] = 1
    _degrees(run, lines)
    lines.add("--micro-batch-size", run.count("micro_batch_size"), "sequences of a microbatch")
    lines.add("--global-batch-size", run.global_batch, f"{run.count('n_microbatches')} microbatches per replica")
    lines.add("--train-iters", 100)
    lines.add("--lr", 3e-4)
    lines.add("--mock-data", True, "put --data-path here")
    _precision(run, lines)
    _sharding(run, lines)
    _overlap(run, lines)
    _recomputation(run, lines)
    _kernels(run, lines)
    if run.shape.is_mixture:
        _dispatcher(run, lines)
    _offload(run, lines)


def megatron_script(run: RunSettings, lines: SettingLines, release: str) -> str:
    """Shell script that starts the run, with the options of torchrun separate from the options of the program."""
    per_node = run.ranks_per_node
    program = "pretrain_hybrid.py" if run.shape.is_hybrid else "pretrain_gpt.py"
    launcher = [f"  --nnodes {run.n_nodes}", f"  --nproc-per-node {per_node}  # {run.n_chips} chips"]
    head = ["#!/bin/bash", f"# Megatron-LM {release}; on each node, with torchrun's --node-rank and --master-addr"]
    exports = [f"export {name}={value}" for name, value in lines.environment.items()]
    # Without it the script would train another model.
    told = "not expressed: " + "; ".join(lines.missing)
    guard = [f"echo {shlex.quote(told)} >&2; exit 2"] if lines.missing else []
    if not exports:
        # FSDP refuses the 1 that other runs need.
        exports = ["unset CUDA_DEVICE_MAX_CONNECTIONS"]
    body = ["TORCHRUN=(", *launcher, ")", "OPTIONS=(", *lines.as_options(), ")"]
    start = f'torchrun "${{TORCHRUN[@]}}" {program} "${{OPTIONS[@]}}"'
    return "\n".join([*head, *lines.remarks(), *guard, *exports, *body, start]) + "\n"


def _degrees(run: RunSettings, lines: SettingLines) -> None:
    """Degrees, and the layers of each stage where they are not simply equal."""
    for name, (key, comment) in DEGREES.items():
        if name in ("tp", "pp") or run.count(name) > 1:
            lines.add(key, run.count(name), comment)
    # Experts are split by tp unless told otherwise.
    if run.shape.is_mixture and run.expert_tensor != run.count("tp"):
        lines.add("--expert-tensor-parallel-size", run.expert_tensor, "chips that split each expert")
    if run.count("tp") > 1 and run.does("sequence_parallel"):
        lines.add("--sequence-parallel", True, "norms split over the tensor group")
    if run.count("pp") > 1 and not run.shape.is_hybrid:
        _stages(run, lines)
    elif any(run.end_layers):
        lines.lacks("first_stage_layers, last_stage_layers: layers of a hybrid are in its pattern")
    if run.plan.get("schedule") in ("gpipe", "zero-bubble", "dualpipe") and run.count("pp") > 1:
        lines.lacks(f"schedule = {run.plan['schedule']}: pipelines run 1f1b")


def _stages(run: RunSettings, lines: SettingLines) -> None:
    """Options of the pipeline: a number of chunks where chunks are equal, else a layout of all layers."""
    layers, vpp = run.layers_per_chunk(), run.count("vpp")
    if layers is None:
        stages = [f"t*{count}" if count > 1 else "t" * count for count in run.stage_layers()]
        # E is the embedding, t a layer, m a prediction layer, L the loss.
        stages[0] = "E" + stages[0]
        stages[-1] += "m" * run.shape.count("n_predict_layers") + "L"
        lines.add("--pipeline-model-parallel-layout", "|".join(stages), "layers of each stage")
    elif vpp > 1:
        lines.add("--num-layers-per-virtual-pipeline-stage", layers, f"{vpp} chunks on each chip")
    if run.does("balanced_stages"):
        lines.lacks("balanced_stages: stages get layers by number")


def _precision(run: RunSettings, lines: SettingLines) -> None:
    """Number formats of weights, matmuls and gradients."""
    if run.precision in ("fp32", "tf32"):
        if run.precision == "tf32":
            lines.lacks("precision = tf32: 32 bits are written; torch decides about tf32")
        return
    if run.precision == "fp16":
        lines.add("--fp16", True, "number format of the weights")
    else:
        lines.add("--bf16", True, "number format of the weights")
    if run.precision == "fp8":
        lines.add("--fp8-format", "hybrid", "matmuls in 8 bits")
    if run.precision == "fp4":
        lines.add("--fp4-format", "e2m1", "matmuls in 4 bits")
    # --grad-reduce-in-bf16 is an option of bf16 runs.
    if run.number("gradient_bytes", 4.0) == 2.0 and run.precision != "fp16":
        lines.add("--grad-reduce-in-bf16", True, "gradients in 16 bits")
    if run.number("optimizer_bytes", ADAM_BYTES) != ADAM_BYTES:
        lines.lacks(f"optimizer_bytes = {run.number('optimizer_bytes', ADAM_BYTES):g}: Adam in 32 bits is written")
    if run.number("weight_bytes", 2.0) != 2.0:
        lines.lacks(f"weight_bytes = {run.number('weight_bytes', 2.0):g}: weights of 2 bytes are written")


def _sharding(run: RunSettings, lines: SettingLines) -> None:
    """Sharding of state, gradients and weights over the replicas."""
    if run.zero_stage == 1:
        lines.add("--use-distributed-optimizer", True, "ZeRO 1: optimizer state split over the replicas")
    if run.zero_stage >= 2:
        lines.add("--use-megatron-fsdp", True, f"ZeRO {run.zero_stage}, Megatron-FSDP")
        lines.add("--use-distributed-optimizer", True)
        lines.add("--data-parallel-sharding-strategy", SHARDING[run.zero_stage])
        lines.add("--ckpt-format", "fsdp_dtensor", "the only one of Megatron-FSDP")
    if run.zero_stage and run.shard_group < run.count("dp"):
        copies = run.count("dp") // run.shard_group
        lines.add("--num-distributed-optimizer-instances", copies, f"copies, each over {run.shard_group} replicas")


def _overlap(run: RunSettings, lines: SettingLines) -> None:
    """Options of overlap with compute."""
    reduces, gathers = run.does("overlap_gradients"), run.does("overlap_gathers")
    if run.count("dp") * run.count("cp") > 1 and reduces:
        lines.add("--overlap-grad-reduce", True, "gradients reduced beside the backward pass")
    # --overlap-param-gather requires --overlap-grad-reduce.
    if run.zero_stage and gathers and reduces:
        lines.add("--overlap-param-gather", True, "weights gathered beside the forward pass")
    elif run.zero_stage and gathers:
        lines.lacks("overlap_gathers: comes with the overlap of gradients alone")
    if run.count("tp") == 1:
        return
    overlap, splits_norms = str(run.plan.get("tp_overlap") or "none"), run.does("sequence_parallel")
    # --tp-comm-overlap requires --sequence-parallel.
    if overlap == "full" and splits_norms:
        lines.add("--tp-comm-overlap", True, "tensor-parallel collectives beside matmuls")
    elif overlap != "backward":
        lines.lacks(f"tp_overlap = {overlap}: backward is what the program does here")


def _recomputation(run: RunSettings, lines: SettingLines) -> None:
    """Activations that are computed again."""
    share = run.number("recompute_full", 0.0)
    if run.recompute == "full" or 0.0 < share < 1.0:
        # Layers of the fullest stage.
        stage = -(-run.shape.count("n_layers") // run.count("pp"))
        lines.add("--recompute-granularity", "full", "activations computed again in the backward pass")
        # block: the first layers of a stage; uniform: all layers, in units.
        lines.add("--recompute-method", "block" if 0.0 < share < 1.0 else "uniform")
        lines.add("--recompute-num-layers", max(1, round(share * stage)) if 0.0 < share < 1.0 else 1)
        if 0.0 < share < 1.0 and share * stage % 1:
            lines.lacks(f"recompute_full = {share:g}: whole layers of a stage are computed again")
    elif run.recompute == "selective":
        lines.add("--recompute-granularity", "selective", "the core of attention is computed again")


def _kernels(run: RunSettings, lines: SettingLines) -> None:
    """Kernels and how they are launched."""
    flash = run.does("flash_attention", True)
    lines.add("--attention-backend", "flash" if flash else "unfused")
    if run.shape.is_gated and not run.does("fused_glu", True):
        lines.add("--no-bias-swiglu-fusion", True)
    if not run.does("fused_norm", True):
        lines.lacks("fused_norm = no: norms of TransformerEngine are fused")
    if run.does("chunked_loss"):
        lines.lacks("chunked_loss: logits are made at once")
    if run.count("tp") > 1 and not run.does("vocab_parallel_loss", True):
        lines.lacks("vocab_parallel_loss = no: the loss works on logits that stay split")
    execution = str(run.plan.get("execution") or "eager")
    # Megatron-LM refuses local graphs where whole layers are computed again, be it a part of them.
    if execution == "cuda-graphs" and run.recompute != "full" and not run.recomputes_modules:
        lines.add("--cuda-graph-impl", "local", "recorded graphs of kernels are replayed")
    elif execution != "eager":
        lines.lacks(f"execution = {execution}: kernels are launched one by one")


def _dispatcher(run: RunSettings, lines: SettingLines) -> None:
    """How tokens travel to their experts."""
    word = str(run.plan.get("moe_dispatcher") or "alltoall")
    is_flex = word in ("deepep", "hybridep")
    lines.add("--moe-token-dispatcher-type", "flex" if is_flex else word, "how tokens travel to their experts")
    if is_flex:
        lines.add("--moe-flex-dispatcher-backend", word)
    if run.does("moe_overlap") and run.count("ep") > 1:
        # Conditions of --overlap-moe-expert-parallel-comm.
        if run.recompute != "full" and (run.count("pp") == 1 or run.count("vpp") > 1) and word != "allgather":
            lines.add("--overlap-moe-expert-parallel-comm", True)
        else:
            lines.lacks("moe_overlap: refused with full recomputation, or in a pipeline that is not interleaved")


def _offload(run: RunSettings, lines: SettingLines) -> None:
    """Options of offload to the host."""
    share = run.number("offload_optimizer", 0.0)
    # The option needs the distributed optimizer.
    if share and run.zero_stage == 1:
        lines.add("--use-precision-aware-optimizer", True)
        lines.add("--optimizer-cpu-offload", True, "optimizer state in the memory of the host")
        lines.add("--optimizer-offload-fraction", share)
    elif share:
        lines.lacks(f"offload_optimizer = {share:g}: needs the distributed optimizer")
    if activations := run.number("offload_activations", 0.0):
        lines.lacks(f"offload_activations = {activations:g}: choose --offload-modules by hand")
