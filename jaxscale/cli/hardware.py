"""`jaxscale hardware`: list or show chips; check a file of the user's own."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from jaxscale.base.units import plural
from jaxscale.cli.arguments import HardwareFile, Json, Quiet, option
from jaxscale.cli.console import answer, say


@dataclass(frozen=True)
class HardwareCommand:
    """List the chips of the catalogue, show one, or check a file of your own."""

    id: Annotated[tyro.conf.Positional[str | None], option(metavar="ID", help="chip to show; all where left out")] = (
        None
    )
    hardware: HardwareFile = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: unknown chip, or a hardware file with a mistake.
        """
        from jaxscale.hardware.catalogue import load_hardware
        from jaxscale.report.terminal_tables import chip_list, chip_numbers

        shipped, catalogue = load_hardware(), load_hardware(self.hardware)
        # An entry unlike the shipped entry comes from the user's file.
        own = {entry.id for name, entry in catalogue.chips.items() if shipped.chips.get(name) is not entry}
        if self.hardware is not None:
            say(f"{self.hardware}: valid; {len(own)} {plural(len(own), 'chip')}: {', '.join(sorted(own))}")
        if self.id is None:
            # By id, as aliases name an entry several times.
            entries = {entry.id: entry for entry in catalogue.chips.values()}
            answer(
                self.json,
                lambda: {"chips": {key: chip_document(entry) for key, entry in entries.items()}},
                lambda: [chip_list(entries.values()), *(chip_numbers(entries[key]) for key in sorted(own))],
            )
            return
        entry = catalogue[self.id]
        answer(self.json, lambda: chip_document(entry), lambda: [chip_numbers(entry)])


def chip_document(entry: Any) -> dict[str, Any]:
    """Chip as JSON: numbers, sources of stated numbers, and substitutes of missing numbers."""
    return {
        "id": entry.id,
        "name": entry.name,
        "numbers": dict(entry.numbers),
        "stated": list(entry.stated),
        "sources": dict(entry.sources),
        "fallbacks": dict(entry.fallbacks),
    }
