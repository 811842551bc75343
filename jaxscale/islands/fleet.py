"""Fleets: islands of chips and the links between islands, in code and in TOML.

An island is an ordinary `Cluster`. A fleet holds the clusters on a leading axis of every leaf, so that `jax.vmap` of
`js.step_time` runs over islands, and the links as matrices. All numbers are float leaves; names are static.

```toml
[islands.east]
gpu = "h100-80gb"
n_gpus = 64

[islands.west]
gpu = "a100-80gb"
n_gpus = 64
uplink_gbit_per_s = 40

[links]
gbit_per_s = 10       # one number, or a matrix with a row for each island
latency_ms = 30

[[links.pair]]
between = ["east", "west"]
gbit_per_s = 5        # both ways
```

A table `[chips."my-chip"]` in the schema of `data/hardware.toml` describes chips absent from the catalogue.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import Number, as_float, stacked
from jaxscale.base.documents import check_keys, data_path, number_of, read_toml
from jaxscale.base.errors import InputError, nearest
from jaxscale.base.smooth import smaller
from jaxscale.base.units import GB, GBIT
from jaxscale.hardware.catalogue import Hardware, cluster, load_hardware
from jaxscale.hardware.cluster import Cluster

NO_LIMIT = 1e15
"""Bandwidth of an unlimited link [byte/s]."""

if TYPE_CHECKING:
    # Static checkers cannot type arithmetic between floats and arrays of any backend, see `jaxscale.base.arrays`.
    PerIsland = Any
    PerPair = Any
else:
    PerIsland = Float[ArrayLike, "*batch island"]
    """Number by island."""

    PerPair = Float[ArrayLike, "*batch island island"]
    """Number by ordered pair of islands, sender first; the diagonal has no meaning."""

REFERENCE_BANDWIDTH = 1.25e8
"""Bandwidth for which the loss of slow links is stated: 1 Gbit/s [byte/s]."""


class Links(eqx.Module):
    r"""Links between islands: bandwidths and latencies.

    A transfer over a link of nominal bandwidth W takes $1 + a \sqrt{W_0 / W}$ times the nominal time, with $W_0$ the
    `REFERENCE_BANDWIDTH`: protocols lose more on slow links (fitted form, see `measured_rounds`).

    Attributes:
        bandwidth: nominal bandwidth from each island to each island [byte/s].
        latency: latency of a message over each link [s].
        uplink: total bandwidth of an island over all links [byte/s].
        slow_loss: a, relative loss of time of a link at `REFERENCE_BANDWIDTH`; 0 for links without loss [1].
    """

    bandwidth: PerPair
    latency: PerPair
    uplink: PerIsland
    slow_loss: Number = eqx.field(converter=as_float, default=0.0)

    @property
    def rate(self) -> Array:
        """Effective bandwidth of a single transfer between each pair of islands [byte/s], [island, island]."""
        uplink = jnp.asarray(self.uplink)
        # An island sends and receives within the uplink: the smaller of two ends.
        ends = smaller(uplink[..., :, None], uplink[..., None, :])
        # The diagonal is unused and may be zero, so its value is replaced before a division.
        itself = jnp.eye(ends.shape[-1], dtype=bool)
        # The diagonal is unlimited: no division by zero reaches the gradient.
        nominal = jnp.where(itself, NO_LIMIT, smaller(jnp.where(itself, NO_LIMIT, self.bandwidth), ends))
        # Time factor 1 + a sqrt(W_0 / W).
        return nominal / (1.0 + self.slow_loss * jnp.sqrt(REFERENCE_BANDWIDTH / nominal))


class Fleet(eqx.Module):
    """Islands of chips, and the links between islands.

    Attributes:
        clusters: chips and network of each island; every leaf has the leading axis [island].
        links: bandwidths and latencies between islands.
        names: names of the islands.
    """

    clusters: Cluster
    links: Links
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def n_islands(self) -> int:
        """Number of islands [1]."""
        return len(self.names)

    def cluster(self, island: int) -> Cluster:
        """Chips and network of an island."""
        return jax.tree.map(lambda leaf: leaf[island], self.clusters)

    def part(self, islands: Sequence[int]) -> "Fleet":
        """Fleet restricted to selected islands, in the given order."""
        kept = np.asarray(islands, int)
        clusters = jax.tree.map(lambda leaf: leaf[kept], self.clusters)
        return Fleet(clusters, part_of_links(self.links, islands), tuple(self.names[island] for island in islands))


def part_of_links(links: Links, islands: Sequence[int] | np.ndarray) -> Links:
    """Links restricted to selected islands, in the given order."""
    kept = np.asarray(islands, int)
    matrices = (links.bandwidth, links.latency)
    # (..., island, island): rows, then columns.
    bandwidth, latency = (as_indexable(matrix)[..., kept, :][..., :, kept] for matrix in matrices)
    return Links(bandwidth, latency, as_indexable(links.uplink)[..., kept], links.slow_loss)


def as_indexable(leaf: Any) -> Any:
    """Leaf as an array; numpy and JAX arrays and tracers are unchanged."""
    return leaf if isinstance(leaf, np.ndarray | jax.Array) else np.asarray(leaf)


def host_rate(links: Links) -> Float[np.ndarray, "island island"]:
    """Effective bandwidth between each pair of islands, `Links.rate` in numpy [byte/s], [island, island]."""
    uplink = np.asarray(links.uplink)
    nominal = np.minimum(np.asarray(links.bandwidth), np.minimum(uplink[:, None], uplink[None, :]))
    # The diagonal is unused and may be zero.
    nominal = np.where(np.eye(len(nominal), dtype=bool), NO_LIMIT, nominal)
    return nominal / (1.0 + np.asarray(links.slow_loss) * np.sqrt(REFERENCE_BANDWIDTH / nominal))


def uniform_links(
    n_islands: int,
    bandwidth: ArrayLike,
    latency: ArrayLike = 0.0,
    *,
    uplink: ArrayLike = NO_LIMIT,
    slow_loss: ArrayLike = 0.0,
) -> Links:
    """Equal links between all islands.

    Args:
        n_islands: number of islands [1].
        bandwidth: bandwidth of every link [byte/s].
        latency: latency of every link [s].
        uplink: uplink bandwidth of every island [byte/s].
        slow_loss: relative loss of time of a link at `REFERENCE_BANDWIDTH` [1].
    """
    square = jnp.ones((n_islands, n_islands))
    return Links(square * bandwidth, square * latency, jnp.ones(n_islands) * uplink, slow_loss)


def fleet_of(clusters: Sequence[Cluster], links: Links, names: Sequence[str] = ()) -> Fleet:
    """Fleet from a cluster per island and the links.

    Args:
        clusters: cluster of each island.
        names: names of the islands; by default `island 1` and so on.

    Raises:
        InputError: no island, matrices of a wrong size, numbers that are not positive, or repeated names.
    """
    count = len(clusters)
    if not count:
        raise InputError("a fleet has no islands; expected at least one")
    given = tuple(names) or tuple(f"island {place + 1}" for place in range(count))
    if len(set(given)) != count:
        raise InputError(f"names of islands = {', '.join(given)}; expected {count} different names")
    check_links(links, given)
    return Fleet(stacked(clusters), links, given)


def check_links(links: Links, names: Sequence[str]) -> None:
    """Check the sizes and signs of concrete links.

    Raises:
        InputError: a matrix of a wrong size, or an entry out of range; names the entry.
    """
    count = len(names)
    for label, matrix in (("bandwidth", links.bandwidth), ("latency", links.latency)):
        if np.shape(matrix) != (count, count):
            shape = " x ".join(map(str, np.shape(matrix)))
            raise InputError(f"links: {label} is {shape}; expected {count} x {count}, a row for each island")
    if np.shape(links.uplink) != (count,):
        raise InputError(f"links: uplink has {np.size(links.uplink)} numbers; expected {count}, one for each island")
    bandwidth, latency = np.asarray(links.bandwidth, float), np.asarray(links.latency, float)
    for row, sender in enumerate(names):
        for column, receiver in enumerate(names):
            if row == column:
                continue
            if not 0.0 < bandwidth[row, column] < np.inf:
                value = bandwidth[row, column]
                raise InputError(f"links: bandwidth {sender} -> {receiver} = {value:g}; expected a number above 0")
            if not 0.0 <= latency[row, column] < np.inf:
                value = latency[row, column]
                raise InputError(f"links: latency {sender} -> {receiver} = {value:g}; expected at least 0")
        if not np.asarray(links.uplink)[row] > 0.0:
            raise InputError(f"links: uplink of {sender} = {links.uplink[row]:g}; expected a number above 0")


OF_FLEET = ("islands", "links", "chips")
OF_ISLAND = ("gpu", "n_gpus", "domain_size", "network_gb_per_s", "uplink_gbit_per_s")
OF_LINKS = ("gbit_per_s", "latency_ms", "pair")
OF_PAIR = ("between", "gbit_per_s", "latency_ms")
MOST_CHIPS = 1e10
"""Upper bound of the number of chips of an island, within which whole numbers are exact in floats [1]."""


class StatedFleet(NamedTuple):
    """Fleet read from a file, with the names of the chips.

    Attributes:
        fleet: islands and links.
        chips: catalogue id of the chip of each island.
        hardware: catalogue with the chips of the file.
    """

    fleet: Fleet
    chips: tuple[str, ...]
    hardware: Hardware


def read_fleet(path: str | Path, hardware: Hardware | None = None, slow_loss: float = 0.0) -> StatedFleet:
    """Read a fleet from a TOML file.

    Args:
        hardware: catalogue of chips; by default the shipped catalogue. Chips of the file take precedence.
        slow_loss: relative loss of time of a link at 1 Gbit/s [1].

    Raises:
        InputError: an unreadable file, an unknown key or chip, a number out of range, or matrices of a wrong size; one
            line with file, key and the valid input.
    """
    where, document = str(path), read_toml(Path(path))
    check_keys(where, document, OF_FLEET)
    catalogue = _catalogue(Path(path), document, hardware)
    islands = document.get("islands")
    if not isinstance(islands, dict) or not islands:
        raise InputError(f"{where}: no islands; expected at least one table such as [islands.east]")
    names = tuple(islands)
    clusters, chips, uplinks = [], [], []
    for name in names:
        made, chip, uplink = _island(f"{where}: islands.{name}", islands[name], catalogue)
        clusters.append(made)
        chips.append(chip)
        uplinks.append(uplink)
    links = _links(where, document.get("links"), names, np.asarray(uplinks), slow_loss)
    return StatedFleet(fleet_of(clusters, links, names), tuple(chips), catalogue)


def _catalogue(path: Path, document: Mapping[str, Any], hardware: Hardware | None) -> Hardware:
    """Catalogue with the chips of the file added."""
    base = hardware or load_hardware()
    if "chips" not in document:
        return base
    # Chips of the file take precedence.
    own = load_hardware(path)
    return Hardware({**base.chips, **own.chips}, {**base.anchors, **own.anchors}, {**base.kernels, **own.kernels})


def _number(where: str, value: Any, low: float, above: bool = True, high: float = 1e15) -> float:
    """Number checked against a range, with the lower end excluded where `above`."""
    expected = f"a number {'above' if above else 'of at least'} {low:g}"
    return number_of(where, value, expected, low, high, is_above=above)


def _island(where: str, table: Any, hardware: Hardware) -> tuple[Cluster, str, float]:
    """Cluster, chip and uplink [byte/s] of an island."""
    check_keys(where, table, OF_ISLAND)
    for key in ("gpu", "n_gpus"):
        if key not in table:
            raise InputError(f"{where}: {key} is missing; it is required")
    count = _number(f"{where}.n_gpus", table["n_gpus"], 1.0, above=False, high=MOST_CHIPS)
    if not count.is_integer():
        raise InputError(f"{where}.n_gpus = {count:g} is no whole number; expected one")
    size, network, uplink = (
        _number(f"{where}.{key}", table[key], 0.0) if key in table else None
        for key in ("domain_size", "network_gb_per_s", "uplink_gbit_per_s")
    )
    try:
        entry = hardware[str(table["gpu"])]
    except InputError as error:
        raise InputError(f"{where}.{error}") from None
    bandwidth = None if network is None else network * GB
    made = cluster(entry.id, count, domain_size=size, bandwidth=bandwidth, hardware=hardware)
    return made, entry.id, NO_LIMIT if uplink is None else uplink * GBIT


def _links(where: str, table: Any, names: tuple[str, ...], uplinks: np.ndarray, slow_loss: float) -> Links:
    """Links of a file; a single island needs none."""
    count = len(names)
    if table is None:
        if count > 1:
            raise InputError(f"{where}: [links] is missing; {count} islands need gbit_per_s and latency_ms")
        # A single island sends nothing: any number serves.
        table = {"gbit_per_s": 1.0}
    check_keys(f"{where}: links", table, OF_LINKS)
    pairs = table.get("pair", [])
    if not isinstance(pairs, list):
        raise InputError(f"{where}: links.pair is no list of tables; expected [[links.pair]]")
    bandwidth = _matrix(f"{where}: links.gbit_per_s", table.get("gbit_per_s"), names, bool(pairs), 0.0, above=True)
    latency = _matrix(f"{where}: links.latency_ms", table.get("latency_ms", 0.0), names, False, 0.0, above=False)
    for place, pair in enumerate(pairs):
        _set_pair(f"{where}: links.pair[{place}]", pair, names, bandwidth, latency)
    _check_stated(where, bandwidth, names)
    # Gbit/s to byte/s, ms to s.
    return Links(bandwidth * GBIT, latency * 1e-3, uplinks, slow_loss)


def _matrix(where: str, value: Any, names: Sequence[str], optional: bool, low: float, above: bool) -> np.ndarray:
    """Matrix over pairs of islands, from a number or from rows; nan where not stated."""
    count = len(names)
    if value is None:
        if not optional and count > 1:
            raise InputError(f"{where} is missing; expected a number, or a row for each of the {count} islands")
        # Pairs may state the bandwidth later.
        return np.full((count, count), np.nan)
    if not isinstance(value, list):
        return np.full((count, count), _number(where, value, low, above))
    if len(value) != count:
        raise InputError(f"{where} has {len(value)} rows; expected {count}, one for each of {', '.join(names)}")
    matrix = np.zeros((count, count))
    for row, (name, cells) in enumerate(zip(names, value, strict=True)):
        if not isinstance(cells, list) or len(cells) != count:
            length = len(cells) if isinstance(cells, list) else 1
            raise InputError(f"{where}: row of {name} has {length} numbers; expected {count}, one for each island")
        for column, cell in enumerate(cells):
            # The diagonal, a link from an island to itself, is unused.
            if row != column:
                matrix[row, column] = _number(f"{where}: {name} -> {names[column]}", cell, low, above)
    return matrix


def _set_pair(where: str, pair: Any, names: Sequence[str], bandwidth: np.ndarray, latency: np.ndarray) -> None:
    """Enter the numbers of a pair, in each direction."""
    check_keys(where, pair, OF_PAIR)
    ends = pair.get("between")
    if not isinstance(ends, list) or len(ends) != 2 or ends[0] == ends[1]:
        raise InputError(f"{where}.between = {ends!r}; expected the names of two islands")
    for end in ends:
        if end not in names:
            raise InputError(f"{where}.between: {end!r} is not an island; {nearest(str(end), names)}")
    first, second = (names.index(end) for end in ends)
    if "gbit_per_s" in pair:
        value = _number(f"{where}.gbit_per_s", pair["gbit_per_s"], 0.0)
        # A link of a pair has equal bandwidth in each direction.
        bandwidth[first, second] = bandwidth[second, first] = value
    if "latency_ms" in pair:
        value = _number(f"{where}.latency_ms", pair["latency_ms"], 0.0, above=False)
        latency[first, second] = latency[second, first] = value


def _check_stated(where: str, bandwidth: np.ndarray, names: Sequence[str]) -> None:
    """Check that each pair of islands has a link."""
    for row, sender in enumerate(names):
        for column, receiver in enumerate(names):
            if row != column and np.isnan(bandwidth[row, column]):
                raise InputError(
                    f"{where}: no link between {sender} and {receiver}; expected links.gbit_per_s or a pair"
                )


def stated_slow_loss() -> float:
    """Relative loss of time of a link at 1 Gbit/s, fitted to measured runs by `fits/measured_rounds.py` [1]."""
    return float(read_toml(data_path("islands.toml"))["links"]["slow_loss"]["value"])
