"""What options say of plan and software, as cells of a runs table: the same in every command that plans or times."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from jaxscale.base.errors import InputError, nearest, one_like
from jaxscale.cli.arguments import SoftwareOptions, pairs

if TYPE_CHECKING:
    from jaxscale.calibration.record import Fit

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
    """Columns of a runs table that say something of the plan of a transformer or of what its software does."""
    from jaxscale.runs.schema import BY_NAME

    names = tuple(BY_NAME)
    # Between the two columns, the schema lists choices and facts of a plan.
    told = names[names.index("precision") : names.index("step_time_s")]
    return ("source", "framework", "release", *(name for name in told if name not in {*OWN, *TRACED}))


def software_cells(
    options: SoftwareOptions,
    fitted: "Fit",
    *,
    otherwise: str | None = None,
    own: Mapping[str, str] | None = None,
    unused: Collection[str] = (),
) -> dict[str, Any]:
    """Cells of plan and software, for `plans.plan_questions.plan_question`.

    Args:
        options: of the command.
        fitted: the fit, whose runs may be of frameworks of the user's own.
        otherwise: framework where the options name none.
        own: further options of the command by the columns that say the same.
        unused: columns that say nothing to the command.

    Returns:
        Values by column; `framework` and `precision` are among them.

    Raises:
        InputError: no such column or value, one that has an option of its own or no effect, or two frameworks or
            precisions.
    """
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
    framework, precision = (
        str(value) if (value := getattr(options, name) or stated.get(name) or usual) else None
        for name, usual in (("framework", otherwise), ("precision", "bf16"))
    )
    return {**stated, "framework": checked_framework(framework, fitted), "precision": str(precision).lower()}


def checked_framework(name: str | None, fitted: "Fit") -> str | None:
    """Framework by name, upper or lower case; without a name the common framework of all fitted runs, if any.

    Args:
        name: the given name.
        fitted: the fit, whose runs may be of further frameworks.

    Returns:
        The name in tables and fit.

    Raises:
        InputError: a framework unknown to defaults and fit; lists the known frameworks.
    """
    from jaxscale.runs.defaults import known_frameworks
    from jaxscale.tables.words import respelt

    frameworks = {*known_frameworks(), *(level for kind, level in fitted.known if kind == "framework")}
    if name is None:
        # The framework common to all fitted runs.
        return dict(fitted.own).get("framework")
    if name in frameworks:
        return name
    for spelling in (name.lower(), respelt("framework", name)):
        if spelling in frameworks:
            return spelling
    raise InputError(f"--framework = {name!r} is unknown; {nearest(name.lower(), frameworks)}")
