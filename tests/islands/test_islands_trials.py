"""AMP's trials of pipelines over equal and unequal nodes: grouped cross-validation against AMP's own predictions."""

import csv

import numpy as np
import pytest
from pipeline_trials import degrees_left_out, fit_trials, pipeline_trials, predicted_trials
from scipy.stats import spearmanr

import jaxscale as js
from jaxscale.base.errors import InputError

FOLDER = js.data_path("restricted")


def read(name):
    """Rows of a table that stays in the repository."""
    with (FOLDER / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def tables():
    return read("amp_trials.csv"), read("amp_layer_forward.csv")


def of_experiment(tables, name):
    """Trials of one cluster and AMP's own predictions of those that ran."""
    rows = [row for row in tables[0] if row["experiment"] == name]
    trials = pipeline_trials(rows, tables[1])
    ran = np.isfinite(trials.measured)
    return trials, ran, np.asarray([float(row["predicted_s"]) for row in rows])[ran]


def figures(predicted, measured):
    """Mean relative error, rank correlation, and the time of the predicted best over that of the best."""
    error = np.mean(np.abs(predicted / measured - 1.0))
    return error, spearmanr(predicted, measured).statistic, measured[np.argmin(predicted)] / measured.min()


@pytest.mark.slow
@pytest.mark.parametrize("name, error, ranks", [("homogeneous", 0.12, 0.92), ("het_cluster", 0.15, 0.75)])
def test_trials_of_other_degrees_predict_a_trial(tables, name, error, ranks):
    trials, ran, own = of_experiment(tables, name)
    measured = trials.measured[ran]
    folds = [figures(degrees_left_out(trials, seed=seed)[ran], measured) for seed in range(3)]
    found = np.median(folds, axis=0)
    assert found[0] <= error and found[1] >= ranks and found[2] <= 1.07
    theirs = figures(own, measured)
    assert theirs[0] > 3.0 * found[0], "the planner's own predictions miss by several times as much"


@pytest.mark.slow
def test_uneven_layers_are_predicted_from_other_degrees(tables):
    """TransGAN: 24 blocks among layers a hundred times smaller; few trials ran, and the planner is nearly as good."""
    trials, ran, own = of_experiment(tables, "het_model")
    measured = trials.measured[ran]
    folds = [figures(degrees_left_out(trials, seed=seed)[ran], measured) for seed in range(3)]
    found, theirs = np.median(folds, axis=0), figures(own, measured)
    assert ran.sum() == 19 and found[0] <= 0.16 and found[0] < theirs[0]
    assert found[1] >= 0.85 and found[1] > theirs[1] and found[2] <= 1.07
    kept = trials.rows(ran)
    shuffled = kept._replace(measured=np.random.default_rng(0).permutation(measured))
    blind = figures(degrees_left_out(shuffled), measured)
    assert blind[0] > 1.5 * found[0] and blind[1] < 0.75, "negative control: shuffled times"


@pytest.mark.slow
def test_a_fit_to_shuffled_times_predicts_nothing(tables):
    """Negative control: what is left of the ranks then comes from the priors."""
    trials, ran, _ = of_experiment(tables, "homogeneous")
    kept = trials.rows(ran)
    shuffled = kept._replace(measured=np.random.default_rng(0).permutation(kept.measured))
    good, bad = (figures(degrees_left_out(part), kept.measured) for part in (kept, shuffled))
    assert bad[0] > 3.0 * good[0] and bad[1] < 0.75 < good[1]


def test_more_nodes_share_one_card_and_slower_links_cost_more(tables):
    trials, _, _ = of_experiment(tables, "het_cluster")
    costs = fit_trials(trials)
    slower = trials._replace(bandwidth=0.5 * trials.bandwidth)
    crosses = (trials.crossings > 0) | (trials.ring_bytes > 0)
    assert crosses.any()
    more = np.asarray(predicted_trials(slower, costs)) - np.asarray(predicted_trials(trials, costs))
    assert np.all(more[crosses] > 0.0) and np.all(more[~crosses] == 0.0)


def test_an_unknown_experiment_is_refused(tables):
    with pytest.raises(InputError, match="expected one of homogeneous, het_cluster, het_model"):
        pipeline_trials([{**tables[0][0], "experiment": "other"}], tables[1])
