"""`jaxscale shape`: the best model, batch and plan for a cluster and a budget."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from jaxscale.cli.arguments import FitName, HardwareFile, Json, PlotFile, Quiet, ReportFolder, option
from jaxscale.cli.console import answer, check_pictures, save_pictures, say, stage


@dataclass(frozen=True)
class ShapeCommand:
    """Find the width, depth, batch and parallel plan that make the most of a cluster; give exactly one budget."""

    gpu: Annotated[str, option(metavar="ID", help="chip; see `jaxscale hardware`")]
    n_gpus: Annotated[int, option(metavar="N", help="chips")]
    flop: Annotated[
        float | None, option(metavar="T", help="budget: least time to the loss that this compute can buy")
    ] = None
    days: Annotated[float | None, option(metavar="D", help="budget: least loss within this time")] = None
    params: Annotated[
        float | None, option(metavar="N", help="budget: least time to train a model of this size as it deserves")
    ] = None
    loss: Annotated[float | None, option(metavar="X", help="budget: least time to this loss")] = None
    fit: FitName = "default"
    model: Annotated[
        str,
        option(
            metavar="NAME|FILE",
            help="template whose proportions are kept: sequence length, vocabulary, key/value heads, experts",
        ),
    ] = "llama3-8b"
    law: Annotated[
        Path | None,
        option(metavar="LAW.toml", help="law of the loss that `law fit` wrote; tells how far the design hangs on it"),
    ] = None
    draws: Annotated[int, option(metavar="N", help="drawn laws under which the design is chosen again")] = 4
    plot: PlotFile = None
    report: ReportFolder = None
    hardware: HardwareFile = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: an unknown name, a number out of range, none or several budgets, or no design that fits.
        """
        from jaxscale.designs.budgets import Budget
        from jaxscale.designs.shape_report import shape_report
        from jaxscale.laws.fitted_law import load_law
        from jaxscale.laws.law_tables import law_choice_table
        from jaxscale.models import model
        from jaxscale.report.terminal_tables import price_list, shape_choice

        check_pictures(self.plot, self.report, self.law, self.fit, self.hardware)
        budget = Budget(days=self.days, loss=self.loss, flop=self.flop, params=self.params)
        template = model(self.model)
        law = None if self.law is None else load_law(self.law)
        common = {"fit": self.fit, "template": template, "hardware": self.hardware, "has_terms": bool(self.report)}
        stage("searching the best design")
        document = shape_report(self.gpu, self.n_gpus, budget, **common, law=law, n_draws=self.draws, progress=say)
        ((kind, value),) = budget.given().items()
        parts = (
            f"{document['n_gpus']} {document['gpu']}, budget: {kind} {value:g}",
            shape_choice(document),
            *([] if law is None else [law_choice_table(document["law"])]),
            price_list(document["shadow_prices"], document["objective"]),
            document["certificate"],
        )
        answer(self.json, lambda: document, lambda: parts)
        if self.plot or self.report:
            from jaxscale.report.plan_report import design_report, price_figure

            drawn = (document, f"The best design for {parts[0]}")
            save_pictures(self.plot, self.report, lambda: price_figure(*drawn), lambda: design_report(*drawn))
