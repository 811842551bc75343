"""Networks of the burst study as traced workloads: the flop, weights and shapes of their tables."""

import math

import numpy as np
import pytest

import jaxscale as js
from jaxscale.burst import load_network, network_step
from jaxscale.burst.layer_graph import network_steps
from jaxscale.tracing.class_plan import batch_class
from jaxscale.tracing.traced_workload import Workload

NETWORKS = ("vgg16", "resnet50", "inception_v3", "vit", "unet", "cosmoflow")
BATCH = 3


def flop_of(work: Workload, *phases: str) -> float:
    """Flop of matmuls and convolutions in some phases, of one sample."""
    kinds, places = np.array(work.tables.kinds), np.array(work.tables.phases)
    counted = np.isin(kinds, ("matmul", "conv", "conv3d")) & np.isin(places, phases)
    return float(np.sum(np.where(counted, np.asarray(work.columns().flop), 0.0))) / BATCH


@pytest.mark.parametrize("name", NETWORKS)
def test_the_trace_of_a_network_has_the_flop_of_its_table(name: str):
    step = network_step(name, BATCH)
    work, graph = js.trace(*step), load_network(name)
    assert flop_of(work, "forward") == pytest.approx(float(graph.flop.sum()), rel=1e-5)
    # Tables count a gradient of the image in the ViT, and edges of strided convolutions without padding differ.
    assert flop_of(work, "forward", "backward") == pytest.approx(float(graph.kernels.flop.sum()), rel=0.01)
    # Gains, biases, tokens and embeddings of places are no weights of the tables.
    weights = sum(math.prod(weight.shape) for weight in step[1].values())
    assert float(graph.weights.sum()) <= weights < 1.01 * float(graph.weights.sum())
    last = network_steps(name)[-1].layer.output_shape
    joined = sum(one.layer.output_shape[0] for one in network_steps(name)[-14:] if one.layer.name == "join")
    assert step[-1].shape == (BATCH, *last[1:], joined or last[0])


def test_another_width_has_other_flop():
    """Negative control: a wide network has the layers of a plain one, and five times its flop."""
    plain = js.trace(*network_step("resnet50", BATCH))
    assert flop_of(plain, "forward") != pytest.approx(float(load_network("wide_resnet101_2").flop.sum()), rel=0.5)
    twice = plain.with_sizes({plain.tables.class_names[batch_class(plain)]: 2 * BATCH})
    assert flop_of(twice, "forward") == pytest.approx(2.0 * flop_of(plain, "forward"), rel=1e-6)


def test_an_unknown_network_is_refused():
    with pytest.raises(js.InputError, match="network 'alexnet' is unknown; expected one of"):
        network_step("alexnet")
