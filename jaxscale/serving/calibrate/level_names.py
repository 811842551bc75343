"""Names of levels of serving runs: models by their id, ports of frameworks, releases in the order of their dates."""

import datetime
import functools
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from jaxscale.base.resources import data_path, read_toml
from jaxscale.models import model_id

_MONTH = re.compile(r"(?<!\d)(20\d\d)-?([01]\d)(?:-?[0-3]\d)?(?!\d)")
_VERSION = re.compile(r"(?<![\w.])v?(\d+)\.(\d+)(?:\.(\d+))?")


def model_level(name: str) -> str:
    """Level of a model by its name: the catalogue's id, or the name in lower case where the catalogue lacks it."""
    return model_id(name) or name.lower()


@functools.cache
def serving_facts() -> Mapping[str, Any]:
    """Tables of `data/serving.toml`: usual attention of models, months of releases, ports."""
    return read_toml(data_path("serving.toml"))


def _years(date: str) -> float:
    """Time of a month such as `2024-12` [year]."""
    month = datetime.date.fromisoformat(f"{date}-01")
    return month.year + (month.month - 1) / 12.0


def release_time(framework: str, release: str) -> float:
    """Time of a release of a framework, nan where its text tells none [year].

    A month in the text counts, or the middle of several; else the version, by the months of versions in
    `data/serving.toml`: it takes the time of the latest one there that is not above it.

    Args:
        framework: its name; of the port of a framework the months are those of the framework.
        release: its text, as `0.9.1 rocm 6.4.1`, `2024-09 to 2024-11` or `nightly-dev-20260402`.
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
    return max((time for key, time in times if key <= numbers), default=times[0][1])


def nearest_release(level: str, known: Collection[str]) -> str:
    """Level of a release that stands in for one without effects: the nearest of its framework in time.

    A release whose text tells no time counts as one that is not stated.

    Args:
        level: framework and release, separated by a blank.
        known: levels that have effects.
    """
    if level in known:
        return level
    framework, _, release = level.partition(" ")
    time = release_time(framework, release)
    unstated = f"{framework} "
    if math.isnan(time):
        return unstated if unstated in known else level
    others = [name for name in known if name.startswith(unstated) and name != unstated]
    apart = {name: abs(release_time(framework, name.removeprefix(unstated)) - time) for name in others}
    dated = {name: gap for name, gap in apart.items() if not math.isnan(gap)}
    # Of releases of one month the last in the order of their names.
    return min(sorted(dated, reverse=True), key=lambda name: dated[name], default=level)


def framework_level(framework: str, maker: str, release: str) -> str:
    """Name of a framework on chips of a maker: that of its port from the month on in which the port became usual.

    Args:
        framework: its name, as `vllm`.
        maker: of the chip, as `AMD`.
        release: its text; a release that tells no time is a present one.
    """
    port = serving_facts()["ports"].get(framework)
    if port is None or port["maker"] != maker:
        return framework
    time = release_time(framework, release)
    return framework if time < _years(port["since"]) else port["level"]
