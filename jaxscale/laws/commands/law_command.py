"""`jaxscale law`: laws of loss, fitted to runs and used."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from jaxscale.laws.commands.law_fit import LawCompare, LawFit
from jaxscale.laws.commands.law_use import LawOptimal, LawPredict

AnyLawCommand = (
    Annotated[LawFit, tyro.conf.subcommand("fit")]
    | Annotated[LawPredict, tyro.conf.subcommand("predict")]
    | Annotated[LawOptimal, tyro.conf.subcommand("optimum")]
    | Annotated[LawCompare, tyro.conf.subcommand("compare")]
)


@dataclass(frozen=True)
class LawCommand:
    """Fit laws of loss to runs, predict losses, find compute-optimal sizes, compare forms."""

    action: Annotated[AnyLawCommand, tyro.conf.arg(name="")]

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: as the command that was asked for.
        """
        self.action.run()
