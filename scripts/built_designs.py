"""Best designs for the budgets of built models beside the built ones: docs/built_designs.md.

Run: python scripts/built_designs.py [COUNT] (some minutes). A budget is the cluster of a built model and the days in
which the model sees its published tokens there, both by the same predictions.
"""

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jaxscale as js
from jaxscale.base.arrays import number
from jaxscale.designs.design_result import DesignChoice
from jaxscale.designs.rounding import Rounded
from jaxscale.designs.time_to_loss import default_laws, expert_leverage, shape_factor
from jaxscale.models.transformer import n_active_params, n_params

PAGE = Path(__file__).parents[1] / "docs/built_designs.md"


class Built(NamedTuple):
    """A built model.

    Attributes:
        name: in the catalogue.
        tokens: of its training [token].
        gpu: chip; the one of the report, or one of its time.
        n_chips: likewise [1].
        days: a first guess [day].
        source: of tokens and cluster.
    """

    name: str
    tokens: float
    gpu: str
    n_chips: int
    days: float
    source: str


MODELS = (
    Built("chinchilla-70b", 1.4e12, "tpu-v4", 1024, 47.0, "arXiv 2203.15556; chips assumed"),
    Built("llama3-8b", 15e12, "h100-80gb", 2048, 27.0, "model card; chips assumed"),
    Built("llama3-70b", 15e12, "h100-80gb", 4096, 65.0, "model card; chips assumed"),
    Built("llama3.1-405b", 15.6e12, "h100-80gb", 16384, 60.0, "arXiv 2407.21783"),
    Built("olmo2-32b", 6.1e12, "h100-80gb", 1280, 30.0, "arXiv 2501.00656"),
    Built("qwen2.5-7b", 18e12, "h100-80gb", 1024, 35.0, "arXiv 2412.15115; chips assumed"),
    Built("deepseek-v3", 14.8e12, "h800-80gb", 2048, 54.0, "arXiv 2412.19437"),
)


def compared(built: Built) -> tuple[DesignChoice, float]:
    """The best design, the built model beside it, and the days of the budget."""
    model = catalogued(built.name)
    machine = js.cluster(built.gpu, built.n_chips)
    common: dict[str, Any] = {"template": model, "like": model, "levels": {"gpu": built.gpu, "precision": "bf16"}}
    first = js.best_design(machine, js.Budget(days=built.days), **common, n_starts=12)
    assert first.like is not None
    days = built.days * built.tokens / first.relaxed.problem.figures(first.like.values)["tokens"]
    return js.best_design(machine, js.Budget(days=days), **common), days


def catalogued(name: str) -> Any:
    """A model of the catalogue; Chinchilla, of which the paper tells the shape, by that."""
    if name != "chinchilla-70b":
        return js.model(name)
    return js.Transformer(80, 8192, 64, 2048, vocab_size=32000, tied_embeddings=True)


def parts(choice: DesignChoice) -> dict[str, float]:
    """What the built model's loss is above the design's by, in parts that add up [1]."""
    laws, template = default_laws(), choice.relaxed.problem.template
    found, built = (_parts(one, choice, laws, template) for one in (choice.rounded, choice.like))
    return {name: built[name] - found[name] for name in found}


def _parts(one: Rounded | None, choice: DesignChoice, laws: Any, template: Any) -> dict[str, float]:
    """Logarithms of the factors of a loss."""
    assert one is not None
    run = choice.relaxed.problem.figures(one.values)
    small = run["tokens"] / (1.0 + run["global_batch_tokens"] / run["critical_batch_tokens"])
    active = number(n_active_params(one.model))
    worth = active * number(expert_leverage(one.model, laws, 6.0 * active * small))
    ideal = math.log(number(laws.loss.loss(worth, small)))
    shape = math.log(number(shape_factor(one.model, template, laws)))
    return {"size and tokens": ideal, "shape": shape}


def lines(built: Built) -> list[str]:
    """Two rows of the table: built and found."""
    choice, days = compared(built)
    price = -choice.prices["bound_on_time"]
    told = parts(choice)
    rows = []
    for word, one in (("built", choice.like), ("found", choice.rounded)):
        assert one is not None
        shape, run = one.model, choice.relaxed.problem.figures(one.values)
        active = number(n_active_params(shape))
        flop = 6.0 * active * run["tokens"]
        heads = f"{number(shape.n_heads):.0f}/{number(shape.n_kv_heads):.0f} x {number(shape.head_dim):.0f}"
        size = f"{number(n_params(shape)):.3g}" + (f" ({active:.3g} active)" if active < 0.9 * run["params"] else "")
        cells = [
            f"**{built.name}**, {built.n_chips} {built.gpu}, {days:.0f} days" if word == "built" else "",
            word,
            f"{number(shape.n_layers):.0f} x {number(shape.d_model):.0f}",
            heads,
            f"{number(shape.d_ff_expert if number(shape.n_experts) > 1 else shape.d_ff):.0f}",
            size,
            f"{run['tokens']:.3g}",
            f"{flop:.2g}",
            f"{run['loss']:.4f}",
        ]
        lost = f"{np.expm1(sum(told.values())):+.2%} ({told['size and tokens']:+.2%} size, {told['shape']:+.2%} shape)"
        worth = f"{math.expm1(math.log1p(choice.like_cost) / price):+.0%}"
        cells += [lost, worth] if word == "built" else ["", ""]
        rows.append("| " + " | ".join(cells) + " |")
    print(*rows, choice.certificate, sep="\n", flush=True)
    return rows


HEAD = """# Built models and the best designs of their budgets

What would `jaxscale shape` have built with the cluster and time of a known model? `shape --model M --like M` finds the
design and prices the built model in the same budget. This page is made by `python scripts/built_designs.py`.

A budget is a cluster and the days in which the built model sees its published tokens there, at its own best plan. The
loss is that of the default laws (joint law of Chinchilla's runs, Gemstones' shapes, experts after Tian et al. 2025):
a loss of those data and tokenizer, to be compared within a pair alone. *Costs* is the built model's loss above the
design's, by size and tokens, and by shape; *in time*: how much more time would buy the built one the design's loss, at
the price of time at the optimum (rough where large).

| budget | | layers x width | heads/kv x width | MLP | parameters | tokens | flop | loss | built costs | in time |
|---|---|---|---|---|---|---|---|---|---|---|
"""

WHY = """
Why they differ:

- **Size.** The 7 and 8 billion models were trained far beyond their compute-optimal tokens, so that they are cheap to
  serve: the law counts training alone. Give the wish as a bound: `--bound params=8e9`, `--bound serving_memory=16e9`.
- **Depth.** The best ratio of width to depth at 1e9 parameters is measured, its drift with the size is not beyond 2e9:
  the default follows what has been built. The loss is flat: *shape* is what a built shape costs. Time favours width.
- **Heads.** Query heads come by eights, key/value heads are the template's; the law of loss does not know heads, so
  that kernels and grids of widths decide between 64, 96 and 128.
- **Experts.** Their law was tested to 28e9 parameters; it may be continued to 3e20, 1e22 or every flop, and stands on
  either of two dense laws. The best mixture of 3.3e24 flop is then 2.3 to 8.3e10 active and 0.42 to 1.5e12 in all
  (experts as in DeepSeek-V3). What ends the total is memory and traffic, or a bound: `--bound params=7e11`,
  `--bound serving_memory=1.3e12`, `--bound expert_chips=64`, each with its price.
- **Tokens.** What data there is, the budget does not know: `--bound tokens=15e12`.
"""


def main() -> None:
    """Write the page."""
    models = MODELS[: int(sys.argv[1])] if len(sys.argv) > 1 else MODELS
    rows = [row for built in models for row in lines(built)]
    sources = "\n".join(f"- {built.name}: {built.tokens:.3g} tokens, {built.source}" for built in models)
    PAGE.write_text(f"{HEAD}{chr(10).join(rows)}\n{WHY}\nTokens and clusters:\n\n{sources}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
