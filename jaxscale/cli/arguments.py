"""Options shared by several commands: types of options, checks of counts, and options of the plan and the software."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, dataclass_transform

import tyro

from jaxscale.base.errors import InputError, nearest, one_like

if TYPE_CHECKING:
    from jaxscale.calibration.record import Fit
    from jaxscale.models.transformer import Transformer


Value = TypeVar("Value")


def option(help: str, metavar: str | None = None, **more: Any) -> Any:
    """Annotation with the help text of an option.

    Args:
        help: description, a few words.
        metavar: placeholder of the value, in capitals.
        more: further arguments of `tyro.conf.arg`.

    Returns:
        The annotation, for `typing.Annotated`.
    """
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint=_default, **more)


def _default(value: str) -> str:
    """Remark on the default of an argument; none where nothing is the default."""
    return "" if value in ("", "None", "False") else f"(default: {value})"


HardwareFile = Annotated[
    Path | None,
    option(metavar="FILE.toml", help="chips and networks of your own, in the schema of data/hardware.toml"),
]

Json = Annotated[bool, option(help="print one JSON document on stdout")]

Quiet = Annotated[bool, option(help="no messages and no progress on stderr, refusals alone", aliases=("-q",))]

SkipBad = Annotated[bool, option(help="drop bad rows instead of refusing")]

FitName = Annotated[
    str,
    option(metavar="NAME|FIT.toml", help="calibration: `default`, a source such as `mosaic_llm_foundry`, or a file"),
]

_MODEL = option(
    metavar="NAME|FILE",
    help="catalogue name or Hugging Face id, a TOML file with fields of a Transformer, or a config.json",
)

ModelName = Annotated[str, _MODEL]

OptionalModel = Annotated[str | None, _MODEL]

SequenceLength = Annotated[
    int | None, option(metavar="S", help="tokens in a sequence; the model's own length where left out")
]

Texts = tyro.conf.UseAppendAction[tuple[str, ...]]
"""Texts of an option that may be given several times, as `NAME=VALUE`."""

PlotFile = Annotated[Path | None, option(metavar="FILE", help="figure to write: PNG, SVG or PDF, by its suffix")]

TimelineFile = Annotated[
    Path | None, option(metavar="FILE.json", help="what each pipeline rank does when, for Perfetto or chrome://tracing")
]

_REPORT = option(metavar="DIR", help="folder for a report with figures: HTML, Markdown and PNG")

ReportFolder = Annotated[Path | None, _REPORT]

DefaultReportFolder = Annotated[Path, _REPORT]


@dataclass(frozen=True)
class Outputs:
    """Output options shared by commands: figure, report, hardware file, JSON, quiet."""

    plot: PlotFile = None
    report: ReportFolder = None
    hardware: HardwareFile = None
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class SoftwareOptions:
    """Options on the software of a run: framework, precision and columns of the runs table; see `software_cells`."""

    framework: Annotated[
        str | None,
        option(metavar="NAME", help="software that will run it, as `nemo`; what all have in common where left out"),
    ] = None
    precision: Annotated[
        str | None, option(metavar="FORMAT", help="of the matmuls: bf16, fp8, fp4, ...; bf16 where left out")
    ] = None
    set: Annotated[
        Texts,
        option(metavar="COLUMN=VALUE", help="a choice or a fact about plan and software, as tp=8 or fused_norm=no"),
    ] = ()


@dataclass_transform(frozen_default=True, kw_only_default=True)
def command(cls: type[Value]) -> type[Value]:
    """Decorator of a command class: a frozen dataclass of named options, inherited options last in the help."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    # Not the inherited annotations: options of the class come first in help.
    own = [name for name in cls.__dict__.get("__annotations__", {})]
    fields = made.__dataclass_fields__  # pyright: ignore[reportAttributeAccessIssue]
    ordered = {name: fields[name] for name in (*own, *(name for name in fields if name not in own))}
    made.__dataclass_fields__ = ordered  # pyright: ignore[reportAttributeAccessIssue]
    return made


RunsFile = Annotated[tyro.conf.Positional[Path], option(metavar="RUNS.csv", help="runs table")]

Words = tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]]
"""Words of an option that may be given several times, with several words each time."""

Numbers = tyro.conf.UseAppendAction[tuple[tuple[float, ...], ...]]
"""Numbers of an option that may be given several times, with several numbers each time."""

LARGEST_COUNT = 10**10
"""More than anything that is counted; whole numbers stay exact in arithmetic on floats [1]."""


def every_value(groups: tuple[tuple[Value, ...], ...]) -> tuple[Value, ...]:
    """All values of a repeated option, in order."""
    return tuple(value for group in groups for value in group)


def checked_count(flag: str, value: int) -> int:
    """Check that a count of an option is a whole number from 1 to `LARGEST_COUNT`, and return the count.

    Raises:
        InputError: the count is out of range; names the option.
    """
    if not 1 <= value <= LARGEST_COUNT:
        raise InputError(f"{flag} = {value} is out of range; expected a whole number from 1 to {LARGEST_COUNT:,}")
    return value


def checked_batch(text: str, seq_len: Any) -> int:
    """Batch in sequences, from text with a number of sequences or of tokens, for example `4M tokens`.

    Raises:
        InputError: the text has no number, or a number out of range.
    """
    from jaxscale.runs.schema import sequences_in

    sequences = sequences_in(text, float(seq_len))
    if sequences is None or not 1 <= sequences <= LARGEST_COUNT:
        has_letters = any(letter.isalpha() for letter in text)
        fault = "is neither sequences nor tokens" if has_letters and sequences is None else "is out of range"
        raise InputError(
            f"--global-batch = {text} {fault}; expected sequences, a whole number from 1 to"
            f" {LARGEST_COUNT:,}, or tokens, as `4M tokens`"
        )
    return int(sequences)


def float_of(flag: str, text: str) -> float:
    """Number from the text of an option.

    Raises:
        InputError: the text is no number; names the option.
    """
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{flag} = {text!r} is no number") from None


def pairs(option: str, texts: tuple[str, ...], may_be_empty: bool = False) -> dict[str, str]:
    """Values by name, from the texts `NAME=VALUE` of an option.

    Args:
        option: name of the option.
        texts: texts `NAME=VALUE`.
        may_be_empty: whether a value may be left out.

    Raises:
        InputError: a text without a name or a value, or two values for a name; names the option.
    """
    found: dict[str, str] = {}
    for text in texts:
        # At the first equals sign: a value may hold further signs.
        name, mark, value = (part.strip() for part in text.partition("="))
        if not (name and mark and (value or may_be_empty)):
            raise InputError(f"{option} = {text!r} is no assignment; expected NAME=VALUE")
        # A repeated assignment is no contradiction.
        if found.get(name, value) != value:
            raise InputError(f"{option} {name}={value} beside {name}={found[name]}; expected one of them")
        found[name] = value
    return found


OWN = {
    **{name: "--" + name.replace("_", "-") for name in ("model", "gpu", "n_gpus", "seq_len")},
    "global_batch_size_seqs": "--global-batch",
    "gpus_per_node": "--hardware",
    "inter_node_gbit_per_s_per_gpu": "--hardware",
}
"""Options that say what other columns say in a runs table."""

TRACED = ("split_classes", "table_placement", "joint_statistics")
"""Columns of traced workloads alone."""


def software_columns() -> tuple[str, ...]:
    """Columns of a runs table about the parallel plan of a transformer or about software."""
    from jaxscale.runs.schema import BY_NAME

    names = tuple(BY_NAME)
    # Between the two columns, the schema lists choices and facts of a plan.
    told = names[names.index("precision") : names.index("step_time_s")]
    return ("source", "framework", "release", *(name for name in told if name not in {*OWN, *TRACED}))


def software_cells(
    options: SoftwareOptions,
    fitted: "Fit",
    model: "Transformer | None",
    *,
    otherwise: str | None = None,
    own: Mapping[str, str] | None = None,
    unused: Collection[str] = (),
) -> dict[str, Any]:
    """Cells of plan and software, for `plans.plan_questions.plan_question`; what says nothing of the model is told.

    Args:
        options: of the command.
        fitted: the fit, whose runs may be of frameworks of the user's own.
        model: the transformer; None for any dense one.
        otherwise: framework where the options name none.
        own: further options of the command by the columns that say the same.
        unused: columns that say nothing to the command.

    Returns:
        Values by column, `framework` and `precision` included.

    Raises:
        InputError: an unknown column or value, a column with a separate option or without effect, or two frameworks or
            precisions.
    """
    from jaxscale.cli.console import remark
    from jaxscale.runs.description import without_experts
    from jaxscale.runs.schema import stated_values

    stated = stated_values("--set", pairs("--set", options.set))
    # Columns with an option of the command.
    elsewhere = {name: flag for name, flag in OWN.items() if hasattr(options, flag[2:].replace("-", "_"))}
    elsewhere, known = {**elsewhere, **(own or {})}, software_columns()
    for name in stated:
        if name in elsewhere:
            raise InputError(f"--set {name} has an option of its own; expected {elsewhere[name]}")
        if name in unused or name not in known:
            valid = [column for column in known if column not in {*unused, *elsewhere}]
            raise InputError(f"--set {name} says nothing of plan or software here; {one_like(name, valid)}")
    for name in ("framework", "precision"):
        chosen = getattr(options, name)
        if chosen is not None and name in stated:
            raise InputError(f"--{name} {chosen} beside --set {name}={stated[name]}; expected one of them")
    for told in without_experts(stated) if model is None or model.n_experts <= 1 else ():
        remark(told)
    framework, precision = (
        str(value) if (value := getattr(options, name) or stated.get(name) or usual) else None
        for name, usual in (("framework", otherwise), ("precision", "bf16"))
    )
    return {**stated, "framework": checked_framework(framework, fitted), "precision": str(precision).lower()}


def checked_framework(name: str | None, fitted: "Fit") -> str | None:
    """Name of a framework in tables and fits, from a name in any case; without a name, the common framework of the fit.

    Args:
        name: the given name.
        fitted: the fit, which may know further frameworks.

    Returns:
        The name; None without a name and without a common framework of all fitted runs.

    Raises:
        InputError: a framework unknown to defaults and fit; lists the known frameworks.
    """
    from jaxscale.runs.defaults import known_frameworks

    frameworks = {*known_frameworks(), *(level for kind, level in fitted.known if kind == "framework")}
    if name is None:
        # The framework common to all fitted runs.
        return dict(fitted.own).get("framework")
    return framework_among("--framework", name, frameworks)


def framework_among(flag: str, name: str, known: Collection[str]) -> str:
    """Framework by name in any spelling.

    Raises:
        InputError: none of the known frameworks; names the option.
    """
    from jaxscale.tables.cells import respelt

    for spelling in (name, name.lower(), respelt("framework", name)):
        if spelling in known:
            return spelling
    raise InputError(f"{flag} = {name!r} is unknown; {nearest(name.lower(), known)}")
