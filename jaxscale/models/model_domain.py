"""Valid ranges of the arguments of a `Transformer`, for checks of tables, files and commands."""

import numpy as np

from jaxscale.base.domains import Domain, Relation, at_most, bounds_of, divisor_of, needs

MODEL = Domain(
    "Transformer",
    bounds_of("Transformer"),
    (
        at_most("n_kv_heads", "n_heads"),
        divisor_of("n_kv_heads", "n_heads"),
        at_most("moe_top_k", "n_experts"),
        at_most("n_attention_layers", "n_layers"),
        at_most("n_mlp_layers", "n_layers"),
        at_most("n_ssm_layers", "n_layers"),
        at_most("n_dense_layers", "n_mlp_layers"),
        Relation(
            ("n_mlp_layers", "n_attention_layers", "n_ssm_layers"),
            lambda mlp, attention, ssm: np.add(np.add(mlp, attention), ssm) > 0.0,
            lambda mlp, attention, ssm: "leaves layers without work; expected an MLP, attention or a state in one",
            "one of `n_mlp_layers`, `n_attention_layers` and `n_ssm_layers` is above 0",
        ),
        at_most("rope_head_dim", "head_dim"),
        at_most("o_groups", "n_heads"),
        at_most("window_kv_heads", "window_heads"),
        needs("window_share", "window", "the keys of a window"),
        needs("n_ssm_layers", "ssm_d_inner", "the inner width of state-space layers"),
        needs("n_ssm_layers", "ssm_state", "the state of state-space layers"),
    ),
)
"""Valid arguments of a `Transformer`; layers are counted, whether they were given as counts or as shares."""
