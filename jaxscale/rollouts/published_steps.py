"""Published times of a step of reinforcement learning beside the predicted ones, of `data/rollouts.toml`."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxscale.base.resources import data_path, read_toml
from jaxscale.models.transformer import Transformer
from jaxscale.rollouts.rollout_batch import RolloutBatch
from jaxscale.rollouts.rollout_step import RolloutStep, rollout_step

REQUIRED = ("model", "gpu", "n_gpus", "batch", "quoted")
"""Keys of a published step that are no options of `rollout_step`."""


@dataclass(frozen=True)
class PublishedStep:
    """A published step.

    Attributes:
        report: key of the report in `data/rollouts.toml`.
        settings: of the step, those of its report among them.
        seconds: published time of the step [s].
        assumed: settings that the report does not tell.
        report_states_lengths: whether the report tells the lengths of prompts and answers.
    """

    report: str
    settings: Mapping[str, Any]
    seconds: float
    assumed: str
    report_states_lengths: bool

    @functools.cached_property
    def predicted(self) -> RolloutStep:
        """The step as `rollout_step` predicts it."""
        options = {name: value for name, value in self.settings.items() if name not in REQUIRED}
        shapes = published_reports()["shapes"]
        for name in ("reward", "critic"):
            if options.get(name) in shapes:
                options[name] = Transformer(**shapes[options[name]]["fields"])
        model, gpu, n_gpus = (self.settings[name] for name in ("model", "gpu", "n_gpus"))
        return rollout_step(model, gpu, RolloutBatch(**self.settings["batch"]), n_chips=n_gpus, **options)

    @property
    def error(self) -> float:
        """Predicted over published time, less 1 [1]."""
        return self.predicted.total / self.seconds - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the published time is inside the 90 % interval of the prediction."""
        lo, hi = self.predicted.interval
        return lo <= self.seconds <= hi


@functools.cache
def published_reports() -> Mapping[str, Any]:
    """Tables of `data/rollouts.toml`."""
    return read_toml(data_path("rollouts.toml"))


def published_steps() -> tuple[PublishedStep, ...]:
    """Published steps, report by report."""
    steps = []
    for name, report in published_reports()["reports"].items():
        for step in report["steps"]:
            seconds = step["quoted"] * report["quoted_unit_s"]
            settings = {**report["settings"], **step}
            steps.append(PublishedStep(name, settings, seconds, report["assumed"], report["lengths_stated"]))
    return tuple(steps)
