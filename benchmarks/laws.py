"""Time of a fit of a law of loss to 240 runs with 200 draws, beside other packages that fit such laws.

Run: python benchmarks/laws.py [--scaling-laws PYTHON] [--chinchilla PYTHON]

Both options name the interpreter of an environment that has the other package: `simple-scaling-laws` 0.2.0 needs
Python 3.12, `chinchilla` 0.2.0 its own pandas. What is not named is left out. `chinchilla` starts from the 3,125 points
of its README, on all cores, and draws nothing. No cache of compiled code is used. Processor seconds add up all cores;
unlike seconds, they hardly depend on the other work of a machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxscale import laws
from jaxscale.laws.loss_solver import HUBER_DELTA

ROWS, DRAWS = 240, 200

SCALING_LAWS = """
import json, os, sys, time
import polars as pl
from simple_scaling_laws import fit
rows = json.load(open(sys.argv[1]))
table = pl.DataFrame({
    "training_run_id": [str(row) for row in range(len(rows["loss"]))],
    "model_size__n_params": rows["n_params"],
    "dataset_size__n_tokens": rows["tokens"],
    "test_loss__cross_entropy": rows["loss"],
})
told = []
for _ in range(2):
    start, before = time.perf_counter(), sum(os.times()[:4])
    model = fit(table, law="separable-power", n_draws=DRAWS, seed=0)
    told.append((time.perf_counter() - start, sum(os.times()[:4]) - before))
target = "test_loss__cross_entropy"
points = table.select(pl.col("training_run_id").alias("point_id"), "model_size__n_params", "dataset_size__n_tokens")
predicted = model.predict(points, quantiles=[0.05, 0.5, 0.95])[target + "__median"].to_list()
print(json.dumps({"seconds": told, "floor": float(model.params(target)["E"]), "predicted": predicted}))
""".replace("DRAWS", str(DRAWS))

CHINCHILLA = """
import json, os, sys, time
import numpy as np
from chinchilla import Chinchilla
def huber(y_true, y_pred):
    miss = np.abs(np.log(y_true) - np.log(y_pred))
    return np.where(miss < 1e-3, 0.5 * miss**2, 1e-3 * (miss - 0.5e-3))
rows = json.load(open(sys.argv[1]))
grid = dict(
    E=np.linspace(1.1, 1.5, 5), a=np.linspace(1, 10, 5), b=np.linspace(1, 10, 5),
    alpha=np.linspace(0.1, 0.7, 5), beta=np.linspace(0.1, 0.7, 5),
)
fitted = Chinchilla(sys.argv[2], param_grid=grid, loss_fn=huber, log_level=50)
for n, d, loss in zip(rows["n_params"], rows["tokens"], rows["loss"]):
    fitted.database.append(**{"C": 6.0 * n * d, "N": n, "D": d, "loss": loss})
start, before = time.perf_counter(), sum(os.times()[:4])
fitted.fit()
told = time.perf_counter() - start, sum(os.times()[:4]) - before
n, d = (np.asarray(rows[name], float) for name in ("n_params", "tokens"))
predicted = (fitted.E + fitted.A / n**fitted.alpha + fitted.B / d**fitted.beta).astype(float).tolist()
print(json.dumps({"seconds": [told], "floor": float(fitted.E), "predicted": predicted}))
"""


class Timed(NamedTuple):
    """Outcome of fits of one package: seconds and processor seconds of each, E and predicted losses of the last."""

    seconds: list[tuple[float, float]]
    floor: float
    predicted: np.ndarray


def asked(python: str, script: str, rows: dict[str, list[float]]) -> Timed:
    """Fits of another package in its own interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "rows.json"
        table.write_text(json.dumps(rows), encoding="utf-8")
        command = [python, "-c", script, str(table), str(Path(folder) / "project")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return Timed(told["seconds"], told["floor"], np.asarray(told["predicted"]))


def ours(rows: dict[str, list[float]]) -> Timed:
    """The first fit, one with ten rows less, and one more of all rows."""
    table, told = laws.losses_of(rows), []
    for kept in (ROWS, ROWS - 10, ROWS):
        part = table.select(np.arange(kept))
        start, before = time.perf_counter(), sum(os.times()[:4])
        law = laws.fit_law(part, "additive", prior=None, likelihood="huber", n_draws=DRAWS)
        told.append((time.perf_counter() - start, sum(os.times()[:4]) - before))
    return Timed(told, law.law.irreducible, law.predict(table.n_params, table.tokens).loss)


def objective(predicted: np.ndarray, rows: dict[str, list[float]]) -> float:
    """Mean Huber loss of the log loss (Hoffmann et al. 2022, appendix D.2) [1]."""
    miss = np.abs(np.log(predicted) - np.log(np.asarray(rows["loss"])))
    return float(np.mean(np.where(miss < HUBER_DELTA, 0.5 * miss**2, HUBER_DELTA * (miss - 0.5 * HUBER_DELTA))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scaling-laws", metavar="PYTHON")
    parser.add_argument("--chinchilla", metavar="PYTHON")
    given = parser.parse_args()
    table = laws.loss_table("chinchilla")
    rows = {name: np.asarray(getattr(table, name))[:ROWS].tolist() for name in ("n_params", "tokens", "loss")}
    fits = {"jaxscale": ours(rows)}
    if given.scaling_laws:
        fits["simple-scaling-laws"] = asked(given.scaling_laws, SCALING_LAWS, rows)
    if given.chinchilla:
        fits["chinchilla"] = asked(given.chinchilla, CHINCHILLA, rows)
    print(f"{ROWS} runs, {DRAWS} draws, Python {sys.version.split()[0]}")
    best = objective(fits["jaxscale"].predicted, rows)
    print(f"{'':20s} seconds (processor seconds) of each fit")
    for name, fitted in fits.items():
        times = ", ".join(f"{wall:.2f} ({work:.2f})" for wall, work in fitted.seconds)
        over = objective(fitted.predicted, rows) / best - 1.0
        print(f"{name:20s} {times:42s} E {fitted.floor:.4f}, objective {100.0 * over:+.4f} % over ours")


if __name__ == "__main__":
    main()
