"""Scores of the islands model on measured runs and trials, all of them left out in turn; writes `fits/islands.md`.

Run: python fits/islands.py
     python fits/islands.py --runs RUNS.csv        utilisation of other runs of local updates, by the shipped fit
     python fits/islands.py --trials TRIALS.csv    times of other trials, by a fit to the trials in the repository
"""

import argparse
import csv
from pathlib import Path

import jax
import numpy as np
from measured_rounds import (
    bandwidth_left_out,
    fit_link_losses,
    measured_rounds,
    predicted_utilisation,
    run_left_out,
)
from pipeline_trials import (
    degrees_left_out,
    fit_trials,
    pipeline_trials,
    predicted_trials,
)
from scipy.stats import spearmanr

from jaxscale.base.documents import data_path
from jaxscale.base.files import write_whole

PAGE = Path(__file__).with_suffix(".md")
SEEDS = range(5)
EXPERIMENTS = {
    "homogeneous": "GPT-2 on 16 T4, equal nodes",
    "het_cluster": "GPT-2 on 12 V100 and 4 T4, mixed nodes",
    "het_model": "TransGAN on 16 V100, uneven layers",
}


def rows_of(path: Path) -> list[dict[str, str]]:
    """Rows of a table."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def error_of(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Relative errors [row]."""
    return np.abs(np.asarray(predicted) / measured - 1.0)


def shaped_runs(rows: list[dict[str, str]]):
    """Runs of local updates on links of a stated bandwidth."""
    runs = measured_rounds([row for row in rows if row["algorithm"] != "ddp"])
    return runs.rows(np.isfinite(runs.bandwidth))


def ranks(predicted: np.ndarray, measured: np.ndarray) -> tuple[float, float, float, float]:
    """Mean and median error [%], rank correlation, and the predicted best over the best."""
    errors = 100.0 * error_of(predicted, measured)
    pick = measured[np.argmin(predicted)] / measured.min()
    return float(errors.mean()), float(np.median(errors)), float(spearmanr(predicted, measured).statistic), float(pick)


def utilisation_lines() -> list[str]:
    """Rows of the table of utilisation."""
    table = rows_of(data_path("islands/diloco_measured.csv"))
    every = measured_rounds([row for row in table if row["algorithm"] == "diloco"])
    runs, unshaped = every.rows(np.isfinite(every.bandwidth)), every.rows(np.isnan(every.bandwidth))
    labels = np.round(np.log10(runs.bandwidth), 1)
    errors = error_of(bandwidth_left_out(runs, labels), runs.utilisation)
    parts = {f"{8.0 * 10.0**label / 1e6:,.0f} Mbit/s": errors[labels == label] for label in np.unique(labels)}
    parts["unshaped, a run"] = error_of(run_left_out(unshaped, fit_link_losses(runs)), unshaped.utilisation)
    parts["all"] = np.concatenate(list(parts.values()))
    lines = ["| left out | runs | mean error % | median % | largest % |", "|---|---:|---:|---:|---:|"]
    for name, part in parts.items():
        mean, median, largest = (100.0 * float(figure(part)) for figure in (np.mean, np.median, np.max))
        lines.append(f"| {name} | {len(part)} | {mean:.1f} | {median:.1f} | {largest:.1f} |")
    return lines


def trial_lines() -> list[str]:
    """Rows of the table of trials."""
    table = rows_of(data_path("restricted/amp_trials.csv"))
    profiles = rows_of(data_path("restricted/amp_layer_forward.csv"))
    lines = ["| trials | ran | predicted by | mean error % | median % | rank correlation | pick over best |"]
    lines.append("|---|---:|---|---:|---:|---:|---:|")
    for experiment, name in EXPERIMENTS.items():
        rows = [row for row in table if row["experiment"] == experiment]
        trials = pipeline_trials(rows, profiles)
        ran = np.isfinite(trials.measured)
        own = np.asarray([float(row["predicted_s"]) for row in rows])[ran]
        folds = [ranks(degrees_left_out(trials, seed=seed)[ran], trials.measured[ran]) for seed in SEEDS]
        for label, scores in (("other degrees", np.median(folds, axis=0)), ("AMP", ranks(own, trials.measured[ran]))):
            mean, median, rho, pick = scores
            lines.append(f"| {name} | {ran.sum()} | {label} | {mean:.1f} | {median:.1f} | {rho:.2f} | {pick:.2f} |")
    return lines


def score_runs(path: Path) -> None:
    """Print the error of other runs by a fit to the shipped ones."""
    losses = fit_link_losses(shaped_runs(rows_of(data_path("islands/diloco_measured.csv"))))
    runs = shaped_runs(rows_of(path))
    errors = 100.0 * error_of(np.asarray(predicted_utilisation(runs, losses)), runs.utilisation)
    print(f"{len(errors)} runs: mean error {errors.mean():.1f} %, median {np.median(errors):.1f} %")


def score_trials(path: Path) -> None:
    """Print the error of other trials by a fit to those of the repository on the same cluster."""
    profiles = rows_of(data_path("restricted/amp_layer_forward.csv"))
    shipped, others = rows_of(data_path("restricted/amp_trials.csv")), rows_of(path)
    for experiment in EXPERIMENTS:
        new = [row for row in others if row["experiment"] == experiment and np.isfinite(float(row["measured_s"]))]
        if not new:
            continue
        costs = fit_trials(pipeline_trials([row for row in shipped if row["experiment"] == experiment], profiles))
        trials = pipeline_trials(new, profiles)
        mean, median, rho, pick = ranks(np.asarray(predicted_trials(trials, costs)), trials.measured)
        print(f"{experiment}, {len(new)} trials: mean error {mean:.1f} %, median {median:.1f} %, ranks {rho:.2f}")
        print(f"  the predicted best takes {pick:.2f} of the best time")


def main() -> None:
    """Write the page, or score the tables that were named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--trials", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if options.runs is not None:
        score_runs(options.runs)
    if options.trials is not None:
        score_trials(options.trials)
    if options.runs is not None or options.trials is not None:
        return
    text = [
        "# Islands: errors on runs that a fit has not seen",
        "",
        "Written by `python fits/islands.py`.",
        "",
        "## Utilisation of local updates over shaped links",
        "",
        "DiLoCo of a model of 30.8e6 parameters on four nodes (`data/islands/diloco_measured.csv`). The loss of slow",
        "links, the start skew and the pace are fitted to the runs at all other bandwidths. Links that were not shaped",
        "have the bandwidth that the other runs over them tell.",
        "",
        *utilisation_lines(),
        "",
        "## Pipelines over equal and unequal nodes",
        "",
        "AMP's trials (`data/restricted/amp_trials.csv`). Trials of the same degrees are left out together,",
        f"in five parts; the median of {len(SEEDS)} divisions. Priors (`data/islands.toml`) were chosen with sight of",
        "the trials.",
        "",
        *trial_lines(),
        "",
    ]
    write_whole(PAGE, "\n".join(text))
    print("\n".join(text))


if __name__ == "__main__":
    main()
