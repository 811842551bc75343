"""Fit the analytical layer time to the measured A100 layers; writes fits/results/burst_layer_time.toml (2 minutes).

Residuals: logarithm of predicted over measured time, per distinct layer and batch (pseudo-Huber) and per whole network
iteration; a weak prior on every coefficient. Five-fold cross-validation leaves distinct layers out.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jax.flatten_util import ravel_pytree
from jax.ops import segment_sum

from jaxscale.base.documents import data_path, read_toml
from jaxscale.burst.layer_graph import KernelTable, kernel_table
from jaxscale.burst.layer_time import (
    REGIMES,
    TABLES,
    LayerTimeCoefficients,
    a100,
    axis_of,
    layer_times,
    read_layer_times,
)

RESULT = Path(__file__).parent / "results" / "burst_layer_time.toml"
N_FOLDS = 5
ITERATION_WEIGHT = 2.0
"""Weight of the whole-network residuals against the layer residuals [1]."""
PRIOR_WEIGHT = 0.03
"""Weight of the prior residuals [1]."""
HUBER = 0.15
"""Log error above which a layer residual counts linearly [1]."""
LIMIT = 0.075
"""Log error of an iteration above which a fourth power pulls it back [1]."""

MAX_STEPS = 200
"""Levenberg-Marquardt steps; the cost has settled to 1 % by then [1]."""


class Table(NamedTuple):
    """Distinct measured layers: kernels, batch, regime, time, repeats, and the iteration that each belongs to."""

    kernels: KernelTable
    batch: np.ndarray
    regime: np.ndarray
    seconds: np.ndarray
    repeats: np.ndarray
    iteration: np.ndarray
    iterations: list[tuple[str, str, int]]
    keys: list[tuple]


def read_table() -> Table:
    """Collapse equal layers of one recording and batch into their mean time."""
    groups: dict[tuple, list] = {}
    for row in read_layer_times():
        groups.setdefault((row.recording, row.network, row.batch, row.layer.key, row.layer.kernels), []).append(row)
    rows = list(groups.values())
    iterations = sorted({(r[0].recording, r[0].network, r[0].batch) for r in rows})
    kernels = [(i, kernel) for i, r in enumerate(rows) for kernel in r[0].layer.kernels]
    return Table(
        kernel_table(kernels, len(rows)),
        np.array([r[0].batch for r in rows], float),
        np.array([REGIMES.index(r[0].regime) for r in rows]),
        np.array([np.mean([x.seconds for x in r]) for r in rows]),
        np.array([len(r) for r in rows], float),
        np.array([iterations.index((r[0].recording, r[0].network, r[0].batch)) for r in rows]),
        iterations,
        [r[0].layer.key for r in rows],
    )


def read_priors() -> dict[str, tuple[float, float]]:
    """Median and spread of each coefficient."""
    priors = read_toml(data_path("burst/layer_time.toml"))["priors"]
    return {name: (prior["median"], prior["spread"]) for name, prior in priors.items()}


def coefficients_of(deviation: LayerTimeCoefficients) -> LayerTimeCoefficients:
    """Coefficients from standard deviations off the prior median: logit for the efficiency, else logarithm."""
    made = {}
    for name, (median, spread) in read_priors().items():
        x = getattr(deviation, name) * spread
        made[name] = jax.nn.sigmoid(x + np.log(median / (1 - median))) if name == "efficiency" else median * jnp.exp(x)
    return LayerTimeCoefficients(**made)


def predict(deviation: LayerTimeCoefficients, table: Table) -> jax.Array:
    """Predicted time of every row of the table [s]."""
    return layer_times(table.kernels, table.batch, coefficients_of(deviation), a100(), table.regime)


def residuals(deviation: LayerTimeCoefficients, arguments: tuple[Table, jax.Array]) -> jax.Array:
    """Weighted residuals of layers, iterations and priors; rows of weight 0 are left out of all sums."""
    table, weight = arguments
    n, counts = len(table.iterations), table.repeats * weight
    seconds = predict(deviation, table)
    error = jnp.log(seconds / table.seconds)
    robust = HUBER * jnp.sqrt(2.0 * (jnp.sqrt(1.0 + (error / HUBER) ** 2) - 1.0) + 1e-12)
    layer = robust * jnp.sqrt(counts / counts.sum())
    total = segment_sum(seconds * counts, table.iteration, n) / segment_sum(table.seconds * counts, table.iteration, n)
    whole = jnp.log(total) / np.sqrt(n)
    hinge = 0.05 * (jnp.log(total) / LIMIT) ** 4 / np.sqrt(n)
    flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(deviation)])
    return jnp.concatenate([layer, ITERATION_WEIGHT * whole, hinge, PRIOR_WEIGHT * flat / np.sqrt(flat.size)])


@jax.jit
def solve(weight: jax.Array) -> LayerTimeCoefficients:
    """Levenberg-Marquardt from the prior medians, on one flat vector (a Jacobian of 13 blocks is ten times slower)."""
    start = {
        name: jnp.zeros(()) if name == "sharpness" else jnp.zeros(len(axis_of(name)))
        for name in LayerTimeCoefficients.__dataclass_fields__
    }
    flat, restore = ravel_pytree(LayerTimeCoefficients(**start))
    found = optx.least_squares(
        lambda y, w: residuals(restore(y), (TABLE, w)),
        optx.LevenbergMarquardt(rtol=1e-5, atol=1e-7),
        flat,
        weight,
        max_steps=MAX_STEPS,
        throw=False,
        options={"jac": "fwd"},
    ).value
    return restore(found)


def scores(deviation: LayerTimeCoefficients, keep: np.ndarray) -> dict[str, float]:
    """Median and 90th percentile of the relative layer error, each layer counted as often as the network has it."""
    error = np.abs(np.asarray(predict(deviation, TABLE)) / TABLE.seconds - 1.0)[keep]
    error = np.repeat(error, TABLE.repeats[keep].astype(int))
    return {"median": float(np.median(error)), "p90": float(np.quantile(error, 0.9))}


def iteration_errors(deviation: LayerTimeCoefficients) -> dict[tuple[str, str, int], float]:
    """Relative error of each whole-network iteration."""
    n = len(TABLE.iterations)
    predicted = np.bincount(TABLE.iteration, np.asarray(predict(deviation, TABLE)) * TABLE.repeats, n)
    measured = np.bincount(TABLE.iteration, TABLE.seconds * TABLE.repeats, n)
    return dict(zip(TABLE.iterations, (predicted / measured - 1.0).tolist(), strict=True))


def cross_validate() -> dict[str, float]:
    """Errors on layers that the fit has not seen, in five folds over distinct layer shapes."""
    names = sorted({repr(key) for key in TABLE.keys})
    shuffled = np.random.default_rng(0).permutation(len(names))
    fold = np.array([shuffled[names.index(repr(key))] % N_FOLDS for key in TABLE.keys])
    errors, counts = [], []
    for i in range(N_FOLDS):
        held = fold == i
        predicted = np.asarray(predict(solve(jnp.asarray(~held, float)), TABLE))
        errors.append(np.abs(predicted / TABLE.seconds - 1.0)[held])
        counts.append(TABLE.repeats[held].astype(int))
    error = np.repeat(np.concatenate(errors), np.concatenate(counts))
    return {"median": float(np.median(error)), "p90": float(np.quantile(error, 0.9))}


def _toml(values: dict[str, object]) -> str:
    return "{ " + ", ".join(f'"{key}" = {value}' for key, value in values.items()) + " }"


def write(deviation: LayerTimeCoefficients, held_out: dict[str, float]) -> None:
    """Write coefficients, errors and the hashes of the data."""
    every = np.ones(len(TABLE.keys), bool)
    fitted, whole = coefficients_of(deviation), iteration_errors(deviation)
    lines = ["# Written by fits/burst_layer_time.py: analytical layer time fitted to the DeepPool A100 profiles.", ""]
    lines += [f"n_rows = {len(read_layer_times())}", f"n_distinct = {len(TABLE.keys)}", "", "[sha256]"]
    lines += [
        f'"{name}" = "{hashlib.sha256(data_path("companion/" + name).read_bytes()).hexdigest()}"' for name in TABLES
    ]
    lines += ["", "[layer_error]", f"all = {_toml(scores(deviation, every))}"]
    lines += [f'"{r}" = {_toml(scores(deviation, TABLE.regime == i))}' for i, r in enumerate(REGIMES)]
    lines += [f"held_out_layers = {_toml(held_out)}", "", "[iteration_error]"]
    for recording, network in sorted({key[:2] for key in whole}):
        batches = {key[2]: round(error, 4) for key, error in sorted(whole.items()) if key[:2] == (recording, network)}
        lines.append(f'"{recording} {network}" = {_toml(batches)}')
    lines += ["", "[coefficients]"]
    for name in LayerTimeCoefficients.__dataclass_fields__:
        value = np.asarray(getattr(fitted, name))
        shown = [float(f"{v:.6g}") for v in np.atleast_1d(value)]
        lines.append(f"{name} = {shown[0] if value.ndim == 0 else _toml(dict(zip(axis_of(name), shown, strict=True)))}")
    RESULT.parent.mkdir(exist_ok=True)
    partial = RESULT.with_suffix(".partial")
    partial.write_text("\n".join(lines) + "\n")
    partial.replace(RESULT)
    print(
        f"layers {scores(deviation, every)}, held out {held_out}, worst iteration {max(map(abs, whole.values())):.3f}"
    )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    TABLE = read_table()
    write(solve(jnp.ones(len(TABLE.keys))), cross_validate())
