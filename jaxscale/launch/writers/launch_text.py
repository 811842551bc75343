"""A plan as settings that a person can paste into the launch file of a framework, and what the framework cannot say."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxscale.base.errors import InputError
from jaxscale.launch.writers.launch_values import RunSettings
from jaxscale.launch.writers.megatron_settings import bridge_settings, megatron_settings
from jaxscale.launch.writers.other_settings import (
    deepspeed_settings,
    maxtext_settings,
    nanotron_settings,
    torchtitan_settings,
)
from jaxscale.launch.writers.setting_lines import SettingLines


@dataclass(frozen=True)
class LaunchText:
    """Launch settings of a framework.

    Attributes:
        framework: name of the framework.
        text: settings with a comment for each choice, in the form of the framework.
        comments: comments that the form has no place for.
        not_expressed: parts of the plan that the settings cannot say, and what they say instead.
    """

    framework: str
    text: str
    comments: tuple[str, ...] = field(default=())
    not_expressed: tuple[str, ...] = field(default=())


WRITERS: Mapping[str, tuple[Callable[[RunSettings, SettingLines], None], str]] = {
    "megatron-lm": (megatron_settings, "options"),
    "megatron-bridge": (bridge_settings, "yaml"),
    "torchtitan": (torchtitan_settings, "toml"),
    "maxtext": (maxtext_settings, "yaml"),
    "deepspeed": (deepspeed_settings, "json"),
    "nanotron": (nanotron_settings, "yaml"),
}
"""Writer and form of the settings by framework."""


def launch_text(
    framework: str, plan: Mapping[str, Any], model: Mapping[str, Any], seq_len: int | float, name: str = ""
) -> LaunchText:
    """Launch settings of a plan.

    Args:
        framework: one of `WRITERS`, in letters of any case.
        plan: fields of the plan, as `Plan.words` gives them.
        model: arguments of `Transformer`.
        seq_len: tokens in a sequence [token].
        name: name of the model, empty where it has none.

    Raises:
        InputError: an unknown framework; says which there are.
    """
    key = framework.lower()
    if key not in WRITERS:
        raise InputError(f"--write = {framework!r} has no writer; expected one of {', '.join(WRITERS)}")
    write, form = WRITERS[key]
    lines = SettingLines()
    write(RunSettings(plan, model, float(seq_len), name), lines)
    text = {"options": lines.as_options, "yaml": lines.as_yaml, "toml": lines.as_toml, "json": lines.as_json}[form]()
    comments = tuple(f"{key}: {comment}" for key, _, comment in lines.entries if comment) if form == "json" else ()
    return LaunchText(key, text, comments, tuple(lines.not_expressed))
