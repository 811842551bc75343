"""`jaxscale trace`: a workload from a JAX function."""

import ast
import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxscale.cli.arguments import Json
from jaxscale.cli.console import emit_json, print_result
from jaxscale.errors import InputError


@dataclass(frozen=True)
class TraceCommand:
    """Read flop, bytes and memory of a training step of your own from its JAX program; nothing is run."""

    function: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="MODULE:FUNCTION",
            help="function that returns a step and its arguments: jaxscale.examples.vision_steps:resnet50",
        ),
    ]
    set: Annotated[
        tuple[str, ...],
        tyro.conf.arg(metavar="NAME=VALUE", help="arguments of the function: `--set batch=64 size=224`"),
    ] = ()
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="WORK.json", help="file to write: sizes and kernels, no code and no weights")
    ] = None
    json: Json = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: no such function, what it returns is no step, or its program cannot be read.
        """
        from jaxscale.files import check_writable
        from jaxscale.tracing.tracer import trace

        if self.out is not None:
            check_writable(self.out)
        work = trace(*step_of(self.function, self.set))
        if self.out is not None:
            work.save(self.out)
        emit_json(workload_document(work)) if self.json else print_result(str(work))


def step_of(function: str, settings: tuple[str, ...]) -> tuple[Any, ...]:
    """Step and arguments that a function of the user returns.

    Args:
        function: `MODULE:FUNCTION`.
        settings: `NAME=VALUE`, arguments of the function.

    Raises:
        InputError: no such function, arguments that it does not take, or a result that is no step.
    """
    module, colon, name = function.partition(":")
    if not colon:
        raise InputError(f"{function!r} is no function; expected MODULE:FUNCTION, such as mymodel.train:step")
    sys.path.insert(0, os.getcwd())  # a module beside the user, as `python -m` finds it
    try:
        made = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise InputError(f"module {error.name!r} is missing; expected MODULE:FUNCTION of an installed module") from None
    except AttributeError:
        raise InputError(f"module {module!r} has no function {name!r}; expected one of its functions") from None
    finally:
        sys.path.pop(0)
    try:
        result = made(**dict(map(setting_of, settings)))
    except TypeError as error:
        raise InputError(f"{function}: {error}; expected `--set NAME=VALUE` for its arguments") from None
    if not (isinstance(result, tuple) and result and callable(result[0])):
        raise InputError(f"{function} returned a {type(result).__name__}; expected a tuple of a step and its arguments")
    return result


def setting_of(text: str) -> tuple[str, Any]:
    """Name and value of `NAME=VALUE`; a value that is no Python literal is text.

    Raises:
        InputError: there is no name.
    """
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise InputError(f"--set {text!r} is no setting; expected NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def workload_document(work: Any) -> dict[str, Any]:
    """A workload as JSON: totals, flop by kind, groups and phases, classes."""
    columns, kinds = work.columns(), sorted(set(work.tables.kinds))
    from jaxscale.tracing.workload_text import group_rows

    rows = group_rows(work.tables, columns)
    return {
        "n_weights": float(work.n_weights()),
        "flop": float(columns.flop.sum()),
        "flop_by_kind": {kind: float(work.flop(kind)) for kind in kinds if float(work.flop(kind))},
        "bytes": float(columns.bytes.sum()),
        "launches": float(columns.launches.sum()),
        "stored_bytes": float(work.stored_bytes()),
        "peak_bytes": float(work.peak_bytes()),
        "groups": [dict(zip(("group", "phase", "flop", "bytes", "launches"), row, strict=True)) for row in rows],
        "classes": work.classes(),
    }
