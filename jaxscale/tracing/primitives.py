"""Primitives of JAX by what a compiler makes of them. Names as in jax 0.9 and 0.10."""

from typing import Literal

Kind = Literal["elementwise", "selection", "layout", "reduction", "identity"]

IDENTITY = frozenset(
    "copy copy_p device_put layout_constraint mesh_cast name optimization_barrier pbroadcast pcast pvary reshard "
    "sharding_constraint stop_gradient psum_invariant_cast".split()
)
"""Primitives that hand their inputs on."""

LAYOUT = frozenset("bitcast_convert_type expand_dims reshape squeeze transpose".split())
"""Primitives that change how elements are arranged; free where a matmul reads the result."""

SELECTION = frozenset("dynamic_slice gather slice".split())
"""Primitives that read a part of their first input."""

ELEMENTWISE = frozenset(
    (
        "abs acos acosh add add_any and asin asinh atan atan2 atanh axis_index bessel_i0e bessel_i1e broadcast_in_dim "
        "cbrt ceil clamp clz complex concatenate conj convert_element_type cos cosh digamma div empty empty2 eq eq_to "
        "erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow iota is_finite le "
        "le_to lgamma log log1p logistic lt lt_to max min mul ne neg nextafter not or pad polygamma population_count "
        "pow random_bits random_fold_in random_seed random_split random_unwrap random_wrap real reduce_precision "
        "regularized_incomplete_beta rem rev rng_bit_generator rng_uniform round rsqrt select_n shift_left "
        "shift_right_arithmetic shift_right_logical sign sin sinh split sqrt square sub tan tanh threefry2x32 tile "
        "xor zeta "
    ).split()
)
"""Primitives of which each output element needs a few input elements."""

REDUCTIONS = frozenset(
    "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor reduce "
    "reduce_window_max reduce_window_min reduce_window_sum reduce_window".split()
)
"""Primitives that end a fusion: many input elements make one output element."""

KINDS: dict[str, Kind] = {
    **dict.fromkeys(IDENTITY, "identity"),
    **dict.fromkeys(LAYOUT, "layout"),
    **dict.fromkeys(SELECTION, "selection"),
    **dict.fromkeys(ELEMENTWISE, "elementwise"),
    **dict.fromkeys(REDUCTIONS, "reduction"),
}
"""Kind of every primitive that is not heavy, by name."""

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "call": "call_jaxpr",
    "named_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "jaxpr",
    "composite": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "xla_metadata_call": "jaxpr",
    "xla_call": "call_jaxpr",
    "shard_map": "jaxpr",
}
"""Parameter that holds the program of a primitive that calls one, by name of the primitive."""

REMATERIALISED = frozenset({"remat", "remat2", "checkpoint"})
"""Calls behind a barrier: what they compute again is not taken from where it was computed first."""

BARRIER = "barrier"
"""Operation that keeps a rematerialised block from taking what was computed before."""
