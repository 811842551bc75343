"""Layer graphs: networks of `data/burst/networks.toml` as arrays for planners and layer times.

`load_network` converts a table of `data/burst/networks.toml` to a `LayerGraph`, whose rows are the layers in the order
of the profile plus one empty row at the end of each branch.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError
from jaxscale.burst import layers
from jaxscale.burst.layers import KERNEL_KINDS, Kernel, Layer, elements


class Step(NamedTuple):
    """Layer or branch end, in the planner's order.

    Attributes:
        layer: the layer; at a branch end an empty layer that moves the branch output to the join.
        branch: index of the branch in its stage [1].
        n_branches: branches of the stage; 1 for a plain layer.
        first: whether the step is the first of its branch.
        last: whether the step is the last of its branch.
        closes: whether the step is the last of its stage.
    """

    layer: Layer
    branch: int
    n_branches: int
    first: bool
    last: bool
    closes: bool


class _Words(NamedTuple):
    operation: str
    number: int
    options: dict[str, tuple[int, ...]]
    kernels: tuple[tuple[int, ...], ...]


def _words(text: str) -> _Words:
    operation, *words = text.split()
    number = int(words.pop(0)) if words and words[0].isdigit() else 0
    options, kernels = {}, []
    for word in words:
        match = re.fullmatch(r"([a-z])(\d+(?:x\d+)*)", word)
        if match is None:
            raise ValueError(f"layer {text!r}: {word!r} is not understood; expected for example k3, s2, p1 or k1x7")
        values = tuple(int(v) for v in match[2].split("x"))
        options[match[1]] = values
        if match[1] == "k":
            kernels.append(values)
    return _Words(operation, number, options, tuple(kernels))


def _spread(values: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return values * rank if len(values) == 1 else values


def _pool(kind: str):
    def build(shape, words, _network, _previous):
        kernel, stride, padding = (words.options.get(o, d)[0] for o, d in (("k", (2,)), ("s", (1,)), ("p", (0,))))
        return [layers.pool(shape, kind, kernel, stride, padding)]

    return build


def _convolution(shape, words, network, _previous):
    rank = len(shape) - 1
    kernel = _spread(words.options["k"], rank)
    padding = _spread(words.options.get("p", (0,)), rank)
    stride = words.options.get("s", (1,))[0]
    layer = layers.convolution(
        shape,
        words.number,
        kernel,
        stride,
        padding,
        normalised=network["batch_norm"],
        activated=not network["activation_rows"],
    )
    return [layers.forward_only(layer) if network["activation_rows"] else layer]


def _linear(shape, words, network, _previous):
    layer = layers.linear(shape, words.number)
    return [layers.forward_only(layer) if network["activation_rows"] else layer]


def _fork(shape, words, network, _previous):
    """Convolutions of one tensor, in sequence, with outputs concatenated along the channels."""
    made = []
    for kernel in words.kernels:
        # Odd kernels with half padding keep the extent.
        padding = tuple(k // 2 for k in kernel)
        layer = layers.convolution(shape, words.number, kernel, 1, padding, normalised=network["batch_norm"])
        # From the second convolution on, the input is the predecessor's input.
        made.append(layer._replace(is_beside=bool(made)))
    return made


_BUILDERS = {
    "conv": _convolution,
    "fork": _fork,
    "linear": _linear,
    "maxpool": _pool("max_pool"),
    "avgpool": _pool("average_pool"),
    "relu": lambda shape, _w, _n, previous: [layers.relu(shape, previous)],
    "flatten": lambda shape, _w, _n, _p: [layers.reshape("flatten", shape, (layers.elements(shape),))],
    "globalpool": lambda shape, _w, _n, _p: [layers.global_pool(shape)],
    "bottleneck": lambda shape, w, _n, _p: [
        layers.bottleneck(shape, w.number, w.options.get("s", (1,))[0], w.options.get("w", (1,))[0])
    ],
    "patch": lambda shape, w, _n, _p: [layers.patch_embedding(shape, w.number, w.options["k"][0])],
    "attention": lambda shape, w, _n, _p: [layers.attention(shape, w.options["h"][0])],
    "mlp": lambda shape, w, _n, _p: [layers.mlp(shape, w.number)],
    "token": lambda shape, _w, _n, _p: [layers.token(shape)],
    "upconv": lambda shape, w, _n, _p: [layers.up_convolution(shape, w.number)],
    "skip": lambda shape, w, _n, _p: [layers.skip(shape, w.number)],
}


def _chain(texts: list[str], shape: tuple[int, ...], network: dict, previous: Layer | None) -> list[Layer]:
    made: list[Layer] = [] if previous is None else [previous]
    start = len(made)
    for text in texts:
        repeats, _, body = text.partition("x ") if re.match(r"\d+x ", text) else ("1", "", text)
        words = _words(body)
        if words.operation not in _BUILDERS:
            raise ValueError(f"layer {text!r}: unknown operation; expected one of {', '.join(_BUILDERS)}")
        for _ in range(int(repeats)):
            new = _BUILDERS[words.operation](shape, words, network, made[-1] if made else None)
            made.extend(new)
            shape = (
                (sum(layer.output_shape[0] for layer in new), *new[-1].output_shape[1:])
                if len(new) > 1
                else (new[-1].output_shape)
            )
    if not made[start:]:
        raise ValueError("a branch without layers is not allowed; expected at least one layer string")
    return made[start:]


def _branch_output(texts: list[str], chain: list[Layer]) -> tuple[int, ...]:
    """Output shape of a branch; the outputs of a final fork are concatenated along the channels."""
    last = texts[-1]
    n = len(_words(last).kernels) if last.startswith("fork") else 1
    return (sum(layer.output_shape[0] for layer in chain[-n:]), *chain[-1].output_shape[1:])


def read_steps(network: dict) -> list[Step]:
    """Convert one table of `networks.toml` to the steps of the planner.

    Args:
        network: `input`, `batch_norm`, `activation_rows` and `layers` of the network.

    Returns:
        Steps in order; the branches of a block in sequence, each closed by an empty layer at the join.

    Raises:
        ValueError: a layer string is not understood.
    """
    shape, steps, previous = tuple(network["input"]), [], None
    for item in network["layers"]:
        if isinstance(item, str):
            for layer in _chain([item], shape, network, previous):
                steps.append(Step(layer, 0, 1, True, True, True))
                previous, shape = layer, layer.output_shape
            continue
        outputs = []
        for index, texts in enumerate(item["branches"]):
            chain = _chain(texts, shape, network, None)
            outputs.append(_branch_output(texts, chain))
            join = Layer("join", ("join",), outputs[-1], outputs[-1])
            n = len(item["branches"])
            for position, layer in enumerate([*chain, join]):
                last = position == len(chain)
                # Only the last branch's join closes the stage.
                steps.append(Step(layer, index, n, position == 0, last, last and index == n - 1))
        # The outputs are concatenated along the channels.
        shape, previous = (sum(out[0] for out in outputs), *outputs[0][1:]), None
    return steps


MAX_BRANCHES = 4
"""Largest number of branches in a block that the planner can place, as in the Inception blocks."""


class KernelTable(eqx.Module):
    """Kernels of a training step, one row each; quantities are per sample unless stated otherwise.

    Attributes:
        kind: index in `KERNEL_KINDS` [1].
        step: row of the kernel's layer in the graph [1].
        flop: floating-point operations [flop].
        depth: K, length of the sum of one output element [1].
        width: columns of the output [1].
        rows: rows of the output [1].
        sample_bytes: memory traffic proportional to the batch [byte].
        fixed_bytes: memory traffic of the weights, independent of the batch [byte].
    """

    kind: Int[np.ndarray, " kernel"]
    step: Int[np.ndarray, " kernel"]
    flop: Float[np.ndarray, " kernel"]
    depth: Float[np.ndarray, " kernel"]
    width: Float[np.ndarray, " kernel"]
    rows: Float[np.ndarray, " kernel"]
    sample_bytes: Float[np.ndarray, " kernel"]
    fixed_bytes: Float[np.ndarray, " kernel"]
    n_steps: int = eqx.field(static=True)


class LayerGraph(eqx.Module):
    """Layers of a network in the planner's order: a chain of stages, each one branch or several that join.

    Attributes:
        weights: trainable parameters per step [1].
        flop: flop of the forward pass of a sample [flop].
        input_elements: elements per sample moved by a change of GPUs before the step [1]; 0 for the first step.
        output_elements: elements per sample produced by the step [1].
        released_sync_elements: elements synchronised by the released planner in place of `weights` [1].
        keeps_layout: whether the step must run on the GPUs of the preceding step.
        is_join: whether the step is an empty branch end.
        first: whether the step is the first of its branch.
        last: whether the step is the last of its branch.
        closes: whether the step is the last of its stage.
        branch: index of the branch in its stage [1].
        n_branches: branches of the stage [1].
        stage: index of the stage [1].
        kernels: kernels of a training step.
        widths: distinct numbers of branches, increasing [1].
        n_stages: number of plain layers and blocks [1].
        names: label of every row.
        name: name in `networks.toml`.
        regime: software regime of the network's profile.
    """

    weights: Float[np.ndarray, " step"]
    flop: Float[np.ndarray, " step"]
    input_elements: Float[np.ndarray, " step"]
    output_elements: Float[np.ndarray, " step"]
    released_sync_elements: Float[np.ndarray, " step"]
    keeps_layout: Bool[np.ndarray, " step"]
    is_join: Bool[np.ndarray, " step"]
    first: Bool[np.ndarray, " step"]
    last: Bool[np.ndarray, " step"]
    closes: Bool[np.ndarray, " step"]
    branch: Int[np.ndarray, " step"]
    n_branches: Int[np.ndarray, " step"]
    stage: Int[np.ndarray, " step"]
    kernels: KernelTable
    widths: tuple[int, ...] = eqx.field(static=True)
    n_stages: int = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    name: str = eqx.field(static=True)
    regime: str = eqx.field(static=True)

    def __check_init__(self):
        """Raise an `InputError` for a block with more than `MAX_BRANCHES` branches."""
        if self.widths[-1] > MAX_BRANCHES:
            raise InputError(f"network {self.name}: a block has {self.widths[-1]} branches; at most {MAX_BRANCHES}")

    @property
    def n_steps(self) -> int:
        """Number of rows: layers and branch ends [1]."""
        return len(self.names)


class NetworkEntry(NamedTuple):
    """Network of `data/burst/networks.toml`: name, names of profiles with measured times, and TOML table."""

    name: str
    profiles: tuple[str, ...]
    table: dict[str, Any]


def kernel_table(kernels: list[tuple[int, Kernel]], n_steps: int) -> KernelTable:
    """Table of kernels from pairs of layer row and kernel."""
    # (kernels, quantities)
    numbers = np.array([kernel[1:] for _, kernel in kernels], float).reshape(len(kernels), len(Kernel._fields) - 1)
    return KernelTable(
        np.array([KERNEL_KINDS.index(kernel.kind) for _, kernel in kernels], np.int32),
        np.array([step for step, _ in kernels], np.int32),
        *numbers.T,
        n_steps=n_steps,
    )


def build_graph(steps: Sequence[Step], name: str, regime: str) -> LayerGraph:
    """Layer graph of a sequence of steps.

    Args:
        steps: steps from `read_steps` or written by hand.
        name: name for messages and reports.
        regime: software regime of the analytical layer time.
    """
    layers = tuple(step.layer for step in steps)

    def floats(values):
        return np.array(list(values), float)

    def flags(values):
        return np.array(list(values), bool)

    closes = flags(step.closes for step in steps)
    moved = floats(elements(layer.input_shape) for layer in layers)
    # No change of GPUs before the first step.
    moved[0] = 0.0
    return LayerGraph(
        weights=floats(layer.weights for layer in layers),
        flop=floats(layer.flop for layer in layers),
        input_elements=moved,
        output_elements=floats(elements(layer.output_shape) for layer in layers),
        released_sync_elements=floats(layer.released_sync_elements for layer in layers),
        keeps_layout=flags(layer.keeps_layout for layer in layers),
        is_join=flags(layer.name == "join" for layer in layers),
        first=flags(step.first for step in steps),
        last=flags(step.last for step in steps),
        closes=closes,
        branch=np.array([step.branch for step in steps], np.int32),
        n_branches=np.array([step.n_branches for step in steps], np.int32),
        # A step after the close of a stage begins the next stage.
        stage=np.concatenate([[0], np.cumsum(closes)[:-1]]).astype(np.int32),
        kernels=kernel_table([(i, k) for i, layer in enumerate(layers) for k in layer.kernels], len(layers)),
        widths=tuple(sorted({step.n_branches for step in steps})),
        n_stages=int(closes.sum()),
        names=tuple(layer.name for layer in layers),
        name=name,
        regime=regime,
    )


def _plain(name: str) -> str:
    """Name of a network in lower case, without the hyphens and underscores of its spellings: `vgg16` of VGG-16."""
    return re.sub(r"[-_]", "", name.lower())


def read_networks() -> dict[str, NetworkEntry]:
    """Shipped networks by name and alias, in lower case without hyphens and underscores."""
    tables = read_toml(data_path("burst/networks.toml"))["networks"]
    by_alias = {}
    for name, table in tables.items():
        entry = NetworkEntry(name, tuple(table.get("profiles", ())), table)
        for alias in (name, *table.get("aliases", ())):
            by_alias[_plain(alias)] = entry
    return by_alias


@functools.cache
def network_entry(name: str) -> NetworkEntry:
    """Shipped network with a name or alias; case, hyphens and underscores do not matter.

    Raises:
        InputError: unknown network.
    """
    networks = read_networks()
    if (found := networks.get(_plain(name))) is None:
        names = ", ".join(sorted({entry.name for entry in networks.values()}))
        raise InputError(f"network {name!r} is unknown; expected one of {names}")
    return found


@functools.cache
def network_steps(name: str) -> tuple[Step, ...]:
    """Layers of a shipped network in the planner's order, with shapes, kernels and keys of measured times.

    Raises:
        InputError: unknown network.
    """
    return tuple(read_steps(network_entry(name).table))


@functools.cache
def load_network(name: str) -> LayerGraph:
    """Layer graph of a shipped network.

    Args:
        name: `vgg16`, `resnet50`, `wide_resnet101_2`, `inception_v3`, `vit`, `unet` or `cosmoflow`.

    Raises:
        InputError: unknown network.
    """
    entry = network_entry(name)
    return build_graph(network_steps(name), entry.name, entry.table["regime"])
