"""Values of settings by the last part of their key, and what several rules make of them."""

import math
from collections.abc import Mapping
from typing import Any

from jaxscale.models import catalogue_model
from jaxscale.plans.plan import END_STAGES

Settings = Mapping[str, Any]
Cells = dict[str, Any]


class ReadSettings:
    """Settings of a file, of which each one that a rule asks for counts as understood.

    Attributes:
        settings: value by key.
        is_complete: whether an option that is absent has the program's default, as on a command line.
        understood: keys that were asked for.
        last: the key that was found last.
    """

    def __init__(self, settings: Settings, is_complete: bool = False):
        """Args: settings: value by key; is_complete: whether an absent option has the program's default."""
        self.settings, self.is_complete = settings, is_complete
        self.understood: set[str] = set()
        self.last = ""

    def value(self, *names: str) -> Any:
        """Value of the first setting whose last part has one of the names; None where none has."""
        found = None
        for name in names:
            for key, value in self.settings.items():
                if key == name or key.endswith(f".{name}"):
                    self.understood.add(key)
                    if found is None and value is not None:
                        found, self.last = value, key
        return found

    def number(self, *names: str) -> float | None:
        """Value as a number; None where it is absent or no number."""
        return plain_number(self.value(*names))

    def flag(self, *names: str) -> bool | None:
        """Value as a switch; None where it is absent, or false where absent options are off."""
        value = self.value(*names)
        if isinstance(value, str):
            value = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(value.lower())
        return bool(value) if value is not None else False if self.is_complete else None

    def has(self, *names: str) -> bool:
        """Whether one of the names is set to something."""
        return self.value(*names) not in (None, "", False)


def value_of(settings: Settings, *names: str) -> Any:
    """Value of the first setting whose last part has one of the names; None where none has."""
    return ReadSettings(settings).value(*names)


def end_cells(first: float | int, last: float | int, layers: float | int, stages: int) -> Cells:
    """Cells of the layers of both ends of a pipeline; none where they are an even share of all layers."""
    even = (math.ceil(layers / stages), math.floor(layers / stages))
    return {} if (first, last) == even else dict(zip(END_STAGES, (first, last), strict=True))


def plain_number(value: Any) -> float | None:
    """A value as a number, None where it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def product(cells: Cells, *names: str) -> float | None:
    """Product of several cells, None where one is empty."""
    found = 1.0
    for name in names:
        value = plain_number(cells.get(name))
        if value is None:
            return None
        found *= value
    return found


def product_of_degrees(cells: Cells, *names: str) -> float:
    """Product of degrees, an empty one counting as 1 [1]."""
    found = 1.0
    for name in names:
        found *= plain_number(cells.get(name)) or 1.0
    return found


def known_model(name: str) -> str | None:
    """A name that the catalogue knows, as it was given; None for another."""
    for spelling in (name, name.replace("_", "-"), name.lower().removesuffix("-pretrain")):
        if catalogue_model(spelling) is not None:
            return spelling
    return None


def take_model(cells: Cells) -> None:
    """Give the cell of the model the spelling that the catalogue knows."""
    if name := cells.get("model"):
        text = str(name).strip().rstrip("/")
        cells["model"] = known_model(text) or known_model(text.rsplit("/", 1)[-1]) or name
