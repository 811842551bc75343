"""`AbstractWork`: the interface of workloads other than the transformer."""

import abc
from collections.abc import Mapping
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float


class AbstractWork(eqx.Module):
    """Workload of a training step with its terms of time and memory: a traced program, or a user's class.

    `js.step_time`, `js.memory` and `js.best_plan` accept every workload. The terms of `Transformer` are
    in `jaxscale.costs`.
    """

    @abc.abstractmethod
    def step_terms(
        self, plan: Any, cluster: Any, coefficients: Any, temperature: Any
    ) -> Mapping[str, Float[Array, "*batch"]]:
        """Time of a step by cause, by names of `StepTime`; omitted terms are 0 [s].

        Args:
            plan: division of the work over chips, of the workload's plan class.
            cluster: chips and network.
            coefficients: fitted parameters.
            temperature: smoothing of maxima [1].
        """

    @abc.abstractmethod
    def memory_terms(self, plan: Any, cluster: Any, coefficients: Any) -> Mapping[str, Float[Array, "*batch"]]:
        """Peak memory of the fullest chip by cause, by names of `Memory`; omitted terms are 0 [byte].

        Args:
            plan: as in `step_terms`.
            cluster: chips and network.
            coefficients: fitted parameters.
        """

    @abc.abstractmethod
    def ranked_plans(self, cluster: Any, batch: float | int, coefficients: Any, memory_limit: float, top: int) -> Any:
        """Fastest plans that fit in memory, the best first.

        Args:
            cluster: chips and network; a plan uses all chips.
            batch: size of the named axis that data parallelism divides [1].
            coefficients: fitted parameters.
            memory_limit: usable memory of a chip [byte].
            top: number of ranked plans [1].

        Raises:
            InputError: no valid plan, or no plan that fits.
        """
