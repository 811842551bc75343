"""How long `best_design` takes: the first call, which compiles, and later ones.

Prints one line for each budget: seconds, of the processor too, KKT residual, integer gap and its parts, designs scored.
The first budget comes again at the end, compiled. No cache of compiled code is used.
"""

import time

import jax

from jaxscale.designs.best_design import best_design
from jaxscale.designs.budgets import Budget
from jaxscale.hardware.catalogue import cluster

PROBLEMS = (
    ("h100-80gb", 16384, Budget(days=90)),
    ("a100-80gb", 1024, Budget(loss=2.0)),
    ("tpu-v5p", 4096, Budget(flop=1e25)),
    ("b200", 256, Budget(params=7e9)),
)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    for gpu, n_chips, budget in (*PROBLEMS, PROBLEMS[0]):
        start, busy = time.perf_counter(), time.process_time()
        choice = best_design(cluster(gpu, n_chips), budget)
        seconds, work = time.perf_counter() - start, time.process_time() - busy
        parts = ", ".join(f"{name} {part:+.2%}" for name, part in choice.gap_parts.items())
        print(
            f"{gpu:>12} x {n_chips:<6} {budget.given()}: {seconds:.2f} s ({work:.2f} s of the processor), "
            f"KKT {choice.relaxed.residual:.1e}, gap {choice.gap:+.2%} ({parts}), {choice.rounded.evaluated} designs"
        )


if __name__ == "__main__":
    main()
