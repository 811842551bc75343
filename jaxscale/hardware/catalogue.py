"""Catalogue of chips: a TOML table with a source for every number, looked up by name.

A user's hardware file has the schema of `data/hardware.toml`. Entries of the file are added to the shipped entries and
replace entries of equal name.

Names of chips are compared by words: `NVIDIA A100-SXM4-80GB`, `a100_sxm4_80g` and `A100 SXM4 80 GB` are equal. A less
specific name, such as `A100`, may match several chips and is then refused as ambiguous.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxscale.base.documents import check_keys, data_path, number_of, read_toml
from jaxscale.base.errors import InputError, nearest, one_like
from jaxscale.base.units import GB
from jaxscale.hardware.cluster import Chip, Cluster, Network
from jaxscale.hardware.formats import FORMATS, PRECISIONS

VENDORS = frozenset(
    "nvidia amd google intel aws amazon huawei habana instinct tesla geforce quadro cloud gpu gpus tpu hpu npu "
    "accelerator generation series chip r tm".split()
)
"""Words that tell no chip from another."""

# Eight chips, as `8x H100`; a slice of a pod, as `v5p-128`.

_COUNT = re.compile(r"(?<![a-z0-9])\d{1,5} ?[x*] ?(?=[a-z])|(?<![a-z0-9])\d{1,5}x(?= )|(?<![a-z0-9])[x*] ?\d{1,5}$")
_SLICE = re.compile(r"^((?:tpu[ -]?)?(?:v\d[ep]?|v\dlitepod|v7x))-\d{1,5}$")
_MEMORY = re.compile(r"(\d{2,3})[ _-]?(?:gib|gb|g)(?![a-z0-9])")
_FORM = re.compile(r"(sxm\d?|pcie|nvl)(?=$|[^a-z])")
_HAS_DIGIT = re.compile(r"\d")
_NOT_A_CHIP = re.compile(r"\d+gb|sxm\d?|hbm\d?e?|nvl\d*")


@functools.cache
def words_of(name: str) -> tuple[str, ...]:
    """Distinguishing words of a chip name, in order: (a100, sxm4, 80gb) for `NVIDIA A100-SXM4-80GB`."""
    text = _SLICE.sub(
        r"\1", _COUNT.sub(" ", name.lower().replace("_", " ").replace("tensor core", " ").strip()).strip()
    )
    text = _FORM.sub(r" \1 ", _MEMORY.sub(r" \1gb ", text))
    words = [word for word in re.split(r"[^a-z0-9]+", text) if word]
    return tuple(word for word in words if word not in VENDORS)


@dataclass(frozen=True)
class ChipNames:
    """Look-up of the chips of a catalogue by name.

    Attributes:
        ids: catalogue id by name, for ids, aliases and full names.
    """

    ids: Mapping[str, str]

    @functools.cached_property
    def _by_key(self) -> dict[str, set[str]]:
        keys: dict[str, set[str]] = {}
        for name, chip in self.ids.items():
            keys.setdefault("".join(words_of(name)), set()).add(chip)
        return keys

    @functools.cached_property
    def _words(self) -> dict[str, set[str]]:
        """Words of all names of each chip; a word such as `sxm5` implies `sxm`."""
        words: dict[str, set[str]] = {}
        for name, chip in self.ids.items():
            for word in words_of(name):
                words.setdefault(chip, set()).update({word, word[:3] if word.startswith("sxm") else word})
        return words

    def meant(self, name: str) -> tuple[str, ...]:
        """Catalogue ids that match a name: several for an ambiguous name, none for an unknown name."""
        if name in self.ids:
            return (self.ids[name],)
        words = words_of(name)
        if exact := self._by_key.get("".join(words)):
            return tuple(sorted(exact))
        names_a_chip = any(_HAS_DIGIT.search(word) and not _NOT_A_CHIP.fullmatch(word) for word in words)
        # One or two digits alone are a count or a version, and are part of many full names.
        if not names_a_chip or all(word.isdigit() and len(word) < 3 for word in words):
            return ()
        return tuple(sorted(chip for chip, its in self._words.items() if its.issuperset(words)))

    def problem(self, name: str, meant: tuple[str, ...], *, asks: bool = False) -> str:
        """End of a message about an unknown or ambiguous name, with valid names.

        Args:
            name: the name.
            meant: catalogue ids that match the name.
            asks: whether similar names are offered as a question instead of a statement.

        Returns:
            The end of a message.
        """
        if meant:
            return f"ambiguous, as chips of that name differ in form or memory; expected one of {', '.join(meant)}"
        if name.lower().endswith(".toml"):
            return f"a file; expected the id of one of its chips, beside --hardware {name}"
        like = (nearest if asks else one_like)(name.lower(), self.ids)
        return f"not in the hardware catalogue; {like}"

    def __getitem__(self, name: str) -> str:
        """Catalogue id of a chip name.

        Raises:
            InputError: an unknown or ambiguous name; lists candidates.
        """
        meant = self.meant(name)
        if len(meant) == 1:
            return meant[0]
        raise InputError(f"gpu {name!r} is {self.problem(name, meant, asks=True)}")


REQUIRED = ("memory_gb", "memory_gb_per_s")
PCIE_GB_PER_S = 16.0
"""PCIe 3.0 x16, one direction: the link of a chip whose file names neither link nor network [GB/s]."""

NUMBERS = (
    *REQUIRED,
    # Peaks of 16 bits come first, as those of other formats may follow from them.
    *(f"peak_tflops_{precision}" for precision in sorted(PRECISIONS, key=lambda name: name != "bf16")),
    "domain_size",
    "tray_size",
    "link_gb_per_s",
    "link_peers",
    "link_latency_us",
    "network_gb_per_s",
    "network_latency_us",
    "rail_size",
    "spine_gb_per_s",
    "spine_latency_us",
    "max_power_w",
    "idle_power_w",
)
"""Every number a chip may state, in the order in which missing ones are filled in."""

TEXTS = ("vendor", "name", "note", "aliases", "source")
"""What a chip may state beside its numbers."""

LEAST = 1e-9
"""Least number that a chip may state, in the unit of its table: smaller ones vanish in arithmetic on floats [1]."""

NO_SPINE = 1e9
"""Rail size of a network without a spine level: more chips than any cluster has [1]."""


@dataclass(frozen=True)
class ChipEntry:
    """Catalogue entry of a chip: numbers with sources.

    Attributes:
        id: catalogue id.
        name: full name.
        numbers: numbers by name in the units of the file, with substitutes for missing numbers.
        stated: names of the numbers stated in the file.
        sources: source key of each stated number, where given.
        fallbacks: text on the substitute of each missing number, by name.
    """

    id: str
    name: str
    numbers: Mapping[str, float]
    stated: tuple[str, ...]
    sources: Mapping[str, str]
    fallbacks: Mapping[str, str]

    def lacks(self, precision: str) -> str:
        """Note on the substitute for a peak missing from the catalogue; empty for a stated peak."""
        instead = self.fallbacks.get(f"peak_tflops_{precision}")
        return f"{self.id} states no peak in {precision}: {instead}" if instead else ""

    def chip(self) -> Chip:
        """Chip with numbers in SI units."""
        n = self.numbers
        peaks = np.asarray([n[f"peak_tflops_{precision}"] * 1e12 for precision in PRECISIONS])
        return Chip(peaks, n["memory_gb"] * GB, n["memory_gb_per_s"] * GB, n["idle_power_w"], n["max_power_w"])

    def network(self, domain_size: int | float | None = None, bandwidth: int | float | None = None) -> Network:
        """Reference network of the chip in SI units.

        Args:
            domain_size: chips per scale-up domain; by default the catalogue's. The number of chips of a tray (a host
                of a rack-scale domain) stands for the whole domain [1].
            bandwidth: scale-out bandwidth per chip and direction; by default the catalogue's [byte/s].

        Returns:
            The network, with three levels.
        """
        n = self.numbers
        domain = n["domain_size"] if domain_size in (None, n["tray_size"]) else float(domain_size)
        scale_out = n["network_gb_per_s"] if bandwidth is None else bandwidth / GB
        spine = n["spine_gb_per_s"] * scale_out / n["network_gb_per_s"]
        return Network(
            domain_size=np.asarray([domain, max(n["rail_size"], domain), 1e12]),
            bandwidth=np.asarray([n["link_gb_per_s"], scale_out, spine]) * GB,
            latency=np.asarray([n["link_latency_us"], n["network_latency_us"], n["spine_latency_us"]]) * 1e-6,
            link_peers=n["link_peers"],
        )


@dataclass(frozen=True)
class Hardware:
    """Catalogue of chips, with measured efficiencies of a user's hardware file.

    Attributes:
        chips: entries by catalogue id and alias.
        anchors: share of the peak reached in large matmuls by chip, from the user's file [1].
        kernels: coefficients of traced kernels by chip and name, from the user's file; units as in `data/kernels.toml`.
    """

    chips: Mapping[str, ChipEntry]
    anchors: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @functools.cached_property
    def names(self) -> ChipNames:
        """Look-up of catalogue ids by id, alias and full name."""
        full_names = {entry.name.lower(): entry.id for entry in self.chips.values()}
        return ChipNames(full_names | {name: entry.id for name, entry in self.chips.items()})

    def __getitem__(self, name: str) -> ChipEntry:
        """Entry of a chip, by id or by a name in any common spelling.

        Raises:
            InputError: an unknown or ambiguous name; lists the closest names.
        """
        return self.chips.get(name) or self.chips[self.names[name]]

    def chip_id(self, cluster: Cluster) -> str | None:
        """Catalogue id of the chip of a concrete cluster, identified by its numbers; None if no entry is equal.

        Among chips of equal numbers, for example variants with slower links, the network decides.
        """
        alike = [entry for entry in self.chips.values() if _equal(entry.chip(), cluster.chip)]
        linked = [entry for entry in alike if _equal(entry.network(), cluster.network)]
        return next((entry.id for entry in (*linked, *alike)), None)


def _equal(first: Chip | Network, second: Chip | Network) -> bool:
    """Whether two concrete modules have the same numbers."""
    return all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(second)))


def load_hardware(path: str | Path | None = None) -> Hardware:
    """Catalogue of the shipped chips and of the chips of a user's file.

    Args:
        path: TOML file in the schema of `data/hardware.toml`, with optional [[anchors]] as in `data/chip_anchors.toml`
            and [kernels.<chip>] as in [fits.jax] of `data/kernels.toml`; `jaxscale measure` writes both tables.
            By default the shipped catalogue only.

    Returns:
        The catalogue.

    Raises:
        InputError: the file is missing or malformed; names chip, number and valid range.
    """
    chips = dict(_shipped_chips())
    if path is None:
        return Hardware(chips)
    content = read_toml(Path(path))
    own = _parse_chips(Path(path), content)
    return Hardware(chips | own, _parse_anchors(Path(path), content, own), _parse_kernels(Path(path), content, own))


@functools.cache
def _shipped_chips() -> dict[str, ChipEntry]:
    return _parse_chips(data_path("hardware.toml"), _shipped_table())


@functools.cache
def _shipped_table() -> dict[str, Any]:
    """Content of the shipped catalogue: chips, and substitutes of numbers that are not stated."""
    return read_toml(data_path("hardware.toml"))


def _parse_chips(path: Path, content: Mapping[str, Any]) -> dict[str, ChipEntry]:
    table = content.get("chips")
    if not isinstance(table, dict) or not table:
        raise InputError(f'{path}: no chips; expected at least one table such as [chips."my-chip"]')
    entries: dict[str, ChipEntry] = {}
    for chip_id, fields in table.items():
        if not isinstance(fields, dict):
            raise InputError(f"{path}: chips.{chip_id} must be a table of numbers")
        entry = parsed_chip(f"{path}: chips.{chip_id}", chip_id, fields)
        entries |= dict.fromkeys([chip_id, *fields.get("aliases", [])], entry)
    return entries


def _parse_anchors(path: Path, content: Mapping[str, Any], chips: Mapping[str, ChipEntry]) -> dict[str, float]:
    """Matmul efficiency by chip of the file [1]."""
    found: dict[str, float] = {}
    entries = content.get("anchors", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{path}: anchors must be tables; expected [[anchors]] with chips and matmul_efficiency")
    for entry in entries:
        check_keys(f"{path}: anchors", entry, ("chips", "matmul_efficiency", "source", "date"), "of an anchor")
        share = number_of(
            f"{path}: anchors.matmul_efficiency",
            entry.get("matmul_efficiency"),
            "a share of the peak above 0 and up to 0.99",
            LEAST,
            0.99,
        )
        found |= {_own_chip(f"{path}: anchors", chip, chips): share for chip in entry.get("chips", [])}
    return found


def _parse_kernels(
    path: Path, content: Mapping[str, Any], chips: Mapping[str, ChipEntry]
) -> dict[str, dict[str, float]]:
    """Coefficients of traced kernels by chip of the file and name."""
    tables = content.get("kernels", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise InputError(f'{path}: kernels must be tables of numbers; expected [kernels."my-chip"]')
    known = read_toml(data_path("kernels.toml"))["coefficients"]
    found: dict[str, dict[str, float]] = {}
    for chip_id, table in tables.items():
        where = f"{path}: kernels.{_own_chip(f'{path}: kernels', chip_id, chips)}"
        check_keys(where, table, known, "a coefficient of kernels")
        found[chips[chip_id].id] = {
            key: number_of(f"{where}.{key}", value, "0 or more") for key, value in table.items()
        }
    return found


def _own_chip(where: str, chip_id: Any, chips: Mapping[str, ChipEntry]) -> str:
    """Id of a chip that the file states, as it is."""
    if chip_id not in chips:
        raise InputError(f"{where}: {chip_id!r} is no chip of the file; expected one of {', '.join(chips)}")
    return chips[chip_id].id


def parsed_chip(where: str, chip_id: str, fields: Mapping[str, Any]) -> ChipEntry:
    """Catalogue entry of a chip from a TOML table, in the schema of `data/hardware.toml`.

    Args:
        where: file and table, the start of error messages.
        chip_id: catalogue id.
        fields: content of the table.

    Raises:
        InputError: an unknown key, or a missing number or number out of range.
    """
    stated = {key: value for key, value in fields.items() if key not in TEXTS}
    check_keys(where, stated, NUMBERS, "a known number")
    # A domain, a tray and a rail have a chip at least.
    lows = {key: 1.0 if key.endswith("_size") else LEAST for key in NUMBERS if key in stated}
    numbers = {
        key: number_of(f"{where}.{key}", stated[key], f"a number from {low:g} to 1e15", low, 1e15)
        for key, low in lows.items()
    }
    for key in (*REQUIRED, "peak_tflops_bf16"):
        if key not in numbers and not (key == "peak_tflops_bf16" and "peak_tflops_fp32" in numbers):
            raise InputError(f"{where}: {key} is missing; it is required, a number above 0")
    if numbers.get("domain_size", 1.0) > 1.0 and "link_gb_per_s" not in numbers:
        raise InputError(f"{where}: link_gb_per_s is missing; a domain of several chips needs it")
    sources = {key: str(v["source"]) for key, v in fields.items() if isinstance(v, dict) and "source" in v}
    filled, fallbacks = _fill(numbers)
    return ChipEntry(chip_id, str(fields.get("name", chip_id)), filled, tuple(numbers), sources, fallbacks)


def _fill(stated: Mapping[str, float]) -> tuple[dict[str, float], dict[str, str]]:
    """Numbers completed by the table [fallbacks], and the substitute of each completed number."""
    numbers, said = dict(stated), {}
    for key in NUMBERS:
        if key in numbers:
            continue
        rule = _shipped_table()["fallbacks"].get(key) or _without_units(key)
        if "value" in rule:
            numbers[key], said[key] = float(rule["value"]), f"{rule['value']:g}"
        elif rule.get("from") in numbers:
            numbers[key], said[key] = rule["ratio"] * numbers[rule["from"]], f"{rule['ratio']:g} x {rule['from']}"
        elif key == "rail_size":
            numbers[key], said[key] = NO_SPINE, "no spine"
        else:
            numbers[key], said[key] = PCIE_GB_PER_S, f"{PCIE_GB_PER_S:g} (PCIe 3.0 x16)"
    return numbers, said


def _without_units(key: str) -> dict[str, Any]:
    """Peak of a number format outside of the table [fallbacks]: the peak of the substitute format."""
    (entry,) = [entry for entry in FORMATS if key == f"peak_tflops_{entry.name}"]
    return {"from": f"peak_tflops_{entry.without_units}", "ratio": 1.0}


def chip(chip_id: str, hardware: Hardware | None = None) -> Chip:
    """Chip of the catalogue: `js.chip("h100-80gb")`.

    Raises:
        InputError: unknown id.
    """
    return (hardware or load_hardware())[chip_id].chip()


def cluster(
    chip_id: str,
    n_chips: int | float,
    *,
    domain_size: int | float | None = None,
    bandwidth: int | float | None = None,
    hardware: Hardware | None = None,
) -> Cluster:
    """Cluster of chips of the catalogue on their reference network.

    Args:
        chip_id: catalogue id.
        n_chips: number of chips [1].
        domain_size: chips per scale-up domain; by default, and for the chips of a tray, the catalogue's [1].
        bandwidth: scale-out bandwidth per chip and direction; by default the catalogue's [byte/s].
        hardware: catalogue of chips; by default the shipped catalogue.

    Returns:
        The cluster.

    Raises:
        InputError: unknown id, or fewer than one chip.
    """
    if not n_chips >= 1:
        raise InputError(f"n_chips = {n_chips} is out of range; expected at least 1")
    entry = (hardware or load_hardware())[chip_id]
    return Cluster(entry.chip(), entry.network(domain_size, bandwidth), n_chips)
