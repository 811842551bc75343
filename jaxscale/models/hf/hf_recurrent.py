"""Layers without attention of a configuration, as state-space layers with equal projections and state.

A state-space layer has $d (3 d_i + 2 n_s)$ parameters, with $d_i$ the inner width and $n_s$ groups times state. Gated
delta networks (arXiv 2412.06464) project d to queries and keys of width $n_s$ and to values and gates of width $d_i$,
the same count. Further types get the $n_s$ that gives the count of parameters, and the groups that give the state of
the scan.
"""

import math
from typing import Any

from jaxscale.models.hf.hf_layers import LayerKinds
from jaxscale.models.hf.hf_settings import Settings


def recurrent_fields(settings: Settings, kinds: LayerKinds) -> tuple[dict[str, Any], list[str]]:
    """Linear attention, state-space and convolution layers as arguments of `Transformer`, with remarks."""
    d_model = settings.number("hidden_size", "n_embd", "d_model", "dim")
    for kind, convert in (("linear", _linear), ("mamba", _mamba), ("conv", _convolution)):
        if layers := kinds.count(kind):
            (inner, state, groups), remark = convert(settings, d_model)
            fields = {"n_ssm_layers": layers, "ssm_d_inner": inner, "ssm_state": state, "ssm_groups": groups}
            return fields, [remark] if remark else []
    return {}, []


def _linear(settings: Settings, d_model: float) -> tuple[tuple[float, float, float], str]:
    """Gated delta, Kimi delta or lightning attention."""
    scan = "{} layers: scans are counted as those of Mamba-2, which do about half the flops of the scan; step time "
    if settings.get("linear_attn_config.kda_layers") is not None:
        head = settings.number("linear_attn_config.head_dim", default=128)
        heads = settings.number("linear_attn_config.num_heads", "num_attention_heads")
        inner = heads * head
        # Queries, keys, values and output are four inner widths; gates of rank `head`, and one number for each head.
        state = inner / 2.0 + head * (1.0 + inner / d_model) + heads / 2.0
        return (inner, state, state / head), scan.format("Kimi delta attention")
    if settings.get("linear_num_value_heads") is not None:
        values = settings.number("linear_num_value_heads")
        keys = settings.number("linear_num_key_heads")
        inner = values * settings.number("linear_value_head_dim")
        # 2 d n_s: queries, keys, and two numbers for each value head.
        state = keys * settings.number("linear_key_head_dim") + values
        return (inner, state, keys), scan.format("gated delta")
    heads = settings.number("num_attention_heads")
    head = settings.number("head_dim", default=d_model / heads)
    # Queries, keys, values, output gate and output: five inner widths.
    return (heads * head, heads * head, heads), ""


def _mamba(settings: Settings, d_model: float) -> tuple[tuple[float, float, float], str]:
    expanded = settings.number("expand", "mamba_expand", default=2.0) * d_model
    state = settings.number("ssm_state_size", "mamba_d_state", "state_size", default=128)
    heads = settings.get("mamba_num_heads", "mamba_n_heads", "num_heads")
    if settings.kind in ("jamba", "mamba", "falcon_mamba") or heads is None:
        inner = settings.number("intermediate_size", default=expanded) if settings.kind != "jamba" else expanded
        rank = settings.get("mamba_dt_rank", "time_step_rank")
        # `auto` in Mamba: d / 16.
        rank = float(rank) if isinstance(rank, int | float) else math.ceil(d_model / 16)
        # 2 d n_s = d_i (2 r + 2 s): projections to step, B and C, and of the step.
        mixed = inner * (rank + state) / d_model
        remark = "Mamba-1 layers: their scan, channel by channel, is counted as that of Mamba-2; step time "
        return (inner, mixed, mixed / state), remark
    width = settings.number("mamba_head_dim", "mamba_d_head", "head_dim", default=expanded / float(heads))
    inner = settings.number("mamba_d_ssm", default=float(heads) * width)
    groups = settings.number("n_groups", "mamba_n_groups", default=1)
    return (inner, groups * state, groups), ""


def _convolution(settings: Settings, d_model: float) -> tuple[tuple[float, float, float], str]:
    """Gated short convolutions (LFM2): three input projections and an output projection, as wide as the model."""
    # d (3 d + 2 d / 2) = 4 d^2; state over groups is the length of the filter.
    return (d_model, d_model / 2.0, d_model / 2.0 / settings.number("conv_L_cache", default=3)), ""
