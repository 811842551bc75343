"""Command `jaxscale plan`: the fastest parallel plans of a model on a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError, nearest
from jaxscale.base.units import quantity
from jaxscale.cli.arguments import (
    FitName,
    ModelName,
    Outputs,
    SequenceLength,
    SoftwareOptions,
    Texts,
    TimelineFile,
    checked_batch,
    checked_count,
    command,
    option,
)
from jaxscale.cli.console import answer, check_pictures, print_text, remark, save_pictures, save_timeline, say, stage

if TYPE_CHECKING:
    from jaxscale.base.table import Table
    from jaxscale.calibration.record import Fit
    from jaxscale.designs.whole_run import RunChoice, RunGoal
    from jaxscale.hardware.catalogue import ChipEntry, Hardware
    from jaxscale.models.transformer import Transformer
    from jaxscale.plans.against import AgainstBest
    from jaxscale.plans.choice import PlanChoice
    from jaxscale.plans.node_links import NodeLinks
    from jaxscale.plans.plan import Plan
    from jaxscale.plans.plan_questions import PlanQuestion
    from jaxscale.plans.score import FoundPlans


WRITTEN_AMONG = 50
"""Fastest plans among which the one to be written is that of which the framework lacks the least [1]."""


@command
class PlanCommand(Outputs, SoftwareOptions):
    """Rank the valid parallel plans of a model on a cluster that fit in memory, by default with 90 % probability."""

    model: ModelName
    gpu: Annotated[str, option(metavar="ID", help="chip; see `jaxscale hardware`")]
    n_gpus: Annotated[int, option(metavar="N", help="chips")]
    global_batch: Annotated[str, option(metavar="B", help="sequences in a step, or tokens: `4M tokens`")]
    seq_len: SequenceLength = None
    fit: FitName = "default"
    tokens: Annotated[
        float | None, option(metavar="T", help="the whole run: days, price, energy of so many tokens")
    ] = None
    loss: Annotated[float | None, option(metavar="L", help="the whole run: what it takes to reach this loss")] = None
    objective: Annotated[
        str, option(metavar="WORD", help="rank by `step`, or by `days`, `price` or `energy` of the whole run")
    ] = "step"
    open: Annotated[
        Texts,
        option(
            metavar="WORD", help="of a run: fewer `chips` (to an eighth), other sizes of the `batch` (1/4 to 4 times)"
        ),
    ] = ()
    price: Annotated[float | None, option(metavar="P", help="of a chip and hour, in any currency")] = None
    interruptions: Annotated[
        float | None, option(metavar="R", help="of a chip and day; that of Llama 3's run, 4.7e-4, where left out")
    ] = None
    law: Annotated[Path | None, option(metavar="LAW.toml", help="law of the loss of a run that `law fit` wrote")] = None
    top: Annotated[int, option(metavar="K", help="plans to list")] = 10
    oom_probability: Annotated[
        float, option(metavar="P", help="accepted probability of running out of memory, above 0 and below 1")
    ] = 0.1
    write: Annotated[
        str | None,
        option(
            metavar="FRAMEWORK",
            help="print the best plan as settings of megatron-lm, megatron-bridge, torchtitan (torchtitan-toml: before "
            "February 2026), maxtext, deepspeed or nanotron",
        ),
    ] = None
    against: Annotated[
        Path | None,
        option(
            metavar="FILE",
            help="a launch file, a log, or a runs table (its first row), whose plan is placed among the ranked ones",
        ),
    ] = None
    links: Annotated[
        Path | None,
        option(
            metavar="FILE.csv",
            help="measured links between nodes, GB/s per chip, one line per sender: the fastest order of nodes",
        ),
    ] = None
    timeline: TimelineFile = None

    def run(self) -> None:
        """Search the plans, write the requested files, and print the ranking.

        Raises:
            InputError: an unknown model, chip, framework, precision or fit, a number out of range, or no plan that is
                valid and fits.
        """
        for name, value in (("--n-gpus", self.n_gpus), ("--top", self.top)):
            checked_count(name, value)
        import jaxscale as js
        from jaxscale.base.files import check_writable
        from jaxscale.plans.plan_questions import plan_question

        goal = self._goal()
        self._refuse_pairs(goal)
        links = self._links()
        # Before the search: a mistyped path costs no time.
        check_pictures(self.plot, self.report, self.model, self.fit, self.hardware, self.links)
        if self.timeline is not None:
            check_writable(self.timeline, self.model, self.fit, self.hardware)
        written = written_framework(self.write)
        hardware = js.load_hardware(self.hardware)
        chip = hardware[self.gpu]
        cluster = js.cluster(self.gpu, self.n_gpus, hardware=hardware)
        model = load_model(self.model, self.seq_len)
        fitted = js.load_fit(self.fit, hardware)
        theirs = None if self.against is None else stated_row(self.against, hardware)
        stated = self._stated(fitted, model, theirs, written)
        if lacking := chip.lacks(stated["precision"]):
            say(lacking)
        stage(f"searching the plans of {self.model} on {self.n_gpus} {chip.id}")
        batch = checked_batch(self.global_batch, model.seq_len)
        question = plan_question(model, cluster, batch, {"gpu": chip.id, **stated})
        question = question if links is None else links.linked(question)
        # The framework may express a later plan better.
        top = self.top if self.write is None else max(self.top, WRITTEN_AMONG)
        run = None if goal is None else self._run_of(goal, question, fitted, top)
        if run is None:
            found, choice = self._choice(question, fitted, top, links)
        else:
            # For the comparison, plans rank by pace again.
            question, found, choice = run.chosen.question, run.chosen.found._replace(cost=None), run.plans
        compared = None if theirs is None else self._compared(theirs, stated, question, found, fitted, hardware)
        if self.write is not None:
            self._write(choice, float(model.seq_len), chip)
        else:
            self._tell(choice, compared, run, float(model.seq_len))
        if self.plot or self.report:
            ranked = "fastest plans" if self.objective == "step" else f"plans of the least {self.objective}"
            self._draw(choice, f"{self.model} on {question.n_chips:g} {chip.id}: {ranked}", run)
        save_timeline(
            self.timeline,
            lambda: (model, choice.best.plan, question.cluster, fitted.coefficients(question.levels, question.n_chips)),
        )

    def _refuse_pairs(self, goal: "RunGoal | None") -> None:
        """Raise the error of options that exclude each other."""
        if self.against is not None and self.write is not None:
            raise InputError("--against beside --write; expected one of them")
        if self.against is not None and self.open:
            raise InputError("--against beside --open; expected one of them: a recipe is for its own chips and batch")
        alone = {"--tokens or --loss": goal is not None, "--against": self.against, "--timeline": self.timeline}
        for name, given in alone.items():
            if self.links is not None and given:
                raise InputError(f"--links beside {name}; expected one of them")

    def _links(self) -> "NodeLinks | None":
        """Measured links between nodes, None for equal links."""
        if self.links is None:
            return None
        from jaxscale.plans.node_links import load_links

        return load_links(self.links)

    def _stated(
        self, fitted: "Fit", model: "Transformer", theirs: dict[str, Any] | None, written: str | None
    ) -> dict[str, Any]:
        """Cells of plan and software by column, with remarks on the framework.

        Args:
            fitted: calibration.
            model: the transformer.
            theirs: row of the file of `--against`.
            written: framework whose settings are written.
        """
        from jaxscale.cli.arguments import software_cells
        from jaxscale.runs.defaults import known_frameworks

        # The writer's framework also plans, unless the file of `--against` names another.
        named = written and written.removesuffix("-toml")
        if theirs and theirs.get("framework") in known_frameworks():
            named = theirs["framework"]
        stated = software_cells(self, fitted, model, otherwise=named)
        framework = stated["framework"]
        if theirs and self.framework is None and framework and framework == named:
            say(f"framework {named}, as {self.against} says")
        if framework is None and Path(self.fit).is_file() and (several := fitted_frameworks(fitted)):
            say(f"the fit knows runs of {', '.join(several)}: name one by --framework, or get what they have in common")
        return stated

    def _choice(
        self, question: "PlanQuestion", fitted: "Fit", top: int, links: "NodeLinks | None"
    ) -> "tuple[FoundPlans, PlanChoice]":
        """Plans of a search, and the ranked ones."""
        from jaxscale.plans.best_plan import choice_of, searched

        found = searched(question, fitted, self.oom_probability)
        if links is not None:
            stage("placing the fastest plans on the nodes")
        return found, choice_of(found, question, fitted, top, self.oom_probability, links)

    def _compared(
        self,
        theirs: dict[str, Any],
        stated: dict[str, Any],
        question: "PlanQuestion",
        found: "FoundPlans",
        fitted: "Fit",
        hardware: "Hardware",
    ) -> "AgainstBest":
        """Comparison of the plan of a row with the best plan; options of the command hold for it too."""
        from jaxscale.plans.against import against_best

        decided = {name: value for name, value in stated.items() if name not in ("framework", "precision")}
        told = {**theirs, **decided, "framework": stated["framework"] or theirs.get("framework")}
        plan = row_plan(self.model, question, told, fitted, hardware)
        return against_best(question, told, fitted, self.oom_probability, found, plan)

    def _goal(self) -> "RunGoal | None":
        """Goal of the whole run that is asked for, None where none is.

        Raises:
            InputError: both goals, or an option of a run without a goal.
        """
        given = {"--objective": self.objective != "step", "--open": self.open, "--price": self.price is not None}
        given |= {"--interruptions": self.interruptions is not None, "--law": self.law}
        if self.tokens is None and self.loss is None:
            for name, stated in given.items():
                if stated:
                    raise InputError(f"{name} is of a whole run; expected --tokens or --loss beside it")
            return None
        from jaxscale.designs.whole_run import RunGoal

        if self.tokens is not None and self.loss is not None:
            raise InputError("--tokens beside --loss; expected one of them")
        if self.objective == "price" and self.price is None:
            raise InputError("--objective price needs --price, of a chip and hour")
        return RunGoal(self.tokens, self.loss)

    def _run_of(self, goal: "RunGoal", question: "PlanQuestion", fitted: "Fit", top: int) -> "RunChoice":
        """The plans of the whole run.

        Raises:
            InputError: a number out of range, or what `run_choice` refuses.
        """
        from jaxscale.designs.time_to_loss import laws_of, with_interruptions
        from jaxscale.designs.whole_run import run_choice
        from jaxscale.laws.fitted_law import load_law

        laws = with_interruptions(laws_of(self.law and load_law(self.law)), self.interruptions)
        return run_choice(
            question,
            fitted,
            goal,
            objective=self.objective,
            open=self.open,
            price_per_chip_hour=self.price,
            laws=laws,
            top=top,
            oom_probability=self.oom_probability,
        )

    def _draw(self, choice: "PlanChoice", title: str, run: "RunChoice | None") -> None:
        """Draw the figure and the report that are asked for."""
        from jaxscale.report.reports import plan_breakdown, plan_report, run_figure

        def figure() -> Any:
            if run is None or len(run.candidates) == 1:
                return plan_breakdown(choice, title)
            return run_figure(run.to_json())

        save_pictures(self.plot, self.report, figure, lambda: plan_report(choice, title, run))

    def _tell(
        self, choice: "PlanChoice", compared: "AgainstBest | None", run: "RunChoice | None", seq_len: float
    ) -> None:
        """Print the ranked plans, the whole run, and somebody's plan against them."""
        batch = float(choice.best.plan.global_batch_size_seqs)
        document = {**choice.to_json(), "global_batch_size_seqs": batch, "seq_len": seq_len}
        if run is not None:
            document["run"] = run.to_json()
        if compared is not None:
            document["against"] = compared.to_json()
        answer(self.json, lambda: document, lambda: self._printed(document, choice, compared, run))

    def _printed(
        self,
        document: dict[str, Any],
        choice: "PlanChoice",
        compared: "AgainstBest | None",
        run: "RunChoice | None",
    ) -> "list[str | Table]":
        """Tables and sentences of the answer for a terminal."""
        from jaxscale.report.terminal_tables import plan_differences, plan_ranking, run_table

        batch, seq_len = document["global_batch_size_seqs"], document["seq_len"]
        lo, hi = choice.step_time_interval
        texts: list[str | Table] = [
            plan_ranking(document, self.objective),
            f"a step takes {batch:,.0f} sequences of {seq_len:,.0f} tokens: {batch * seq_len:,.0f} tokens",
            f"90 % interval of the first plan's step: {quantity(lo, 's')} to {quantity(hi, 's')}",
            *choice.placed,
            "",
            *choice.binds,
            *choice.reasons,
        ]
        if run is not None:
            texts += ["", run_table(document["run"]), *run.sentences()]
        if compared is not None:
            texts += ["", plan_differences(document["against"]), f"{self.against}: {compared.summary()}"]
            texts += [f"not compared: {note}" for note in compared.notes]
        return texts

    def _write(self, choice: "PlanChoice", seq_len: float, chip: "ChipEntry") -> None:
        """Print the fastest plan that the framework expresses best as launch settings; remarks on stderr."""
        plans = [scored.to_json() for scored in choice.top]
        texts = self._texts(plans, seq_len, chip)
        # Fewest unexpressed choices first, then the fastest.
        rank = min(texts, key=lambda place: (len(texts[place].not_expressed), place))
        written = texts[rank]
        if rank > 0:
            first = texts[0].not_expressed if 0 in texts else ("the program refuses it",)
            lacks = "; ".join(text for text in first if text not in written.not_expressed)
            taken, least = (quantity(plan["step_time_s"], "s") for plan in (plans[rank], plans[0]))
            say(f"plan {rank + 1} is written, {taken} a step (the first: {least}); not expressed of the first: {lacks}")
        say(f"settings of {written.framework} {written.release}")
        for text in (*written.comments, *(f"not expressed: {text}" for text in written.not_expressed)):
            say(text)
        if not self.json:
            print_text(written.text)
            return
        settings = {"framework": written.framework, "release": written.release, "plan": plans[rank]}
        settings |= {"text": written.text, "not_expressed": list(written.not_expressed)}
        answer(True, lambda: {**choice.to_json(), "top": plans[: self.top], "settings": settings}, tuple)

    def _texts(self, plans: list[dict[str, Any]], seq_len: float, chip: "ChipEntry") -> dict[int, Any]:
        """Settings of each plan that the framework accepts, by rank from 0.

        Raises:
            InputError: the framework accepts no plan; names the reason for the first.
        """
        from jaxscale.base.lazy import loaded
        from jaxscale.cli.registry import LAUNCH_TEXT
        from jaxscale.models import described_model

        is_file = Path(self.model).is_file()
        name = "" if is_file else self.model.rsplit("/", 1)[-1].lower()
        described = described_model(self.model)
        # Chips of a node.
        node, is_tpu = int(chip.numbers["tray_size"]), chip.id.startswith("tpu")
        texts, refusals = {}, []
        for rank, plan in enumerate(plans):
            try:
                texts[rank] = loaded(LAUNCH_TEXT)(
                    str(self.write), plan, described.fields, seq_len, name, node, is_tpu, described.parts
                )
            except InputError as error:
                refusals.append(str(error))
        if not texts:
            raise InputError(f"none of the {len(plans)} fastest plans: {refusals[0]}")
        return texts


def stated_row(path: Path, hardware: "Hardware") -> dict[str, Any]:
    """Values by column of a launch file, a log or the first row of a runs table.

    Raises:
        InputError: an unreadable file, or a file of an unknown program.
    """
    from jaxscale.base.lazy import loaded
    from jaxscale.cli.registry import READ_RUN
    from jaxscale.runs.reader import read_runs
    from jaxscale.runs.schema import BY_NAME, stated_values

    if path.suffix.lower() == ".csv":
        return dict(read_runs(path, hardware=hardware).rows[0].values)
    read = loaded(READ_RUN)(path)
    for key in read.unread:
        say(f"{path}: not understood: {key}")
    known = {name: text for name, text in read.cells.items() if name in BY_NAME and name not in ("notes", "source_row")}
    # Cells of a launch file pass the checks of a table.
    return stated_values(f"{path}:", known)


def row_plan(
    model: str, question: "PlanQuestion", row: dict[str, Any], fitted: "Fit", hardware: "Hardware"
) -> "Plan | None":
    """Plan of a row of a runs table on the chips of a question, with open choices completed as by `predict`.

    Args:
        model: name or file of the model.
        question: model, chips and batch.
        row: values by column.
        fitted: calibration.
        hardware: catalogue of chips.

    Returns:
        The plan; None if no plan agrees with the row.
    """
    import jax
    import numpy as np

    from jaxscale.cli.arguments import software_columns
    from jaxscale.cli.runs_tables import one_run
    from jaxscale.runs.completion import completed, open_rows
    from jaxscale.runs.measured import describe_runs
    from jaxscale.tables.categorical import Categorical

    asked = {"n_gpus": question.n_chips, "global_batch_size_seqs": question.batch}
    is_own = all(row.get(name) in (None, value) for name, value in asked.items())
    stated = (name for name in software_columns() if is_own or name not in CHIPS_DECIDE)
    cells = {name: Categorical.constant(row[name], 1) for name in stated if row.get(name) is not None}
    options = {"model": model, "gpu": question.levels["gpu"], "seq_len": number(question.model.seq_len), **asked}
    run = one_run(options, {}, hardware).with_values(cells)
    described = describe_runs(run, hardware)
    if described.batch is None and (rows := open_rows(run, np.ones(1, dtype=bool), hardware)):
        described = describe_runs(completed(run, rows, fitted).runs, hardware)
    return None if described.batch is None else jax.tree.map(lambda leaf: leaf[0], described.batch.plan)


CHIPS_DECIDE = ("dp", "shard_group", "n_microbatches")
"""Columns of a row on further chips, or of a further batch, that say nothing of the plan."""


def written_framework(write: str | None) -> str | None:
    """Name of the framework of option `--write`, None without the option.

    Raises:
        InputError: a framework without a writer; lists the frameworks with a writer.
    """
    if write is None:
        return None
    from jaxscale.base.lazy import loaded
    from jaxscale.cli.registry import WRITERS

    writers = loaded(WRITERS)
    if write.lower() in writers:
        return write.lower()
    raise InputError(f"--write = {write!r} has no writer; {nearest(write.lower(), writers)}")


def fitted_frameworks(fitted: "Fit") -> list[str]:
    """Frameworks of the runs of a user's fit; empty for a shipped fit, which has no parent."""
    if fitted.parent is None:
        return []
    return sorted(level for kind, level in fitted.fitted if kind == "framework" and level)


def load_model(name_or_path: str, seq_len: int | None) -> "Transformer":
    """Model by name or file, at its own or a given sequence length; its own is told.

    Args:
        name_or_path: catalogue name, or a TOML or config.json file.
        seq_len: sequence length; by default the sequence length of the model [token].

    Raises:
        InputError: unknown name, a malformed file, or a length out of range.
    """
    from jaxscale.models import described_model

    described = described_model(name_or_path)
    if seq_len is not None:
        return described.transformer(name_or_path, seq_len=checked_count("--seq-len", seq_len))
    model = described.transformer(name_or_path)
    remark(f"{described.length_remark(model.seq_len)}; state --seq-len")
    return model
