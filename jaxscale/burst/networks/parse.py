"""Reader of the layer strings of `data/burst/networks.toml`."""

import re
from typing import NamedTuple

from jaxscale.burst.networks import blocks, layers
from jaxscale.burst.networks.layers import Layer


class Step(NamedTuple):
    """One layer, or the end of a branch, in the order in which the planner visits it.

    Attributes:
        layer: the layer; for the end of a branch an empty one that only moves the branch's output to the join.
        branch: index of the branch in its stage [1].
        n_branches: branches of the stage; 1 for a plain layer.
        first: first step of its branch.
        last: last step of its branch.
        closes: last step of its stage.
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
    return [_forward_only(layer) if network["activation_rows"] else layer]


def _forward_only(layer: Layer) -> Layer:
    return layer._replace(kernels=layer.kernels[: len(layer.kernels) - len(layer.backward)])


def _linear(shape, words, network, _previous):
    layer = layers.linear(shape, words.number)
    return [_forward_only(layer) if network["activation_rows"] else layer]


def _fork(shape, words, network, _previous):
    """Convolutions of one tensor, one after another; their outputs join along the channels."""
    made = []
    for kernel in words.kernels:
        padding = tuple(k // 2 for k in kernel)
        layer = layers.convolution(shape, words.number, kernel, 1, padding, normalised=network["batch_norm"])
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
        blocks.bottleneck(shape, w.number, w.options.get("s", (1,))[0], w.options.get("w", (1,))[0])
    ],
    "patch": lambda shape, w, _n, _p: [blocks.patch_embedding(shape, w.number, w.options["k"][0])],
    "attention": lambda shape, w, _n, _p: [blocks.attention(shape, w.options["h"][0])],
    "mlp": lambda shape, w, _n, _p: [blocks.mlp(shape, w.number)],
    "token": lambda shape, _w, _n, _p: [blocks.token(shape)],
    "upconv": lambda shape, w, _n, _p: [blocks.up_convolution(shape, w.number)],
    "skip": lambda shape, w, _n, _p: [blocks.skip(shape, w.number)],
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
    """Shape that a branch passes on: the outputs of a final fork join along the channels."""
    last = texts[-1]
    n = len(_words(last).kernels) if last.startswith("fork") else 1
    return (sum(layer.output_shape[0] for layer in chain[-n:]), *chain[-1].output_shape[1:])


def read_steps(network: dict) -> list[Step]:
    """Turn one table of `networks.toml` into the steps of the planner.

    Args:
        network: `input`, `batch_norm`, `activation_rows` and `layers` of the network.

    Returns:
        Steps in order; the branches of a block one after another, each closed by an empty layer at the join.

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
                steps.append(Step(layer, index, n, position == 0, last, last and index == n - 1))
        shape, previous = (sum(out[0] for out in outputs), *outputs[0][1:]), None
    return steps
