"""Commands `jaxscale model` and `jaxscale hardware`: models and chips of the catalogues, or of a user's file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxscale.base.units import plural
from jaxscale.cli.arguments import HardwareFile, Json, Quiet, option
from jaxscale.cli.console import answer, say


@dataclass(frozen=True)
class ModelCommand:
    """Show the shape of a model, its parameters, flop and cache per token; list the catalogue without a name."""

    model: Annotated[
        tyro.conf.Positional[str | None],
        option(
            metavar="NAME|FILE",
            help="catalogue name or Hugging Face id, a TOML file with fields of a Transformer, or a config.json",
        ),
    ] = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Print the shape, parameters, flop and cache of the model, or the list of models.

        Raises:
            InputError: an unknown name, or a file with a mistake.
        """
        from jaxscale.base.table import make_table, text_column
        from jaxscale.models import described_model
        from jaxscale.models.model_catalogue import model_entries, model_figures

        if self.model is None:
            names = {name: list(entry.get("aliases", ())) for name, entry in model_entries().items()}
            columns, rows = (text_column("model"), text_column("other names")), names.items()
            table = make_table("", columns, [(name, ", ".join(aliases)) for name, aliases in rows])
            answer(self.json, lambda: {"models": names}, lambda: [table])
            return
        described = described_model(self.model)
        figures = model_figures(self.model, described)
        told = described.length_remark(described.transformer(self.model).seq_len)
        answer(self.json, lambda: figures, lambda: model_lines(figures, told))


def model_lines(figures: dict, length: str) -> list[str]:
    """Figures of a model, and words about its sequence length, as lines."""
    giga = {name: figures[name] / 1e9 for name in ("n_params", "n_active_params", "flop_per_token")}
    lines = [
        f"{figures['name']}: {giga['n_params']:.2f}e9 parameters, {giga['n_active_params']:.2f}e9 active",
        f"{giga['flop_per_token']:.1f}e9 flop per token of a training step, attention in full",
        f"{figures['kv_bytes_per_token'] / 1e3:.1f} kB of keys and values per token in 16 bits",
        length,
        "",
        *(f"{name} = {value}" for name, value in figures["fields"].items()),
    ]
    if figures["parts"]:
        lines += ["", *(f"left out: {name}, {n / 1e9:.2f}e9 parameters" for name, n in figures["parts"].items())]
    if figures["not_modelled"]:
        lines += ["", "not modelled:", *(f"- {text}" for text in figures["not_modelled"])]
    return lines


@dataclass(frozen=True)
class HardwareCommand:
    """List the chips of the catalogue, show one, or check a file of your own."""

    id: Annotated[
        tyro.conf.Positional[str | None],
        option(metavar="ID|FILE.toml", help="chip to show, or a file to check; all chips where left out"),
    ] = None
    hardware: HardwareFile = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Print the list of chips, or the numbers of a chip; check the user's hardware file.

        Raises:
            InputError: unknown chip, or a hardware file with a mistake.
        """
        from jaxscale.hardware.catalogue import load_hardware
        from jaxscale.report.terminal_tables import chip_list, chip_numbers

        # A file in place of a chip is one to check.
        is_file = self.hardware is None and self.id is not None and Path(self.id).suffix.lower() == ".toml"
        file, chip = (self.id, None) if is_file else (self.hardware, self.id)
        shipped, catalogue = load_hardware(), load_hardware(file)
        # An entry unlike the shipped entry comes from the user's file.
        own = {entry.id for name, entry in catalogue.chips.items() if shipped.chips.get(name) is not entry}
        if file is not None:
            say(f"{file}: valid; {len(own)} {plural(len(own), 'chip')}: {', '.join(sorted(own))}")
        if chip is None:
            # By id, as aliases name an entry several times.
            entries = {entry.id: entry for entry in catalogue.chips.values()}
            answer(
                self.json,
                lambda: {"chips": {key: chip_document(entry) for key, entry in entries.items()}},
                lambda: [chip_list(entries.values()), *(chip_numbers(entries[key]) for key in sorted(own))],
            )
            return
        entry = catalogue[chip]
        answer(self.json, lambda: chip_document(entry), lambda: [chip_numbers(entry)])


def chip_document(entry: Any) -> dict[str, Any]:
    """JSON document of a chip: numbers, sources of stated numbers, and substitutes of missing numbers."""
    return {
        "id": entry.id,
        "name": entry.name,
        "numbers": dict(entry.numbers),
        "stated": list(entry.stated),
        "sources": dict(entry.sources),
        "fallbacks": dict(entry.fallbacks),
    }
