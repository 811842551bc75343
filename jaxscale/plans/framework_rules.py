"""Rules of plans that hold for single frameworks, by the names in `data/frameworks.toml`."""

from collections.abc import Mapping

import numpy as np

from jaxscale.plans.rules import Rule, divides

_RULES = (
    Rule(
        "whole key/value heads",
        lambda tp, n_kv_heads: divides(tp, n_kv_heads),
        lambda tp, n_kv_heads: f"tp = {tp:g} must divide n_kv_heads = {n_kv_heads:g}",
    ),
    Rule(
        "untied pipelines",
        lambda pp, tied_embeddings: np.equal(pp, 1) | np.equal(tied_embeddings, 0),
        lambda pp: f"pp = {pp:g} needs embeddings that are not tied",
    ),
    Rule(
        "equal stages",
        lambda pp, vpp, n_layers, first_stage_layers, last_stage_layers: (
            divides(pp * vpp, n_layers) & np.equal(first_stage_layers + last_stage_layers, 0)
        ),
        lambda pp, vpp, n_layers: f"pp * vpp = {pp * vpp:g} must divide n_layers = {n_layers:g}",
    ),
    Rule(
        "even ends",
        lambda first_stage_layers, last_stage_layers: np.equal(first_stage_layers + last_stage_layers, 0),
        lambda: "layers of the first and the last stage cannot be stated",
    ),
    Rule(
        "microbatches of stages",
        lambda pp, n_microbatches: divides(pp, n_microbatches),
        lambda pp, n_microbatches: f"n_microbatches = {n_microbatches:g} must be a multiple of pp = {pp:g}",
    ),
    Rule(
        "whole gradients of stages",
        lambda zero_stage, pp: np.less(zero_stage, 2) | np.equal(pp, 1),
        lambda zero_stage: f"ZeRO stage {zero_stage:g} needs pp = 1",
    ),
    Rule(
        "experts on replicas",
        lambda ep, dp: divides(ep, dp),
        lambda ep, dp: f"ep = {ep:g} must divide dp = {dp:g}",
    ),
)

FRAMEWORK_RULES: Mapping[str, Rule] = {rule.name: rule for rule in _RULES}
"""Framework rules by name; each rule needs the fields that it names."""
