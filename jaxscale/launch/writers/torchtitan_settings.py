"""Launch settings of torchtitan: a module of the Python registry, or the TOML of releases until February 2026."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxscale.base.documents import read_toml
from jaxscale.launch.writers.setting_lines import Code, RunSettings, SettingLines, keyword_lines, refusal
from jaxscale.models import catalogue_model
from jaxscale.runs.defaults import recomputation

_NAMES = read_toml(Path(__file__).with_name("names.toml"))["torchtitan"]

REGISTRY: Mapping[str, tuple[str, str]] = {name: tuple(entry) for name, entry in _NAMES["registry"].items()}
"""Models of the registry of release 0.3.0 by the name of an equal shape in the catalogue."""

TOML_MODELS: list[str] = _NAMES["toml"]["models"]
"""Those that the registry of v0.2.2 has, too."""

BUILDERS = {
    "llama3": ("_build_llama3_layers", "8B"),
    "qwen3": ("_build_qwen3_layers", "8B"),
    "qwen3 moe": ("_build_qwen3_moe_layers", "30B-A3B"),
    "deepseek_v3": ("_build_dsv3_layers", "671B"),
}
"""Builder of the layers of a family, and the model of it whose other parts are taken over."""


def registered(run: RunSettings, names: Iterable[str] = tuple(REGISTRY)) -> tuple[str, str] | None:
    """Family and flavour of the torchtitan registry with the shape of the model; None for an unregistered shape."""
    # The sequence length is of the run, not of the shape.
    own = {**run.model, "seq_len": 0}
    return next((REGISTRY[name] for name in names if {**(catalogue_model(name) or {}), "seq_len": 0} == own), None)


def torchtitan_settings(run: RunSettings, lines: SettingLines) -> None:
    """Fields of `Trainer.Config` of torchtitan 0.3.0 for a plan."""
    family = registered(run)
    shape = run.shape
    if family is None:
        for part in _unlike(run):
            lines.lacks_model(part)
        if shape.n_window_layers():
            lines.lacks(f"window_share = {float(shape.model.window_share):.3g}: layers attend to the whole sequence")
        if shape.has_biases:
            lines.lacks("biases of experts: none are built")
    lines.add("model_spec", " ".join(family) if family else f"{_family(run)} own")
    if family is None and not lines.missing:
        lines.add("model_spec.model.dim", shape.count("d_model"))
        lines.add("model_spec.model.vocab_size", shape.count("vocab_size"))
        lines.add("model_spec.model.enable_weight_tying", shape.is_tied)
    # A rule refuses pipelines with tied embeddings.
    elif shape.is_tied:
        lines.facts["model_spec.model.enable_weight_tying"] = True
    lines.add("training.steps", 100)
    _batch(run, lines)
    kind = "float32" if run.precision in ("fp32", "tf32") else "bfloat16"
    lines.add("training.mixed_precision_param", kind, "number format of the weights in use")
    execution = str(run.plan.get("execution") or "eager")
    # Rules of disable_cuda_graphs: pipelines and experts over ranks refuse graphs.
    graphs = execution == "cuda-graphs" and run.count("pp") == 1 and run.count("ep") == 1
    lines.add("training.disable_cuda_graphs", not graphs)
    if execution == "cuda-graphs" and not graphs:
        lines.lacks("execution = cuda-graphs: refused with pipelines and with experts that exchange tokens")
    _parallelism(run, lines)
    lines.add("parallelism.enable_sequence_parallel", run.does("sequence_parallel"))
    # Async tensor parallelism requires compile.enable.
    compiles = execution == "compiled" or run.plan.get("tp_overlap") == "full" and run.count("tp") > 1
    if compiles and execution != "compiled":
        lines.lacks(f"execution = {execution}: the overlap of tensor-parallel collectives needs a compiled model")
    lines.add("compile.enable", compiles)
    if run.count("tp") > 1 and run.plan.get("tp_overlap") == "full":
        lines.add("compile.enable_async_tensor_parallel", True, "collectives beside matmuls")
    words = {"none": None, "selective": "SelectiveAC", "full": "FullAC"}
    lines.add("activation_checkpoint", words[_recompute(run, lines)], "activations computed again in the backward pass")
    lines.add("optimizer", "default_adamw")
    lines.add("loss", "ChunkedLossWrapper" if run.does("chunked_loss") else "CrossEntropyLoss")
    _precision(run, lines)
    lines.facts |= _facts(run)


def titan_toml_settings(run: RunSettings, lines: SettingLines) -> None:
    """Job configuration of torchtitan v0.2.2 for a plan; only registered model shapes are available."""
    family = registered(run, TOML_MODELS)
    if family is None:
        lines.lacks_model(f"{run.name or 'its shape'} is in no registry of this release; flavours are added in Python")
        lines.may_miss = ("model.name", "model.flavor")
    else:
        lines.add("model.name", family[0])
        lines.add("model.flavor", family[1])
    if run.precision == "fp8":
        lines.add("model.converters", ["quantize.linear.float8"], "matmuls in 8 bits")
        lines.add("quantize.linear.float8.recipe_name", "rowwise")
    elif run.precision in ("fp4", "fp16"):
        lines.lacks(f"precision = {run.precision}: bf16 is written")
    lines.add("optimizer.name", "AdamW")
    lines.add("optimizer.lr", 3e-4)
    lines.add("training.dataset", "c4", "put the data set here")
    lines.add("training.steps", 100)
    _batch(run, lines)
    kind = "float32" if run.precision in ("fp32", "tf32") else "bfloat16"
    lines.add("training.mixed_precision_param", kind, "number format of the weights in use")
    _parallelism(run, lines)
    overlaps = run.plan.get("tp_overlap") == "full" and run.count("tp") > 1
    lines.add("parallelism.enable_async_tensor_parallel", overlaps)
    if run.count("tp") > 1 and not run.does("sequence_parallel"):
        lines.lacks("sequence_parallel = no: norms are split over the tensor group")
    if run.shape.is_mixture and run.count("ep") > 1:
        word = str(run.plan.get("moe_dispatcher") or "alltoall")
        lines.add("parallelism.expert_parallel_comm_backend", "deepep" if word == "deepep" else "standard")
        if word not in ("alltoall", "deepep"):
            lines.lacks(f"moe_dispatcher = {word}: alltoall is written")
        if run.expert_tensor > 1:
            lines.add("parallelism.expert_tensor_parallel_degree", run.count("tp"))
    mode = _recompute(run, lines)
    lines.add("activation_checkpoint.mode", mode, "activations computed again in the backward pass")
    if mode == "selective":
        lines.add("activation_checkpoint.selective_ac_option", "op")
    lines.add("compile.enable", overlaps or run.plan.get("execution") == "compiled")
    if run.plan.get("execution") == "cuda-graphs":
        lines.lacks("execution = cuda-graphs: kernels are launched one by one")
    if run.does("chunked_loss"):
        lines.lacks("chunked_loss: logits are made at once")
    lines.facts |= _facts(run)


def _facts(run: RunSettings) -> dict[str, Any]:
    """Numbers of the model that rules of the options need and a registry holds."""
    return {
        "model.n_heads": run.shape.count("n_heads"),
        # Latent attention expands keys to all heads before the split.
        "model.n_kv_heads": run.shape.count("n_heads" if run.shape.is_latent else "n_kv_heads"),
        "model.n_experts": run.shape.count("n_experts") if run.shape.is_mixture else 0,
    }


def _unlike(run: RunSettings) -> list[str]:
    """Parts of the model that no layer builder of torchtitan has."""
    shape = run.shape
    said = shape.unlike(*shape.special_parts())
    for has, text in (
        (shape.is_latent and not shape.count("n_shared_experts"), "latent attention without shared experts"),
        (not shape.is_latent and shape.count("n_shared_experts") > 0, "shared experts without latent attention"),
        (not shape.is_latent and shape.n_dense_layers > 0, "dense layers among those with experts"),
        (not shape.is_latent and shape.has("n_predict_layers"), "prediction layers without latent attention"),
    ):
        said += [text] if has else []
    return said


def _family(run: RunSettings) -> str:
    """Family of the torchtitan registry with the layers of the model."""
    shape = run.shape
    if shape.is_latent:
        return "deepseek_v3"
    if shape.is_mixture:
        return "qwen3 moe"
    # The builder of llama3 has no argument for the width of a head.
    return "llama3" if shape.count("head_dim") * shape.count("n_heads") == shape.count("d_model") else "qwen3"


def _batch(run: RunSettings, lines: SettingLines) -> None:
    """Sequences of a replica per pipeline pass, and per step."""
    pp, micro = run.count("pp"), run.count("micro_batch_size")
    # torchtitan cuts the local batch into microbatches of a pipeline.
    local = micro * (run.count("n_microbatches") if pp > 1 else 1)
    lines.add("training.seq_len", run.tokens)
    lines.add("training.local_batch_size", local, "sequences of a replica" + (", all microbatches" if pp > 1 else ""))
    lines.add("training.global_batch_size", run.global_batch, f"{run.count('n_microbatches')} microbatches per replica")


def _parallelism(run: RunSettings, lines: SettingLines) -> None:
    """Degrees, sharding, pipeline."""
    # FSDP shards gradients at least; below ZeRO 2 replicas stay whole.
    shard = run.shard_group if run.zero_stage >= 2 else 1
    lines.add("parallelism.data_parallel_shard_degree", shard, "replicas that share one copy of the weights")
    lines.add("parallelism.data_parallel_replicate_degree", run.count("dp") // shard)
    if run.zero_stage >= 2:
        # Gathered weights are freed after the forward pass (3) or kept (2).
        reshard = "always" if run.zero_stage == 3 else "never"
        lines.add("parallelism.fsdp_reshard_after_forward", reshard, f"ZeRO {run.zero_stage}")
    if run.zero_stage < 2 and run.count("cp") > 1:
        lines.lacks(f"zero_stage = {run.zero_stage}: FSDP over the ranks of cp, as the program always has it")
    elif run.zero_stage == 1:
        lines.lacks("zero_stage = 1: FSDP splits gradients as well; plain replicas are written")
    for name, part in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"), ("ep", "expert")):
        lines.add(f"parallelism.{part}_parallel_degree", run.count(name))
    if run.count("pp") > 1:
        _pipeline(run, lines)
    if run.number("gradient_bytes", 4.0) == 2.0:
        lines.lacks("gradient_bytes: gradients travel in 32 bits")
    if run.number("offload_optimizer", 0.0) or run.number("offload_activations", 0.0):
        lines.lacks("offload: enable_cpu_offload takes weights, gradients and optimizer together")


def _pipeline(run: RunSettings, lines: SettingLines) -> None:
    """Schedule and stages; an end has as many layers as the others, or fewer."""
    vpp, layers = run.count("vpp"), run.layers_per_chunk()
    chunks = run.stage_layers()
    between, (first, last) = set(chunks[1:-1]), run.end_layers
    less = (0, 0)
    if (first or last) and len(between) == 1:
        layers = between.pop()
        # Options state by how many layers an end is shorter.
        less = (layers - chunks[0], layers - chunks[-1])
    if min(less) < 0 or (first or last) and layers is None:
        less, layers = (0, 0), None
        lines.lacks(f"first_stage_layers = {first}, last_stage_layers = {last}: stages between differ, or have fewer")
    lines.add(
        "parallelism.pipeline_parallel_microbatch_size", run.count("micro_batch_size"), "sequences of a microbatch"
    )
    schedule = "Interleaved1F1B" if vpp > 1 else "GPipe" if run.plan.get("schedule") == "gpipe" else "1F1B"
    if run.plan.get("schedule") in ("zero-bubble", "dualpipe"):
        lines.lacks(f"schedule = {run.plan['schedule']}: {schedule} is written")
    lines.add("parallelism.pipeline_parallel_schedule", schedule, f"{vpp} chunks of layers on each chip")
    lines.add("parallelism.pipeline_parallel_first_stage_less_layers", less[0])
    lines.add("parallelism.pipeline_parallel_last_stage_less_layers", less[1])
    if layers is not None:
        lines.add("parallelism.pipeline_parallel_layers_per_stage", layers)
    elif vpp > 1:
        lines.lacks(f"vpp = {vpp}: chunks of unequal numbers of layers are not set by a number")


def _recompute(run: RunSettings, lines: SettingLines) -> str:
    """Word of recomputation: whole layers, or by operation."""
    if run.recomputes_modules:
        usual = recomputation("selective", None, "torchtitan")
        # The share in a mixture differs.
        if not any(
            abs(run.number("recompute_full", 0.0) - share) < 1e-3 for share in (usual.dropped, usual.of_mixtures)
        ):
            lines.lacks("recompute_modules: selective is written, which chooses by operation")
        return "selective"
    if run.recompute == "selective":
        lines.lacks("recompute = selective: by operation, not the core of attention alone")
    return run.recompute


def _precision(run: RunSettings, lines: SettingLines) -> None:
    if run.precision == "tf32":
        lines.lacks("precision = tf32: float32 is written; torch decides about tf32")
    if run.precision == "fp16":
        lines.lacks("precision = fp16: bf16 is written")
    if run.precision == "fp8":
        lines.facts["converter"] = "Float8LinearConverter"
    if run.precision == "fp4":
        lines.facts["converter"] = "NVFP4LinearConverter"
    word = str(run.plan.get("moe_dispatcher") or "alltoall")
    if run.shape.is_mixture and word not in ("alltoall", "deepep", "hybridep"):
        lines.lacks(f"moe_dispatcher = {word}: alltoall is written")


def torchtitan_script(run: RunSettings, lines: SettingLines, release: str) -> str:
    """Python module of the registry with the function `run` for a plan."""
    per_node = run.ranks_per_node
    launcher = f"torchrun --nnodes {run.n_nodes} --nproc-per-node {per_node}"
    sections = {name: _section(lines, name) for name in ("training", "parallelism", "compile")}
    values = {key: value for key, value, _ in lines.entries}
    checkpoint = values["activation_checkpoint"]
    compiles = bool(values["compile.enable"])
    family = registered(run)
    kind = family[0] if family else _family(run).split()[0]
    quantised = lines.facts.get("converter")
    imports = [
        "import dataclasses",
        "",
        "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss",
        "from torchtitan.components.optimizer import default_adamw",
        *([f"from torchtitan.components.quantization import {quantised}"] if quantised else []),
        "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
        "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
        "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
        f"from torchtitan.models import {kind} as family",
        "from torchtitan.models.common import ComplexRoPE, CosSinRoPE",
        "from torchtitan.models.common.config_utils import decoder_vocab_size",
        "from torchtitan.trainer import Trainer",
        "",
    ]
    body = [
        f"    training=TrainingConfig(\n{sections['training']}\n        ),",
        f"    parallelism=ParallelismConfig(\n{sections['parallelism']}\n        ),",
        f"    compile=CompileConfig(\n{sections['compile']}\n        ),",
        f"    activation_checkpoint={f'{checkpoint}.Config()' if checkpoint else None},",
    ]
    entropy = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))"
    loss = f"ChunkedLossWrapper.Config(loss_fn={entropy})" if run.does("chunked_loss") else entropy
    converter = f"{quantised}.Config(model_compile_enabled={compiles})" if quantised else ""
    return (
        "\n".join(
            [
                f"# torchtitan {release}; put it in the registry of {kind} and start it with",
                f"# {launcher} -m torchtitan.train --module {kind} --config run",
                *lines.remarks(),
                *refusal(lines.missing),
                *imports,
                *_model_text(run, family, converter, bool(lines.missing)),
                "",
                "def run() -> Trainer.Config:",
                "    model_spec = model()",
                "    return Trainer.Config(",
                "        model_spec=model_spec,",
                f"        loss={loss},",
                "        optimizer=default_adamw(lr=3e-4),",
                '        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),',
                *("    " + line for line in body),
                "    )",
            ]
        )
        + "\n"
    )


def _section(lines: SettingLines, name: str) -> str:
    """Keyword arguments of a section."""
    own = [
        (key[len(name) + 1 :], value, comment) for key, value, comment in lines.entries if key.startswith(f"{name}.")
    ]
    return "\n".join(keyword_lines(own, " " * 12))


def _model_text(run: RunSettings, family: tuple[str, str] | None, converter: str, is_missing: bool) -> list[str]:
    """Python function that builds the model from the registry, or from explicit layers."""
    backends = ["attn_backend='flex'"]
    word = str(run.plan.get("moe_dispatcher") or "alltoall")
    if run.shape.is_mixture:
        names = {"deepep": "deepep", "hybridep": "hybridep"}
        backends.append(f"moe_comm_backend={names.get(word, 'standard')!r}")
    if family and family[0] == "gpt_oss":
        backends[0] = "attn_backend='varlen'"
    if family or is_missing:
        backends += [f"converters=[{converter}]"] if converter else []
        flavour = family[1] if family else "debugmodel"
        return ["", "def model():", f"    return family.model_registry({', '.join([repr(flavour), *backends])})", ""]
    builder, like = BUILDERS[_family(run)]
    keywords = [(key, value, "") for key, value in _sizes(run).items()]
    d, vocabulary = run.shape.count("d_model"), run.shape.count("vocab_size")
    predicts = run.shape.count("n_predict_layers")
    tied = [f"        enable_weight_tying={run.shape.is_tied},"] if not run.shape.is_latent else []
    return [
        "",
        "def model():",
        f"    spec = family.model_registry({', '.join([repr(like), *backends])})",
        f"    layers = family.{builder}(",
        *keyword_lines(keywords, " " * 8),
        "    )",
        "    own = dataclasses.replace(",
        "        spec.model,",
        f"        dim={d},",
        f"        vocab_size={vocabulary},",
        *tied,
        "        tok_embeddings=dataclasses.replace(",
        f"            spec.model.tok_embeddings, num_embeddings={vocabulary}, embedding_dim={d}",
        "        ),",
        f"        norm=dataclasses.replace(spec.model.norm, normalized_shape={d}),",
        f"        lm_head=dataclasses.replace(spec.model.lm_head, in_features={d}, out_features={vocabulary}),",
        "        layers=layers,",
        *(
            [f"        mtp_layers=family._build_mtp_layers(layers[-1], dim={d}, num_mtp_layers={predicts}),"]
            if run.shape.is_latent
            else []
        ),
        "    )",
        *([f"    own = {converter}.build().convert(own)"] if converter else []),
        "    return dataclasses.replace(spec, flavor='own', model=own)",
        "",
    ]


def _sizes(run: RunSettings) -> dict[str, Any]:
    """Arguments of the builder of the layers."""
    shape, kind = run.shape, _family(run)
    sizes: dict[str, Any] = {
        name: shape.count(field)
        for name, field in (("n_layers", "n_layers"), ("dim", "d_model"), ("n_heads", "n_heads"))
    }
    head = shape.count("head_dim")
    if kind != "deepseek_v3":
        sizes["n_kv_heads"] = shape.count("n_kv_heads")
    if kind.startswith("qwen3"):
        sizes["head_dim"] = head
    if kind in ("llama3", "qwen3"):
        sizes["hidden_dim"] = shape.count("d_ff")
    if kind == "qwen3 moe":
        sizes |= {"moe_hidden_dim": shape.count("d_ff_expert"), "num_experts": shape.count("n_experts")}
        sizes |= {"top_k": shape.count("moe_top_k")}
    if kind == "deepseek_v3":
        sizes |= _latent_sizes(run)
    if shape.is_mixture:
        word = str(run.plan.get("moe_dispatcher") or "alltoall")
        sizes["moe_comm_backend"] = word if word in ("deepep", "hybridep") else "standard"
    sizes["attn_backend"] = "flex"
    rope = "ComplexRoPE" if kind in ("llama3", "deepseek_v3") else "CosSinRoPE"
    # Latent attention turns the rotary width alone.
    width = shape.count("rope_head_dim") if shape.is_latent else head
    sizes["rope"] = Code(f"{rope}.Config(dim={width}, max_seq_len={max(run.tokens, 4096)}, theta=500000)")
    return sizes


def _latent_sizes(run: RunSettings) -> dict[str, Any]:
    shape = run.shape
    return {
        "n_dense_layers": shape.n_dense_layers if shape.is_mixture else shape.count("n_layers"),
        "q_lora_rank": shape.count("q_lora_rank"),
        "kv_lora_rank": shape.count("kv_lora_rank"),
        "qk_nope_head_dim": shape.count("head_dim") - shape.count("rope_head_dim"),
        "qk_rope_head_dim": shape.count("rope_head_dim"),
        "v_head_dim": shape.count("v_head_dim"),
        "mscale": 1.0,
        "dense_hidden_dim": shape.count("d_ff"),
        "moe_hidden_dim": shape.count("d_ff_expert"),
        "num_experts": shape.count("n_experts"),
        "num_shared_experts": shape.count("n_shared_experts"),
        "router_top_k": shape.count("moe_top_k"),
        "router_score_func": "sigmoid",
        "non_blocking_capacity_factor": None,
    }
