"""Launch settings of a plan for a framework, ready to paste, with a list of choices the framework cannot express."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jaxscale.base.errors import InputError
from jaxscale.launch.options import complaints, option_table
from jaxscale.launch.writers.bridge_settings import bridge_script, bridge_settings
from jaxscale.launch.writers.deepspeed_settings import deepspeed_settings
from jaxscale.launch.writers.maxtext_settings import maxtext_settings
from jaxscale.launch.writers.megatron_settings import megatron_script, megatron_settings
from jaxscale.launch.writers.nanotron_settings import nanotron_settings
from jaxscale.launch.writers.setting_lines import RunSettings, SettingLines
from jaxscale.launch.writers.torchtitan_settings import titan_toml_settings, torchtitan_script, torchtitan_settings
from jaxscale.plans.plan import END_STAGES
from jaxscale.runs.software import software_of


@dataclass(frozen=True)
class LaunchText:
    """Launch settings of a plan for a framework.

    Attributes:
        framework: name of the framework.
        release: release of the framework for which the settings are valid.
        text: settings in the file format of the framework, with a comment for each choice.
        comments: remarks that the file format cannot contain.
        not_expressed: choices of plan and model without an option of the framework, and the replacement.
        settings: values in the text, by option.
    """

    framework: str
    release: str
    text: str
    comments: tuple[str, ...] = field(default=())
    not_expressed: tuple[str, ...] = field(default=())
    settings: Mapping[str, Any] = field(default_factory=dict)


def _commented(title: str, form: Callable[[SettingLines], str]) -> Callable[[RunSettings, SettingLines, str], str]:
    """A form with the release in its first line."""
    return lambda run, lines, release: f"# {title} {release}\n" + form(lines)


Write = Callable[[RunSettings, SettingLines], None]
SettingsForm = Callable[[RunSettings, SettingLines, str], str]

WRITERS: Mapping[str, tuple[Write, SettingsForm]] = {
    "megatron-lm": (megatron_settings, megatron_script),
    "megatron-bridge": (bridge_settings, bridge_script),
    "torchtitan": (torchtitan_settings, torchtitan_script),
    "torchtitan-toml": (titan_toml_settings, _commented("torchtitan", SettingLines.as_toml)),
    "maxtext": (maxtext_settings, _commented("MaxText", SettingLines.as_yaml)),
    "deepspeed": (deepspeed_settings, lambda _, lines, __: lines.as_json()),
    "nanotron": (nanotron_settings, _commented("nanotron", SettingLines.as_yaml)),
}
"""Writer and form of the settings by framework."""


_KERNELS = ("fused_glu", "fused_norm", "overlap_gathers", "optimizer_bytes", "weight_bytes")
_OF_ALL = (*_KERNELS, "vocab_parallel_loss", "balanced_stages", "moe_overlap")
_OF_THE_CODE = ("execution", "chunked_loss", "flash_attention", "offload_activations")
FIXED: Mapping[str, tuple[str, ...]] = {
    "torchtitan": (*_OF_ALL, "overlap_gradients", "flash_attention"),
    "torchtitan-toml": (*_OF_ALL, "overlap_gradients", "flash_attention"),
    "maxtext": (*_OF_ALL, *END_STAGES, "overlap_gradients", "execution", "tp_overlap", "offload_activations"),
    "nanotron": (*_OF_ALL, *END_STAGES, *_OF_THE_CODE, "offload_optimizer", "overlap_gradients"),
    "deepspeed": (*_OF_ALL, *END_STAGES, *_OF_THE_CODE, "moe_dispatcher", "tp_overlap"),
}
"""What each program does in one way alone, whatever a plan says."""

WHERE: Mapping[str, str] = {
    "vocab_parallel_loss": "tp",
    "tp_overlap": "tp",
    "balanced_stages": "pp",
    **dict.fromkeys(END_STAGES, "pp"),
    "overlap_gradients": "dp",
    "overlap_gathers": "zero_stage",
    "moe_overlap": "ep",
    "moe_dispatcher": "ep",
}
"""Degree without which a choice has no effect."""


def _tell_what_is_fixed(framework: str, run: RunSettings, lines: SettingLines) -> None:
    """Say which choices of a plan a program makes otherwise, without an option."""
    usual = usual_words(framework.removesuffix("-toml"))
    for name in FIXED.get(framework, ()):
        degree = WHERE.get(name)
        # A choice about a group of a single rank changes nothing.
        has_effect = degree is None or (run.zero_stage > 0 if degree == "zero_stage" else run.count(degree) > 1)
        stated = run.plan.get(name, usual[name])
        if has_effect and stated != usual[name]:
            done = "shares layers out itself" if name in END_STAGES else f"does {usual[name]}"
            lines.lacks(f"{name} = {stated}: the program {done}")


@cache
def usual_words(framework: str) -> Mapping[str, Any]:
    """Default choices of a framework, by argument of `Plan`."""
    return software_of({"framework": framework}).plan.words()


def launch_text(
    framework: str,
    plan: Mapping[str, Any],
    model: Mapping[str, Any],
    seq_len: int | float,
    name: str = "",
    chips_per_node: int = 8,
    is_tpu: bool = False,
    parts: Mapping[str, float] | None = None,
) -> LaunchText:
    """Launch settings of a plan for a framework, checked by the framework's own rules.

    Args:
        framework: a name of `WRITERS`, in any case.
        plan: fields of the plan, from `Plan.words`.
        model: arguments of `Transformer`.
        seq_len: tokens in a sequence [token].
        name: name of the model, possibly empty.
        chips_per_node: chips of a host [1].
        is_tpu: whether the chips are TPUs.
        parts: parameters not included in `model`, by component [1].

    Raises:
        InputError: an unknown framework, or settings refused by a rule of the framework; names the rule.
    """
    key = framework.lower()
    if key not in WRITERS:
        raise InputError(f"--write = {framework!r} has no writer; expected one of {', '.join(WRITERS)}")
    write, form = WRITERS[key]
    lines = SettingLines()
    run = RunSettings(plan, model, float(seq_len), name, chips_per_node, is_tpu, parts or {})
    for part, count in run.parts.items():
        lines.lacks(f"{part}: {count / 1e9:.3g}e9 parameters, which the plan leaves out as well")
    if rank := run.number("lora_rank", 0.0):
        lines.lacks(f"lora_rank = {rank:g} for {plan.get('lora_targets')}: all weights are trained")
    # Widths between have no option anywhere.
    if (gradient := run.number("gradient_bytes", 4.0)) not in (2.0, 4.0):
        lines.lacks(f"gradient_bytes = {gradient:g}: 4 are written")
    write(run, lines)
    _tell_what_is_fixed(key, run, lines)
    _check(key, run, lines)
    release = option_table(key).release
    comments = tuple(f"{key}: {comment}" for key, _, comment in lines.entries if comment)
    return LaunchText(
        key,
        release,
        form(run, lines, release),
        # JSON has no comments.
        comments if key == "deepspeed" else (),
        tuple(lines.not_expressed),
        lines.settings(),
    )


def _check(framework: str, run: RunSettings, lines: SettingLines) -> None:
    """Refuse a plan whose settings the framework would refuse."""
    # DeepSpeed counts ranks without the pipeline, set in the user's code.
    n_ranks = run.n_chips if lines.n_ranks is None else lines.n_ranks
    found: Sequence[str] = complaints(framework, lines.settings(), n_ranks, lines.may_miss)
    if found:
        raise InputError(f"{framework} cannot run this plan: {found[0]}", found)
