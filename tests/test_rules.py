"""Validity rules: the same answer for one plan and for columns of them, each asked as soon as its fields are there."""

import numpy as np
import pytest
from registry import changed, random_configurations, stack

from jaxscale.plans.rules import RULES, broken_rules, decided, divides, model_columns, obeys, plan_columns, violations

CASES = random_configurations(60)


def disturbed() -> list:
    """Valid plans of which every second one has a degree that suits little."""
    random = np.random.default_rng(3)
    plans = []
    for index, case in enumerate(CASES):
        name = ("tp", "pp", "cp", "ep", "vpp", "shard_group", "zero_stage")[random.integers(7)]
        plans.append(changed(case.plan, **{name: 3.0}) if index % 2 else case.plan)
    return plans


def test_columns_of_plans_get_the_sentences_of_single_ones():
    plans = disturbed()
    columns = {**model_columns(stack([case.model for case in CASES])), **plan_columns(stack(plans))}
    chips = np.asarray([float(case.plan.n_chips) for case in CASES])
    together = broken_rules({**columns, "n_chips": chips, "domain_size": 8}, len(plans))
    alone = [violations(case.model, plan, n, 8) for case, plan, n in zip(CASES, plans, chips, strict=True)]
    assert [list(sentences) for sentences in together] == alone
    assert 10 < sum(not sentences for sentences in alone) < 50


def test_a_row_obeys_the_rules_that_it_breaks_none_of():
    plans = disturbed()
    columns = {**model_columns(stack([case.model for case in CASES])), **plan_columns(stack(plans)), "domain_size": 8}
    kept = obeys(columns)
    assert [not sentences for sentences in broken_rules(columns, len(plans))] == kept.tolist()
    assert kept.any() and not kept.all()


def test_a_rule_is_asked_once_its_fields_are_there():
    names = {rule.name for rule in decided(("tp", "n_heads", "n_kv_heads"))}
    assert names == {"heads", "key/value heads"}
    assert obeys({"tp": np.asarray([1, 3, 4]), "n_heads": 8}).tolist() == [True, False, True]
    assert bool(obeys({"tp": 3})), "no rule is decided by tp alone"
    assert bool(obeys({"tp": 3, "n_heads": 8, "pp": 2}, about="pp")), "a rule without the field has been asked before"


def test_microbatches_make_up_the_global_batch():
    plan = {"dp": 4, "micro_batch_size": 2, "n_microbatches": 8}
    assert list(broken_rules({**plan, "global_batch_size_seqs": 64}, 1)) == [()]
    sentence = "micro_batch_size * n_microbatches * dp = 64 must equal the global batch of 65 sequences"
    assert list(broken_rules({**plan, "global_batch_size_seqs": 65}, 1)) == [(sentence,)]


def test_sentences_are_written_for_rows_that_break_a_rule():
    """A million valid rows cost no sentence; equal breaches share one."""
    tp = np.where(np.arange(1_000_000) % 250_000 == 7, 3, 4)
    sentences = broken_rules({"tp": tp, "n_heads": 8}, len(tp))
    spoken = [row for row, texts in enumerate(sentences) if texts]
    assert spoken == [7, 250_007, 500_007, 750_007]
    assert len({id(sentences[row][0]) for row in spoken}) == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_sentences_read_fields_of_their_rule(rule):
    numbers = dict.fromkeys(rule.fields, 2.0)
    assert rule.sentence(numbers)


def test_division_is_exact():
    assert divides(np.asarray([1, 3, 4]), 12).tolist() == [True, True, True]
    assert not divides(5, 12) and not divides(2, 12.5)
