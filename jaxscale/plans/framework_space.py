"""Plans as a framework runs them: kernels and stages that users of the framework cannot choose are fixed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxscale.errors import InputError, one_like
from jaxscale.plan.optimizers import mixed_precision_bytes
from jaxscale.plan.plan import FLAGS, SOFTWARE_CHOICES
from jaxscale.plans.enumerate import FIXED, PlanSpace
from jaxscale.runs.cells import YES_OR_NO
from jaxscale.runs.defaults import default_for, framework_defaults, is_fused

COUNTS = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "zero_stage")
WORDS = ("recompute", "schedule")


def framework_space(framework: str | None, precision: str = "bf16") -> PlanSpace:
    """Space of the plans of a framework: kernels, stages, width and overlap of gradients fixed, all degrees free.

    Args:
        framework: a framework of `data/frameworks.toml`, such as `nemo`; any other has no table.
        precision: of the weight matmuls.

    Returns:
        The space.

    Raises:
        InputError: unknown precision; says which there are.
    """
    return PlanSpace(
        flash_attention=is_fused(default_for("attention_kernel", framework, None)),
        overlap_gradients=default_for("overlap_gradients", framework, None),
        balanced_stages=default_for("balanced_stages", framework, None),
        gradient_bytes=float(default_for("gradient_bytes", framework, None)),
        fused_glu=default_for("fused_glu", framework, None),
        precision=precision,
        schedule=(*PlanSpace.schedule, *_further_schedules(framework)),
        software=software_of(framework, precision),
    )


def _further_schedules(framework: str | None) -> tuple[str, ...]:
    """Schedules that a framework has besides the usual ones; those of the default where its table is not known."""
    tables = framework_defaults()
    return tuple(tables.get((framework or "").lower(), tables["default"]).get("schedules", ()))


def software_of(framework: str | None, precision: str = "bf16") -> dict[str, Any]:
    """What the software of a framework does, as arguments of `Plan`, by its defaults.

    Args:
        framework: a framework of `data/frameworks.toml`; any other counts as an unnamed one.
        precision: of the weight matmuls.

    Returns:
        Words, flags and sizes by argument.
    """
    names = (*SOFTWARE_CHOICES, *(name for name in FLAGS if name not in FIXED), "etp")
    usual = mixed_precision_bytes(precision, default_for("optimizer", framework, None))
    return {
        **{name: default_for(name, framework, None) for name in names},
        "optimizer_bytes": default_for("optimizer_bytes", framework, None) or usual.optimizer,
        "weight_bytes": default_for("weight_bytes", framework, None) or usual.weight,
    }


def with_choices(space: PlanSpace, choices: Mapping[str, str]) -> PlanSpace:
    """A space without the plans that differ from stated choices.

    Args:
        space: choices that are open.
        choices: value of each stated choice by field of `PlanSpace`, as text: a degree, a word or yes and no.

    Returns:
        The narrower space.

    Raises:
        InputError: an unknown choice, or a value that it cannot have.
    """
    fields: dict[str, tuple[object, ...]] = {}
    for name, text in choices.items():
        if name in COUNTS:
            fields[name] = (_count(name, text),)
        elif name in WORDS:
            fields[name] = (text.lower(),)
        elif name == "sequence_parallel":
            if text.lower() not in YES_OR_NO:
                raise InputError(f"sequence_parallel = {text!r}; expected yes or no")
            fields[name] = (YES_OR_NO[text.lower()],)
        else:
            raise InputError(
                f"{name!r} is no choice of a plan; {one_like(name, (*COUNTS, *WORDS, 'sequence_parallel'))}"
            )
    return replace(space, **fields)  # pyright: ignore[reportArgumentType]


def _count(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{name} = {text!r} is no whole number; expected one")
    return int(text)
