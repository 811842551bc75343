"""Fits the coefficients of traced kernels and scores them.

`python fits/workloads.py` writes data/kernels.toml and fits/workloads.md.

Seven coefficients of compiled programs and eight of eager ones are fitted to the decoders of runs/h100_one_chip.csv.
All other rows are asked without having been seen.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from pace_spreads import pace_spreads, write_spreads
from scipy.optimize import least_squares
from workload_rows import (
    DATA,
    MeasuredStep,
    StackedRows,
    decoder_steps_of,
    hardware,
    jax_steps,
    mlperf_steps,
    stacked_rows,
    table,
)

import jaxscale as js
from jaxscale.calibration.kernel_coefficients import KernelCoefficients, kernel_coefficients, kernel_priors
from jaxscale.tracing.plan_time import KernelRows, traced_kernel_times, traced_terms

FITTED = {
    "jax": (
        *("matmul_efficiency", "half_area", "exposed_share", "attention_efficiency", "traffic_efficiency"),
        *("kernel_launch", "step_launch"),
    ),
    "pytorch": (
        *("matmul_efficiency", "half_area", "exposed_share", "attention_efficiency", "traffic_efficiency"),
        *("host_launch", "step_launch", "gather_passes"),
    ),
}
"""Coefficients that the decoders of each stack identify."""

NOISE = 0.03
"""Scatter of a measured step about the model [1]."""


def with_values(base: KernelCoefficients, names: Sequence[str], logs: jax.Array) -> KernelCoefficients:
    """Coefficients with some of them replaced, by their logarithms."""
    return eqx.tree_at(lambda c: [getattr(c, name) for name in names], base, list(jnp.exp(logs)))


@jax.jit
def step_times(c: KernelCoefficients, stacked: StackedRows) -> jax.Array:
    """Time of each step [s]."""

    def one(rows: KernelRows, chip: object) -> jax.Array:
        return sum(jnp.asarray(term) for term in traced_kernel_times(rows, chip, c))  # pyright: ignore

    return jax.vmap(one)(stacked.rows, stacked.chips)


def fitted(stack: str, stacked: StackedRows, seconds: np.ndarray, weights: np.ndarray) -> KernelCoefficients:
    """Coefficients of a stack from measured steps: log times by soft-l1 least squares, log-normal priors."""
    names, table = FITTED[stack], kernel_priors()["coefficients"]
    base = kernel_coefficients("prior")
    if stack == "pytorch":
        base = eqx.tree_at(lambda c: (c.kernel_launch, c.host_launch), base, (0.0, table["host_launch"]["median"]))
    start = np.log([table[name]["median"] for name in names])
    spread = np.array([table[name]["spread"] for name in names])

    def residuals(logs: jax.Array) -> jax.Array:
        off = (jnp.log(step_times(with_values(base, names, logs), stacked)) - jnp.log(seconds)) / NOISE
        return jnp.concatenate([off * weights, (logs - start) / spread])

    slopes = jax.jit(jax.jacfwd(residuals))
    found = least_squares(lambda p: np.asarray(residuals(p)), start, lambda p: np.asarray(slopes(p)), loss="soft_l1")
    return with_values(base, names, jnp.asarray(found.x))


def errors(c: KernelCoefficients, stacked: StackedRows, steps: Sequence[MeasuredStep]) -> np.ndarray:
    """Relative error of the time of each step."""
    repeats = np.array([step.repeats for step in steps])
    return np.asarray(step_times(c, stacked)) * repeats / np.array([step.seconds for step in steps]) - 1.0


def left_out(stack: str, stacked: StackedRows, steps: Sequence[MeasuredStep]) -> np.ndarray:
    """Errors with the group of each step left out of the fit."""
    seconds, groups = np.array([step.seconds for step in steps]), np.array([step.group for step in steps])
    off = np.zeros(len(steps))
    for group in sorted(set(groups)):
        without = fitted(stack, stacked, seconds, (groups != group).astype(float))
        off[groups == group] = errors(without, stacked, steps)[groups == group]
    return off


def score(off: np.ndarray) -> str:
    """Mean, median and largest absolute error as text [%]."""
    size = 100 * np.abs(off)
    return f"{len(off)} | {size.mean():.1f} / {np.median(size):.1f} / {size.max():.1f}"


def paced(off: np.ndarray, key: Callable[[int], str]) -> np.ndarray:
    """Errors left after a pace from one other row with the same key; rows without another one are left out."""
    places = defaultdict(list)
    for place in range(len(off)):
        places[key(place)].append(place)
    left = []
    for members in places.values():
        # Each row is predicted with the pace of the next row of its key alone.
        for order, place in enumerate(members):
            if len(members) > 1:
                left.append((1 + off[place]) / (1 + off[members[(order + 1) % len(members)]]) - 1)
    return np.array(left)


def write_fit(stack: str, c: KernelCoefficients) -> None:
    """Write the values of a stack into data/kernels.toml."""
    path = DATA / "kernels.toml"
    names = [*FITTED[stack], "host_launch" if stack == "jax" else "kernel_launch"]
    lines = "\n".join(f"{name} = {float(getattr(c, name)):.4g}" for name in names)
    text = re.sub(rf"(\[fits\.{stack}\]\n).*?(?=\n\[|\Z)", rf"\g<1>{lines}\n", path.read_text(), flags=re.DOTALL)
    path.write_text(text)


def beyond_a_node(kernels: KernelCoefficients) -> np.ndarray:
    """Errors of ResNet-50 on 64 H100 and more, with the network at its priors."""
    network, off = js.prior_medians(), []
    for step in mlperf_steps("resnet"):
        if step.chip_id != "h100-80gb" or step.n_chips < 64:
            continue
        entry, whole = hardware()[step.chip_id], step.work.classes()["batch"] * step.n_chips
        plan = js.class_plan(step.work, data=step.n_chips, data_class="batch", joint_statistics=False)
        cluster = js.Cluster(entry.chip(), entry.network(), float(step.n_chips))
        work = step.work.with_sizes({"batch": whole})
        terms = traced_terms(work, plan, cluster, network, kernels, fused_norms=step.fused_norms)
        off.append(float(sum(terms.values(), start=jnp.zeros(()))) * step.repeats / step.seconds - 1)
    return np.array(off)


def against_transformer() -> np.ndarray:
    """Difference of the transformer, by the fit of its own table, from the trace of the same decoder."""
    runs = js.read_runs(DATA / "runs" / "h100_one_chip.csv")
    predicted = np.asarray(js.predict(runs, fit="h100_one_chip").step_time)
    rows = table("runs/h100_one_chip.csv")
    chosen = [place for place, row in enumerate(rows) if row["framework"] == "jax" and row["status"] == "ok"]
    steps = decoder_steps_of("jax")
    traced = np.asarray(step_times(kernel_coefficients("jax"), stacked_rows(steps)))
    return predicted[chosen] / traced - 1


def main() -> None:
    """Fit, score, write."""
    lines = [
        "# Traced workloads: accuracy",
        "",
        "Made by `fits/workloads.py`. Errors are mean / median / largest of the absolute relative error [%]; `left",
        "out`: rows of the same depth and width were not seen. MLPerf times are from logs: unverified by MLCommons.",
        "",
        "| rows | what was seen | n | time |",
        "|---|---|---|---|",
    ]
    fits = {}
    for stack, framework in (("jax", "jax"), ("pytorch", "pytorch")):
        steps = decoder_steps_of(framework)
        stacked = stacked_rows(steps, eager=stack == "pytorch")
        seconds = np.array([step.seconds for step in steps])
        fits[stack] = fitted(stack, stacked, seconds, np.ones(len(steps)))
        write_fit(stack, fits[stack])
        lines.append(f"| decoders on one H100, {stack} | all | {score(errors(fits[stack], stacked, steps))} |")
        lines.append(f"| | left out | {score(left_out(stack, stacked, steps))} |")
        if stack == "jax":
            peaks = [float(step.work.peak_bytes()) / float(step.row["peak_mem_gb"]) / 1e9 - 1 for step in steps]
            prior = errors(kernel_coefficients("prior"), stacked, steps)
            lines.append(f"| | nothing: priors | {score(prior)} |")
    others = jax_steps()
    off = errors(fits["jax"], stacked_rows(others), others)
    lines.append(f"| ResNet-50 and DiT-XL on one H100, jax | the decoders | {score(off)} |")
    seen, logs = list(others), [np.log1p(off)]
    for names in (("resnet",), ("unet3d",), ("ssd", "retinanet")):
        steps = mlperf_steps(*names)
        off = errors(fits["jax"], stacked_rows(steps), steps)
        small = np.array([step.n_chips <= 8 for step in steps])
        seen += [step for step in steps if step.n_chips <= 8]
        logs.append(np.log1p(off[small]))
        lines.append(f"| MLPerf {names[-1]}, up to 8 chips | the decoders | {score(off[small])} |")
        chosen = [step for step in steps if step.n_chips <= 8]
        reference = next(place for place, step in enumerate(chosen) if step.chip_id == "h100-80gb")
        one = np.delete((1 + off[small]) / (1 + off[small][reference]) - 1, reference)
        lines.append(f"| | and one row on H100, as a pace | {score(one)} |")
        each = paced(off[small], lambda place, chosen=chosen: chosen[place].chip_id)
        lines.append(f"| | and one row on the same chip, as a pace | {score(each)} |")
    spreads = pace_spreads(seen, np.concatenate(logs))
    write_spreads(spreads)
    lines.append(f"| MLPerf resnet, 64 to 2,528 H100 | the decoders | {score(beyond_a_node(fits['jax']))} |")
    lines.append(
        f"| the same decoders by `Transformer`, its own fit, against the trace | | {score(against_transformer())} |"
    )
    lines += ["", "| peak memory | n | error, nothing fitted |", "|---|---|---|"]
    lines.append(f"| decoders on one H100, jax | {score(np.array(peaks))} |")
    for name in ("resnet50", "dit-xl", "dit-xl rolled"):
        found = [step for step in others if step.row["workload"] == name]
        off = [float(step.work.peak_bytes()) / float(step.row["peak_mem_gb"]) / 1e9 - 1 for step in found]
        lines.append(f"| {name}, jax | {score(np.array(off))} |")
    lines += ["", "Spreads of the log pace of rows of up to 8 chips, on which fits of further workloads rest:"]
    lines.append(", ".join(f"{name.replace('_', ' ')} {spread:.3f}" for name, spread in spreads.items()) + ".")
    text = "\n".join(lines) + "\n"
    (Path(__file__).parent / "workloads.md").write_text(text)
    print(text)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
