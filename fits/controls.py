"""Negative controls of the calibration; writes fits/controls.csv.

Run from the repository: `python fits/controls.py` (about 10 minutes on 2 cores).
A fit of shuffled step times must fail, and a fit without a term must be worse on the source that identifies the term.
"""

import csv
import dataclasses
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from calibrate import FOLDER, load_tables

from jaxscale.calibration.coefficients import names
from jaxscale.calibration.record import load_fit
from jaxscale.fitting.fit_record import fit_problem
from jaxscale.fitting.held_out import cross_validate
from jaxscale.fitting.multistart import random_starts, solve
from jaxscale.fitting.objective import FitProblem
from jaxscale.runs.arrays import Measured
from jaxscale.runs.measured import groups_of

GONE, FREE = -30.0, 30.0
"""Unconstrained coordinates at which a cost vanishes, or a resource costs nothing."""

THIN = {"matmul_half_area": GONE, "matmul_exposed_bytes": GONE}
ACCUMULATION = {"accumulation_bytes": GONE, "fsdp_bytes": GONE}

TERMS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "loss of thin matrices": ("dp_scaling_misc", THIN),
    "thin matrices, casts and accumulation": ("mosaic_llm_foundry", {**THIN, **ACCUMULATION}),
    "casts and gradient accumulation": ("h100_one_chip", ACCUMULATION),
    "attention": ("mosaic_llm_foundry", {"attention_efficiency": FREE}),
    "memory-bound kernels": ("mlperf_llm_training", {"residual_passes": GONE, "hidden_passes": GONE}),
    "host pace": (
        "ultrascale_playbook_h100",
        {"host_time_layer": GONE, "host_time_tp_network": GONE, "host_time_tp_node": GONE},
    ),
    "sends and receives between stages": ("ultrascale_playbook_h100", {"pp_slot_time": GONE}),
    "collectives within a node": (
        "vtrain_a100_ground_truth",
        {"scale_up_efficiency": FREE, "link_latency_scale": GONE, "collective_launch": GONE},
    ),
    "data-parallel collectives": (
        "ultrascale_playbook_h100",
        {
            "dp_overlap": FREE,
            "dp_buckets": GONE,
            "reduce_rings": GONE,
            "dp_congestion": GONE,
            "scale_out_efficiency": FREE,
        },
    ),
    "all-reduces of single gradients": ("ultrascale_playbook_h100", {"reduce_rings": GONE}),
    "stragglers": ("mosaic_llm_foundry", {"straggler": GONE}),
    "mixture-of-experts overheads": (
        "nvidia_dgxc_benchmarking",
        {"moe_expert_time": GONE, "routed_passes": GONE, "ep_overlap": FREE},
    ),
}


def fixed(problem: FitProblem, values: Mapping[str, float]) -> FitProblem:
    """The problem with some coefficients held at unconstrained values, effects included."""
    mapping = problem.parametrisation
    columns = np.asarray([names().index(name) for name in values])
    held = np.isin(np.asarray(mapping.column), columns)
    base = problem.base.at[:, columns].set(np.asarray(list(values.values())))
    parts = (base, mapping.spread.at[columns].set(0.0), mapping.scale * ~held)
    return eqx.tree_at(lambda p: (p.base, p.parametrisation.spread, p.parametrisation.scale), problem, parts)


def held_out_error(problem: FitProblem, measured: Measured) -> float:
    """Mean absolute percentage error of step time under 5-fold cross-validation [%]."""
    starts = random_starts(jr.key(0), 1, problem.parametrisation.n_parameters)
    solution = solve(problem, starts)
    held_out = cross_validate(problem, solution, groups_of(measured), 5, lambda _: None)
    return float(100.0 * np.mean(np.abs(np.expm1(held_out[:, 0]))))


def problem_of(measured: Measured) -> FitProblem:
    """The fit of one table from the priors."""
    problem, _ = fit_problem(measured, load_fit("prior"))
    return problem


def shuffled(measured: Measured) -> Measured:
    """The same runs with their step times dealt anew."""
    order = np.random.default_rng(0).permutation(len(measured.batch))
    return dataclasses.replace(measured, step_time=np.asarray(measured.step_time)[order])


def main() -> None:
    """Every control, next to the fit that it should be worse than."""
    jax.config.update("jax_enable_x64", True)
    tables = {name: table for name, (table, _) in load_tables().items()}
    rows: list[tuple[str, str, float, float]] = []
    for table in sorted({table for table, _ in TERMS.values()}):
        measured = tables[table]
        problem = problem_of(measured)
        whole = held_out_error(problem, measured)
        rows.append(("shuffled step times", table, whole, held_out_error(problem_of(shuffled(measured)), measured)))
        print(rows[-1], flush=True)
        for term, (identified_by, values) in TERMS.items():
            if identified_by == table:
                rows.append((f"without {term}", table, whole, held_out_error(fixed(problem, values), measured)))
                print(rows[-1], flush=True)
    with (FOLDER / "controls.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("control", "table", "mape_percent", "mape_of_control_percent"))
        writer.writerows((name, table, f"{whole:.2f}", f"{error:.2f}") for name, table, whole, error in rows)


if __name__ == "__main__":
    main()
