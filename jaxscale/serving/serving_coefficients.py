"""Coefficients of serving software, and the names of its levels: models, ports of frameworks, releases by date."""

import datetime
import functools
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import Number
from jaxscale.base.documents import data_path, read_toml
from jaxscale.calibration.spec import Spec, StandIns, longest_within, spec_from
from jaxscale.models import model_id
from jaxscale.serving.engine import ANY_NUMBER, MEMORY_SHARE, TOKEN_BUDGET

_MONTH = re.compile(r"(?<!\d)(20\d\d)-?([01]\d)(?:-?[0-3]\d)?(?!\d)")
_VERSION = re.compile(r"(?<![\w.])v?(\d+)\.(\d+)(?:\.(\d+))?")


def model_level(name: str) -> str:
    """Level name of a model: the catalogue id, or the name in lower case for an unknown model."""
    return model_id(name) or name.lower()


@functools.cache
def serving_facts() -> Mapping[str, Any]:
    """Content of `data/serving.toml`: usual attention of models, months of releases, ports, defaults of frameworks."""
    return read_toml(data_path("serving.toml"))


def _years(date: str) -> float:
    """Decimal year of a month such as `2024-12` [year]."""
    month = datetime.date.fromisoformat(f"{date}-01")
    return month.year + (month.month - 1) / 12.0


def release_time(framework: str, release: str) -> float:
    """Date of a release of a framework as a decimal year, nan if unknown [year].

    The date is a month in the text, or the mean of several months; else the date of the latest version in
    `data/serving.toml` that is not above the version in the text.

    Args:
        framework: name of the framework; a port has the months of its framework.
        release: text of the release, as `0.9.1 rocm 6.4.1`, `2024-09 to 2024-11` or `nightly-dev-20260402`.
    """
    months = [int(year) + (int(month) - 1) / 12.0 for year, month in _MONTH.findall(release) if 1 <= int(month) <= 12]
    if months:
        return sum(months) / len(months)
    named = next((name for name, port in serving_facts()["ports"].items() if port["level"] == framework), framework)
    dated = serving_facts()["releases"].get(named, {})
    version = _VERSION.search(release)
    if version is None or not dated:
        return math.nan
    numbers = tuple(int(number) for number in version.groups() if number)
    times = sorted((tuple(map(int, key.split("."))), _years(date)) for key, date in dated.items())
    # A version below all dated versions counts as the first.
    return max((time for key, time in times if key <= numbers), default=times[0][1])


def nearest_release(level: str, known: Collection[str]) -> str:
    """Level whose effects are used for a release without fitted effects: the framework's release nearest in time.

    A release without a known date has no effects, as a release that is not stated.

    Args:
        level: framework and release, separated by a blank.
        known: levels with effects.
    """
    framework, _, release = level.partition(" ")
    time = release_time(framework, release)
    if level in known or math.isnan(time):
        return level
    others = [name for name in known if name.startswith(f"{framework} ")]
    apart = {name: abs(release_time(framework, name.removeprefix(f"{framework} ")) - time) for name in others}
    dated = {name: gap for name, gap in apart.items() if not math.isnan(gap)}
    # Of several releases in a month, the last by name.
    return min(sorted(dated, reverse=True), key=lambda name: dated[name], default=level)


def framework_level(framework: str, maker: str, release: str) -> str:
    """Level name of a framework on chips of a maker: that of a port, from the month in which the port became usual.

    Args:
        framework: name of the framework, as `vllm`.
        maker: maker of the chip, as `AMD`.
        release: text of the release; a release without a known date counts as a present release.
    """
    port = serving_facts()["ports"].get(framework)
    if port is None or port["maker"] != maker:
        return framework
    time = release_time(framework, release)
    # An unknown time counts as present: a comparison with nan is false.
    return framework if time < _years(port["since"]) else port["level"]


def mixes_prompts(level: str) -> bool:
    """Whether a pass of an engine takes prompts and running sequences together.

    Args:
        level: framework and release, separated by a blank; a release without a known date counts as a present release.
    """
    framework, _, release = level.partition(" ")
    apart = serving_facts()["separate_passes"].get(framework)
    if apart is None:
        return True
    return "until" in apart and not release_time(framework, release) < _years(apart["until"])


class EngineDefaults(NamedTuple):
    """Scheduler and memory defaults of a serving framework, by the names of the fields of `Engine`.

    Attributes:
        max_sequences: running sequences of a rank [1].
        token_budget: tokens of a step if prompts wait [token].
        mixed_passes: 1 where a pass takes prompts and running sequences together [1].
        memory_share: share of the memory of a chip for weights, cache and buffers [1].
        cache_bytes: least stored size of an element of the cache: 2 for frameworks with a 16-bit cache beside 8-bit
            weights [byte].
    """

    max_sequences: float = ANY_NUMBER
    token_budget: float = TOKEN_BUDGET
    mixed_passes: float = 1.0
    memory_share: float = MEMORY_SHARE
    cache_bytes: float = 1.0


def defaults_of(level: str, chip: str, memory: float) -> EngineDefaults:
    """Scheduler and memory defaults of a serving framework; those of `Engine` for an unlisted framework.

    Args:
        level: framework and release, separated by a blank.
        chip: catalogue id of the chip.
        memory: memory of the chip [byte].
    """
    framework, _, release = level.partition(" ")
    usual = EngineDefaults(mixed_passes=float(mixes_prompts(level)), **serving_facts()["memory"].get(framework, {}))
    stated = serving_facts()["schedulers"].get(framework)
    if stated is None:
        return usual
    is_small = memory < stated["least_memory"] or chip.startswith(tuple(stated["exceptions"]))
    is_before = release_time(framework, release) < _years(stated["since"])
    return usual._replace(**stated["before" if is_before else "small" if is_small else "large"])


class ServingCoefficients(eqx.Module):
    """Efficiencies and times of serving software, above zero; units, priors and meanings are in `data/serving.toml`."""

    weight_bandwidth: Number
    expert_bandwidth: Number
    cache_bandwidth: Number
    matmul: Number
    prefill_matmul: Number
    prefill_attention: Number
    narrow_matmul: Number
    layer_floor: Number
    step_floor: Number
    sequence_floor: Number
    request_floor: Number
    collective_latency: Number
    link: Number
    link_ramp: Number
    first_token: Number
    queue: Number
    lockstep: Number
    waiting: Number
    batch_limit: Number
    pace: Number
    jitter: Number
    length_spread: Number


SHARES = ("weight_bandwidth", "cache_bandwidth", "matmul", "prefill_matmul", "prefill_attention", "link")
"""Coefficients that are shares of a peak of the hardware."""

SHARPNESS = 8.0
"""Exponent of the bound of shares [1]: 0.75 becomes 0.74, 1.5 becomes 0.995."""

SERVING_NAMES = tuple(ServingCoefficients.__dataclass_fields__)
"""Names of the coefficients, in order."""


@functools.cache
def serving_spec() -> Spec:
    """Table of the coefficients from `data/serving.toml`, in the order of `SERVING_NAMES`."""
    # The name of a fork or wrapper often contains the name of its framework.
    choices = {"framework": longest_within, "release": nearest_release}
    return spec_from("serving.toml", SERVING_NAMES, stand_ins=StandIns(choices=choices))


def usual_coefficients() -> ServingCoefficients:
    """Coefficients of serving at the medians of their priors."""
    return ServingCoefficients(**serving_spec().medians)


def serving_coefficients(logs: Float[ArrayLike, " coefficient"]) -> ServingCoefficients:
    r"""Coefficients of serving from their natural logarithms, in the order of `SERVING_NAMES` [coefficient].

    Coefficients in `SHARES` are bounded by 1.
    """
    import jax.numpy as jnp

    values: Array = jnp.exp(jnp.asarray(logs))
    # x (1 + x^8)^(-1/8): a share above 1 would be offset by overlong floors.
    bounded = values * (1.0 + values**SHARPNESS) ** (-1.0 / SHARPNESS)
    pairs = enumerate(SERVING_NAMES)
    return ServingCoefficients(*((bounded if name in SHARES else values)[index] for index, name in pairs))
