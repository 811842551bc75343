"""Spellings of chip names: the entries of the catalogue that a name may mean.

Names are compared by words: `NVIDIA A100-SXM4-80GB`, `a100_sxm4_80g` and `A100 SXM4 80 GB` are equal. A less specific
name, as `A100`, may mean several chips, and then none is chosen.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from jaxscale.base.errors import InputError, nearest, one_like

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
    """Distinguishing words of a name, in order: `NVIDIA A100-SXM4-80GB` is (a100, sxm4, 80gb)."""
    text = _SLICE.sub(
        r"\1", _COUNT.sub(" ", name.lower().replace("_", " ").replace("tensor core", " ").strip()).strip()
    )
    text = _FORM.sub(r" \1 ", _MEMORY.sub(r" \1gb ", text))
    words = [word for word in re.split(r"[^a-z0-9]+", text) if word]
    return tuple(word for word in words if word not in VENDORS)


@dataclass(frozen=True)
class ChipNames:
    """Names of a catalogue of chips.

    Attributes:
        ids: catalogue id by name, ids themselves, aliases and full names included.
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
        """Catalogue ids that a name may mean: several for an ambiguous name, none for an unknown name."""
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
        """End of a message for an unknown or ambiguous name, with valid names.

        Args:
            name: the name.
            meant: catalogue ids that the name may mean.
            asks: put the nearest names as a question instead of a statement.

        Returns:
            The end of a message.
        """
        if meant:
            return f"ambiguous, as chips of that name differ in form or memory; expected one of {', '.join(meant)}"
        like = (nearest if asks else one_like)(name.lower(), self.ids)
        return f"not in the hardware catalogue; {like}"

    def __getitem__(self, name: str) -> str:
        """Catalogue id of a name.

        Raises:
            InputError: an unknown or ambiguous name; lists candidates.
        """
        meant = self.meant(name)
        if len(meant) == 1:
            return meant[0]
        raise InputError(f"gpu {name!r} is {self.problem(name, meant, asks=True)}")
