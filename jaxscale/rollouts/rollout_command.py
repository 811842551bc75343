"""`jaxscale rollout`: one step of reinforcement learning, on shared or split chips."""

from typing import Annotated

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import (
    FitName,
    ModelName,
    OptionalModel,
    Outputs,
    SoftwareOptions,
    checked_count,
    command,
    framework_among,
    option,
)
from jaxscale.cli.console import answer, check_pictures, save_pictures, say, stage

SAME = ("algorithm", "mode", "on_policy", "updates", "reward", "critic", "engine_precision", "serving_fit")
"""Options that are arguments of `js.rollout_step` of the same name."""


@command
class RolloutCommand(Outputs, SoftwareOptions):
    """Time one step of reinforcement learning: rollouts with their tail, scoring, training, transfer of weights.

    The fastest engine and training plan count; every split of the chips into generating and training ones is tried.
    """

    model: ModelName
    gpu: Annotated[str, option(metavar="ID", help="chip; see `jaxscale hardware`")]
    n_gpus: Annotated[int, option(metavar="N", help="chips")]
    prompts: Annotated[int, option(metavar="N", help="prompts of a step")]
    input_len: Annotated[int, option(metavar="S", help="tokens of a prompt")]
    output_len: Annotated[int, option(metavar="S", help="tokens of an answer on average, before the maximum")]
    answers: Annotated[int, option(metavar="N", help="answers to each prompt")] = 8
    length_cv: Annotated[float, option(metavar="C", help="coefficient of variation of the lengths")] = 1.0
    max_output_len: Annotated[int | None, option(metavar="S", help="longest answer allowed; none where left out")] = (
        None
    )
    algorithm: Annotated[
        str, option(metavar="WORD", help="`grpo`: actor and reference; `ppo`: a critic and a reward model as well")
    ] = "grpo"
    mode: Annotated[
        str, option(metavar="WORD", help="`shared`: phases in turn on all chips; `split`: side by side")
    ] = "shared"
    on_policy: Annotated[bool, option(help="split chips wait for each other; else training is a step behind")] = False
    generation_gpus: Annotated[
        int | None, option(metavar="N", help="chips that generate, of split ones; the best number where left out")
    ] = None
    updates: Annotated[int, option(metavar="N", help="optimizer steps of a step")] = 1
    reward: OptionalModel = None
    critic: OptionalModel = None
    engine: Annotated[str, option(metavar="NAME", help="serving framework")] = "vllm"
    engine_precision: Annotated[str, option(metavar="FORMAT", help="weights of the engines")] = "bf16"
    price: Annotated[float | None, option(metavar="P", help="of a chip and hour, in any currency")] = None
    fit: FitName = "default"
    serving_fit: Annotated[
        str, option(metavar="NAME|FIT.toml", help="calibration of serving: `default`, `prior`, or a file")
    ] = "default"

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: an unknown name, a number out of range, or no engine or plan that fits.
        """
        for flag, value in (("--n-gpus", self.n_gpus), ("--updates", self.updates)):
            checked_count(flag, value)
        import jaxscale as js
        from jaxscale.cli.arguments import software_cells
        from jaxscale.rollouts import rollout_report as report
        from jaxscale.rollouts.rollout_batch import NO_LIMIT, RolloutBatch

        check_pictures(self.plot, self.report, self.model, self.fit, self.serving_fit, self.hardware)
        hardware = js.load_hardware(self.hardware)
        fitted = js.load_fit(self.fit, hardware)
        model = js.model(self.model)
        cells, chip = software_cells(self, fitted, model), hardware[self.gpu]
        if lacking := chip.lacks(cells["precision"]):
            say(lacking)
        longest = NO_LIMIT if self.max_output_len is None else self.max_output_len
        if self.output_len > longest:
            told = f"--output-len = {self.output_len} exceeds --max-output-len = {longest}"
            raise InputError(f"{told}; expected a mean of at most the maximum")
        batch = RolloutBatch(self.prompts, self.answers, self.input_len, self.output_len, self.length_cv, longest)
        known = js.serving.load_serving_fit(self.serving_fit).frameworks
        engine = framework_among("--engine", self.engine, known)
        stage("scoring engines and training plans of every split")
        step = js.rollout_step(
            self.model,
            self.gpu,
            batch,
            n_chips=self.n_gpus,
            generation_chips=self.generation_gpus,
            cells=cells,
            price=float("nan") if self.price is None else self.price,
            fit=fitted,
            hardware=hardware,
            engine=engine,
            **{name: getattr(self, name) for name in SAME},
        )
        title = f"One step of {self.algorithm.upper()}: {self.model} on {self.n_gpus} {chip.id}"
        remarks = report.length_remark(step, batch, model)
        sentences = [*report.step_sentences(step), *remarks]
        answer(self.json, step.to_json, lambda: [report.steps_table(step, title), *sentences])
        save_pictures(
            self.plot,
            self.report,
            lambda: report.rollout_figure(step, title),
            lambda: report.rollout_report(step, title),
        )
