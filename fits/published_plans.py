"""Published plans against the planner's own: writes the table of docs/choose.md.

Run from the repository: `python fits/published_plans.py` (2 minutes).
"""

import re
from pathlib import Path

import jax
from markdown_text import markdown_table

import jaxscale as js
from jaxscale.plans.against import Comparison, compare_design, published_designs
from jaxscale.plans.plan import in_short

PAGE = Path(__file__).parent.parent / "docs" / "choose.md"
COLUMNS = ("run", "published plan", "reported", "predicted", "memory", "runs out", "the planner's own", "takes")


def row_of(found: Comparison) -> tuple[str, ...]:
    """A published run and the plan chosen for it, in words."""
    design, best = published_designs()[found.name], found.choice.best
    capacity = float(js.cluster(design["gpu"], 1).chip.hbm_bytes)
    return (
        f"{found.name}, {design['n_gpus']:,} {design['gpu']}",
        in_short(found.published.words()),
        f"{found.measured:.3g} s",
        f"{found.predicted:.3g} s",
        f"{found.memory / 1e9:.0f} of {capacity / 1e9:.0f} GB",
        f"{found.oom_probability:.2f}",
        in_short(best.plan.words()),
        f"{best.step_time:.3g} s, {best.memory / 1e9:.0f} GB",
    )


def main() -> None:
    """Compare every run, write the table between its markers."""
    jax.config.update("jax_enable_x64", True)
    rows = []
    for name in published_designs():
        rows.append(row_of(compare_design(name)))
        print(*rows[-1], sep=" | ", flush=True)
    begin, end = (f"<!-- published plans:{part} -->" for part in ("begin", "end"))
    table = f"{begin}\n{markdown_table(COLUMNS, rows)}\n{end}"
    text = re.sub(f"{begin}.*{end}", lambda _: table, PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
