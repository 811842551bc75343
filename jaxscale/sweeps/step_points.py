"""Step time and memory at the points of a sweep; models, plans and clusters follow from the axes."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.calibration.record import fit_of
from jaxscale.costs.step import model_flops_utilisation, step_and_memory
from jaxscale.hardware.catalogue import Hardware
from jaxscale.hardware.cluster import Cluster
from jaxscale.models import described_model
from jaxscale.models.model_domain import MODEL
from jaxscale.models.transformer import ARGUMENTS, Transformer
from jaxscale.plans.plan import DEGREES, PLAN, SWITCHES, Plan
from jaxscale.plans.rules import model_columns, obeys, plan_columns
from jaxscale.sweeps.question import (
    BATCH_INPUT,
    CHIP_INPUTS,
    COUNT_INPUT,
    FIT_INPUT,
    MODEL_INPUTS,
    NAMED_MODEL,
    NETWORK_INPUTS,
    PRECISION_INPUT,
    ArrayFunction,
    Columns,
    Input,
    Point,
    Question,
    Result,
    SweepSpec,
    among,
    bound_input,
    chip_input,
    cluster_of_point,
    one_of,
)

PLAN_WORDS = ("precision", *SWITCHES)
WORDS_OF_SWITCHES = {switch for words in SWITCHES.values() for switch in words.values()} - {"recompute_full"}
PLAN_NUMBERS = tuple(name for name in PLAN.bounds if name not in WORDS_OF_SWITCHES)
MACHINE_INPUTS = (*CHIP_INPUTS, *NETWORK_INPUTS)


class Parts(NamedTuple):
    """Model, plan, cluster and coefficients at a point of a sweep."""

    model: Transformer
    plan: Plan
    cluster: Cluster
    coefficients: Any


def _inputs(hardware: Hardware) -> dict[str, Input]:
    return {
        **NAMED_MODEL,
        **chip_input(hardware),
        **COUNT_INPUT,
        **BATCH_INPUT,
        **MODEL_INPUTS,
        **{name: bound_input(PLAN.bounds[name]) for name in PLAN_NUMBERS},
        **PRECISION_INPUT,
        **{name: one_of(f"word of {name}", tuple(SWITCHES[name])) for name in SWITCHES},
        **CHIP_INPUTS,
        **NETWORK_INPUTS,
        **FIT_INPUT,
    }


RESULTS = {
    "step_time": Result("time of one optimizer step", "s"),
    "memory": Result("peak memory of the fullest chip", "byte"),
    "mfu": Result("model flop over the 16-bit peak, attention counted in full"),
    "valid": Result("whether the plan keeps every rule", ""),
}


def _picked(variants: Sequence[Any], place: Any) -> Any:
    """Element of a sequence of equal trees by a traced index; leaves equal in all trees stay unchanged."""

    def leaf(*leaves: Any) -> Any:
        # Identity first: traced leaves cannot be compared by value.
        if all(leaf is leaves[0] for leaf in leaves):
            return leaves[0]
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves) and all(
            np.array_equal(leaf, leaves[0]) for leaf in leaves
        ):
            return leaves[0]
        return jnp.stack([jnp.asarray(leaf, float) for leaf in leaves])[place]

    return variants[0] if len(variants) == 1 else jax.tree.map(leaf, *variants)


class _Assembly:
    """Modules of points: all words are looked up once, numbers may be traced."""

    def __init__(self, spec: SweepSpec):
        """Look up the words of a sweep."""
        self.spec = spec
        self.models = [described_model(name) for name in spec.words("model")]
        self.chips = [spec.catalogue[name] for name in spec.words("gpu")]
        self.words = {name: spec.words(name) for name in PLAN_WORDS if spec.words(name)}
        fits = [fit_of(name) for name in spec.words("fit") or ["default"]]
        precisions = self.words.get("precision", ["bf16"])
        # Kernels on a single chip have no concurrent collectives.
        self.coefficients = [
            fit.coefficients({"gpu": chip.id, "precision": precision}, company)
            for fit, chip, precision, company in itertools.product(fits, self.chips, precisions, (1, 2))
        ]

    def parts(self, columns: Point) -> Parts:
        """Modules of a point, from the values of its axes; words are indices in their axis."""
        point = {**self.spec.fixed, **columns}

        def place(name: str) -> Any:
            return columns[name].astype(int) if name in columns else 0

        shape = among(point, MODEL_INPUTS)
        model = _picked([one.transformer("sweep", **shape) for one in self.models], place("model"))
        numbers = among(point, PLAN_NUMBERS)
        product = numbers.get("tp", 1.0) * numbers.get("pp", 1.0) * numbers.get("cp", 1.0)
        if "n_gpus" in point and "dp" not in numbers:
            # dp = n / (tp pp cp)
            numbers["dp"] = point["n_gpus"] / product
        if "global_batch" in point:
            sequences = numbers.get("micro_batch_size", 1.0) * numbers.get("dp", 1.0)
            # m = B / (b dp)
            numbers["n_microbatches"] = point["global_batch"] / sequences
        plan_place: Any = 0
        for name, words in self.words.items():
            # Index in the product of words, the last word fastest.
            plan_place = plan_place * len(words) + place(name)
        named = [dict(zip(self.words, words, strict=True)) for words in itertools.product(*self.words.values())]
        try:
            plan = _picked([Plan(**numbers, **words) for words in named], plan_place)
        except ValueError as error:
            raise InputError(f"sweep: {error}") from None
        n_chips = point.get("n_gpus", plan.n_chips)
        machine = among(point, MACHINE_INPUTS)
        cluster = _picked([cluster_of_point(chip, machine, n_chips) for chip in self.chips], place("gpu"))
        # Index in the product of fits, chips, precisions and company.
        index: Any = place("fit") * len(self.chips) + place("gpu")
        index = index * len(self.words.get("precision", [""])) + place("precision")
        index = 2 * index + (jnp.asarray(n_chips) > 1.0)
        return Parts(model, plan, cluster, _picked(self.coefficients, index))


def _evaluation(spec: SweepSpec) -> ArrayFunction:
    assembly = _Assembly(spec)

    def one(columns: Point) -> Columns:
        parts = assembly.parts(columns)
        step, memory = step_and_memory(*parts)
        mfu = model_flops_utilisation(parts.model, parts.plan, parts.cluster, step.total)
        return {"step_time": step.total, "memory": memory.total, "mfu": mfu}

    return ArrayFunction(jax.vmap(one), functools.partial(_valid, spec, _stacked_parts(assembly)))


def _stacked_parts(assembly: _Assembly) -> Any:
    """Compiled function of columns: models, plans and numbers of chips [point]."""

    def one(columns: Point) -> Any:
        parts = assembly.parts(columns)
        shape = {name: jnp.asarray(getattr(parts.model, name), float) for name in ARGUMENTS}
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (parts.model, shape, parts.plan)), jnp.asarray(
            parts.cluster.n_chips, float
        )

    return jax.jit(jax.vmap(one))


RULED = {*NAMED_MODEL, *MODEL_INPUTS, *PLAN_NUMBERS, *PLAN_WORDS, *COUNT_INPUT, *BATCH_INPUT}
"""Inputs of the rules for valid plans."""


def _valid(spec: SweepSpec, stacked: Any, index: int) -> np.ndarray:
    """Whether each point of a region has an existing model and a plan of integer degrees within the rules [point]."""
    region = dict(zip(spec.axes, spec.region(index), strict=True))
    counts = {name: part.stop - part.start for name, part in region.items()}
    ruled = [name for name in spec.axes if name in RULED]
    # A sweep without axes of the rules has a single plan.
    columns = (
        spec.columns(index, ruled) if ruled else {next(iter(spec.axes)): spec.columns(index)[next(iter(spec.axes))][:1]}
    )
    # Sizes are integers beyond the exact range of single precision.
    with jax.enable_x64(True):
        (model, shape, plan), n_chips = jax.tree.map(np.asarray, stacked(columns))
    rows = {**model_columns(model), **plan_columns(plan)}
    # A copy: broadcast views are read-only.
    kept = np.broadcast_to(obeys({**rows, "n_chips": n_chips, "domain_size": 1.0}), n_chips.shape).copy()
    for name in DEGREES:
        kept &= rows[name] == np.round(rows[name])
    for broken in MODEL.broken(shape):
        kept &= ~np.broadcast_to(broken.rows, kept.shape)
    # Axes without effect on the rules have length 1.
    own = kept.reshape([counts[name] if name in ruled else 1 for name in spec.axes])
    return np.broadcast_to(own, tuple(counts.values())).ravel()


STEP_TIME = Question(
    "time and memory of a step under a stated plan",
    _inputs,
    (("model",), ("gpu",)),
    (("global_batch", "n_microbatches"),),
    lambda spec: RESULTS,
    _evaluation,
)
