"""The list of plans: agrees with the rules of `violations`, misses none, repeats none."""

import dataclasses
import itertools

import numpy as np
import pytest

from jaxscale.base.arrays import divisors
from jaxscale.base.errors import InputError
from jaxscale.models import model
from jaxscale.models.transformer import Transformer
from jaxscale.plans.enumerate import FIELDS, OPEN_MICROBATCHES, PlanSpace, enumerate_plans
from jaxscale.plans.plan import SCHEDULES, Plan
from jaxscale.plans.rules import BATCH_RULE, violations

CASES = {
    "dense": (Transformer(12, 1024, 8, 512), 48, 96),
    "mixture": (Transformer(8, 512, 8, 256, n_experts=6, moe_top_k=2, d_ff_expert=512), 48, 96),
    "odd": (Transformer(9, 768, 12, 384), 36, 72),
}
EVERYTHING = PlanSpace(schedule=SCHEDULES, whole_chunks=False)


def key(plan: Plan) -> tuple[float, ...]:
    return tuple(float(getattr(plan, name)) for name in FIELDS)


@pytest.mark.parametrize("case", CASES)
def test_every_listed_plan_is_valid(case):
    transformer, n_chips, batch = CASES[case]
    table = enumerate_plans(transformer, n_chips, batch, EVERYTHING)
    rows = np.random.default_rng(0).choice(len(table), min(300, len(table)), replace=False)
    for row in rows:
        plan = table.plan(int(row))
        assert violations(transformer, plan, n_chips) == []
        assert plan.global_batch_size_seqs == batch


@pytest.mark.parametrize("case", CASES)
def test_every_valid_plan_is_listed(case):
    """Random plans that break no rule are in the list; those that break one are not."""
    transformer, n_chips, batch = CASES[case]
    table = enumerate_plans(transformer, n_chips, batch, EVERYTHING)
    listed = set(zip(*(table.columns[name].astype(float).tolist() for name in FIELDS), strict=True))
    assert len(listed) == len(table), "a plan is listed twice"
    random, found, refused = np.random.default_rng(1), 0, 0
    degrees = np.arange(1, 13)
    for _ in range(3000):
        tp, pp, cp, ep, size = random.choice(degrees, 5, p=0.5 ** np.arange(12) / np.sum(0.5 ** np.arange(12)))
        dp = n_chips // (tp * pp * cp)
        microbatches = batch // (max(dp, 1) * size)
        schedule = random.choice(SCHEDULES) if pp > 1 else "1f1b"
        if dp < 1 or dp * size * microbatches != batch:
            continue
        vpp = random.integers(2, 5) if schedule == "interleaved" else 1
        stage = random.integers(0, 4) if dp * cp > 1 else 0
        group = random.choice(divisors(int(dp))) if stage == 3 else dp
        recompute = random.choice(["none", "full"])
        split = bool(tp > 1 and random.integers(2))
        plan = Plan(
            dp, tp, pp, vpp, cp, ep, stage, size, microbatches, split, recompute, schedule=schedule, shard_group=group
        )
        valid = violations(transformer, plan, n_chips) == []
        assert (key(plan) in listed) == valid, plan.words()
        found, refused = found + valid, refused + (not valid)
    assert found > 20
    assert refused > 10


def test_space_restricts():
    transformer, n_chips, batch = CASES["dense"]
    table = enumerate_plans(
        transformer, n_chips, batch, PlanSpace(tp=(2, 5), recompute=("full",), zero_stage=(1,), schedule=("1f1b",))
    )
    assert len(table) > 0
    assert set(table.columns["tp"]) == {2}
    assert set(table.columns["zero_stage"]) == {1}
    assert set(table.columns["recompute_full"]) == {1}
    assert set(table.columns["vpp"]) == {1}


@pytest.mark.parametrize("stated", [None, (7,)])
def test_microbatches_that_make_up_no_batch_wait_for_a_space_without_that_rule(stated):
    """A batch of 96 has no whole microbatches of 7: without the rule the last of a step is short."""
    transformer, n_chips, batch = CASES["dense"]
    space = PlanSpace(tp=(1,), pp=(1,), cp=(1,), zero_stage=(1,), micro_batch_size=stated, n_microbatches=(3, 4))
    table = enumerate_plans(transformer, n_chips, batch, space)
    loose = dataclasses.replace(space, rules=tuple(rule for rule in space.rules if rule is not BATCH_RULE))
    short, open_batch = (enumerate_plans(transformer, n_chips, size, loose) for size in (1008, None))
    assert set(open_batch.columns["micro_batch_size"]) == set(stated or OPEN_MICROBATCHES)
    assert set(open_batch.columns["n_microbatches"]) == {3}
    if stated:
        assert not len(table)
        # 48 replicas of 7 sequences three times.
        assert set(short.columns["micro_batch_size"]) == {7} and set(short.columns["n_microbatches"]) == {3}
    else:
        assert not len(short) and not len(table)
        # In a batch of 192 sequences 48 replicas pass once over 4, or 4 times over 1.
        four = enumerate_plans(transformer, n_chips, 192, space)
        assert set(four.columns["micro_batch_size"]) == {1}


def test_selective_recomputation_counts_only_where_it_differs():
    transformer, n_chips, batch = CASES["dense"]
    fused = enumerate_plans(transformer, n_chips, batch)
    stored = enumerate_plans(transformer, n_chips, batch, PlanSpace(software=Plan(flash_attention=False)))
    assert not fused.columns["recompute_selective"].any()
    assert len(stored) == 3 * len(fused) // 2


def test_no_plan():
    transformer, _, _ = CASES["dense"]
    assert len(enumerate_plans(transformer, 7919, 96)) == 0


@pytest.mark.parametrize("number", [1, 12, 97, 1024, 3072, 10**9])
def test_divisors(number):
    found = divisors(number)
    assert (number % found == 0).all()
    assert (np.diff(found) > 0).all()
    primes = [p for p in range(2, 100) if number % p == 0 and all(p % q for q in range(2, p))]
    if number < 10**6:
        assert len(found) == sum(number % d == 0 for d in range(1, number + 1))
    assert all(p in found for p in primes)


def test_unknown_words_are_refused():
    for wrong in ({"recompute": ("some",)}, {"schedule": ()}, {"zero_stage": (4,)}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            PlanSpace(**wrong)


def test_published_plans_are_in_the_list():
    """Llama-3 405B (tp 8, cp 1, pp 16, dp 128), and BLOOM (tp 4, pp 12, dp 8) on their clusters."""
    for name, n_chips, batch, wanted in (
        ("llama3-405b", 16384, 2048, {"tp": 8, "cp": 1, "pp": 16, "dp": 128, "micro_batch_size": 1}),
        ("bloom-176b", 384, 2048, {"tp": 4, "pp": 12, "dp": 8, "micro_batch_size": 2}),
    ):
        columns = enumerate_plans(model(name), n_chips, batch).columns
        masks = [columns[field] == value for field, value in wanted.items()]
        assert np.logical_and.reduce(masks).any(), name


def test_all_combinations_of_switches():
    transformer, n_chips, batch = CASES["dense"]
    columns = enumerate_plans(transformer, n_chips, batch).columns
    piped = (columns["pp"] > 1) & (columns["tp"] > 1)
    for split, full, gpipe in itertools.product((0, 1), repeat=3):
        here = (
            (columns["sequence_parallel"] == split) & (columns["recompute_full"] == full) & (columns["gpipe"] == gpipe)
        )
        assert (piped & here).any()
