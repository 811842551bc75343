"""`jaxscale serving plan`: engines that answer most per chip under limits."""

from dataclasses import dataclass
from typing import Annotated

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import HardwareFile, Json, PlotFile, Quiet, ReportFolder, checked_count, option
from jaxscale.cli.console import answer, check_pictures, save_pictures, stage

FitOption = Annotated[str, option(metavar="NAME|FIT.toml", help="calibration: `default`, `prior` for none, or a file")]


@dataclass(frozen=True)
class ServingPlan:
    """Choose degrees, copies, batch, format and split that answer most tokens per chip under limits of latency."""

    model: Annotated[str, option(metavar="NAME", help="model of the catalogue, TOML file or config.json")]
    gpu: Annotated[str, option(metavar="ID", help="chip of the catalogue")]
    n_gpus: Annotated[int, option(metavar="N", help="chips at hand")]
    input_len: Annotated[int, option(metavar="S", help="tokens of a prompt")]
    output_len: Annotated[int, option(metavar="S", help="tokens of an answer")]
    tpot: Annotated[float | None, option(metavar="SECONDS", help="largest time per token")] = None
    ttft: Annotated[float | None, option(metavar="SECONDS", help="largest time to the first token")] = None
    framework: Annotated[str, option(metavar="NAME", help="serving framework")] = "vllm"
    precision: Annotated[str, option(metavar="FORMAT[,FORMAT]", help="formats of the weights that may be used")] = (
        "bf16"
    )
    dollars_per_gpu_hour: Annotated[float | None, option(metavar="DOLLAR", help="price of a chip")] = None
    top: Annotated[int, option(metavar="N", help="engines to list")] = 5
    fit: FitOption = "default"
    plot: PlotFile = None
    report: ReportFolder = None
    hardware: HardwareFile = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: an unknown model, chip, format or fit, a value out of range, or no engine that keeps the limits.
        """
        import jaxscale as js
        from jaxscale.serving.serving_figures import serving_frontier
        from jaxscale.serving.serving_report import engine_report, serving_engine_table

        for flag, value in (("--n-gpus", self.n_gpus), ("--top", self.top)):
            checked_count(flag, value)
        if self.dollars_per_gpu_hour is not None and not self.dollars_per_gpu_hour > 0.0:
            raise InputError(
                f"--dollars-per-gpu-hour = {self.dollars_per_gpu_hour:g} is out of range; expected above 0"
            )
        check_pictures(self.plot, self.report, self.fit, self.hardware)
        hardware = js.load_hardware(self.hardware)
        chip = hardware[self.gpu].id
        model, cluster = js.model(self.model), js.cluster(self.gpu, self.n_gpus, hardware=hardware)
        levels = js.serving.stack_levels(self.framework, chip, model, name=self.model, hardware=hardware)
        stage("scoring engines")
        choice = js.serving.best_serving_plan(
            model,
            cluster,
            self.input_len,
            self.output_len,
            tpot_limit=self.tpot,
            ttft_limit=self.ttft,
            fit=self.fit,
            levels=levels,
            space=js.serving.ServingSpace(precisions=tuple(self.precision.split(","))),
            dollars_per_chip_hour=self.dollars_per_gpu_hour,
            top=self.top,
        )
        answer(self.json, choice.to_json, lambda: (serving_engine_table(choice), choice.price_line))
        stack = js.serving.load_serving_fit(self.fit).coefficients(**levels)
        limits = {name: value for name, value in (("tpot", self.tpot), ("ttft", self.ttft)) if value is not None}
        title = f"Serving {self.model} on {self.n_gpus} {chip}"
        save_pictures(
            self.plot,
            self.report,
            lambda: serving_frontier(choice, self.tpot),
            lambda: engine_report(choice, model, cluster, stack, title, limits),
        )
