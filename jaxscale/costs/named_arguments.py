"""Arguments of `step_time` and `memory`: models, chips and fits looked up by name, and plans checked."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.base.show import is_traced
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.record import Fit, fit_of
from jaxscale.hardware.catalogue import cluster as catalogue_cluster
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.hardware.cluster import Cluster
from jaxscale.models import model as named_model
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan import DEGREES, Plan
from jaxscale.plans.rules import violations


class Arguments(NamedTuple):
    """Model, plan, cluster and fitted coefficients, all as modules instead of names."""

    model: Any
    plan: Any
    cluster: Cluster
    coefficients: Coefficients


def resolved(model: Any, plan: Any, cluster: Cluster | str, coefficients: Any) -> Arguments:
    """Model, plan, cluster and coefficients as modules, looked up if given by name.

    Args:
        model: a workload, or the name or file of a transformer.
        plan: plan of the model.
        cluster: chips and network, or the name of a chip, for a cluster of the size of the plan.
        coefficients: fitted parameters; or a fit, or name or file of a fit, for the fitted values of the chip and of
            the number format of the plan.

    Raises:
        InputError: an unknown name; or a fit for a traced cluster, whose chip is unknown.
    """
    if isinstance(model, str | Path):
        model = named_model(model)
    gpu = None
    if isinstance(cluster, str):
        gpu = load_hardware()[cluster].id
        # A cluster of the size of the plan.
        cluster = catalogue_cluster(gpu, number(plan.n_chips))
    if not isinstance(coefficients, Coefficients):
        if is_traced(cluster):
            raise InputError("the cluster is traced; expected coefficients, as `fit.coefficients(levels)` gives them")
        gpu = gpu or load_hardware().chip_id(cluster)
        coefficients = _of_run(fit_of(coefficients), gpu, plan, number(cluster.n_chips))
    return Arguments(model, plan, cluster, coefficients)


def _of_run(fit: Fit, gpu: str | None, plan: Any, n_chips: float) -> Coefficients:
    """Coefficients of a run with known chip and number format."""
    has_format = isinstance(plan, Plan) and not is_traced(plan)
    # Traced plans have no words.
    precision = plan.words()["precision"] if has_format else None
    return fit.coefficients({"gpu": gpu, "precision": precision}, n_chips)


def refuse_broken(model: Transformer, plan: Plan, cluster: Cluster) -> None:
    """Raise an error for a plan of whole degrees that breaks a rule of `js.violations` for the model and the cluster.

    Traced, stacked and fractional numbers are not checked, because they stand for many plans or for a relaxed plan.

    Raises:
        InputError: the sentences of the broken rules.
    """
    counts = [getattr(plan, name) for name in DEGREES]
    counts += [getattr(model, name) for name in ("n_layers", "n_heads", "n_kv_heads", "d_ff", "seq_len", "n_experts")]
    counts.append(cluster.n_chips)
    if is_traced(counts) or any(np.ndim(count) or count != np.round(count) for count in counts):
        return
    if broken := violations(model, plan, number(cluster.n_chips)):
        raise InputError("; ".join(broken))
