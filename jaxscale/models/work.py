"""`AbstractWork`: what a training step consists of, for kinds of work beside the transformer."""

import abc
from collections.abc import Mapping
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float


class AbstractWork(eqx.Module):
    """Work of a training step that brings its own cost terms: a traced program, or a kind of your own.

    `js.step_time`, `js.memory` and `js.best_plan` take any. `Transformer` needs none of these methods, as its terms are
    those of `jaxscale.costs`.
    """

    @abc.abstractmethod
    def step_terms(
        self, plan: Any, cluster: Any, coefficients: Any, temperature: Any
    ) -> Mapping[str, Float[Array, "*batch"]]:
        """Time of one step by cause, by names of `StepTime`; what is left out is nothing [s].

        Args:
            plan: how chips divide the work, of the kind that belongs to it.
            cluster: chips and network.
            coefficients: fitted parameters.
            temperature: smoothing of maxima [1].
        """

    @abc.abstractmethod
    def memory_terms(self, plan: Any, cluster: Any, coefficients: Any) -> Mapping[str, Float[Array, "*batch"]]:
        """Peak memory of the fullest chip by cause, by names of `Memory`; what is left out is nothing [byte].

        Args:
            plan: as in `step_terms`.
            cluster: chips and network.
            coefficients: fitted parameters.
        """

    @abc.abstractmethod
    def ranked_plans(self, cluster: Any, batch: float | int, coefficients: Any, memory_limit: float, top: int) -> Any:
        """The fastest plans that fit, the best first.

        Args:
            cluster: chips and network, all of which a plan uses.
            batch: what a step takes of the class that data parallelism divides [1].
            coefficients: fitted parameters.
            memory_limit: memory that a chip may take [byte].
            top: how many plans to rank [1].

        Raises:
            InputError: no valid plan, or none that fits.
        """
