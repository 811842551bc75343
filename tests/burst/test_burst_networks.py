"""Layer tables against published parameter and operation counts, and the reader's errors."""

import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.burst.layer_graph import build_graph, load_network, network_steps, read_steps
from jaxscale.burst.layers import mlp

# Parameters and multiply-adds of the torchvision models (documentation of torchvision 0.20), without batch
# normalisation; Inception without its classifier (2.05 M), which the profile does not have.
PUBLISHED = {
    "vgg16": (138.36e6, 15.47e9),
    "resnet50": (25.50e6, 4.09e9),
    "wide_resnet101_2": (126.75e6, 22.75e9),
    "inception_v3": (21.77e6, 5.71e9),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_match_published(name):
    weights, multiply_adds = PUBLISHED[name]
    graph = load_network(name)
    np.testing.assert_allclose(graph.weights.sum(), weights, rtol=2e-3)
    np.testing.assert_allclose(graph.flop.sum(), 2 * multiply_adds, rtol=0.01)


def test_three_dimensional_convolution_counts_by_hand():
    """First CosmoFlow layer: 16 filters of 3^3 on 4 channels of 512^3 voxels."""
    layer = network_steps("cosmoflow")[0].layer
    assert layer.output_shape == (16, 512, 512, 512)
    assert layer.flop == 2 * 27 * 4 * 16 * 512**3


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "wide_resnet101_2", "inception_v3", "vit", "unet", "cosmoflow"])
def test_shapes_chain(name):
    """Every layer reads what the one before it, or the join, has produced."""
    graph, steps = load_network(name), network_steps(name)
    assert graph.n_steps == len(steps)
    assert np.all(graph.output_elements > 0)
    assert graph.input_elements[0] == 0
    inside = ~graph.first[1:] & ~np.array([step.layer.name.startswith("conv") for step in steps[1:]])
    before, after = graph.output_elements[:-1], graph.input_elements[1:]
    chained = inside & ~graph.is_join[1:]
    np.testing.assert_array_equal(before[chained], after[chained])


def test_inception_has_the_blocks_of_the_profile():
    graph = load_network("inception_v3")
    assert graph.widths == (1, 3, 4)
    assert (~graph.is_join).sum() == 107


def test_unknown_network_says_what_there_is():
    with pytest.raises(InputError, match=r"'lenet' is unknown; expected one of .*vgg16"):
        load_network("lenet")


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["convolve 3"], "unknown operation"),
        (["conv 3 kernel3"], "not understood"),
        ([{"branches": [["conv 4 k1"], []]}], "without layers"),
    ],
)
def test_bad_layer_strings(layers, message):
    network = {"input": [3, 8, 8], "batch_norm": True, "activation_rows": False, "layers": layers}
    with pytest.raises(ValueError, match=message):
        read_steps(network)


def test_five_branches_are_refused():
    network = {
        "input": [3, 8, 8],
        "batch_norm": True,
        "activation_rows": False,
        "layers": [{"branches": [["conv 4 k1"]] * 5}],
    }
    with pytest.raises(InputError, match="at most 4"):
        build_graph(read_steps(network), "wide", "resnet-graph")


def test_a_feed_forward_half_passes_over_its_activations_by_whole_reads_and_writes():
    """Elementwise kernels read and write 32 bits: 6 over the tokens (norm, residual), 4 over the wide ones (GELU)."""
    tokens, width, hidden = 16, 32, 128
    kernels = [kernel for kernel in mlp((tokens, width), hidden).kernels if kernel.kind == "elementwise"]
    passed = sorted(kernel.sample_bytes for kernel in kernels)
    assert passed == [2 * 4 * tokens * width] * 6 + [2 * 4 * tokens * hidden] * 4
