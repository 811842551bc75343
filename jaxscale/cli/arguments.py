"""Arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import tyro

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

RunsFile = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUNS.csv", help="runs table")]
