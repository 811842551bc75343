"""Recommendation models: DLRM-DCNv2 of MLPerf, and which placement wins on DLRM-A.

`python fits/recommendation.py` writes fits/recommendation.md. Eleven coefficients of kernels and network are fitted to
rows of data/workloads/mlperf_dlrm.csv on machines with NVLink, settings left out together.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares
from workload_rows import CHIPS, hardware, table
from workloads import score

import jaxscale as js
from jaxscale.calibration.kernel_coefficients import KernelCoefficients, kernel_coefficients
from jaxscale.examples import recommendation_steps
from jaxscale.tracing.class_plan import ClassPlan
from jaxscale.tracing.plan_time import traced_terms
from jaxscale.tracing.traced_workload import Workload

OPEN = {
    "matmul_efficiency": (0.6, 0.3),
    "exposed_share": (0.3, 0.7),
    "gather_passes": (2.6, 0.5),
    "traffic_efficiency": (1.0, 0.2),
    "kernel_launch": (2e-6, 0.7),
    "step_launch": (9e-4, 0.5),
    "scale_up_efficiency": (0.7, 0.3),
    "scale_out_efficiency": (0.7, 0.5),
    "collective_launch": (2.4e-5, 0.5),
    "straggler": (0.03, 1.0),
    "dp_overlap": (0.7, 0.5),
}
"""Coefficients that the rows decide: prior median, and spread of its logarithm."""

WITH_NVLINK = ("a100-80gb", "h100-80gb", "h200-141gb", "b200", "b300", "gb200")
"""Chips whose domain has links of its own."""


class Rows(NamedTuple):
    """Rows of the table as arrays with a leading axis."""

    sizes: jax.Array
    plans: ClassPlan
    clusters: js.Cluster


def rows_of(work: Workload, found: Sequence[dict[str, str]]) -> Rows:
    """Workload, plan and cluster of each row: tables apart, dense layers copied."""
    sizes, plans, clusters = [], [], []
    for row in found:
        n, batch = int(row["n_accelerators"]), float(row["global_batch_size"])
        entry = hardware()[CHIPS[row["accelerator"].removeprefix("NVIDIA ")]]
        sizes.append(np.asarray(work.with_sizes({"numbers[0]": batch}).sizes))
        plans.append(js.class_plan(work, data=n, tables="table"))
        clusters.append(js.Cluster(entry.chip(), entry.network(), float(n)))

    def stack(trees: list[Any]) -> Any:
        return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(one, float) for one in leaves]), *trees)

    return Rows(jnp.asarray(np.stack(sizes)), stack(plans), stack(clusters))


def with_open(logs: jax.Array) -> tuple[js.Coefficients, KernelCoefficients]:
    """Coefficients of network and kernels at values of the open ones."""
    network, kernels = js.prior_medians(), kernel_coefficients()
    for name, log in zip(OPEN, logs, strict=True):
        if hasattr(kernels, name):
            kernels = eqx.tree_at(lambda c, name=name: getattr(c, name), kernels, jnp.exp(log))
        else:
            network = eqx.tree_at(lambda c, name=name: getattr(c, name), network, jnp.exp(log))
    return network, kernels


STRATEGIES: dict[str, dict[str, Any]] = {
    "dense layers copied (DDP)": {"data": 128},
    "dense layers sharded over all chips (FSDP)": {"data": 128, "shard": 128},
    "sharded in a node, copied between nodes": {"data": 128, "shard": 8},
    "split in a node (tensor), copied between nodes": {"data": 16, "tensor": 8},
}
"""Strategies of the dense layers of DLRM-A on 128 chips; tables lie apart in each."""


def strategies(fitted: tuple[js.Coefficients, KernelCoefficients]) -> list[str]:
    """Table of the strategies of DLRM-A on 128 A100, and the gain over full sharding."""
    work, cluster = js.trace(*recommendation_steps.square_dlrm()), js.cluster("a100-40gb", 128)
    # Every second layer takes in what the one before it has split: one sum for two layers.
    split = [f"state.0.{part}{layer}[1]" for part in ("bottom", "top") for layer in range(0, 10, 2)]
    times, rows = {}, []
    for name, degrees in STRATEGIES.items():
        chosen = split if "tensor" in degrees else []
        plan = js.class_plan(work, **degrees, split=chosen, tables="table")
        terms = traced_terms(work, plan, cluster, *fitted)
        kernels = ("matmul", "memory_bound", "expert_parallel", "data_parallel", "tensor_parallel", "optimizer")
        times[name] = float(sum(terms.values(), start=jnp.zeros(())))
        parts = " | ".join(f"{1e3 * float(terms[kernel]):.1f}" for kernel in kernels)
        peak = float(js.memory(work, plan, cluster, fitted[0]).total) / 1e9
        rows.append(f"| {name} | {parts} | {1e3 * times[name]:.1f} | {peak:.0f} |")
    fsdp = times["dense layers sharded over all chips (FSDP)"]
    head = "| DLRM-A, 128 A100, 65,536 samples [ms] | matmul | look-ups | all-to-all | gradients | sums | update "
    head += "| step | GB |"
    best = min(times, key=lambda name: times[name])
    return [
        "",
        head,
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Fastest: {best}, {fsdp / times[best]:.2f} x full sharding.",
        *PUBLISHED,
    ]


PUBLISHED = (
    "MAD-Max (arXiv 2310.02784) publishes for copies: GEMM 8.9, embeddings 9.1, all-to-all 26.4, all-reduce 21.3, step",
    "54.0 ms, 1.21 million samples/s against 1.2 measured, and gains of up to 2.24 x over full sharding in",
    "pre-training. Where the two differ:",
    "",
    "- Its all-to-all moves look-ups before pooling over (shards x degree), 1/8.5 of the pooled vectors (394 MB per",
    "  chip) that are exchanged here both ways; 25 GB/s per chip between nodes make the exchange the longest term.",
    "- It counts no update of tables and no activations; here rows are read, added to and written again.",
    "- It overlaps layer by layer, with halved links and no latency; here a share of the backward pass hides them.",
    "- Splitting dense layers in a node leaves tables to 16 chips, which look up for eight times the batch and have",
    "  not the memory; MAD-Max places tables independently of the dense layers.",
)
"""Published figures of the same exercise, and the reasons for differences."""


def main() -> None:
    """Fit, score, write."""
    work = js.trace(*recommendation_steps.dlrm(65536))
    found = [row for row in table("workloads/mlperf_dlrm.csv") if row["accelerator"].removeprefix("NVIDIA ") in CHIPS]
    rows = rows_of(work, found)
    seconds = np.array([float(row["step_time_s"]) for row in found])
    chips = [CHIPS[row["accelerator"].removeprefix("NVIDIA ")] for row in found]
    linked = np.array([chip in WITH_NVLINK for chip in chips])
    settings = [(row["n_accelerators"], row["global_batch_size"]) for row in found]
    groups = np.array([f"{chip} {setting}" for chip, setting in zip(chips, settings, strict=True)])
    start = np.log([median for median, _ in OPEN.values()])
    spread = np.array([width for _, width in OPEN.values()])

    @jax.jit
    def times(logs: jax.Array) -> jax.Array:
        network, kernels = with_open(logs)

        def one(sizes: jax.Array, plan: ClassPlan, cluster: js.Cluster) -> jax.Array:
            terms = traced_terms(Workload(sizes, work.tables), plan, cluster, network, kernels)
            return sum(terms.values(), start=jnp.zeros(()))

        return jax.vmap(one)(*rows)

    def residuals(logs: jax.Array, weights: np.ndarray) -> jax.Array:
        off = jnp.log(times(logs)) - jnp.log(seconds)
        return jnp.concatenate([off / 0.08 * weights, (logs - start) / spread])

    slopes = jax.jit(jax.jacfwd(residuals))

    def fit(weights: np.ndarray) -> np.ndarray:
        found = least_squares(
            lambda p: np.asarray(residuals(p, weights)), start, lambda p: np.asarray(slopes(p, weights)), loss="soft_l1"
        )
        return found.x

    def errors(logs: np.ndarray) -> np.ndarray:
        return np.asarray(times(logs)) / seconds - 1

    whole = fit(linked.astype(float))
    out = np.zeros(len(found))
    for group in sorted(set(groups)):
        out[groups == group] = errors(fit((linked & (groups != group)).astype(float)))[groups == group]
    lines = ["# Recommendation models", "", "Made by `fits/recommendation.py`; mean / median / largest error [%].", ""]
    lines += ["| DLRM-DCNv2 of MLPerf | n | time |", "|---|---|---|"]
    lines.append(f"| nothing seen: priors, machines with NVLink | {score(errors(start)[linked])} |")
    lines.append(f"| all seen, machines with NVLink | {score(errors(whole)[linked])} |")
    lines.append(f"| settings left out, machines with NVLink | {score(out[linked])} |")
    lines.append(f"| other machines, not seen | {score(errors(whole)[~linked])} |")
    lines += ["", "| coefficient | prior | fitted |", "|---|---|---|"]
    for name, log in zip(OPEN, whole, strict=True):
        lines.append(f"| {name} | {OPEN[name][0]:.3g} | {np.exp(log):.3g} |")
    lines += strategies(with_open(jnp.asarray(whole)))
    text = "\n".join(lines) + "\n"
    print(text)
    for row, chip, off in zip(found, chips, out, strict=True):
        print(chip, row["n_accelerators"], row["global_batch_size"], row["step_time_s"], f"{100 * off:.0f}")
    (Path(__file__).parent / "recommendation.md").write_text(text)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
