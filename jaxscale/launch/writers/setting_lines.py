"""Settings with comments in the formats of launch files, and the numbers of a plan as launch files count."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jaxscale.launch.writers.model_shape import ModelShape
from jaxscale.plans.plan import END_STAGES


@dataclass
class SettingLines:
    """Launch settings by option with comments, and choices without an option.

    Attributes:
        entries: option, value and comment of each setting.
        not_expressed: choices of plan or model without an option.
        missing: features of the model without an option; without them, a different model would be trained.
        environment: environment variables.
        facts: numbers needed by rules of the framework and absent from the settings.
        may_miss: required options left out on purpose, to prevent training of a different model.
        n_ranks: ranks of the program, if fewer than the chips of the run [1].
    """

    entries: list[tuple[str, Any, str]] = field(default_factory=list)
    not_expressed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    may_miss: tuple[str, ...] = ()
    n_ranks: int | None = None

    def add(self, key: str, value: Any, comment: str = "") -> None:
        """Add a setting with a comment."""
        self.entries.append((key, value, comment))

    def lacks(self, text: str) -> None:
        """Record a choice without an option."""
        self.not_expressed.append(text)

    def lacks_model(self, text: str) -> None:
        """Record a feature of the model without an option; the written settings then refuse to start."""
        self.missing.append(text)
        self.not_expressed.append(f"model: {text}")

    def settings(self) -> dict[str, Any]:
        """Values by option, environment variables and `facts` included, for the check by rules."""
        return {
            **{key: value for key, value, _ in self.entries},
            **{f"env.{name}": value for name, value in self.environment.items()},
            **self.facts,
        }

    def as_options(self) -> list[str]:
        """Settings as command-line options, one per line, with comments; True is written as a flag."""
        return ["  " + _option(key, value) + _comment(comment) for key, value, comment in self.entries]

    def as_yaml(self) -> str:
        """Settings as YAML text with comments; dotted keys are nested."""
        return "\n".join([*self.remarks(), *self._nested(self.tree(), "")]) + "\n"

    def as_toml(self) -> str:
        """Settings as TOML text with comments; dotted keys are grouped in tables."""
        return "\n".join([*self.remarks(), *_toml_tables(self.tree(), "")]).lstrip("\n") + "\n"

    def as_json(self) -> str:
        """Settings as JSON text, without comments."""

        def plain(tree: dict[str, Any]) -> dict[str, Any]:
            return {key: plain(value) if isinstance(value, dict) else value[0] for key, value in tree.items()}

        return json.dumps(plain(self.tree()), indent=2) + "\n"

    def remarks(self) -> list[str]:
        """Comment lines on the choices without an option."""
        return [f"# not expressed: {text}" for text in self.not_expressed]

    def tree(self) -> dict[str, Any]:
        """Value and comment of each setting as nested tables, from dotted keys."""
        tree: dict[str, Any] = {}
        for key, value, comment in self.entries:
            *tables, last = key.split(".")
            place = tree
            for table in tables:
                place = place.setdefault(table, {})
            place[last] = (value, comment)
        return tree

    def _nested(self, tree: dict[str, Any], indent: str) -> list[str]:
        lines = []
        for key, value in tree.items():
            if isinstance(value, dict):
                lines += [f"{indent}{key}:", *self._nested(value, indent + "  ")]
            else:
                lines.append(f"{indent}{key}: {json.dumps(value[0])}" + _comment(value[1]))
        return lines


def _toml_tables(tree: dict[str, Any], name: str) -> list[str]:
    """Lines of a table, then of the tables inside it."""
    own = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    lines = ["", f"[{name}]"] if own and name else []
    lines += [f"{key} = {json.dumps(value)}" + _comment(comment) for key, (value, comment) in own.items()]
    for key, inner in tree.items():
        if isinstance(inner, dict):
            lines += _toml_tables(inner, f"{name}.{key}" if name else key)
    return lines


def _option(key: str, value: Any) -> str:
    """Option with values, quoted for a shell."""
    if value is True:
        return key
    values = value if isinstance(value, list) else [value]
    return " ".join([key, *(shlex.quote(str(part)) for part in values)])


def _comment(text: str) -> str:
    return f"  # {text}" if text else ""


class Code(str):
    """Value written as Python code without quotes, for example `torch.bfloat16`."""


def python_value(value: Any) -> str:
    """Text of a value in Python syntax."""
    return str(value) if isinstance(value, Code) else repr(value)


def keyword_lines(entries: list[tuple[str, Any, str]], indent: str = "    ") -> list[str]:
    """Lines of Python keyword arguments with comments."""
    return [
        f"{indent}{key}={python_value(value)},{f'  # {comment}' if comment else ''}" for key, value, comment in entries
    ]


def refusal(missing: list[str]) -> list[str]:
    """Python lines that stop the program if the settings would train a different model."""
    if not missing:
        return []
    return [f"raise SystemExit({'not expressed: ' + '; '.join(missing)!r})", ""]


@dataclass(frozen=True)
class RunSettings:
    """Plan, model and sequence length, with the numbers that launch files need.

    Attributes:
        plan: fields of the plan.
        model: arguments of `Transformer`.
        seq_len: tokens in a sequence [token].
        name: name of the model, possibly empty.
        chips_per_node: chips of a host [1].
        is_tpu: whether the chips are TPUs.
        parts: parameters not included in `model`, by component [1].
    """

    plan: Mapping[str, Any]
    model: Mapping[str, Any]
    seq_len: float
    name: str
    chips_per_node: int = 8
    is_tpu: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def shape(self) -> ModelShape:
        """Model in whole numbers."""
        return ModelShape(self.model, self.parts)

    def count(self, name: str) -> int:
        """Integer field of the plan; 1 if unstated [1]."""
        return round(float(self.plan.get(name) or 1))

    def number(self, name: str, default: float) -> float:
        """Field of the plan as a float; `default` if unstated."""
        value = self.plan.get(name)
        return default if value is None else float(value)

    def does(self, name: str, default: bool = False) -> bool:
        """Field of the plan as a truth value; `default` if unstated."""
        return bool(self.plan.get(name, default))

    @property
    def tokens(self) -> int:
        """Sequence length as an integer [token]."""
        return round(self.seq_len)

    @property
    def zero_stage(self) -> int:
        """ZeRO stage; 0 without a second replica for sharding [1]."""
        # Ranks of cp hold equal weights: the state can be sharded over cp too.
        return round(float(self.plan.get("zero_stage") or 0)) if self.count("dp") * self.count("cp") > 1 else 0

    @property
    def n_chips(self) -> int:
        """Number of chips of the run [1]."""
        return self.count("dp") * self.count("tp") * self.count("pp") * self.count("cp")

    @property
    def ranks_per_node(self) -> int:
        """Processes per host: the largest number up to the chips of a host with equally many on every host [1]."""
        most = min(self.chips_per_node, self.n_chips)
        # torchrun starts equally many processes on every host.
        return next(ranks for ranks in range(most, 0, -1) if self.n_chips % ranks == 0)

    @property
    def n_nodes(self) -> int:
        """Number of hosts of the run [1]."""
        return self.n_chips // self.ranks_per_node

    @property
    def global_batch(self) -> int:
        """Global batch: sequences per step [sequence]."""
        return self.count("micro_batch_size") * self.count("n_microbatches") * self.count("dp")

    @property
    def shard_group(self) -> int:
        """Number of replicas that share one sharded copy of the state [1]."""
        return min(self.count("shard_group"), self.count("dp")) if self.plan.get("shard_group") else self.count("dp")

    @property
    def expert_tensor(self) -> int:
        """Tensor-parallel degree of an expert: the stated degree, else tp, reduced if ep exceeds dp cp [1]."""
        if stated := round(self.number("etp", 0.0)):
            return stated
        # ep beyond replicas and sequence ranks takes chips of the tensor group.
        room = self.count("dp") * self.count("cp") / self.count("ep")
        return max(1, round(self.count("tp") * min(room, 1.0)))

    @property
    def precision(self) -> str:
        """Number format of the matmuls."""
        return str(self.plan.get("precision") or "bf16")

    @property
    def recompute(self) -> str:
        """Recomputation: `none`, `selective` or `full`."""
        return str(self.plan.get("recompute") or "none")

    @property
    def recomputes_modules(self) -> bool:
        """Whether single modules of a layer are computed again, or some layers of a stage."""
        return 0.0 < self.number("recompute_full", 0.0) < 1.0

    @property
    def end_layers(self) -> tuple[int, int]:
        """Stated layers of the first and last pipeline stage without prediction layers; 0 if unstated [1]."""
        first, last = (round(self.number(name, 0.0)) for name in END_STAGES)
        # Prediction layers are on the last stage and have an option apart.
        return first, max(last - self.shape.count("n_predict_layers"), 0)

    def layers_per_chunk(self) -> int | None:
        """Number of layers per pipeline chunk; None for unequal chunks [1]."""
        layers = set(self.stage_layers())
        return layers.pop() if len(layers) == 1 else None

    def stage_layers(self) -> list[int]:
        """Number of layers of each pipeline chunk, in the order of the layers [1], [chunk].

        If the layers do not divide evenly, earlier chunks are longer by 1; a stated end stage has the shortest chunk
        outermost.
        """
        stages, vpp, (first, last) = self.count("pp"), self.count("vpp"), self.end_layers
        if not first and not last:
            return _shared(self.shape.count("n_layers"), stages * vpp)
        others = stages - (first > 0) - (last > 0)
        between = _shared(self.shape.count("n_layers") - first - last, others) if others else []
        chunks = [_shared(layers, vpp) for layers in between]
        if first:
            chunks.insert(0, _shared(first, vpp)[::-1])
        if last:
            chunks.append(_shared(last, vpp))
        # Interleaved: chunk c of stage s is number c * pp + s.
        return [chunks[stage][chunk] for chunk in range(vpp) for stage in range(stages)]


def _shared(layers: int, parts: int) -> list[int]:
    """Layers of each pipeline chunk, as equal as possible, longer chunks first [chunk]."""
    return [layers // parts + (part < layers % parts) for part in range(parts)]
