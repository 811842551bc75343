"""Command `jaxscale trace`: workload from a JAX function."""

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxscale.base.errors import InputError, nearest
from jaxscale.cli.arguments import FitName, Outputs, Texts, checked_count, command, option, pairs
from jaxscale.cli.console import answer, aside, check_pictures, save_pictures, stage
from jaxscale.cli.startup import without_foreign_lines


@command
class TraceCommand(Outputs):
    """Read flop, bytes and memory of a training step of your own from its JAX program; nothing is run."""

    function: Annotated[
        tyro.conf.Positional[str],
        option(
            metavar="MODULE:FUNCTION",
            help="function that returns a step and its arguments: jaxscale.examples.vision_steps:resnet50",
        ),
    ]
    set: Annotated[
        Texts,
        option(metavar="NAME=VALUE", help="arguments of the function: `--set batch=64 size=224`"),
    ] = ()
    out: Annotated[
        Path | None, option(metavar="WORK.json", help="file to write: sizes and kernels, no code and no weights")
    ] = None
    gpu: Annotated[str | None, option(metavar="ID", help="chip on which to time the step; see `jaxscale hardware`")] = (
        None
    )
    n_gpus: Annotated[int, option(metavar="N", help="chips among which the batch is split")] = 1
    plan: Annotated[
        Texts,
        option(
            metavar="NAME=VALUE",
            help="degrees on these chips: shard=8, tensor=2 split=NAME,NAME, pipeline=4 n_microbatches=8, tables=table",
        ),
    ] = ()
    compile: Annotated[
        bool,
        option(help="compile the step for these chips too, which need not be there (extra aot, or aot-tpu)"),
    ] = False
    fit: FitName = "default"

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: an unknown function, a result that is not a step, or a program that cannot be read.
        """
        from jaxscale.base.files import check_writable
        from jaxscale.tracing.tracer import trace

        if self.out is not None:
            # Before the trace: no work is lost to a wrong path.
            check_writable(self.out)
        check_pictures(self.plot, self.report, self.fit, self.hardware)
        stage("tracing the step")
        step = step_of(self.function, self.set)
        try:
            work = trace(*step)
        except TypeError as error:
            told = str(error).partition("\n")[0]
            raise InputError(
                f"{self.function}: the step does not take its arguments: {told}; expected {STEP}"
            ) from None
        if self.out is not None:
            work.save(self.out)
        times, compiled = self.times(work), self.compiled(step)
        told = [] if compiled is None else compiled.parts()
        if times:
            terms = ", ".join(f"{name} {1e3 * value:.2f}" for name, value in times["terms_s"].items() if value > 1e-6)
            told = [f"step on {self.n_gpus} {self.gpu}: {1e3 * times['step_time_s']:.2f} ms ({terms})", *told]
        answer(
            self.json,
            lambda: {**workload_document(work), **times, **compiled_document(compiled)},
            lambda: [*work.parts(), *told],
        )
        if self.plot or self.report:
            from jaxscale.tracing.trace_report import trace_figure, trace_report

            drawn = (work, self.function, times.get("terms_s"), f"{self.n_gpus} {self.gpu}")
            save_pictures(self.plot, self.report, lambda: trace_figure(*drawn), lambda: trace_report(*drawn))

    def compiled(self, step: tuple[Any, ...]) -> Any:
        """Step compiled for the requested chips; None unless requested.

        Raises:
            InputError: no chip is named, or the compiler is not installed.
        """
        if not self.compile:
            return None
        if self.gpu is None:
            raise InputError("--compile needs a chip; expected --gpu ID")
        from jaxscale.hardware.catalogue import load_hardware
        from jaxscale.tracing.absent_devices import compile_targets, load_compiler
        from jaxscale.tracing.compile_step import compile_for

        stage(f"compiling the step for {self.n_gpus} {self.gpu}")
        n_gpus, hardware = checked_count("--n-gpus", self.n_gpus), load_hardware(self.hardware)
        if hardware[self.gpu].id in compile_targets()["targets"]:
            with aside(), without_foreign_lines():
                # Libraries of the compiler print log lines on loading.
                load_compiler()
        return compile_for(*step, gpu=self.gpu, n=n_gpus, hardware=hardware)

    def times(self, work: Any) -> dict[str, Any]:
        """Step time [s], terms and peak memory [byte] of a workload under the stated plan; empty without a chip.

        Raises:
            InputError: an unknown chip, or a number of chips by which the workload cannot be split.
        """
        if self.gpu is None:
            if self.plan:
                raise InputError("--plan needs chips; expected --gpu ID --n-gpus N")
            return {}
        from jaxscale.calibration.kernel_coefficients import kernel_coefficients
        from jaxscale.calibration.record import load_fit
        from jaxscale.costs.memory import memory
        from jaxscale.hardware.catalogue import cluster, load_hardware
        from jaxscale.tracing.class_plan import class_plan
        from jaxscale.tracing.plan_time import traced_terms

        hardware = load_hardware(self.hardware)
        chip = hardware[self.gpu].id
        machine = cluster(chip, checked_count("--n-gpus", self.n_gpus), hardware=hardware)
        # A traced step is a JAX program.
        coefficients = load_fit(self.fit, hardware).coefficients({"framework": "jax", "gpu": chip})
        stated = degrees_of(self.plan, self.n_gpus)
        batch = None if self.n_gpus > 1 else work.tables.class_names[-1]  # one chip splits nothing
        plan = class_plan(work, data_class=batch, **stated)
        kernels = kernel_coefficients("jax", hardware.kernels.get(chip))
        terms = traced_terms(work, plan, machine, coefficients, kernels)
        return {
            "step_time_s": float(sum(terms.values())),
            "terms_s": {name: float(value) for name, value in terms.items()},
            "memory_bytes": float(memory(work, plan, machine, coefficients).allocated),
        }


DEGREES = ("shard", "tensor", "pipeline", "n_microbatches")
"""Degrees that a user can state; data parallelism takes the remaining chips."""


def degrees_of(texts: tuple[str, ...], n_gpus: int) -> dict[str, Any]:
    """Arguments of `class_plan` from the option `--plan`.

    Raises:
        InputError: an unknown name, a degree other than a whole number, or chips not divisible by the degrees.
    """
    stated: dict[str, Any] = {}
    for name, value in pairs("--plan", texts).items():
        if name not in (*DEGREES, "tables", "split"):
            raise InputError(f"--plan {name}: unknown; {nearest(name, (*DEGREES, 'tables', 'split'))}")
        if name == "tables" and value not in ("table", "row", "replicated"):
            raise InputError(f"--plan tables={value}: expected table, row or replicated")
        if name in DEGREES:
            if not value.isdecimal() or int(value) < 1:
                raise InputError(f"--plan {name}={value}: expected a whole number from 1")
            stated[name] = int(value)
        else:
            stated[name] = tuple(value.split(",")) if name == "split" else value
    parts = stated.get("tensor", 1) * stated.get("pipeline", 1)
    if n_gpus % parts:
        raise InputError(f"--plan: tensor x pipeline = {parts} does not divide --n-gpus {n_gpus}; expected a divisor")
    # Data parallelism takes the remaining chips.
    return {"data": n_gpus // parts, **stated}


def compiled_document(compiled: Any) -> dict[str, Any]:
    """Compiled step as JSON: memory, comparison with the trace, collectives; empty without a compiled step."""
    if compiled is None:
        return {}
    return {
        "compiled": {
            "peak_bytes": compiled.peak_bytes,
            "fits": compiled.fits,
            "beside_trace": [one._asdict() for one in compiled.beside_trace()],
            "collectives": [one._asdict() for one in compiled.collectives],
        }
    }


def step_of(function: str, settings: tuple[str, ...]) -> tuple[Any, ...]:
    """Step function and arguments, as returned by a function of the user.

    Args:
        function: `MODULE:FUNCTION`.
        settings: arguments of the function, `NAME=VALUE`.

    Raises:
        InputError: an unknown function, unknown arguments, or a result that is not a step.
    """
    module, colon, name = function.partition(":")
    if not colon:
        raise InputError(f"{function!r} is no function; expected MODULE:FUNCTION, such as mymodel.train:step")
    sys.path.insert(0, os.getcwd())  # the working directory, as for `python -m`
    try:
        made = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise InputError(f"module {error.name!r} is missing; expected MODULE:FUNCTION of an installed module") from None
    except AttributeError:
        raise InputError(f"module {module!r} has no function {name!r}; expected one of its functions") from None
    finally:
        sys.path.pop(0)
    try:
        result = made(**{name: value_of_text(text) for name, text in pairs("--set", settings).items()})
    except TypeError as error:
        raise InputError(f"{function}: {error}; expected `--set NAME=VALUE` for its arguments") from None
    if not (isinstance(result, tuple) and result and callable(result[0])):
        raise InputError(f"{function} returned a {type(result).__name__}; expected {STEP}")
    step, *rest = result
    is_pair = len(rest) == 1 and type(rest[0]) is tuple
    if is_pair and (len(rest[0]) == 1 or not takes(step, rest)) and takes(step, rest[0]):
        rest = rest[0]
    return (step, *rest)


STEP = "a tuple of a step and its arguments, as (step, state, batch) or (step, (state, batch))"
"""What a function returns."""


def takes(step: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Whether a function accepts the arguments by position."""
    try:
        inspect.signature(step).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def value_of_text(text: str) -> Any:
    """Value of the text of a Python literal; any text that is not a literal is returned unchanged."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def workload_document(work: Any) -> dict[str, Any]:
    """JSON document of a workload: totals, flop by type of kernel, groups and phases, classes."""
    columns, kinds = work.columns(), sorted(set(work.tables.kinds))
    from jaxscale.tracing.classed_program import group_rows

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
