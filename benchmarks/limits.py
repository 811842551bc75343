"""Best plans of 10,000 scenarios at 32 training computes in one call, against an enumeration in numpy.

The enumeration is a plain rebuild of arXiv 2411.01137: every plan of powers of two, perfect overlap, dense model.
The same run compares its utilisations with those of our own search among powers of two.

Run: python benchmarks/limits.py [number of scenarios] [--single] [--reference SCRIPT]
"""

import argparse
import importlib.util
import os
import time
from collections.abc import Callable
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from powers_of_two import integer_survey

from jaxscale.limits.frontier_scenario import FrontierScenario, scenario
from jaxscale.limits.relaxed_plan import CERTIFIED, SIZES, survey

SIZES_FLOP = np.geomspace(1e25, 10.0**31.7, SIZES)
SAMPLES = (1e25, 1e26, 1e27, 1e28, 1e29, 1e30, 1e31)
VARIED = ("network_latency", "network_bandwidth", "link_latency", "kernel_latency", "reference_batch", "domain_size")


def drawn(count: int) -> FrontierScenario:
    """Scenarios around the default one, a factor of about two either way, every leaf [scenario]."""
    rng = np.random.default_rng(0)
    base = jax.tree.map(lambda leaf: np.full(count, leaf), scenario())
    factors = np.exp(0.7 * rng.standard_normal((len(VARIED), count)))
    changed = {name: getattr(base, name) * factor for name, factor in zip(VARIED, factors, strict=True)}
    changed["domain_size"] = np.maximum(changed["domain_size"], 1.0)
    return FrontierScenario(
        **{**{name: getattr(base, name) for name in FrontierScenario.__dataclass_fields__}, **changed}
    )


def reduction_hops(ranks: np.ndarray, inside: np.ndarray, s: FrontierScenario) -> np.ndarray:
    """Latency of an all-reduce by a tree [s]."""
    inside = np.minimum(ranks, inside)
    return 2.0 * (np.log2(inside) * s.link_latency + np.log2(ranks / inside) * s.network_latency)


def enumerated(flop: float, s: FrontierScenario) -> float:
    """Highest utilisation among plans of powers of two, evaluated one by one in numpy [1]."""
    params = np.sqrt(flop / (6.0 * s.tokens_per_param))
    layers = s.reference_layers * (params / s.reference_params) ** s.depth_exponent
    width = np.sqrt(params / (2.0 * s.ff_ratio * layers))
    batch = s.reference_batch * (flop / s.reference_flop) ** s.batch_exponent
    deadline = s.training_time * batch / (s.tokens_per_param * params)
    rate = 0.5 * s.peak_flops
    deep = int(np.log2(layers)) + 1
    axes = [2.0 ** np.arange(size) for size in (15, 17, deep, 14, deep)]
    t_m, t_f, pp, m, i = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    kept = (pp * i <= layers) & (t_m <= t_f) & ((pp > 1) | ((i == 1) & (m <= 64))) & ((pp - 1) / (i * m) < 8)
    t_m, t_f, pp, m, i = (axis[kept] for axis in (t_m, t_f, pp, m, i))
    least = int(np.floor(np.log2(3.0 * params * batch / (deadline * s.max_utilisation * rate)))) - 1
    best = 0.0
    for n in 2.0 ** np.arange(least, least + 9):
        dp = n / (t_m * t_f * pp)
        tokens, w_m, w_f = batch / (dp * m), width / t_m, s.ff_ratio * width / t_f
        in_f = np.minimum(t_f, s.domain_size)
        in_m = np.minimum(t_m, np.maximum(s.domain_size / in_f, 1.0))
        rest = np.maximum(s.domain_size / (in_f * in_m), 1.0)
        reduce_m = 2.0 * (t_m - 1) / t_m * tokens * w_f * s.activation_bytes
        reduce_f = 2.0 * (t_f - 1) / t_f * tokens * w_m * s.activation_bytes
        network = np.where(t_m > in_m, reduce_m / in_m, 0.0) + np.where(t_f > in_f, reduce_f / in_f, 0.0)
        link = np.where(t_m > in_m, 0.0, reduce_m) + np.where(t_f > in_f, 0.0, reduce_f)
        moved = s.weight_bytes * w_m * w_f + s.activation_bytes * tokens * (w_m + w_f)
        busy = [3.0 * tokens * w_m * w_f / (rate * s.max_utilisation), 3.0 * moved / s.memory_bandwidth]
        busy += [network / s.network_bandwidth, link / s.link_bandwidth]
        hops = reduction_hops(t_m, in_m, s) + reduction_hops(t_f, in_f, s)
        matrices = 2.0 * layers / pp
        stage = matrices * (np.max(busy, axis=0) + 2.0 * s.kernel_latency + hops)
        sent = 2.0 * i * tokens * width / (t_m * t_f) * s.activation_bytes / s.network_bandwidth
        stage = np.where(pp > 1, np.maximum(stage, sent) + 2.0 * i * s.network_latency, stage)
        gradients = 2.0 * (dp - 1) / dp * matrices * w_m * w_f * s.gradient_bytes
        in_d = np.minimum(dp, rest)
        reduced = np.where(dp > in_d, gradients / in_d / s.network_bandwidth, gradients / s.link_bandwidth)
        total = np.maximum((m + (pp - 1) / i) * stage, reduced)
        total = total + 2.0 * np.log2(np.maximum(dp, 1.0)) * s.network_latency
        state = matrices * w_m * w_f * (s.weight_bytes + s.gradient_bytes + s.optimizer_bytes)
        valid = (dp >= 1) & (dp * m <= batch) & (total <= deadline) & (state < s.memory_bytes)
        best = max(best, float(np.max(np.where(valid, 3.0 * params * batch / (n * rate * total), 0.0))))
    return best


def rate(label: str, best: Callable[[float], float]) -> tuple[float, np.ndarray]:
    """Points per second of an enumeration, and its utilisations at the samples."""
    wall = time.perf_counter()
    found = np.asarray([best(flop) for flop in SAMPLES])
    speed = len(SAMPLES) / (time.perf_counter() - wall)
    print(f"{label}: {speed:.2f} points/s")
    return speed, found


def read_script(path: str) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location("reference", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description="Best plans of many scenarios in one call.")
    parser.add_argument("count", nargs="?", type=int, default=10_000, help="scenarios")
    parser.add_argument("--reference", help="script with best(training_flop, BASE), timed beside the enumeration here")
    parser.add_argument("--single", action="store_true", help="single precision")
    asked = parser.parse_args()
    jax.config.update("jax_enable_x64", not asked.single)
    print(f"device: {jax.devices()[0].device_kind}, {len(jax.devices())} of them, {os.cpu_count()} cores")
    scenarios = jax.tree.map(jnp.asarray, drawn(asked.count))
    wall = time.perf_counter()
    jax.block_until_ready(survey(SIZES_FLOP, jax.tree.map(lambda leaf: leaf[:1], scenarios)))
    print(f"compilation and {SIZES} points: {time.perf_counter() - wall:.1f} s")
    wall = time.perf_counter()
    found = jax.block_until_ready(survey(SIZES_FLOP, scenarios))
    wall = time.perf_counter() - wall
    speed = asked.count * SIZES / wall
    print(f"{asked.count * SIZES:,} best plans in one call: {wall:.1f} s, {speed:,.0f} points/s")
    certified, feasible = np.asarray(found.certified), np.asarray(found.feasible)
    limit = CERTIFIED[not asked.single]
    print(f"KKT residual of at most {limit:g}: {100 * certified.mean():.3f} %; feasible {100 * feasible.mean():.1f} %")
    print(f"neither certified nor flagged infeasible: {100 * (feasible & ~certified).mean():.3f} %")
    base = scenario()
    enumeration, reference = rate("enumeration in numpy", lambda flop: enumerated(flop, base))
    print(f"the search is {speed / enumeration:,.0f} times as fast")
    if asked.reference:
        script = read_script(asked.reference)
        rebuild, _ = rate("reference script", lambda flop: script.best(flop, script.BASE))
        print(f"the search is {speed / rebuild:,.0f} times as fast as the reference script")
    exact = np.asarray(integer_survey(np.asarray(SAMPLES), base).utilisation)
    for flop, ours, theirs in zip(SAMPLES, exact, reference, strict=True):
        print(f"{flop:.0e} flop: powers of two {100 * ours:.1f} %, enumeration {100 * theirs:.1f} %")


if __name__ == "__main__":
    main()
