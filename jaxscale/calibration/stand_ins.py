"""Levels that stand in for others: for a run that names none of a kind, or one that no fitted run had."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from jaxscale.calibration.levels import Levels


@dataclass(frozen=True)
class StandIns:
    """Rules by which the levels of runs are read before their effects are looked up, in this order.

    Attributes:
        others: kind of level whose level counts for a run that has none of a kind, by that kind.
        usual: level of a run that has none of a kind, by that kind.
        choices: functions that take a level and the known ones of its kind and return the one that counts, by kind.
    """

    others: Mapping[str, str] = field(default_factory=dict)
    usual: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Callable[[str, Collection[str]], str]] = field(default_factory=dict)

    def applied(self, levels: Levels, known: Mapping[str, Collection[str]]) -> Levels:
        """Levels with those that stand in for others.

        Args:
            levels: of the runs.
            known: names of the levels that have effects, by kind.

        Returns:
            The levels whose effects count.
        """
        for kind, other in self.others.items():
            levels = levels.filled(kind, other)
        for kind, name in self.usual.items():
            levels = levels.replace(levels.missing(kind), {kind: name})
        for kind, choice in self.choices.items():
            names = known.get(kind, ())
            levels = levels.renamed(kind, lambda name, choice=choice, names=names: choice(name, names))
        return levels


def longest_within(name: str, known: Iterable[str]) -> str:
    """A name if it is known, else the longest known name within it, else the name itself."""
    known = list(known)
    return name if name in known else max((other for other in known if other in name), key=len, default=name)


NO_STAND_INS = StandIns()
"""No rule: a level without effects has none."""
