"""Command `jaxscale burst`: plan of a network in bursts, with background jobs in the GPU time left free."""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import Json, PlotFile, Quiet, ReportFolder, option
from jaxscale.cli.console import answer, check_pictures, save_pictures, stage


@dataclass(frozen=True)
class BurstCommand:
    """Plan how many GPUs each layer of a network takes, and fill the freed GPU time with background jobs."""

    network: Annotated[
        str,
        option(
            metavar="NAME", help="vgg16, resnet50, wide_resnet101_2, inception_v3, vit, unet, cosmoflow or an alias"
        ),
    ] = "vgg16"
    n_gpus: Annotated[int, option(metavar="N", help="GPUs, a power of two")] = 8
    global_batch: Annotated[int, option(metavar="B", help="samples in a step, all GPUs together")] = 32
    bandwidth_gb_per_s: Annotated[float, option(metavar="GB/S", help="of the network, per GPU and direction")] = 266.0
    latency_us: Annotated[float, option(metavar="US", help="of one redistribution of activations")] = 240.0
    amplification_limit: Annotated[
        float, option(metavar="A", help="most GPU time of a layer over its time on one GPU; above 1")
    ] = 2.0
    synchronisation: Annotated[
        Literal["correct", "released"], option(help="gradient bytes: correct, or the released planner's formula")
    ] = "correct"
    layer_times: Annotated[
        Literal["auto", "measured", "analytical"], option(help="A100 profiles, or roofline and launch latency")
    ] = "auto"
    plot: PlotFile = None
    report: ReportFolder = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Plan the network, print the tables, and write the report and figure asked for.

        Raises:
            InputError: an unknown network, or a number out of range.
        """
        from jaxscale.base.units import GB
        from jaxscale.burst.burst_report import burst_comparison, burst_layers, burst_report, burst_verdict

        # Units differ from those of the function, whose refusal would show another number.
        if not 0.0 < self.bandwidth_gb_per_s < inf:
            raise InputError(f"--bandwidth-gb-per-s = {self.bandwidth_gb_per_s:g} is out of range; expected above 0")
        if not 0.0 <= self.latency_us < inf:
            raise InputError(f"--latency-us = {self.latency_us:g} is out of range; expected 0 or more")
        check_pictures(self.plot, self.report)
        stage("planning the layers")
        document = burst_report(
            self.network,
            self.n_gpus,
            self.global_batch,
            bandwidth=self.bandwidth_gb_per_s * GB,
            latency=self.latency_us * 1e-6,
            amplification_limit=self.amplification_limit,
            synchronisation=self.synchronisation,
            layer_times=self.layer_times,
        )
        answer(
            self.json,
            lambda: document,
            lambda: (burst_layers(document), burst_comparison(document), burst_verdict(document)),
        )
        if self.plot or self.report:
            from jaxscale.burst.burst_report import burst_ranking, burst_summary

            save_pictures(self.plot, self.report, lambda: burst_ranking(document), lambda: burst_summary(document))
