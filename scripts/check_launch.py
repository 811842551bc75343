"""Written launch settings, and what the programs' own parsers make of them; started by `check_launch.sh`."""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODELS = (
    "llama3-8b", "qwen3-14b", "llama3.2-1b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "kimi-k2", "gpt-oss-20b",
    "gemma3-27b", "nemotron-h-56b",
)  # fmt: skip
N_CHIPS = 64
SEQ_LEN = 4096
ENDINGS = {"torchtitan": "py", "deepspeed": "json", "megatron-lm": "json", "maxtext": "yaml"}


def write(folder: Path) -> None:
    """Write settings of all models, and a list of them with the parameters that each should have."""
    from jaxscale.launch.writers.launch_text import launch_text
    from jaxscale.models import catalogue_model
    from jaxscale.models.transformer import Transformer, n_params
    from jaxscale.plans.plan_questions import framework_space

    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for framework, ending in ENDINGS.items():
        for name in MODELS:
            fields = dict(catalogue_model(name) or {})
            space = framework_space(framework)
            plan = {**space.software.words(), "dp": N_CHIPS // 2, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "vpp": 1}
            plan |= {"zero_stage": space.zero_stage[-1], "micro_batch_size": 1, "n_microbatches": 4}
            plan |= {"sequence_parallel": True, "recompute": "none", "schedule": "1f1b", "shard_group": N_CHIPS // 2}
            # One slice of all chips, as host devices are.
            node = N_CHIPS if framework == "maxtext" else 8
            text = launch_text(framework, plan, fields, SEQ_LEN, name, node)
            path = folder / f"{framework}_{name}.{ending}".replace(".", "_", name.count("."))
            is_options = framework == "megatron-lm"
            path.write_text(json.dumps(dict(text.settings)) if is_options else text.text, encoding="utf-8")
            missing = [told for told in text.not_expressed if told.startswith("model: ")]
            entry = {"framework": framework, "model": name, "file": path.name, "missing": missing}
            entries.append({**entry, "n_params": float(n_params(Transformer(**fields)))})
    (folder / "list.json").write_text(json.dumps(entries), encoding="utf-8")


def torchtitan_params(path: Path) -> float:
    """Parameters of the model that a configuration builds, made without memory; refuses an invalid mesh [1]."""
    import torch  # pyright: ignore[reportMissingImports]
    from torchtitan.distributed.parallel_dims import ParallelDims  # pyright: ignore[reportMissingImports]

    found = importlib.util.spec_from_file_location("configuration", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    config = module.run()
    mesh = config.parallelism
    ParallelDims(
        dp_shard=mesh.data_parallel_shard_degree,
        dp_replicate=mesh.data_parallel_replicate_degree,
        cp=mesh.context_parallel_degree,
        tp=mesh.tensor_parallel_degree,
        pp=mesh.pipeline_parallel_degree,
        ep=mesh.expert_parallel_degree,
        world_size=N_CHIPS,
    )
    config.model_spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = config.model_spec.model.build()
    return float(sum(weight.numel() for weight in model.parameters()))


def deepspeed_batch(path: Path) -> None:
    """Read a configuration for the ranks of the run."""
    import deepspeed.comm  # pyright: ignore[reportMissingImports]
    from deepspeed.runtime.config import DeepSpeedConfig  # pyright: ignore[reportMissingImports]

    class Ranks:
        """Replicas of the run, as tensor parallelism leaves them."""

        @staticmethod
        def get_data_parallel_world_size() -> int:
            return N_CHIPS // 2

    deepspeed.comm.get_rank = lambda *_, **__: 0
    deepspeed.comm.get_world_size = lambda *_, **__: N_CHIPS
    settings = json.loads(path.read_text(encoding="utf-8"))
    read = DeepSpeedConfig(settings, mpu=Ranks())
    assert read.train_batch_size == settings["train_batch_size"]


def megatron_config(path: Path) -> None:
    """Make the configuration of a model of its options, as far as this release of megatron-core has their fields."""
    import dataclasses

    import torch  # pyright: ignore[reportMissingImports]
    from megatron.core.transformer import transformer_config as module  # pyright: ignore[reportMissingImports]

    options = {key.removeprefix("--").replace("-", "_"): value for key, value in json.loads(path.read_text()).items()}
    is_latent = bool(options.get("multi_latent_attention"))
    kind = module.MLATransformerConfig if is_latent else module.TransformerConfig
    known = {field.name for field in dataclasses.fields(kind)}
    own: dict[str, Any] = {key: value for key, value in options.items() if key in known}
    own |= {"num_moe_experts": options.get("num_experts"), "gated_linear_unit": bool(options.get("swiglu"))}
    own |= {"add_bias_linear": not options.get("disable_bias_linear"), "apply_rope_fusion": False}
    own["num_layers"] = options.get("num_layers") or len(options["hybrid_layer_pattern"].replace("|", ""))
    own["activation_func"] = torch.nn.functional.silu if options.get("swiglu") else torch.nn.functional.gelu
    own.pop("attention_backend", None)
    if "window_size" in own:
        own["window_size"] = tuple(int(part) for part in own["window_size"].split(","))
    for name in ("moe_layer_freq", "window_attn_skip_freq"):
        if isinstance(own.get(name), str):
            own[name] = eval(own[name], {"__builtins__": {}})  # noqa: S307 - as the program itself does
    if own.get("tp_comm_overlap"):
        own["tp_comm_overlap"] = False  # needs TransformerEngine
    kind(**own)


class _Absent(types.ModuleType):
    """A module that is not installed and that no check of a configuration calls."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return unittest.mock.MagicMock(name=name)


class _AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what is not installed of a program's trainers and data sets."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.startswith(("maxtext", "jax", "rocm", "cuda", "scipy")):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


@functools.cache
def _maxtext() -> Any:
    """Module of MaxText's configuration, on as many host devices as the run has chips."""
    os.environ |= {"XLA_FLAGS": f"--xla_force_host_platform_device_count={N_CHIPS}", "JAX_PLATFORMS": "cpu"}
    for name in ("flax.linen", "flax.nnx", "omegaconf", "pydantic", "yaml"):
        importlib.import_module(name)
    importlib.import_module("jax").devices()
    sys.meta_path.append(_AbsentFinder())
    return importlib.import_module("maxtext.configs.pyconfig")


def maxtext_config(path: Path) -> None:
    """Read a configuration beside base.yml, on the chips of this host, whose kernel of attention is the plain one."""
    module = _maxtext()
    settings = importlib.import_module("yaml").safe_load(path.read_text(encoding="utf-8"))
    settings |= {"hardware": "cpu", "attention": "dot_product", "skip_jax_distributed_system": True}
    words = [
        f"{key}={json.dumps(value) if isinstance(value, list | bool) else value}" for key, value in settings.items()
    ]
    read = module.initialize(["train", str(Path(module.__file__).with_name("base.yml")), *words])
    assert (read.num_decoder_layers, read.emb_dim) == (settings["base_num_decoder_layers"], settings["base_emb_dim"])


CHECKS: dict[str, Callable[[Path], float | None]] = {
    "torchtitan": torchtitan_params,
    "deepspeed": deepspeed_batch,
    "megatron-lm": megatron_config,
    "maxtext": maxtext_config,
}


def check(folder: Path, frameworks: tuple[str, ...]) -> int:
    """Feed each file to its program; the number of those that it refuses or makes another model of."""
    wrong = 0
    for entry in json.loads((folder / "list.json").read_text(encoding="utf-8")):
        if entry["framework"] not in frameworks:
            continue
        name = f"{entry['framework']} {entry['model']}"
        if entry["missing"] and entry["framework"] != "deepspeed":
            print(f"{name}: told as missing: {'; '.join(entry['missing'])}")
            continue
        try:
            found = CHECKS[entry["framework"]](folder / entry["file"])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a program raises is a refusal
            wrong += 1
            print(f"{name}: REFUSED: {type(error).__name__}: {str(error)[:300]}")
            continue
        is_other = found is not None and abs(found / entry["n_params"] - 1.0) > 5e-3
        wrong += is_other
        told = "" if found is None else f", {found:.6g} parameters ({entry['n_params']:.6g} wanted)"
        print(f"{name}: {'ANOTHER MODEL' if is_other else 'taken'}{told}")
    return wrong


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        programs = tuple(sys.argv[3:]) or ("torchtitan", "deepspeed", "megatron-lm")
        raise SystemExit(min(check(Path(sys.argv[2]), programs), 1))
