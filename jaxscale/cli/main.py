"""Entry point: read the arguments, run one command, turn its outcome into an exit code.

Exit codes: 0 done; 2 bad input, with one line on stderr; 1 anything else.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, get_args

import tyro

from jaxscale.base.errors import InputError, one_like
from jaxscale.burst.burst_command import BurstCommand
from jaxscale.cli.console import page_of, print_text, working, write_message
from jaxscale.cli.demo.demo_command import DemoCommand
from jaxscale.cli.entry.parsing import parse
from jaxscale.cli.fit import FitCommand
from jaxscale.cli.hardware import HardwareCommand
from jaxscale.cli.inputs.model_command import ModelCommand
from jaxscale.cli.plan import PlanCommand
from jaxscale.cli.predict import PredictCommand
from jaxscale.cli.shape import ShapeCommand
from jaxscale.cli.startup import collect_rarely, configure_jax
from jaxscale.explore.explore_command import ExploreCommand
from jaxscale.islands.islands_command import IslandsCommand
from jaxscale.launch.read_command import ReadCommand
from jaxscale.laws.commands.law_command import LawCommand
from jaxscale.limits.limits_command import LimitsCommand
from jaxscale.limits.sweep_command import SweepCommand
from jaxscale.serving.commands.serving_command import ServingCommand
from jaxscale.tracing.trace_command import TraceCommand
from jaxscale.trends.trends_command import TrendsCommand

PROGRAM = "jaxscale"
DESCRIPTION = (
    "Training time as a function of model shape, parallel plan, batch and hardware, calibrated on measured runs.\n\n"
    "`jaxscale --version` prints the version."
)

AnyCommand = (
    Annotated[DemoCommand, tyro.conf.subcommand("demo")]
    | Annotated[FitCommand, tyro.conf.subcommand("fit")]
    | Annotated[PredictCommand, tyro.conf.subcommand("predict")]
    | Annotated[PlanCommand, tyro.conf.subcommand("plan")]
    | Annotated[ShapeCommand, tyro.conf.subcommand("shape")]
    | Annotated[ServingCommand, tyro.conf.subcommand("serving")]
    | Annotated[LawCommand, tyro.conf.subcommand("law")]
    | Annotated[BurstCommand, tyro.conf.subcommand("burst")]
    | Annotated[IslandsCommand, tyro.conf.subcommand("islands")]
    | Annotated[LimitsCommand, tyro.conf.subcommand("limits")]
    | Annotated[SweepCommand, tyro.conf.subcommand("sweep")]
    | Annotated[TrendsCommand, tyro.conf.subcommand("trends")]
    | Annotated[ExploreCommand, tyro.conf.subcommand("explore")]
    | Annotated[TraceCommand, tyro.conf.subcommand("trace")]
    | Annotated[HardwareCommand, tyro.conf.subcommand("hardware")]
    | Annotated[ModelCommand, tyro.conf.subcommand("model")]
    | Annotated[ReadCommand, tyro.conf.subcommand("read")]
)

NAMES = tuple(get_args(command)[1].name for command in get_args(AnyCommand))
"""Names of the commands, as they are listed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        argv: arguments without the program's name; those of the process where None.

    Returns:
        Exit code.
    """
    collect_rarely()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["--version"]:
            print_text(f"{PROGRAM} {version()}")
            return 0
        command = command_of(arguments or ["--help"])
        if command is None:
            return 0
        configure_jax(starts_backend=getattr(command, "coordinator", None) is None)
        with working(getattr(command, "action", command).quiet):
            command.run()
    except InputError as error:
        page = page_of(error)
        write_message(f"{PROGRAM}: {error}" + (f" (see {page})" if page else ""))
        return 2
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        sys.stderr.close()
        return 1
    except OSError as error:  # a disk that is full, a folder that went away
        write_message(f"{PROGRAM}: {error.filename or 'a file'}: {(error.strerror or str(error)).lower()}")
        return 1
    except KeyboardInterrupt:
        write_message(f"{PROGRAM}: interrupted")
        return 1
    return 0


def version() -> str:
    """Version of the package."""
    import jaxscale as js

    return js.__version__


def command_of(arguments: Sequence[str]) -> Any:
    """The command that the arguments ask for; None where they asked for help, which has been printed.

    Raises:
        InputError: arguments that no command takes; one line.
    """
    if not arguments[0].startswith("-") and arguments[0] not in NAMES:
        raise InputError(f"command {arguments[0]!r} is unknown; {one_like(arguments[0], NAMES)}")
    return parse(arguments, AnyCommand, PROGRAM, DESCRIPTION)
