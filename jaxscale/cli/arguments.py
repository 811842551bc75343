"""Arguments that several commands share, and the check of counts."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from jaxscale.errors import InputError

Value = TypeVar("Value")

HardwareFile = Annotated[
    Path | None,
    tyro.conf.arg(metavar="FILE.toml", help="chips and networks of your own, in the schema of data/hardware.toml"),
]

Json = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="print one JSON document on stdout")]

FitName = Annotated[
    str,
    tyro.conf.arg(
        metavar="NAME|FIT.toml", help="calibration: `default`, a source such as `mosaic_llm_foundry`, or a file"
    ),
]

ModelName = Annotated[
    str,
    tyro.conf.arg(
        metavar="NAME|FILE",
        help="catalogue name or Hugging Face id, a TOML file with fields of a Transformer, or a config.json",
    ),
]

SequenceLength = Annotated[
    int | None, tyro.conf.arg(metavar="S", help="tokens in a sequence; the model's own length where left out")
]

ReportFolder = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help="folder for a report with figures")]

RunsFile = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUNS.csv", help="runs table")]

Words = tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]]
"""Words of an option that may be given several times, with several words each time."""

Numbers = tyro.conf.UseAppendAction[tuple[tuple[float, ...], ...]]
"""Numbers of an option that may be given several times, with several numbers each time."""

LARGEST_COUNT = 10**10
"""More than anything that is counted; whole numbers stay exact in arithmetic on floats [1]."""


def every_value(groups: tuple[tuple[Value, ...], ...]) -> tuple[Value, ...]:
    """Values of an option, however often it was given."""
    return tuple(value for group in groups for value in group)


def checked_count(flag: str, value: int) -> int:
    """A count, checked.

    Raises:
        InputError: below one, or beyond anything there could be; names the flag.
    """
    if not 1 <= value <= LARGEST_COUNT:
        raise InputError(f"{flag} = {value} is out of range; expected a whole number from 1 to {LARGEST_COUNT:,}")
    return value


def checked_batch(text: str, seq_len: Any) -> int:
    """Sequences of a batch that is given as their count or in tokens, as `4M tokens`.

    Raises:
        InputError: no such number, or one out of range.
    """
    from jaxscale.runs.words.spellings import sequences_in

    sequences = sequences_in(text, float(seq_len))
    if sequences is None or not 1 <= sequences <= LARGEST_COUNT:
        raise InputError(
            f"--global-batch = {text} is out of range; expected sequences, a whole number from 1 to"
            f" {LARGEST_COUNT:,}, or tokens, as `4M tokens`"
        )
    return int(sequences)
