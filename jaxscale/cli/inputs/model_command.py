"""`jaxscale model`: shape and size of a model by name or file."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from jaxscale.cli.arguments import Json
from jaxscale.cli.console import emit_json, print_result


@dataclass(frozen=True)
class ModelCommand:
    """Show the shape of a model, its parameters, flop and cache per token; list the catalogue without a name."""

    model: Annotated[
        tyro.conf.Positional[str | None],
        tyro.conf.arg(
            metavar="NAME|FILE",
            help="catalogue name or Hugging Face id, a TOML file with fields of a Transformer, or a config.json",
        ),
    ] = None
    json: Json = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: an unknown name, or a file with a mistake.
        """
        from jaxscale.models import described_model
        from jaxscale.models.model_catalogue import model_entries

        if self.model is None:
            names = {name: list(entry.get("aliases", ())) for name, entry in model_entries().items()}
            if self.json:
                emit_json({"models": names})
                return
            print_result("\n".join(f"{name:28} {', '.join(aliases)}".rstrip() for name, aliases in names.items()))
            return
        from jaxscale.models.model_figures import model_figures

        figures = model_figures(self.model, described_model(self.model))
        if self.json:
            emit_json(figures)
            return
        print_result(model_text(figures))


def model_text(figures: dict) -> str:
    """Figures of a model as lines of text."""
    giga = {name: figures[name] / 1e9 for name in ("n_params", "n_active_params", "flop_per_token")}
    lines = [
        f"{figures['name']}: {giga['n_params']:.2f}e9 parameters, {giga['n_active_params']:.2f}e9 active",
        f"{giga['flop_per_token']:.1f}e9 flop per token of a training step, attention in full",
        f"{figures['kv_bytes_per_token'] / 1e3:.1f} kB of keys and values per token in 16 bits",
        "",
        *(f"{name} = {value}" for name, value in figures["fields"].items()),
    ]
    if figures["parts"]:
        lines += ["", *(f"left out: {name}, {n / 1e9:.2f}e9 parameters" for name, n in figures["parts"].items())]
    if figures["not_modelled"]:
        lines += ["", "not modelled:", *(f"- {text}" for text in figures["not_modelled"])]
    return "\n".join(lines)
