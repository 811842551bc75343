"""Command `jaxscale islands`: best joint training of a model on islands of chips joined by slow links."""

from pathlib import Path
from typing import Annotated

import tyro

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import (
    FitName,
    Outputs,
    SequenceLength,
    SoftwareOptions,
    Texts,
    checked_batch,
    command,
    float_of,
    option,
    pairs,
)
from jaxscale.cli.console import answer, check_pictures, save_pictures, say, stage
from jaxscale.cli.plan import load_model


@command
class IslandsCommand(Outputs, SoftwareOptions):
    """Choose how islands of chips train one model together: mode, shares, inner steps, and what each link is worth."""

    fleet: Annotated[
        tyro.conf.Positional[Path], option(metavar="FLEET.toml", help="islands and the links between them")
    ]
    model: Annotated[
        str, option(metavar="NAME|FILE.toml", help="catalogue model, or a file with the fields of a Transformer")
    ]
    global_batch: Annotated[
        str, option(metavar="B", help="sequences in a step of all islands together, or tokens: `4M tokens`")
    ]
    loss: Annotated[
        float | None,
        option(metavar="L", help="loss to reach; that of 20 tokens per parameter where left out"),
    ] = None
    law: Annotated[
        Path | None,
        option(metavar="LAW.toml", help="law of the loss that `law fit` wrote; its draws widen the intervals of days"),
    ] = None
    seq_len: SequenceLength = None
    fit: FitName = "default"
    mode: Annotated[
        Texts,
        option(
            metavar="NAME.FIELD=VALUE",
            help="penalty or words of a published mode: `synthetic-labels.factor=1.2`, `compressed.least_words=0.03`",
        ),
    ] = ()
    nominal_links: Annotated[bool, option(help="links give their stated bandwidth, without losses")] = False

    def run(self) -> None:
        """Choose the mode, write the requested files, and print tables and verdict.

        Raises:
            InputError: a malformed fleet, an unknown name, a number out of range, or a model that does not fit.
        """
        if self.loss is not None and not 0.0 < self.loss < 100.0:
            raise InputError(f"--loss = {self.loss:g} is out of range; expected nats per token, above 0 and below 100")
        import jaxscale as js
        from jaxscale.cli.arguments import software_cells
        from jaxscale.islands.choose_fleet import best_fleet_plan
        from jaxscale.islands.fleet import read_fleet, stated_slow_loss
        from jaxscale.islands.islands_report import days_figure, islands_report, islands_tables
        from jaxscale.laws.fitted_law import load_law

        check_pictures(self.plot, self.report, self.fleet, self.law, self.fit, self.hardware)
        hardware = js.load_hardware(self.hardware)
        stated = read_fleet(self.fleet, hardware, 0.0 if self.nominal_links else stated_slow_loss())
        law = None if self.law is None else load_law(self.law)
        model = load_model(self.model, self.seq_len)
        batch = checked_batch(self.global_batch, model.seq_len)
        fitted = js.load_fit(self.fit, stated.hardware)
        cells = software_cells(self, fitted, model)
        for chip in dict.fromkeys(stated.chips):
            if lacking := stated.hardware[chip].lacks(cells["precision"]):
                say(lacking)
        modes = {name: float_of(f"--mode {name}", value) for name, value in pairs("--mode", self.mode).items()}
        each = [{**cells, "gpu": chip} for chip in stated.chips]
        stage("searching the plans of the islands, alone and together")
        choice = best_fleet_plan(
            model, stated.fleet, batch, fit=fitted, cells=each, loss=self.loss, laws=law, modes=modes
        )
        answer(self.json, choice.to_json, lambda: islands_tables(choice))
        save_pictures(
            self.plot, self.report, lambda: days_figure(choice), lambda: islands_report(choice, str(self.fleet))
        )
