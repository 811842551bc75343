"""The page fits/laws.md: laws of loss on every table, published numbers, extrapolation, simulated coverage.

A few minutes; run `python fits/law_priors.py` first where tables or forms have changed.
"""

import time
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float, Int
from law_priors import judged_tables, split_of
from markdown_text import markdown_table

from jaxscale.base.errors import InputError
from jaxscale.base.files import write_whole
from jaxscale.laws.backtest import Rollout, rollout
from jaxscale.laws.fitted_law import FittedLaw
from jaxscale.laws.loss import LossLaw
from jaxscale.laws.loss_fit import fit_law, problem_of
from jaxscale.laws.loss_forms import BASE, FORMS, form_of, number_names, prior_of
from jaxscale.laws.loss_reader import Losses, loss_table, losses_of
from jaxscale.laws.loss_solver import HUBER_DELTA, cluster_ids, loss_residuals, optimum_of, searches

N_DRAWS = 100

SIMULATED = 200
"""Simulated tables of each size [1]."""

PUBLISHED = (
    ("chinchilla", "irreducible", 1.8172, "Besiroglu et al. 2024"),
    ("chinchilla", "params_coefficient", 477.84, "Besiroglu et al. 2024"),
    ("chinchilla", "tokens_coefficient", 2143.86, "Besiroglu et al. 2024"),
    ("chinchilla", "params_exponent", 0.3473, "Besiroglu et al. 2024"),
    ("chinchilla", "tokens_exponent", 0.3672, "Besiroglu et al. 2024"),
    ("gemstones", "irreducible", float(np.exp(0.668)), "McLeish et al. 2025"),
    ("gemstones", "params_exponent", 0.2591, "McLeish et al. 2025"),
    ("gemstones", "tokens_exponent", 0.5973, "McLeish et al. 2025"),
    ("gemstones-cooldown", "irreducible", float(np.exp(0.7298)), "McLeish et al. 2025"),
    ("gemstones-cooldown", "params_exponent", 0.3003, "McLeish et al. 2025"),
    ("gemstones-cooldown", "tokens_exponent", 0.5802, "McLeish et al. 2025"),
)
"""Additive law, Huber's loss of 1e-3: table, number, value, source."""


def fitted_rows(tables: dict[str, Losses]) -> tuple[list[list[str]], dict[str, dict[str, float]]]:
    """Rows of the additive and joint law of every table without a prior, and the numbers of the additive one."""
    rows, numbers = [], {}
    for name, table in tables.items():
        fits = {form: fit_law(table, form, prior=None, likelihood="huber", n_draws=0) for form in FORMS}
        numbers[name] = {number: entry["value"] for number, entry in fits["additive"].parameters.items()}
        numbers[name]["objective"] = fits["additive"].fitted.objective * HUBER_DELTA
        joint = {number: entry["value"] for number, entry in fits["joint"].parameters.items()}
        cells = [f"{numbers[name][key]:.3f}" for key in (BASE[0], *BASE[3:5])]
        cells += [f"{joint[key]:.3f}" for key in (BASE[0], *BASE[3:])]
        best = min(fit.fitted.objective for fit in fits.values())
        cells += [f"{100.0 * (fits[form].fitted.objective / best - 1.0):.0f}" for form in FORMS]
        rows.append([name, str(len(table)), *cells])
    return rows, numbers


def extrapolated(tables: dict[str, Losses], form: str, prior: str | None) -> dict[str, Rollout]:
    """Top decade of each table predicted from its lower half."""
    return {
        name: rollout(table, *split_of(name, table), lambda t: fit_law(t, form, prior=prior, n_draws=N_DRAWS))
        for name, table in tables.items()
    }


def extrapolation_rows(tables: dict[str, Losses]) -> tuple[list[list[str]], list[list[str]]]:
    """Rows for each form and prior, and for each table under the joint law."""
    rows, single = [], []
    for form, prior in (("joint", "shipped"), ("joint", None), ("additive", "shipped"), ("additive", None)):
        tested = extrapolated(tables, form, prior)
        errors = np.asarray([100.0 * one.mean_error for one in tested.values()])
        bare = [np.mean(np.abs(one.error) <= np.hypot(one.parameters, one.noise)) for one in tested.values()]
        rows.append(
            [
                form,
                prior or "none",
                f"{np.exp(np.log(errors).mean()):.2f}",
                f"{np.median(errors):.2f}",
                f"{errors.mean():.2f}",
                f"{sum(one.error.mean() > 0.0 for one in tested.values())} of {len(tested)}",
                f"{100.0 * np.mean(bare):.0f}",
                f"{100.0 * np.mean([one.coverage for one in tested.values()]):.0f}",
                f"{100.0 * np.median([np.median(one.half_width) for one in tested.values()]):.2f}",
            ]
        )
        if (form, prior) == ("joint", "shipped"):
            single = [
                [
                    name,
                    str(one.n_fitted),
                    str(one.n_predicted),
                    f"{one.decades.mean():.1f}",
                    f"{100.0 * np.expm1(one.error).mean():+.2f}",
                    f"{100.0 * one.mean_error:.2f}",
                    f"{100.0 * np.median(one.half_width):.2f}",
                    f"{100.0 * one.coverage:.0f}",
                ]
                for name, one in tested.items()
            ]
    return rows, single


def simulated_rows() -> list[list[str]]:
    """Coverage of 90 % intervals where the additive law is true, for tables of 40 and 240 runs."""
    truth, rows = LossLaw(1.8172, 477.8, 2143.0, 0.3473, 0.3672), []
    wanted = [*list(vars(truth).values())[:5], float(truth.optimum(1e23)[0])]
    for count in (40, 240):
        held = []
        for seed in range(SIMULATED):
            generator = np.random.default_rng(1000 * count + seed)
            n, d = np.exp(generator.uniform(17.0, 23.0, count)), np.exp(generator.uniform(20.0, 26.0, count))
            loss = np.asarray(truth.loss(n, d)) * np.exp(0.005 * generator.standard_t(4, count))
            table = losses_of({"n_params": n, "tokens": d, "loss": loss})
            law = fit_law(table, "additive", prior=None, n_draws=N_DRAWS, seed=seed)
            ends = [(law.parameters[name]["lo"], law.parameters[name]["hi"]) for name in BASE[:5]]
            ends.append(law.optimum(1e23).n_params[1:])
            held.append([lo <= value <= hi for value, (lo, hi) in zip(wanted, ends, strict=True)])
        rows.append([str(count), *(f"{100.0 * share:.0f}" for share in np.mean(held, axis=0))])
    return rows


def left_out_errors(law: FittedLaw) -> Float[np.ndarray, " row"]:
    """Logarithm of measured over predicted loss of each row, by a fit to the rows of all further groups [row].

    Args:
        law: law fitted to a table.

    Raises:
        InputError: a law from a file, or a single group.
    """
    table = law.table
    if table is None:
        raise InputError("left-out errors need the runs; expected a law fitted to a table")
    groups: Int[np.ndarray, " row"] = cluster_ids(table, "auto")
    count = int(groups.max()) + 1
    if count < 2:
        raise InputError(f"{table.name}: one group of rows alone; expected at least two to leave one out")
    form = form_of(law.form, len(number_names(law.terms)) - len(BASE))
    with jax.enable_x64(True):
        problem = problem_of(table, form, law.terms, law.prior, law.likelihood)
        best, _ = optimum_of(form, problem, law.terms)
        # Padded rows keep weight 0.
        kept = np.ones((count, len(problem.weights)))
        kept[:, : len(table)] = groups[None, :] != np.arange(count)[:, None]
        starts = np.broadcast_to(best, (count, len(best)))
        # Held-out rows have weight 0: a single program serves all groups.
        points, _ = searches(starts, problem, kept * problem.weights, terms=law.terms)
        every = jax.vmap(lambda point: loss_residuals(point[:-1], problem, law.terms))(points)
    # Each row by the fit without the group of the row.
    return np.asarray(every)[groups, np.arange(len(table))]


def root_mean_square(errors: Float[np.ndarray, " row"]) -> float:
    """Root mean square of errors [1]."""
    return float(np.sqrt(np.mean(errors**2)))


def shape_rows() -> list[list[str]]:
    """Errors on shapes of Gemstones left out, and the numbers of the shape term."""
    rows = []
    for name in ("gemstones", "gemstones-cooldown"):
        table = loss_table(name, "non-embedding")
        for terms in ((), ("shape",)):
            law = fit_law(table, "joint", terms, prior=None, n_draws=N_DRAWS if terms else 0)
            cells = [f"{100.0 * root_mean_square(left_out_errors(law)):.2f}"]
            for number in ("shape_kappa", "shape_ratio", "shape_drift"):
                entry = law.parameters.get(number)
                cells.append("" if entry is None else f"{entry['value']:.3g} ({entry['lo']:.2g} to {entry['hi']:.2g})")
            rows.append([name, ", ".join(terms) or "none", *cells])
    return rows


STARTS = 1000
"""Random starts beside which the search from the grid is judged [1]."""

LEAST_START = (-1.0, -2.0, -2.0, -2.5, -2.5, -1.5, 0.0)
LARGEST_START = (1.0, 2.0, 2.0, 0.2, 0.2, 0.2, 0.0)
"""Range of the random starts: logarithms of E, A and B in the middle of the table, a, b, k, and of the noise [1]."""


def start_rows(tables: dict[str, Losses]) -> list[list[str]]:
    """Objective of the search over the best of many random starts, and how many of these end there, by table."""
    rows = []
    for name, table in tables.items():
        cells = [name]
        for form in ("joint", "additive"):
            condition, held = form_of(form), prior_of(None, form)
            with jax.enable_x64(True):
                problem = problem_of(table, condition, (), held, "huber")
                _, value = optimum_of(condition, problem, ())
                starts = np.random.default_rng(0).uniform(LEAST_START, LARGEST_START, (STARTS, len(LEAST_START)))
                starts[:, :-1] = np.where(condition.is_free, starts[:, :-1], 0.0)
                _, others = searches(starts, problem)
            best = float(np.nanmin(others))
            reached = np.mean(others <= best * (1.0 + 1e-6))
            cells += [f"{max(value / best - 1.0, 0.0):.0e}", f"{100.0 * reached:.0f}"]
        rows.append(cells)
    return rows


def seconds_of_a_fit() -> tuple[float, float]:
    """Processor seconds of the first fit of 240 rows with 200 draws and of a later one of another length."""
    table, told = loss_table("chinchilla"), []
    for rows in (240, 230):
        start = time.process_time()
        fit_law(table.select(np.arange(rows)), "additive", prior=None, n_draws=200)
        told.append(time.process_time() - start)
    return told[0], told[1]


def main() -> None:
    """Write the page."""
    first, later = seconds_of_a_fit()
    tables = judged_tables()
    fits, numbers = fitted_rows(tables)
    published = [
        [name, number, f"{value:.5g}", f"{numbers[name][number]:.5g}", source]
        for name, number, value, source in PUBLISHED
    ]
    rows, single = extrapolation_rows(tables)
    objective = numbers["chinchilla"]["objective"]
    parts = [
        "# Laws of loss: every table, every form",
        "Made by `fits/laws.py`; [docs/laws.md](../docs/laws.md) explains forms, priors and intervals. Tables that may "
        "not be shipped are read from the repository.",
        "## Extrapolation",
        "Lower half of the range of log compute, top decade predicted (OLMo: 7B and 13B from models below 2e9). "
        "Priors and discrepancy are those of the *other* sources. Errors in %, each table counting once.",
        markdown_table(
            [
                "form",
                "prior",
                "geometric",
                "median",
                "mean",
                "high",
                "numbers and noise hold %",
                "intervals hold %",
                "half-width %",
            ],
            rows,
        ),
        "The joint law with the prior, table by table:",
        markdown_table(
            ["table", "fitted", "predicted", "decades", "bias %", "error %", "half-width %", "holds %"], single
        ),
        "## Published numbers against ours",
        f"Additive law, Huber's loss. Objective on Chinchilla {objective:.8f} (published 0.00101828).",
        markdown_table(["table", "number", "published", "here", "source"], published),
        "## Fits to whole tables, without a prior",
        "E, a, b of the additive law; E, a, b, k of the joint one; objective of each form above the best of four, %.",
        markdown_table(["table", "runs", "E", "a", "b", "E", "a", "b", "k", *FORMS], fits),
        "## Optimum beside random starts",
        f"Relative excess of the objective over the best of {STARTS:,} random starts, and starts that end there, %.",
        markdown_table(["table", "joint: excess", "starts %", "additive: excess", "starts %"], start_rows(tables)),
        "## Intervals where the law is true",
        f"{SIMULATED} simulated tables of each size, {N_DRAWS} draws: 90 % intervals that hold, %.",
        markdown_table(["runs", *BASE[:5], "optimal N at 1e23 flop"], simulated_rows()),
        "## Shapes left out",
        "Joint law, parameters without embeddings; root mean square error on shapes of Gemstones left out, %.",
        markdown_table(["table", "terms", "error %", "kappa", "r", "rho"], shape_rows()),
        "## Time",
        f"240 runs and 200 draws: {first:.1f} s of processor time the first time, {later:.1f} s for another length "
        "in the same bucket.",
    ]
    write_whole(Path(__file__).parent / "laws.md", "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
