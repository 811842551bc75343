"""Values of settings by the last part of their key, and conversions that several frameworks share."""

import math
from collections.abc import Mapping
from typing import Any

from jaxscale.models import catalogue_model
from jaxscale.plans.plan import END_STAGES
from jaxscale.runs.schema import BY_NAME
from jaxscale.tables.words import respelt, translate

Settings = Mapping[str, Any]
Cells = dict[str, Any]


class ReadSettings:
    """Settings of a file; each setting that a rule asks for counts as understood.

    Attributes:
        settings: value by key.
        is_complete: whether an option that is absent has the program's default, as on a command line.
        understood: keys that were asked for.
        doubtful: keys with a known name and an unknown value.
        last: key of the most recent lookup that found a setting.
    """

    def __init__(self, settings: Settings, is_complete: bool = False):
        """Args: settings: value by key; is_complete: whether an absent option has the program's default."""
        self.settings, self.is_complete = settings, is_complete
        self.understood: set[str] = set()
        self.doubtful: set[str] = set()
        self.last = ""
        self._keys: dict[str, list[str]] = {}
        for key in settings:
            parts = key.split(".")
            # Every suffix of a key is a name, as frameworks nest the options differently.
            for start in range(len(parts)):
                self._keys.setdefault(".".join(parts[start:]), []).append(key)

    def value(self, *names: str) -> Any:
        """Value of the first setting whose key ends in a given name; None where no key does."""
        found = None
        for name in names:
            for key in self._keys.get(name, ()):
                self.understood.add(key)
                if found is None and self.settings[key] is not None:
                    found, self.last = self.settings[key], key
        return found

    def number(self, *names: str) -> float | None:
        """Value as a number; None where it is absent or no number."""
        return plain_number(self.value(*names))

    def flag(self, *names: str) -> bool | None:
        """Value as a switch; None where it is absent, or false where absent options are off."""
        value = self.value(*names)
        if isinstance(value, str):
            value = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(value.lower())
        # An absent flag of a command line is off.
        return bool(value) if value is not None else False if self.is_complete else None

    def word(self, column: str, *names: str, own: Mapping[str, str] | None = None) -> str | None:
        """Word of a column for the value of a setting, as tables spell the word; None for an absent or unknown value.

        Args:
            column: of a runs table.
            names: last parts of the key.
            own: words whose meaning in this program differs from the usual meaning, in small letters.
        """
        value = self.value(*names)
        if not isinstance(value, str) or value.lower() in ("", "auto", "autoselected", "default"):
            return None
        # A name of a hub has its owner before it.
        entry, text = BY_NAME[column], respelt(column, value.rsplit("/", 1)[-1])
        text = (own or {}).get(text.lower(), text)
        meant = entry.words.get(text.lower()) if entry.words else translate(entry.vocabulary, text)
        if meant is None:
            self.doubtful.add(self.last)
        return meant

    def chips(self, each: tuple[str, ...], nodes: tuple[str, ...]) -> float | None:
        """Chips: processes per node times nodes [1]."""
        count, hosts = self.number(*each), self.number(*nodes)
        # A launcher without --nnodes starts processes on a single host.
        if hosts is None and "launch.form" in self.settings and not {*nodes} & {*self.settings.get("launch.open", ())}:
            hosts = 1.0
        return count * hosts if count and hosts else None

    def has(self, *names: str) -> bool:
        """Whether any of the names is set."""
        return self.value(*names) not in (None, "", False)


def end_cells(first: float | int, last: float | int, layers: float | int, stages: int) -> Cells:
    """Cells of the layers of the first and last pipeline stage; none where all stages are equal."""
    # Uneven stages: the earlier stages take the rest.
    even = (math.ceil(layers / stages), math.floor(layers / stages))
    return {} if (first, last) == even else dict(zip(END_STAGES, (first, last), strict=True))


def plain_number(value: Any) -> float | None:
    """A value as a number, None where it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def product(cells: Cells, *names: str) -> float | None:
    """Product of cells; None where a cell is empty."""
    found = 1.0
    for name in names:
        value = plain_number(cells.get(name))
        if value is None:
            return None
        found *= value
    return found


def product_of_degrees(cells: Cells, *names: str) -> float:
    """Product of degrees; an empty degree counts as 1 [1]."""
    found = 1.0
    for name in names:
        found *= plain_number(cells.get(name)) or 1.0
    return found


def known_layers(stated: Any, name: Any) -> float | None:
    """Stated layers, else the layers of the named catalogue model; None for a model outside the catalogue [1]."""
    return plain_number(stated) or plain_number((catalogue_model(str(name or "")) or {}).get("n_layers"))


def known_model(name: str) -> str | None:
    """The given name where the catalogue has the model, else None."""
    for spelling in (name, name.replace("_", "-"), name.lower().removesuffix("-pretrain")):
        if catalogue_model(spelling) is not None:
            return spelling
    return None


def take_model(cells: Cells) -> None:
    """Give the cell of the model the spelling that the catalogue knows."""
    if name := cells.get("model"):
        text = str(name).strip().rstrip("/")
        cells["model"] = known_model(text) or known_model(text.rsplit("/", 1)[-1]) or name
