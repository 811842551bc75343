"""Plans: words become switches and words again, degrees are checked, rules have sentences."""

import inspect

import jax
import numpy as np
import pytest
from registry import changed, random_configurations, stack

from jaxscale.base.documents import data_path, read_toml
from jaxscale.hardware.formats import FORMATS, PRECISIONS, wide_shares
from jaxscale.models import model
from jaxscale.models.transformer import attention_params
from jaxscale.plans.local import key_value_width, local_plan, sharding
from jaxscale.plans.plan import RECOMPUTE, SCHEDULES, SWITCHES, Plan, codes_of, switches_of
from jaxscale.plans.rules import suits_domain, violations

LLAMA = model("llama3-8b")
GOOD = Plan(dp=4, tp=8, pp=4, cp=2, n_microbatches=8)


@pytest.mark.parametrize(("word", "wider"), [("fp32", 0), ("tf32", 1), ("bf16", 2), ("fp8", 2), ("fp4", 2)])
def test_what_stays_in_sixteen_bits_is_no_narrower(word: str, wider: int):
    np.testing.assert_array_equal(wide_shares(Plan(precision=word).precision), np.eye(5)[wider])


def test_context_parallel_ranks_share_a_sharded_copy():
    assert local_plan(LLAMA, Plan(dp=8, cp=4, shard_group=2)).shard_ranks == 8.0


def test_words_become_switches():
    plan = Plan(recompute="selective", schedule="zero-bubble", precision="fp8", sequence_parallel=True)
    assert (plan.recompute_selective, plan.recompute_full) == (1.0, 0.0)
    assert (plan.gpipe, plan.zero_bubble, plan.sequence_parallel) == (0.0, 1.0, 1.0)
    np.testing.assert_array_equal(plan.precision, [0.0, 0.0, 0.0, 1.0, 0.0])


@pytest.mark.parametrize(
    ("field", "word", "valid"),
    [
        ("recompute", "some", "none, selective, full"),
        ("schedule", "dual", "gpipe, 1f1b, interleaved, zero-bubble"),
        ("precision", "int8", "fp32, tf32, bf16, fp8, fp4"),
    ],
)
def test_unknown_words_are_refused(field: str, word: str, valid: str):
    with pytest.raises(ValueError, match=f"Plan.{field} = '{word}' is unknown; expected one of {valid}"):
        Plan(**{field: word})


@pytest.mark.parametrize("field", ["dp", "tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "n_microbatches"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_degrees_below_one_are_refused(field: str, value: float):
    with pytest.raises(ValueError, match=f"Plan.{field} = .* is out of range; expected a number from 1 to"):
        Plan(**{field: value})


def test_zero_stages_beyond_three_are_refused():
    with pytest.raises(ValueError, match="Plan.zero_stage = 4 is out of range; expected a number from 0 to 3"):
        Plan(zero_stage=4)


@pytest.mark.parametrize("value", [0, -2, float("nan"), float("inf")])
def test_gradients_without_bytes_are_refused(value: float):
    with pytest.raises(ValueError, match="Plan.gradient_bytes = .* is out of range; expected a number above 0"):
        Plan(gradient_bytes=value)


def test_degrees_multiply_to_chips_and_batch():
    assert GOOD.n_chips == 256.0
    assert GOOD.global_batch_size_seqs == 32.0
    assert local_plan(LLAMA, GOOD).tokens == LLAMA.seq_len / 2.0
    assert local_plan(LLAMA, Plan(dp=4, tp=2, ep=4)).expert_shard == 8.0
    # ep beyond dp * cp takes chips of the tensor-parallel groups, which then split experts less.
    folded = local_plan(LLAMA, Plan(dp=4, tp=2, ep=8))
    assert (folded.expert_tensor_degree, folded.expert_shard) == (1.0, 8.0)


def test_stages_switch_on_one_after_the_other():
    on = [[float(sharding(Plan(zero_stage=stage), of)) for of in (1, 2, 3)] for stage in (0, 1, 2, 3)]
    assert on == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert sharding(changed(Plan(), zero_stage=1.25), 2) == 0.25


def test_a_valid_plan_breaks_no_rule():
    assert violations(LLAMA, GOOD, 256) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dp": 5}, "dp * tp * pp * cp = 320 must equal the cluster's 256 chips"),
        ({"tp": 3}, "tp = 3 must divide n_heads = 32"),
        ({"tp": 5}, "tp = 5 must divide d_ff = 14336"),
        ({"tp": 12}, "tp = 12 must divide n_kv_heads = 8 or be a multiple of it"),
        ({"pp": 64}, "pp * vpp = 64 exceeds 32 layers"),
        ({"cp": 5}, "2 * cp = 10 must divide seq_len"),
        ({"ep": 2}, "ep = 2 must divide n_experts = 1"),
        ({"ep": 3}, "ep = 3 must divide dp * cp * tp"),
        ({"dp": 3, "ep": 4}, "ep = 4 must divide dp * cp = 6, or be the larger"),
        ({"shard_group": 3}, "shard_group = 3 must divide dp = 4"),
        ({"pp": 1, "vpp": 2}, "vpp = 2 needs pp > 1"),
        ({"vpp": 2, "n_microbatches": 9}, "interleaving needs n_microbatches = 9 to be a multiple of pp = 4"),
        ({"zero_stage": 3}, "ZeRO stage 3 shards what a pipeline reuses; it needs pp = 1"),
    ],
)
def test_each_rule_has_its_sentence(change: dict[str, float], sentence: str):
    plan = Plan(**({"dp": 4, "tp": 8, "pp": 4, "cp": 2, "n_microbatches": 8} | change))
    assert any(message.startswith(sentence) for message in violations(LLAMA, plan, 256))


@pytest.mark.parametrize(
    ("tp", "domain", "suits"),
    [(1, 8, True), (4, 8, True), (8, 8, True), (16, 8, True), (6, 8, False), (12, 8, False), (2, 1, True)]
    + [(8, 72, True), (16, 72, True), (64, 72, True), (48, 72, False), (128, 72, False), (16, 256, True)],
)
def test_groups_fill_their_domains(tp: int, domain: int, suits: bool):
    """Racks of 72 may leave a ninth of their chips out, nodes of 8 none."""
    assert bool(suits_domain(tp, domain)) is suits
    broken = violations(LLAMA, changed(GOOD, tp=float(tp)), 256, domain)
    assert any("scale-up domain" in message for message in broken) is not suits
    assert not any("scale-up domain" in message for message in violations(LLAMA, changed(GOOD, tp=float(tp)), 256))


def test_ranks_beyond_the_key_value_heads_hold_copies_of_one():
    d, h = 4096, 128
    assert [float(key_value_width(LLAMA, Plan(tp=tp))) / (2 * h) for tp in (1, 8, 32)] == [8.0, 1.0, 1.0]
    for tp, copies in ((8, 1.0), (32, 4.0)):
        whole = tp * local_plan(LLAMA, Plan(tp=tp)).attention_params
        assert whole == attention_params(LLAMA) + (copies - 1.0) * 8 * d * 2 * h


def test_plans_of_every_kind_stack():
    plans = stack([case.plan for case in random_configurations(50)])
    chips = jax.vmap(lambda plan: plan.n_chips)(plans)
    assert chips.shape == (50,) and len(np.unique(chips)) > 5


def random_plan(random: np.random.Generator) -> Plan:
    """A plan of any words, valid or not."""
    degrees = {name: int(random.integers(1, 65)) for name in ("dp", "tp", "pp", "vpp", "cp", "ep", "n_microbatches")}
    flags = ("sequence_parallel", "flash_attention", "overlap_gradients", "fused_glu")
    return Plan(
        **degrees,
        **{name: bool(random.integers(2)) for name in flags},
        zero_stage=int(random.integers(4)),
        shard_group=int(random.integers(1, 65)),
        micro_batch_size=float(random.choice([1.0, 4.0, 2.5])),
        recompute=str(random.choice(RECOMPUTE)),
        schedule=str(random.choice(SCHEDULES)),
        precision=str(random.choice(PRECISIONS)),
        balanced_stages=float(random.choice([0.0, 0.5, 1.0])),
        gradient_bytes=float(random.choice([2.0, 4.0])),
    )


@pytest.mark.parametrize("seed", range(40))
def test_words_of_a_plan_make_the_same_plan(seed: int):
    plan = random_plan(np.random.default_rng(seed))
    rebuilt = Plan(**plan.words())
    for name in Plan.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(rebuilt, name), getattr(plan, name), err_msg=name)
    assert rebuilt.words() == plan.words()


def test_every_argument_of_a_plan_is_among_its_words():
    switches = {switch for words in SWITCHES.values() for switch in words.values()} - {"recompute_full"}
    arguments = set(inspect.signature(Plan).parameters) - switches
    assert set(Plan().words()) == arguments
    # A plan of another number format has other words.
    assert Plan(precision="fp8").words() != Plan().words()


def test_whole_degrees_are_integers_and_switches_words():
    words = Plan(tp=4, vpp=2, pp=2, micro_batch_size=2.5, precision="fp8", balanced_stages=0.5).words()
    assert (words["tp"], type(words["tp"]), words["micro_batch_size"]) == (4, int, 2.5)
    assert (words["schedule"], words["recompute"], words["precision"]) == ("interleaved", "none", "fp8")
    assert (words["flash_attention"], words["balanced_stages"]) == (True, 0.5)


@pytest.mark.parametrize("field", ["recompute_selective", "zero_bubble", "precision"])
def test_a_plan_between_words_has_none(field: str):
    half = changed(Plan(), **{field: np.full(5, 0.2) if field == "precision" else 0.5})
    with pytest.raises(ValueError, match="expected"):
        half.words()


@pytest.mark.parametrize("choice", SWITCHES)
def test_codes_and_switches_are_inverse_on_columns(choice: str):
    words = list(SWITCHES[choice])
    codes = np.arange(len(words))
    expected = [words.index("1f1b") if word == "interleaved" else place for place, word in enumerate(words)]
    np.testing.assert_array_equal(codes_of(choice, switches_of(choice, codes)), expected)


def test_formats_are_named_once_and_widen_into_each_other():
    assert len(set(PRECISIONS)) == len(FORMATS)
    for entry in FORMATS:
        (wide,) = [other for other in FORMATS if other.name == entry.wide]
        assert wide.wide == wide.name and wide.matmul_bytes >= 2.0
        assert entry.matmul_bytes <= entry.gathered_bytes <= entry.element_bytes == wide.element_bytes
        assert not entry.without_units or PRECISIONS.index(entry.without_units) < PRECISIONS.index(entry.name)


def test_the_catalogue_falls_back_as_the_table_of_formats_says():
    fallbacks = read_toml(data_path("hardware.toml"))["fallbacks"]
    for entry in FORMATS:
        if entry.without_units:
            rule = fallbacks[f"peak_tflops_{entry.name}"]
            assert (rule["from"], rule["ratio"]) == (f"peak_tflops_{entry.without_units}", 1.0)
