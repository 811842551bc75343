"""Entry point of the command line: parses the arguments, runs a command and returns the exit code.

Exit codes: 0 success; 2 bad input, with a line on stderr; 130 interrupted; 1 any further error.
"""

import functools
import operator
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from jaxscale.base.errors import InputError, one_like, reason_of
from jaxscale.base.lazy import loaded
from jaxscale.cli.console import page_of, print_text, working, write_message
from jaxscale.cli.parsing import as_typed, parse
from jaxscale.cli.registry import COMMANDS
from jaxscale.cli.startup import INTERRUPTED, collect_rarely, configure_jax, stopped_by_signal

PROGRAM = "jaxscale"
DESCRIPTION = (
    "Training time as a function of model shape, parallel plan, batch and hardware, calibrated on measured runs.\n\n"
    "`jaxscale --version` prints the version."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    Args:
        argv: arguments without the name of the program; by default the arguments of the process.

    Returns:
        Exit code.
    """
    # Before the imports, with many objects and hardly any garbage.
    collect_rarely()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["--version"]:
            print_text(f"{PROGRAM} {version()}")
            return 0
        command = command_of(arguments or ["--help"])
        if command is None:
            return 0
        # Devices may be queried only after distributed processes are connected.
        configure_jax(starts_backend=getattr(command, "coordinator", None) is None)
        with stopped_by_signal(), working(getattr(command, "action", command).quiet):
            command.run()
    except InputError as error:
        page = page_of(error)
        # The page in docs/ behind the error.
        write_message(f"{PROGRAM}: {as_typed(str(error), arguments)}" + (f" (see {page})" if page else ""))
        return 2
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        # At exit Python would report the broken pipe once more.
        sys.stderr.close()
        return 1
    except OSError as error:  # a disk that is full, a folder that went away
        write_message(f"{PROGRAM}: {error.filename or 'a file'}: {reason_of(error)}")
        return 1
    except KeyboardInterrupt:
        write_message(f"{PROGRAM}: interrupted")
        return INTERRUPTED
    return 0


def version() -> str:
    """Version of the package."""
    import jaxscale as js

    return js.__version__


def command_of(arguments: Sequence[str]) -> Any:
    """Parse the arguments to a command; returns None after a request for help, whose text is printed.

    Raises:
        InputError: invalid arguments.
    """
    name = arguments[0]
    if name in COMMANDS:
        # Modules of the other commands stay unread.
        return parse(arguments[1:], loaded(COMMANDS[name]), f"{PROGRAM} {name}")
    if not name.startswith("-"):
        raise InputError(f"command {name!r} is unknown; {one_like(name, COMMANDS)}")
    return parse(arguments, every_command(), PROGRAM, DESCRIPTION)


def every_command() -> Any:
    """Union of all command classes, for the list in the help text."""
    named = (Annotated[loaded(home), tyro.conf.subcommand(name)] for name, home in COMMANDS.items())
    return functools.reduce(operator.or_, named)
