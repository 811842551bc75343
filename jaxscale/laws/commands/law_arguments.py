"""Arguments of the law commands: which runs, which form, which terms."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import option

if TYPE_CHECKING:
    from jaxscale.laws.losses.loss_reader import Losses

LawFile = Annotated[tyro.conf.Positional[Path], option(metavar="LAW.toml", help="law that `law fit` wrote")]

PriorName = Annotated[str, option(metavar="shipped|none", help="what other sources show, or the data alone")]


@dataclass(frozen=True)
class Source:
    """Runs that a law is fitted to: a file or a shipped table, whole or in part."""

    runs: Annotated[tyro.conf.Positional[Path | None], option(metavar="RUNS.csv", help="table of losses")] = None
    table: Annotated[str | None, option(metavar="NAME", help="shipped table in place of a file, such as gemstones")] = (
        None
    )
    where: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        option(metavar="COLUMN=VALUE", help="keep the rows whose cells are equal to these"),
    ] = ()
    best: Annotated[
        bool,
        option(help="keep the least loss of each pair of n_params and tokens: the best of a sweep"),
    ] = False
    count: Annotated[
        str, option(metavar="KIND", help="parameters as total, non-embedding or active, where a row states both")
    ] = ""

    @property
    def name(self) -> str:
        """Name of the table or file."""
        return self.table or (self.runs.name if self.runs else "")

    def losses(self) -> "Losses":
        """Table of the runs.

        Raises:
            InputError: none or both of file and table, or a malformed file.
        """
        from jaxscale.laws.losses.loss_reader import best_of, read_losses
        from jaxscale.laws.losses.loss_tables import loss_table

        if (self.runs is None) == (self.table is None):
            raise InputError("give a file RUNS.csv or --table NAME; expected exactly one of them")
        if self.table is not None:
            if self.where:
                raise InputError("--where does not go with --table; expected a file RUNS.csv")
            table = loss_table(self.table, self.count)
        else:
            assert self.runs is not None
            table = read_losses(self.runs, count=self.count, where=conditions(self.where))
        return best_of(table, ("n_params", "tokens")) if self.best else table


def conditions(texts: tuple[str, ...]) -> dict[str, str]:
    """Cells by column from texts such as `group=main`.

    Raises:
        InputError: a text without an equals sign.
    """
    for text in texts:
        if "=" not in text:
            raise InputError(f"--where {text!r} has no value; expected COLUMN=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def prior_name(text: str) -> str | None:
    """Name of a prior, None for none.

    Raises:
        InputError: unknown name.
    """
    if text not in ("shipped", "none"):
        raise InputError(f"--prior {text!r} is unknown; expected shipped or none")
    return None if text == "none" else text
