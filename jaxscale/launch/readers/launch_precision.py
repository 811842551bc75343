"""Number format of the matmuls from settings; formats of 8 and 4 bits often have a separate key."""

from collections.abc import Mapping
from typing import Any

KEYS = ("precision", "mixed_precision", "mixed_precision_param", "param_dtype", "dtype", "torch_dtype")


def precision_cell(settings: Mapping[str, Any]) -> str | None:
    """Precision of a run; None where no setting states a number format."""
    # Frameworks nest the keys differently; the last word of a key is common to all.
    last = {key.rsplit(".", 1)[-1].rsplit("/", 1)[-1]: value for key, value in settings.items()}
    recipe = str(last.get("fp8_recipe") or "").lower()
    # Narrow formats first: `fp8: true` stands beside `precision: bf16-mixed`.
    if last.get("fp4") or last.get("fp4_format"):
        return "nvfp4"
    if last.get("fp8") or last.get("fp8_format") or (last.get("fp8.enabled")):
        return "mxfp8" if "mxfp8" in recipe else "fp8"
    words = [str(last.get(key) or "").lower() for key in ("converters", "quantization", *KEYS)]
    if "quantize.linear.mx" in words[0] or "mxfp8" in words[0]:
        return "mxfp8"
    if any("fp8" in word or "float8" in word for word in words):
        return "mxfp8" if any("mxfp8" in word for word in words) else "fp8"
    if last.get("bf16") is True or any("bf16" in word or "bfloat16" in word for word in words):
        return "bf16"
    if settings.get("bf16.enabled") is True or settings.get("bfloat16_enabled") is True:
        return "bf16"
    # The name of a converter may contain "16"; only keys of precision decide here.
    if last.get("fp16") is True or settings.get("fp16.enabled") is True or any("16" in word for word in words[2:]):
        return "fp16"
    return None
