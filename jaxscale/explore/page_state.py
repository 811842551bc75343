"""Inputs of the page: conversion to an address and to command lines; catalogues, fit and files."""

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jaxscale.base.errors import InputError, one_like
from jaxscale.calibration.record import Fit, load_fit
from jaxscale.hardware.catalogue import Hardware, cluster, load_hardware
from jaxscale.hardware.cluster import Cluster
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models.model_catalogue import (
    ModelDescription,
    catalogue_model,
    described_model,
    model_entries,
    unknown_model,
)
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan import RECOMPUTE
from jaxscale.plans.plan_questions import PlanQuestion, plan_question
from jaxscale.runs.defaults import known_frameworks
from jaxscale.runs.schema import stated_values

TABS = ("step", "plans", "sensitivity", "chips", "shape")
"""Views of a state."""

FIXABLE = ("tp", "pp", "cp", "ep", "micro_batch_size", "zero_stage", "recompute")
"""Plan choices that a state may fix; all further choices stay open."""

SLIDERS = {
    "compute": "peak flop/s",
    "memory_bandwidth": "memory bandwidth",
    "links": "scale-up bandwidth",
    "network": "scale-out bandwidth",
}
"""Resources of the cluster with a factor, by field of a state; names as in `CLUSTER_RESOURCES`."""

MOST = 10**10
"""Largest count [1]."""


@dataclass(frozen=True)
class PageState:
    """Inputs of the page, as chosen by the user.

    Attributes:
        model: name in the catalogue, or label of a model file given on the command line.
        gpu: catalogue id of the chip.
        n_gpus: number of chips [1].
        global_batch: B, global batch [sequence].
        seq_len: S, sequence length; 0 for the model's [token].
        framework: software; empty for the framework of the fit.
        precision: number format of the weight matmuls.
        tp: tensor-parallel degree; 0 if open [1].
        pp: pipeline stages; 0 if open [1].
        cp: context-parallel degree; 0 if open [1].
        ep: expert-parallel degree; 0 if open [1].
        micro_batch_size: b, microbatch; 0 if open [sequence].
        zero_stage: ZeRO stage, 0 to 3; empty if open.
        recompute: recomputation, `none`, `selective` or `full`; empty if open.
        rank: rank of the plan, 1 for the fastest [1].
        width: factor on the width of the model, with the plan unchanged [1].
        depth: factor on the depth of the model, with the plan unchanged [1].
        compute: factor on the peak flop rate of chips [1].
        memory_bandwidth: factor on the memory bandwidth of chips [1].
        links: factor on bandwidths in a scale-up domain [1].
        network: factor on bandwidths between the domains [1].
        tokens: tokens of the run in the limit of small batches, per active parameter of the model [token].
        tab: tab of the page, from `TABS`.
    """

    model: str = "llama3-8b"
    gpu: str = "h100-80gb"
    n_gpus: int = 64
    global_batch: int = 512
    seq_len: int = 0
    framework: str = ""
    precision: str = "bf16"
    tp: int = 0
    pp: int = 0
    cp: int = 0
    ep: int = 0
    micro_batch_size: int = 0
    zero_stage: str = ""
    recompute: str = ""
    rank: int = 1
    width: float = 1.0
    depth: float = 1.0
    compute: float = 1.0
    memory_bandwidth: float = 1.0
    links: float = 1.0
    network: float = 1.0
    tokens: float = 20.0
    tab: str = "step"

    def __post_init__(self):
        """Raise an `InputError` for a number out of range or an unknown word."""
        for stated in dataclasses.fields(self):
            _check(stated.name, getattr(self, stated.name), stated.default)
        if self.tab not in TABS:
            raise InputError(f"tab = {self.tab!r}; expected one of {', '.join(TABS)}")
        if self.zero_stage not in ("", "0", "1", "2", "3"):
            raise InputError(f"zero_stage = {self.zero_stage!r}; expected 0, 1, 2 or 3")
        if self.recompute not in ("", *RECOMPUTE):
            raise InputError(f"recompute = {self.recompute!r}; expected one of {', '.join(RECOMPUTE)}")

    def fixed(self) -> dict[str, str]:
        """Choices of the plan fixed by the user, as text by field."""
        values = {name: getattr(self, name) for name in FIXABLE}
        return {name: str(value) for name, value in values.items() if value not in (0, "")}

    def query(self) -> str:
        """Query of the page's address: all fields with non-default values."""
        return urlencode(changes(self))

    def command(self) -> str:
        """Command line `jaxscale plan` for the inputs, without the factors on model and cluster."""
        words = ["jaxscale", "plan", "--model", self.model, "--gpu", self.gpu, "--n-gpus", str(self.n_gpus)]
        words += ["--global-batch", str(self.global_batch)]
        if self.seq_len:
            words += ["--seq-len", str(self.seq_len)]
        if self.precision != "bf16":
            words += ["--precision", self.precision]
        if self.framework:
            words += ["--framework", self.framework]
        for name, value in self.fixed().items():
            words += ["--set", f"{name}={value}"]
        return shlex.join(words)

    def explore_command(self) -> str:
        """Command line `jaxscale explore` for the inputs."""
        words = [word for name, value in changes(self).items() for word in ("--set", f"{name}={value}")]
        return shlex.join(["jaxscale", "explore", *words])


def changes(state: PageState) -> dict[str, str]:
    """Fields of the inputs with non-default values, as text."""
    values = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    default = {field.name: field.default for field in dataclasses.fields(state)}
    return {name: _text(value) for name, value in values.items() if value != default[name]}


def state_of(texts: Mapping[str, str]) -> PageState:
    """Inputs of the page from the query of an address.

    Args:
        texts: fields as text; omitted fields take default values.

    Raises:
        InputError: an unknown field, or an invalid value.
    """
    kinds = {field.name: type(field.default) for field in dataclasses.fields(PageState)}
    values: dict[str, Any] = {}
    for name, text in texts.items():
        if name not in kinds:
            raise InputError(f"{name!r} is no field of the page; {one_like(name, kinds)}")
        try:
            values[name] = kinds[name](text)
        except ValueError:
            expected = "a whole number" if kinds[name] is int else "a number"
            raise InputError(f"{name} = {text!r} is not valid; expected {expected}") from None
    return PageState(**values)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _check(name: str, value: Any, default: Any) -> None:
    if isinstance(default, float) and not 1e-6 <= value <= 1e6:
        raise InputError(f"{name} = {value:g} is out of range; expected a number from 1e-6 to 1e6")
    # Counts with default 0 may stay open.
    least = 1 if default else 0
    if isinstance(default, int) and not least <= value <= MOST:
        raise InputError(f"{name} = {value} is out of range; expected a whole number from {least} to {MOST:,}")


@dataclass(frozen=True)
class PageInputs:
    """Catalogues, fit and files available to a page.

    Attributes:
        hardware: chips of the catalogue and of the user's file.
        fit: calibration.
        own: models from files, by label.
    """

    hardware: Hardware
    fit: Fit
    own: Mapping[str, ModelDescription] = field(default_factory=dict)

    def models(self) -> list[str]:
        """Names of the available models, models from files first."""
        return [*self.own, *sorted(model_entries())]

    def chips(self) -> list[str]:
        """Ids of the available chips."""
        return sorted({entry.id for entry in self.hardware.chips.values()})

    def frameworks(self) -> list[str]:
        """Names of the available frameworks."""
        return sorted(known_frameworks())

    def transformer(self, state: PageState) -> Transformer:
        """Model selected by the inputs.

        Raises:
            InputError: the model is neither in the catalogue nor in a file of the command; no further file is read.
        """
        fields = self.own.get(state.model)
        if fields is None and (entry := catalogue_model(state.model)) is not None:
            fields = ModelDescription(entry)
        if fields is None:
            raise InputError(f"model {state.model!r} {unknown_model(state.model)} to the command")
        return fields.transformer(state.model, **({"seq_len": state.seq_len} if state.seq_len else {}))

    def cluster(self, state: PageState) -> Cluster:
        """Cluster selected by the inputs, without factors."""
        return cluster(state.gpu, state.n_gpus, hardware=self.hardware)

    def framework(self, state: PageState) -> str | None:
        """Framework selected by the inputs, else the common framework of all fitted runs, if any."""
        if state.framework and state.framework not in known_frameworks():
            raise InputError(f"framework = {state.framework!r}; expected one of {', '.join(self.frameworks())}")
        return state.framework or dict(self.fit.own).get("framework")

    def question(self, state: PageState) -> PlanQuestion:
        """Search for a plan (model, cluster, batch, open choices) defined by the inputs, as in `jaxscale plan`.

        Raises:
            InputError: an unknown model, chip, framework or precision.
        """
        if state.precision not in PRECISIONS:
            raise InputError(f"precision = {state.precision!r}; expected one of {', '.join(PRECISIONS)}")
        software = {"precision": state.precision, "framework": self.framework(state)}
        cells = {"gpu": self.hardware[state.gpu].id, **software, **stated_values("the page", state.fixed())}
        return plan_question(self.transformer(state), self.cluster(state), state.global_batch, cells)


def page_inputs(
    models: tuple[str, ...] = (), fit: str | Path = "default", hardware: str | Path | None = None
) -> PageInputs:
    """Catalogues, fit and model files of a page, all read.

    Args:
        models: model files.
        fit: name or file of the fit.
        hardware: hardware file of the user.

    Raises:
        InputError: a missing or malformed file.
    """
    chips = load_hardware(hardware)
    return PageInputs(chips, load_fit(fit, chips), {name: described_model(name) for name in models})


_SERVED: list[PageInputs] = []


def serve_inputs(inputs: PageInputs) -> None:
    """Set the catalogues, fit and files for all pages of the process."""
    _SERVED[:] = [inputs]


def served_inputs() -> PageInputs:
    """Catalogues, fit and files for the pages of the process; by default the shipped catalogues and fit."""
    if not _SERVED:
        serve_inputs(page_inputs())
    return _SERVED[0]
