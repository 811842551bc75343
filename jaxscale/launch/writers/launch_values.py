"""Fields of a plan as launch files count them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunSettings:
    """A plan, a model and a length, as launch files need them.

    Attributes:
        plan: fields of the plan.
        model: arguments of `Transformer`.
        seq_len: tokens in a sequence [token].
        name: name of the model, empty where it has none.
    """

    plan: Mapping[str, Any]
    model: Mapping[str, Any]
    seq_len: float
    name: str

    def count(self, name: str) -> int:
        """Whole number of the plan; 1 where it has none [1]."""
        return round(float(self.plan.get(name) or 1))

    @property
    def zero_stage(self) -> int:
        """ZeRO stage [1]."""
        return round(float(self.plan.get("zero_stage") or 0))

    @property
    def n_chips(self) -> int:
        """Chips of the run [1]."""
        return self.count("dp") * self.count("tp") * self.count("pp") * self.count("cp")

    @property
    def global_batch(self) -> int:
        """Sequences in a step [1]."""
        return self.count("micro_batch_size") * self.count("n_microbatches") * self.count("dp")

    @property
    def shard_group(self) -> int:
        """Replicas that share one copy of the sharded state [1]."""
        return min(self.count("shard_group"), self.count("dp")) if self.plan.get("shard_group") else self.count("dp")

    @property
    def precision(self) -> str:
        """Number format of the matmuls."""
        return str(self.plan.get("precision") or "bf16")

    @property
    def recompute(self) -> str:
        """Recomputed part: none, selective or full."""
        return str(self.plan.get("recompute") or "none")

    @property
    def is_mixture(self) -> bool:
        """Whether the model is a mixture of experts."""
        return float(self.model.get("n_experts") or 1) > 1

    def layers_per_chunk(self) -> int | None:
        """Layers of one chunk of a pipeline stage; None where they are not equal [1]."""
        chunks = self.count("pp") * self.count("vpp")
        layers = round(float(self.model["n_layers"]))
        return layers // chunks if layers % chunks == 0 else None
