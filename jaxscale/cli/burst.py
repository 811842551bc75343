"""`jaxscale burst`: strong scaling of one network in bursts, with background jobs in the freed GPU time."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from jaxscale.cli.arguments import Json
from jaxscale.cli.console import emit_json, print_result


@dataclass(frozen=True)
class BurstCommand:
    """Plan how many GPUs each layer of a network takes, and fill the freed GPU time with background jobs."""

    network: Annotated[
        str,
        tyro.conf.arg(
            metavar="NAME", help="vgg16, resnet50, wide_resnet101_2, inception_v3, vit, unet, cosmoflow or an alias"
        ),
    ] = "vgg16"
    gpus: Annotated[int, tyro.conf.arg(metavar="N", help="GPUs, a power of two")] = 8
    batch: Annotated[int, tyro.conf.arg(metavar="B", help="samples in a step, all GPUs together")] = 32
    bandwidth_gb_per_s: Annotated[
        float, tyro.conf.arg(metavar="GB/S", help="of the network, per GPU and direction")
    ] = 266.0
    latency_us: Annotated[float, tyro.conf.arg(metavar="US", help="of one redistribution of activations")] = 240.0
    amplification_limit: Annotated[
        float, tyro.conf.arg(metavar="A", help="most GPU time of a layer over its time on one GPU; above 1")
    ] = 2.0
    synchronisation: Annotated[
        Literal["correct", "released"], tyro.conf.arg(help="gradient bytes: correct, or the released planner's formula")
    ] = "correct"
    layer_times: Annotated[
        Literal["auto", "measured", "analytical"], tyro.conf.arg(help="A100 profiles, or roofline and launch latency")
    ] = "auto"
    json: Json = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: an unknown network, or a number out of range.
        """
        from jaxscale.burst.burst_report import burst_report
        from jaxscale.report.burst_tables import burst_comparison, burst_layers
        from jaxscale.units import GB

        document = burst_report(
            self.network,
            self.gpus,
            self.batch,
            bandwidth=self.bandwidth_gb_per_s * GB,
            latency=self.latency_us * 1e-6,
            amplification_limit=self.amplification_limit,
            synchronisation=self.synchronisation,
            layer_times=self.layer_times,
        )
        if self.json:
            emit_json(document)
            return
        print_result(burst_layers(document))
        print_result(burst_comparison(document))
