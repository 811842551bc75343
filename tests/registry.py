"""Random valid configurations and named cases: what the tests of the step-time model run on.

One function draws a configuration from any source of choices, so that hypothesis (which shrinks) and a seeded generator
(which fills large batches) explore the same domain.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from hypothesis import strategies as st

from jaxscale.calibration.coefficients import Coefficients, names, prior_medians, priors
from jaxscale.costs.step import StepTime, step_time
from jaxscale.hardware.catalogue import cluster
from jaxscale.hardware.cluster import Cluster
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models import model
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan import RECOMPUTE, SCHEDULES, SWITCHES, Plan
from jaxscale.plans.rules import shares_key_values, violations

Choose = Callable[[Sequence[Any]], Any]
Normal = Callable[[], float]

CHIPS = ("v100-32gb", "a100-80gb", "h100-80gb", "b200", "gb200", "mi300x", "tpu-v5p", "l40s")


class Configuration(NamedTuple):
    """Arguments of `step_time` and `memory`."""

    model: Transformer
    plan: Plan
    cluster: Cluster
    coefficients: Coefficients


def draw_model(choose: Choose) -> Transformer:
    """A transformer of any family: dense, mixture, hybrid, latent attention, sliding window, adapters."""
    n_heads, head_dim = choose([8, 16, 32, 64, 96]), choose([64, 128])
    d_model, n_layers = n_heads * head_dim, choose([8, 12, 24, 32, 61, 80, 126])
    fields: dict[str, Any] = {
        "seq_len": choose([512, 2048, 4096, 8192, 131072]),
        "n_kv_heads": n_heads // choose([1, 2, 4, 8]),
        "head_dim": head_dim,
        "d_ff": choose([4 * d_model, 3 * d_model, 7 * d_model // 2]),
        "gated_mlp": choose([False, True]),
        "vocab_size": choose([32000, 50304, 128256, 256000]),
        "tied_embeddings": choose([False, True]),
        "position_embeddings": choose([0, 0, 2048]),
        "trainable_share": choose([1, 1, 1, 1, 1, 0, 0.5]),
    }
    extras: Mapping[str, Mapping[str, Any]] = {
        "dense": {},
        "mixture": {
            "n_experts": choose([8, 64, 256]),
            "moe_top_k": choose([1, 2, 8]),
            "d_ff_expert": choose([1024, 2048, 2 * d_model]),
            "n_shared_experts": choose([0, 1]),
            "expert_bias": choose([False, True]),
            "n_dense_layers": choose([0, 3]),
        },
        "hybrid": {
            "n_attention_layers": n_layers // 4,
            "n_mlp_layers": n_layers // 2,
            "n_ssm_layers": n_layers // 4,
            "ssm_d_inner": 2 * d_model,
            "ssm_state": 8 * choose([64, 128]),
            "ssm_groups": 8,
        },
        "latent": {
            "q_lora_rank": choose([0, 1536]),
            "kv_lora_rank": 512,
            "rope_head_dim": 64,
            "v_head_dim": 128,
            **({"o_lora_rank": 512, "o_groups": 4} if d_model > 4000 else {}),
        },
        "window": {"window": choose([128, 512]), "window_share": choose([0.5, 0.75])},
    }
    fields |= extras[choose(["dense", "dense", "mixture", "mixture", "hybrid", "latent", "window"])]
    fields["moe_latent_size"] = 512 if fields.get("n_experts") == 256 else 0
    fields["causal"] = choose([True, True, True, False])
    return Transformer(n_layers, d_model, n_heads, **fields)


def plain_schedules(pp: int, ep: int) -> list[str]:
    """Schedules without interleaving that a pipeline admits."""
    barred = {"interleaved"} if pp % 2 == 0 and ep > 1 else {"interleaved", "dualpipe"}
    return [word for word in SCHEDULES if word not in barred]


def draw_plan(choose: Choose, shape: Transformer) -> Plan:
    """A plan that is valid for a model."""
    pp = choose([1, 1, 2, 4, 8])
    vpp = choose([1, 1, 2]) if 2 * pp <= shape.n_layers and pp > 1 else 1
    dp = choose([1, 2, 8, 64, 512])
    cp, tp = choose([1, 1, 2, 8]), choose([tp for tp in (1, 1, 2, 4, 8) if shares_key_values(tp, shape.n_kv_heads)])
    ranks = dp * cp * tp
    zero_stage = choose([0, 1, 2, 3]) if pp == 1 else choose([0, 1])
    ep = choose([ep for ep in (1, 2, 4, 8, 64) if shape.n_experts % ep == 0 and ranks % ep == 0])
    return Plan(
        dp=dp,
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        ep=ep,
        zero_stage=zero_stage,
        shard_group=choose([dp, dp, max(dp // 8, 1)]),
        micro_batch_size=choose([1, 2, 8]),
        n_microbatches=pp * choose([1, 4, 32]),
        sequence_parallel=choose([False, True]) if tp > 1 else False,
        recompute=choose(RECOMPUTE),
        schedule=choose(["interleaved"] if vpp > 1 else plain_schedules(pp, ep)),
        precision=choose(["bf16", "bf16", *PRECISIONS]),
        flash_attention=choose([False, True, True]),
        overlap_gradients=choose([False, True, True]),
        balanced_stages=shape.vocab_size > 1e5,
        gradient_bytes=choose([2.0, 4.0]),
        fused_glu=zero_stage == 1,
        **draw_software(choose, shape),
        **drawn_memory(dp + 10 * tp + 100 * pp + 1000 * shape.n_layers),
    )


def drawn_memory(seed: float) -> dict[str, Any]:
    """What software may keep, as arguments of `Plan`; of a seed, so that steps are drawn as without it."""
    random = np.random.default_rng(int(seed))
    sizes = {"loss_bytes": (6.0, 12.0), "adapter_bytes": (0.0, 4.0), "gradient_copy_bytes": (0.0, 2.0)}
    drawn = {name: float(random.choice(values)) for name, values in sizes.items()}
    return {
        **drawn,
        "held_bytes": 1e9,
        "cached_share": 0.3,
        **{name: bool(random.integers(2)) for name in MEMORY_FLAGS},
    }


MEMORY_FLAGS = (
    *("autocast", "wide_weights", "narrow_gate", "kept_gate", "copied_attention", "dropout"),
    *("kept_gradients", "cached_gradients", "gathered_stages", "queued_collectives"),
)
"""What software may keep, as flags of a `Plan`."""


def draw_software(choose: Choose, shape: Transformer) -> dict[str, Any]:
    """What software may do, as arguments of `Plan`."""
    words = {name: choose(list(SWITCHES[name])) for name in ("execution", "tp_overlap", "moe_dispatcher")}
    flags = ("overlap_gathers", "moe_overlap", "fused_norm", "chunked_loss", "vocab_parallel_loss")
    return {
        **words,
        **{name: choose([False, True]) for name in flags},
        "etp": choose([0, 0, 1]) if shape.n_experts > 1.0 else 0,
        "recompute_cost": choose([1.0, 0.75]),
        "attention_rate": choose([0.78, 1.0, 1.3]),
        "optimizer_bytes": choose([4.0, 8.0, 12.0]),
        "weight_bytes": choose([2.0, 4.0]),
        "offload_activations": choose([0.0, 0.0, 0.5]),
        "offload_optimizer": choose([0.0, 0.0, 1.0]),
    }


def draw_coefficients(normal: Normal, spread: float = 1.0) -> Coefficients:
    """Coefficients from their priors."""
    values = {}
    for name, prior in priors().items():
        shift = np.exp(spread * prior.spread * normal())
        odds = prior.median / (1.0 - prior.median) * shift if prior.kind == "fraction" else 1.0
        values[name] = odds / (1.0 + odds) if prior.kind == "fraction" else prior.median * shift
    return Coefficients(**values)


def draw_configuration(choose: Choose, normal: Normal) -> Configuration:
    """A valid configuration, hardware and coefficients included."""
    shape = draw_model(choose)
    plan = draw_plan(choose, shape)
    domain = choose([None, None, 1, 4, 8])
    hardware = cluster(choose(CHIPS), plan.n_chips, domain_size=domain)
    if choose([False, True]):
        network = hardware.network
        # A spine of half the bandwidth above rails of a few nodes.
        sizes = np.asarray([network.domain_size[0], 4.0 * network.domain_size[0], 1e12])
        hardware = changed(
            hardware, network__domain_size=sizes, network__bandwidth=network.bandwidth * np.asarray([1.0, 1.0, 0.5])
        )
    configuration = Configuration(shape, plan, hardware, draw_coefficients(normal))
    assert not violations(shape, plan, plan.n_chips)
    return configuration


def draw_with(data: st.DataObject) -> Configuration:
    """A valid configuration of hypothesis' choice, from the `data` of `@given(st.data())`, as arrays."""
    normal = st.floats(-2.0, 2.0, allow_subnormal=False)
    drawn = draw_configuration(lambda options: data.draw(st.sampled_from(list(options))), lambda: data.draw(normal))
    return as_arrays(drawn)


def random_configurations(n: int, seed: int = 0) -> list[Configuration]:
    """Valid configurations from seeded generators, one each: a further coefficient leaves all else as it was."""

    def one(generator: np.random.Generator) -> Configuration:
        return draw_configuration(lambda options: options[generator.integers(len(options))], generator.standard_normal)

    return [one(np.random.default_rng([seed, index])) for index in range(n)]


def stack(trees: Sequence[Any], dtype: Any = np.float64) -> Any:
    """Trees of floats as one tree whose leaves have a leading axis."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, dtype) for leaf in leaves]), *trees)


def row(tree: Any, index: int) -> Any:
    """One of the trees that a stacked tree is made of."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def leaf_numbers(tree: Any) -> list[tuple[str, Callable[[Any, Any], Any], np.ndarray]]:
    """Every number of a stacked tree: its name, a function that replaces it, and its values by row."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    numbers = []
    for position, (path, leaf) in enumerate(leaves):
        for element in np.ndindex(leaf.shape[1:]):

            def replace_number(tree: Any, values: Any, position: int = position, element: tuple = element) -> Any:
                changed = jax.tree.leaves(tree)
                changed[position] = np.array(changed[position])
                changed[position][(slice(None), *element)] = values
                return jax.tree.unflatten(structure, changed)

            suffix = "".join(f"[{index}]" for index in element)
            numbers.append((jax.tree_util.keystr(path) + suffix, replace_number, leaf[(slice(None), *element)]))
    return numbers


def as_arrays(tree: Any, dtype: Any = np.float64) -> Any:
    """All leaves as arrays of one type, so that every configuration meets the same compiled function."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype), tree)


@partial(jax.jit, static_argnames="temperature")
def one_step(configuration: Configuration, temperature: float = 0.0) -> StepTime:
    """Compiled `step_time` of one configuration."""
    return step_time(*configuration, temperature)


@partial(jax.jit, static_argnames="temperature")
def many_steps(configurations: Configuration, temperature: float = 0.0) -> StepTime:
    """Compiled `step_time` of stacked configurations."""
    return jax.vmap(lambda configuration: step_time(*configuration, temperature))(configurations)


def ideal_coefficients(**changes: float) -> Coefficients:
    """Coefficients of a machine without losses: efficiencies and exposures 1, everything else 0."""
    ones = ("efficiency", "latency_scale", "pp_exposed", "factor")
    values = {name: float(any(word in name for word in ones)) for name in names()}
    return Coefficients(**(values | changes))


def changed(tree: Any, **changes: Any) -> Any:
    """A tree with some attributes replaced: `changed(case, plan__tp=2.0)`."""
    for path, value in changes.items():
        tree = eqx.tree_at(lambda node, path=path: reduce(getattr, path.split("__"), node), tree, value)
    return tree


def named_cases() -> dict[str, Configuration]:
    """Published configurations that cover every term of the model, at the prior medians of the coefficients."""
    medians = prior_medians()
    cases = {
        "llama3-8b-one-chip": ("llama3-8b", Plan(flash_attention=True), "h100-80gb"),
        "gpt3-175b-1f1b": (
            "gpt3-175b",
            Plan(dp=16, tp=8, pp=8, n_microbatches=96, sequence_parallel=True, recompute="selective"),
            "a100-80gb",
        ),
        "llama3-70b-fsdp": ("llama3-70b", Plan(dp=512, zero_stage=3, shard_group=64, recompute="full"), "h100-80gb"),
        "deepseek-v3": (
            "deepseek-v3",
            Plan(dp=128, pp=16, ep=64, n_microbatches=60, schedule="zero-bubble", precision="fp8", zero_stage=1),
            "h100-80gb",
        ),
        "llama3-405b-long": (
            "llama3-405b",
            Plan(dp=8, tp=8, pp=16, cp=16, vpp=7, n_microbatches=16, schedule="interleaved", sequence_parallel=True),
            "h100-80gb",
        ),
    }
    return {
        name: Configuration(model(shape), plan, cluster(chip_id, plan.n_chips), medians)
        for name, (shape, plan, chip_id) in cases.items()
    }
