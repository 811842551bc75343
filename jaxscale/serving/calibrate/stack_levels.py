"""Levels of a planned engine: all that a fit knows of its framework, chip and model, by the names of serving tables."""

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.models.transformer import Transformer, ssm_layers
from jaxscale.serving.calibrate.level_names import framework_level, model_level
from jaxscale.serving.tables.serving_rows import attention_words, generation_of


def stack_levels(
    framework: str,
    chip: str,
    model: Transformer | None = None,
    *,
    name: str = "",
    serving: str = "online",
    release: str = "",
    hardware: Hardware | None = None,
) -> dict[str, str]:
    """Levels of a planned engine, `fit.coefficients(**serving.stack_levels("vllm", "h100-80gb", model))`.

    Args:
        framework: serving framework.
        chip: catalogue id of the chip.
        model: the transformer, whose kind of attention and mixture counts.
        name: of the model in serving tables.
        serving: kind of serving.
        release: of the framework; not stated where empty.
        hardware: catalogue of chips; the shipped one where None.

    Returns:
        Name of the level by kind, see `serving_rows.LEVEL_KINDS`.

    Raises:
        InputError: no such chip.
    """
    entry = (hardware or load_hardware())[chip]
    age, framework = generation_of(entry), framework_level(framework, entry.name.split()[0], release)
    levels = {
        "framework": framework, "chip": entry.id, "generation": age, "line": f"{framework} {age}",
        "stack": f"{framework} {entry.id}", "serving": serving, "release": f"{framework} {release}",
    }  # fmt: skip
    if model is not None:
        density = "mixture" if number(model.n_experts) > 1.0 else "dense"
        window = number(model.window_share * np.sign(model.window))
        attention = attention_words(number(model.kv_lora_rank), number(ssm_layers(model)), window)
        levels["kind"] = f"{attention} {density}"
    if name:
        levels |= {"model": model_level(name), "pair": f"{framework} {model_level(name)}"}
    return levels
