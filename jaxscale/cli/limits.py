"""`jaxscale limits`: how far training can scale under one or several scenarios."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxscale.cli.arguments import HardwareFile, Json
from jaxscale.cli.console import emit_json, say, show


@dataclass(frozen=True)
class Limits:
    """Utilisation against training compute, where it falls, the wall, and what they depend on."""

    gpu: Annotated[
        str | None, tyro.conf.arg(metavar="ID", help="chip in place of the scenarios' own; see `jaxscale hardware`")
    ] = None
    scenario: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(metavar="NAME", help="scenario; repeat for several; `default` where left out"),
    ] = ()
    scenarios: Annotated[
        Path | None, tyro.conf.arg(metavar="FILE.toml", help="scenarios of your own, in the form of data/limits.toml")
    ] = None
    lowest: Annotated[float, tyro.conf.arg(name="from", metavar="T", help="least training compute [flop]")] = 1e24
    highest: Annotated[float, tyro.conf.arg(name="to", metavar="T", help="largest training compute [flop]")] = 1e32
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help="figure to write, PNG")] = None
    hardware: HardwareFile = None
    json: Json = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: an unknown scenario or chip, a malformed file, an empty range, a figure that cannot be written.
        """
        import jaxscale as js
        from jaxscale.limits.report import draw, elasticity_table, threshold_table
        from jaxscale.limits.scenario_library import describe, load_scenarios, on_chip, pick
        from jaxscale.limits.study import curve_sizes, study
        from jaxscale.report.files import check_writable, write_whole
        from jaxscale.report.style import png

        sizes = curve_sizes(self.lowest, self.highest)
        hardware = js.load_hardware(self.hardware)
        known = load_scenarios(self.scenarios, hardware)
        chosen = {name: pick(name, known) for name in self.scenario or ("default",)}
        if self.gpu is not None:
            chosen = {name: on_chip(found, hardware[self.gpu]) for name, found in chosen.items()}
        if self.plot is not None:
            check_writable(self.plot)
        found = study(chosen, sizes)
        if self.plot is not None:
            write_whole(self.plot, png(draw(found)))
            say(f"figure: {self.plot}")
        if self.json:
            documents = found.to_json()
            emit_json(documents if len(documents) > 1 else documents[0])
            return
        show(threshold_table(found, describe(self.scenarios)))
        show("")
        show(elasticity_table(found))
        if not found.certified.all():
            say(f"{(~found.certified).sum()} of {found.certified.size} points are not certified optima")
