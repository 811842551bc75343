"""Domain of a `Plan`: valid numbers of each field, from every source; rules on whole plans are in `rules`."""

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.domains import Bound, Domain, bounds_of

_SWITCHES = read_toml(data_path("domains.toml"))["switches"]

FLAGS: tuple[str, ...] = tuple(_SWITCHES["flags"])
"""Fields that are 1 where software has a feature, else 0."""

WORDS: tuple[str, ...] = tuple(_SWITCHES["words"])
"""Switches set by a word, see `plan.SWITCHES`."""

PLAN = Domain(
    "Plan",
    {
        **bounds_of("Plan"),
        **dict.fromkeys(FLAGS, Bound(0.0, 1.0, False, "1 where software does so")),
        **dict.fromkeys(WORDS, Bound(0.0, 1.0, False, "1 where the word of this name is chosen")),
    },
)
"""Valid numbers of a `Plan`."""
