"""Substitute levels for absent levels, and for levels without fitted runs."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from jaxscale.calibration.levels import Levels


@dataclass(frozen=True)
class StandIns:
    """Substitution rules of levels, applied in order before effects are looked up.

    Attributes:
        others: second factor that supplies the level of a run without a level, by factor.
        usual: default level of a run without a level, by factor.
        choices: functions from a level and the known levels of the factor to the substitute level, by factor.
    """

    others: Mapping[str, str] = field(default_factory=dict)
    usual: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Callable[[str, Collection[str]], str]] = field(default_factory=dict)

    def applied(self, levels: Levels, known: Mapping[str, Collection[str]]) -> Levels:
        """Levels after substitution, given the names of levels with effects by factor."""
        for kind, other in self.others.items():
            levels = levels.filled(kind, other)
        for kind, name in self.usual.items():
            levels = levels.replace(levels.missing(kind), {kind: name})
        for kind, choice in self.choices.items():
            names = known.get(kind, ())
            levels = levels.renamed(kind, lambda name, choice=choice, names=names: choice(name, names))
        return levels


def longest_within(name: str, known: Iterable[str]) -> str:
    """The name if known, else the longest known name contained in the name, else the name."""
    known = list(known)
    return name if name in known else max((other for other in known if other in name), key=len, default=name)


NO_STAND_INS = StandIns()
"""No rule: a level without effects has no substitute."""
