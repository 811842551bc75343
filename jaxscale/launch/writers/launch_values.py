"""Fields of a plan as launch files count them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jaxscale.launch.writers.model_shape import ModelShape
from jaxscale.plans.plan import END_STAGES


@dataclass(frozen=True)
class RunSettings:
    """Plan, model and sequence length in the values of launch files.

    Attributes:
        plan: fields of the plan.
        model: arguments of `Transformer`.
        seq_len: tokens in a sequence [token].
        name: name of the model, may be empty.
        chips_per_node: chips of a host [1].
        is_tpu: whether the chips are TPUs.
        parts: parameters that `model` does not count, by part of the model [1].
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
        """The model in whole numbers."""
        return ModelShape(self.model, self.parts)

    def count(self, name: str) -> int:
        """Whole number of the plan; 1 where it has none [1]."""
        return round(float(self.plan.get(name) or 1))

    def number(self, name: str, default: float) -> float:
        """Number of the plan, or the default where it says none."""
        value = self.plan.get(name)
        return default if value is None else float(value)

    def does(self, name: str, default: bool = False) -> bool:
        """Whether the plan has a switch on."""
        return bool(self.plan.get(name, default))

    @property
    def tokens(self) -> int:
        """Tokens in a sequence [token]."""
        return round(self.seq_len)

    @property
    def zero_stage(self) -> int:
        """ZeRO stage; 0 where no second replica exists to shard over [1]."""
        # Ranks of cp hold equal weights: the state can be sharded over cp too.
        return round(float(self.plan.get("zero_stage") or 0)) if self.count("dp") * self.count("cp") > 1 else 0

    @property
    def n_chips(self) -> int:
        """Chips of the run [1]."""
        return self.count("dp") * self.count("tp") * self.count("pp") * self.count("cp")

    @property
    def ranks_per_node(self) -> int:
        """Processes per host: the largest number of chips of a host that gives every host equally many [1]."""
        most = min(self.chips_per_node, self.n_chips)
        # torchrun starts equally many processes on every host.
        return next(ranks for ranks in range(most, 0, -1) if self.n_chips % ranks == 0)

    @property
    def n_nodes(self) -> int:
        """Hosts of the run [1]."""
        return self.n_chips // self.ranks_per_node

    @property
    def global_batch(self) -> int:
        """Sequences in a step [1]."""
        return self.count("micro_batch_size") * self.count("n_microbatches") * self.count("dp")

    @property
    def shard_group(self) -> int:
        """Replicas over which the state is sharded once [1]."""
        return min(self.count("shard_group"), self.count("dp")) if self.plan.get("shard_group") else self.count("dp")

    @property
    def expert_tensor(self) -> int:
        """Tensor-parallel degree of an expert: as stated, else tp where ep leaves room [1]."""
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
        """Recomputed part: none, selective or full."""
        return str(self.plan.get("recompute") or "none")

    @property
    def end_layers(self) -> tuple[int, int]:
        """Stated layers of the first and of the last stage without prediction layers; 0 where unstated [1]."""
        first, last = (round(self.number(name, 0.0)) for name in END_STAGES)
        # Prediction layers are on the last stage and have an option apart.
        return first, max(last - self.shape.count("n_predict_layers"), 0)

    def layers_per_chunk(self) -> int | None:
        """Layers per pipeline chunk; None for unequal chunks [1]."""
        layers = set(self.stage_layers())
        return layers.pop() if len(layers) == 1 else None

    def stage_layers(self) -> list[int]:
        """Layers of each chunk of the pipeline, in order of the layers [chunk].

        Where chunks do not divide the layers, earlier chunks are longer by 1; a stated end stage has its shortest chunk
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
