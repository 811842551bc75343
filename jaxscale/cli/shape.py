"""Command `jaxscale shape`: the best model, batch and plan for a cluster and a budget."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import (
    FitName,
    Outputs,
    SequenceLength,
    SoftwareOptions,
    Texts,
    command,
    float_of,
    option,
    pairs,
)
from jaxscale.cli.console import answer, check_pictures, save_pictures, say, stage

if TYPE_CHECKING:
    from jaxscale.base.table import Table
    from jaxscale.laws.fitted_law import FittedLaw


@command
class ShapeCommand(Outputs, SoftwareOptions):
    """Find the width, depth, batch and parallel plan that make the most of a cluster; give exactly one budget."""

    gpu: Annotated[str, option(metavar="ID", help="chip; see `jaxscale hardware`")]
    n_gpus: Annotated[int, option(metavar="N", help="chips")]
    flop: Annotated[
        float | None, option(metavar="T", help="budget: least time to the loss that this compute can buy")
    ] = None
    days: Annotated[float | None, option(metavar="D", help="budget: least loss within this time")] = None
    params: Annotated[
        float | None, option(metavar="N", help="budget: least time to train a model of this size as it deserves")
    ] = None
    loss: Annotated[float | None, option(metavar="X", help="budget: least time to this loss")] = None
    fit: FitName = "default"
    model: Annotated[
        str,
        option(
            metavar="NAME|FILE",
            help="template whose proportions are kept: sequence length, vocabulary, key/value heads, experts",
        ),
    ] = "llama3-8b"
    like: Annotated[
        str | None,
        option(metavar="NAME|FILE", help="a built model: its run in the same budget is told beside the design's"),
    ] = None
    seq_len: SequenceLength = None
    bound: Annotated[
        Texts,
        option(metavar="QUANTITY=VALUE", help="largest value, in SI units, as tokens=15e12, params=7e11 or batch=4e6"),
    ] = ()
    oom_probability: Annotated[
        float, option(metavar="P", help="accepted probability of running out of memory, above 0 and below 1")
    ] = 0.1
    law: Annotated[
        Path | None,
        option(metavar="LAW.toml", help="law of the loss that `law fit` wrote; tells how far the design hangs on it"),
    ] = None
    draws: Annotated[int, option(metavar="N", help="drawn laws under which the design is chosen again")] = 4

    def run(self) -> None:
        """Search the best design, write the requested files, and print the design and shadow prices.

        Raises:
            InputError: an unknown name, a number out of range, none or several budgets, or no design that fits.
        """
        import jaxscale as js
        from jaxscale.cli.arguments import software_cells
        from jaxscale.cli.plan import load_model
        from jaxscale.designs.shape_report import shape_report

        check_pictures(self.plot, self.report, self.law, self.fit, self.hardware)
        kinds = ("days", "loss", "flop", "params")
        if len(given := [f"--{kind}" for kind in kinds if getattr(self, kind) is not None]) != 1:
            told = " beside ".join(given) or "no budget"
            raise InputError(f"{told}; expected exactly one of {', '.join(f'--{kind}' for kind in kinds)}")
        budget = js.Budget(days=self.days, loss=self.loss, flop=self.flop, params=self.params)
        law = self._law()
        template = load_model(self.model, self.seq_len)
        cells = software_cells(self, js.load_fit(self.fit), template)
        # The built model at the sequence length of the template.
        like = None if self.like is None else load_model(self.like, round(float(template.seq_len)))
        if like is not None and law is not None:
            raise InputError("--like does not go with --law; expected one of them")
        stage("searching the best design")
        document = shape_report(
            self.gpu,
            self.n_gpus,
            budget,
            fit=self.fit,
            template=template,
            like=like,
            hardware=self.hardware,
            cells=cells,
            bounds={name: float_of(f"--bound {name}", text) for name, text in pairs("--bound", self.bound).items()},
            oom_probability=self.oom_probability,
            law=law,
            n_draws=self.draws,
            progress=say,
            has_terms=bool(self.report),
        )
        # A `Budget` holds exactly a single kind.
        ((kind, value),) = budget.given().items()
        asked = f"{document['n_gpus']} {document['gpu']}, budget: {kind} {value:g}"
        answer(self.json, lambda: document, lambda: [asked, *self._printed(document)])
        if self.plot or self.report:
            from jaxscale.report.reports import design_report, price_figure

            drawn = (document, f"The best design for {asked}")
            save_pictures(self.plot, self.report, lambda: price_figure(*drawn), lambda: design_report(*drawn))

    def _law(self) -> "FittedLaw | None":
        """Law of the loss that is named, None where none is."""
        if self.law is None:
            return None
        from jaxscale.laws.fitted_law import load_law

        return load_law(self.law)

    def _printed(self, document: dict[str, Any]) -> "list[str | Table]":
        """Tables and sentences of the answer for a terminal."""
        from jaxscale.report.terminal_tables import price_list, shape_choice

        texts: list[str | Table] = [shape_choice(document)]
        if self.like is not None:
            texts.append(like_text(self.like, document))
        if self.law is not None:
            from jaxscale.laws.law_report import law_choice_table

            texts.append(law_choice_table(document["law"]))
        return [*texts, price_list(document["shadow_prices"], document["objective"]), document["certificate"]]


def like_text(name: str, document: dict[str, Any]) -> str:
    """Sentence on a built model trained within the budget of the search, compared with the design."""
    built, objective = document["like"], " and ".join(document["objective"]).replace("_", " ")
    from jaxscale.plans.plan import in_short

    return (
        f"{name} in the same budget: {built['n_layers']} x {built['d_model']}, {built['params']:.3g} parameters,"
        f" {built['tokens']:.3g} tokens, loss {built['loss']:.4f} in {built['training_days']:.1f} days;"
        f" {objective} {built['cost']:+.2%} of the design's; plan {in_short(built['plan'])}"
    )
