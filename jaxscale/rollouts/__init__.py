"""Reinforcement learning: time of a step of rollouts and training on shared or split chips, cost of long answers."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.rollouts.generation_time import GenerationTime as GenerationTime
    from jaxscale.rollouts.generation_time import generation_time as generation_time
    from jaxscale.rollouts.rollout_batch import RolloutBatch as RolloutBatch
    from jaxscale.rollouts.rollout_report import PublishedStep as PublishedStep
    from jaxscale.rollouts.rollout_report import published_steps as published_steps
    from jaxscale.rollouts.rollout_report import published_table as published_table
    from jaxscale.rollouts.rollout_report import rollout_figure as rollout_figure
    from jaxscale.rollouts.rollout_step import RolloutStep as RolloutStep
    from jaxscale.rollouts.rollout_step import rollout_step as rollout_step

public_face(__name__)
