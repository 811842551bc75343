"""Fields of a plan as launch files count them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jaxscale.launch.writers.model_shape import ModelShape
from jaxscale.plans.plan import END_STAGES


@dataclass(frozen=True)
class RunSettings:
    """A plan, a model and a length, as launch files need them.

    Attributes:
        plan: fields of the plan.
        model: arguments of `Transformer`.
        seq_len: tokens in a sequence [token].
        name: name of the model, empty where it has none.
        chips_per_node: chips of a host [1].
        is_tpu: whether the chips are TPUs.
        parts: parameters beside those of the fields, by the part of the model that has them [1].
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
        """ZeRO stage; 0 for one chip of all that hold the same weights, which has nobody to share with [1]."""
        return round(float(self.plan.get("zero_stage") or 0)) if self.count("dp") * self.count("cp") > 1 else 0

    @property
    def n_chips(self) -> int:
        """Chips of the run [1]."""
        return self.count("dp") * self.count("tp") * self.count("pp") * self.count("cp")

    @property
    def ranks_per_node(self) -> int:
        """Processes of a host: the most of its chips that give every host as many [1]."""
        most = min(self.chips_per_node, self.n_chips)
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
        """Replicas that share one copy of the sharded state [1]."""
        return min(self.count("shard_group"), self.count("dp")) if self.plan.get("shard_group") else self.count("dp")

    @property
    def expert_tensor(self) -> int:
        """Ways in which each expert is split: the stated ones, or tp where ep leaves it room [1]."""
        if stated := round(self.number("etp", 0.0)):
            return stated
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
        """Stated layers of the first and of the last stage, without those for prediction; 0 where none are [1]."""
        first, last = (round(self.number(name, 0.0)) for name in END_STAGES)
        return first, max(last - self.shape.count("n_predict_layers"), 0)

    def layers_per_chunk(self) -> int | None:
        """Layers of one chunk of a pipeline stage; None where they are not equal [1]."""
        layers = set(self.stage_layers())
        return layers.pop() if len(layers) == 1 else None

    def stage_layers(self) -> list[int]:
        """Layers of each chunk of the pipeline in order.

        The first ones get one more where they do not divide; an end of stated layers has its shortest chunk outermost.
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
        return [chunks[stage][chunk] for chunk in range(vpp) for stage in range(stages)]


def _shared(layers: int, parts: int) -> list[int]:
    """Layers of equal parts, the first ones with one more where they do not divide [part]."""
    return [layers // parts + (part < layers % parts) for part in range(parts)]
