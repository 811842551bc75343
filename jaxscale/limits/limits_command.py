"""`jaxscale limits`: how far training can scale under one or several scenarios."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import FitName, Outputs, SoftwareOptions, Texts, command, option
from jaxscale.cli.console import answer, check_pictures, save_pictures, say, stage

if TYPE_CHECKING:
    import numpy as np

    from jaxscale.hardware.catalogue import Hardware
    from jaxscale.limits.frontier_scenario import FrontierScenario


WHAT = {"fit": "fit", "framework": "software", "precision": "number format", "set": "software"}
"""What options of transformers say."""


@command
class LimitsCommand(Outputs, SoftwareOptions):
    """Utilisation against training compute, its thresholds and the wall, and their elasticities."""

    gpu: Annotated[
        str | None, option(metavar="ID", help="chip in place of the scenarios' own; see `jaxscale hardware`")
    ] = None
    scenario: Annotated[
        Texts,
        option(metavar="NAME", help="scenario; repeat for several; `default` where left out"),
    ] = ()
    scenarios: Annotated[
        Path | None, option(metavar="FILE.toml", help="scenarios of your own, in the form of data/limits.toml")
    ] = None
    model: Annotated[
        Literal["blocks", "transformer"],
        option(help="stacked MLP blocks of the data-movement model, or a transformer by the calibrated step time"),
    ] = "blocks"
    fit: FitName = "default"
    lowest: Annotated[float, option(name="from", metavar="T", help="least training compute [flop]")] = 1e24
    highest: Annotated[float, option(name="to", metavar="T", help="largest training compute [flop]")] = 1e32

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: an unknown scenario or chip, a malformed file, an empty range, a figure that cannot be written.
        """
        import jaxscale as js
        from jaxscale.limits.frontier_scenario import load_scenarios, on_chip, scenario_named
        from jaxscale.limits.study import curve_sizes

        if self.model == "blocks":
            self._check_blocks()
        sizes = curve_sizes(self.lowest, self.highest)
        hardware = js.load_hardware(self.hardware)
        library = load_scenarios(self.scenarios, hardware)
        chosen = {name: scenario_named(name, library) for name in self.scenario or ("default",)}
        if self.gpu is not None:
            chosen = {name: on_chip(one, hardware[self.gpu]) for name, one in chosen.items()}
        check_pictures(self.plot, self.report, self.scenarios, self.fit, self.hardware)
        if self.model == "transformer":
            self._transformers(chosen, sizes, hardware)
        else:
            self._blocks(chosen, sizes, hardware)

    def _check_blocks(self) -> None:
        """Refuse what the data-movement model does not have."""
        software = [name for name in ("framework", "precision", "set") if getattr(self, name)]
        for name in (*(["fit"] if self.fit != "default" else []), *software):
            raise InputError(f"--{name}: the data-movement model takes no {WHAT[name]}; expected --model transformer")

    def _blocks(self, chosen: "dict[str, FrontierScenario]", sizes: "np.ndarray", hardware: "Hardware") -> None:
        from jaxscale.limits.frontier_scenario import scenario_descriptions, scenario_tables
        from jaxscale.limits.limits_report import (
            cost_table,
            curve_figure,
            elasticity_table,
            study_report,
            threshold_table,
        )
        from jaxscale.limits.study import band, run_cost, study

        stage("searching the best plan of each training compute")
        studied = study(chosen, sizes)
        descriptions = scenario_descriptions(self.scenarios)
        if self.gpu is not None:
            descriptions = {
                name: f"on {self.gpu} instead; else {descriptions.get(name, 'as its file says')}"
                for name in studied.names
            }
        stated = scenario_tables(self.scenarios)
        on_gpu = {} if self.gpu is None else {"gpu": self.gpu}
        costs = {
            name: run_cost(sizes, studied.utilisation[row], chosen[name], {**stated[name], **on_gpu}, hardware)
            for row, name in enumerate(studied.names)
        }
        documents = [
            {**one, "costs": cost and cost.to_json(sizes, costs[studied.names[0]])}
            for one, cost in zip(studied.to_json(), costs.values(), strict=True)
        ]
        answer(
            self.json,
            lambda: one_or_all(documents),
            lambda: (threshold_table(studied, descriptions), cost_table(studied, costs), elasticity_table(studied)),
        )
        if not studied.certified.all():
            say(f"{(~studied.certified).sum()} of {studied.certified.size} points are not certified optima")
        curves = dict(zip(studied.names, studied.utilisation, strict=True))
        bands = {name: band(sizes, one) for name, one in chosen.items()} if self.plot or self.report else {}
        save_pictures(
            self.plot,
            self.report,
            lambda: curve_figure(sizes, curves, bands),
            lambda: study_report(studied, descriptions, bands, costs),
        )

    def _transformers(self, chosen: "dict[str, FrontierScenario]", sizes: "np.ndarray", hardware: "Hardware") -> None:
        import jaxscale as js
        from jaxscale.cli.arguments import software_cells
        from jaxscale.limits.limits_report import law_line, transformer_figure, transformer_table, transformers_report
        from jaxscale.limits.transformer_curve import transformer_curve

        if self.gpu is None:
            raise InputError("--model transformer: no chip; expected --gpu ID, see `jaxscale hardware`")
        gpu, fit = hardware[self.gpu].id, js.load_fit(self.fit, hardware)
        cells = software_cells(self, fit, None, unused=("dp", "n_microbatches"))
        if self.scenario:
            say(
                f"--model transformer takes of a scenario how batch, data and training time scale; chips, network and "
                f"overlap are those of {gpu} and of the fit"
            )
        stage("searching the best plan of each training compute")
        given = {"fit": fit, "hardware": hardware, "cells": cells}
        curves = {name: transformer_curve(sizes, gpu, laws, **given) for name, laws in chosen.items()}
        answer(
            self.json,
            lambda: one_or_all([curve.to_json(name, gpu, chosen[name]) for name, curve in curves.items()]),
            lambda: (
                transformer_table(curves),
                *(f"{name}, the wall: the largest run that {law_line(chosen[name])}" for name in curves),
            ),
        )
        save_pictures(
            self.plot,
            self.report,
            lambda: transformer_figure(curves, chosen, gpu),
            lambda: transformers_report(curves, chosen, gpu),
        )


def one_or_all(documents: "list[dict[str, Any]]") -> Any:
    """The only document of a list, or the list if there are several."""
    return documents if len(documents) > 1 else documents[0]
