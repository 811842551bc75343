"""What a page may read: the catalogues, one fit, and the files that its command was given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxscale.base.errors import InputError
from jaxscale.calibration.record import Fit
from jaxscale.calibration.store import load_fit
from jaxscale.explore.page_state import PageState
from jaxscale.hardware.catalogue import Hardware, cluster, load_hardware
from jaxscale.hardware.cluster import Cluster
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models.model_catalogue import catalogue_model, model_entries, unknown_model
from jaxscale.models.model_file import ModelDescription, described_model
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan_questions import PlanQuestion, plan_question
from jaxscale.runs.defaults import known_frameworks
from jaxscale.runs.schema import stated_values


@dataclass(frozen=True)
class PageInputs:
    """Catalogues, fit and files of a page.

    Attributes:
        hardware: chips, those of the user's own file included.
        fit: calibration.
        own: models of files by their label.
    """

    hardware: Hardware
    fit: Fit
    own: Mapping[str, ModelDescription] = field(default_factory=dict)

    def models(self) -> list[str]:
        """Names of models to choose from, those of files first."""
        return [*self.own, *sorted(model_entries())]

    def chips(self) -> list[str]:
        """Ids of chips to choose from."""
        return sorted({entry.id for entry in self.hardware.chips.values()})

    def frameworks(self) -> list[str]:
        """Names of frameworks to choose from."""
        return sorted(known_frameworks())

    def transformer(self, state: PageState) -> Transformer:
        """Model of a state.

        Raises:
            InputError: neither the catalogue nor a file of the command has it. No other file is looked for.
        """
        fields = self.own.get(state.model)
        if fields is None and (entry := catalogue_model(state.model)) is not None:
            fields = ModelDescription(entry)
        if fields is None:
            raise InputError(f"model {state.model!r} {unknown_model(state.model)} to the command")
        return fields.transformer(state.model, **({"seq_len": state.seq_len} if state.seq_len else {}))

    def cluster(self, state: PageState) -> Cluster:
        """Cluster of a state, before any factor."""
        return cluster(state.gpu, state.n_gpus, hardware=self.hardware)

    def framework(self, state: PageState) -> str | None:
        """Framework of a state; that of all fitted runs where it names none and they share one."""
        if state.framework and state.framework not in known_frameworks():
            raise InputError(f"framework = {state.framework!r}; expected one of {', '.join(self.frameworks())}")
        return state.framework or dict(self.fit.own).get("framework")

    def question(self, state: PageState) -> PlanQuestion:
        """Question for a plan that a state asks, as `jaxscale plan` would.

        Raises:
            InputError: an unknown model, chip, framework or precision.
        """
        if state.precision not in PRECISIONS:
            raise InputError(f"precision = {state.precision!r}; expected one of {', '.join(PRECISIONS)}")
        software = {"precision": state.precision, "framework": self.framework(state)}
        cells = {"gpu": self.hardware[state.gpu].id, **software, **stated_values("the page", state.fixed())}
        return plan_question(self.transformer(state), self.cluster(state), state.global_batch, cells)


def page_inputs(
    models: tuple[str, ...] = (), fit: str | Path = "default", hardware: str | Path | None = None
) -> PageInputs:
    """Inputs of a page, all files read now.

    Args:
        models: files of models.
        fit: name or file of the calibration.
        hardware: the user's own catalogue of chips.

    Raises:
        InputError: a file that is missing or malformed.
    """
    return PageInputs(load_hardware(hardware), load_fit(fit), {name: described_model(name) for name in models})


_SERVED: list[PageInputs] = []


def serve_inputs(inputs: PageInputs) -> None:
    """Make inputs those of every page of this process."""
    _SERVED[:] = [inputs]


def served_inputs() -> PageInputs:
    """Inputs of the pages of this process: those of the command, else the catalogues and the default fit."""
    if not _SERVED:
        serve_inputs(page_inputs())
    return _SERVED[0]
