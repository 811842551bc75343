"""The demonstration: an honest split, a choice that holds, a report that shows both. CI runs the whole of it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from screens import WIDTHS, Expected, screen_of, shows, tokens_of, too_long

from jaxscale.base.errors import InputError
from jaxscale.calibration.record import load_fit
from jaxscale.cli import console, demo_study
from jaxscale.cli.demo_study import add_plans, add_shape, demo_document, plan_label, summary_lines
from jaxscale.costs.step import StepTime
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.plans.rules import violations
from jaxscale.report import Report
from jaxscale.runs.measured import measured_runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def design():
    """The choice under the priors."""
    said: list[str] = []
    design = demo_study.choose(load_fit("prior"), load_hardware(), said.append)
    assert said
    return design


def test_plans_without_room_for_a_shape_drop_out(design, monkeypatch: pytest.MonkeyPatch):
    """Negative control: where no plan has room, the first refusal is told."""
    fast, full, slow = demo_study.distinct(design.plans)[:3]
    tried = []

    def found(machine: Any, budget: Any, *, plan: Any, **options: Any) -> Any:
        tried.append(plan)
        if plan is full.plan:
            raise InputError("no shape fits")
        return design.shape

    monkeypatch.setattr(demo_study, "best_design", found)
    machine = demo_study.cluster(demo_study.GPU, demo_study.N_GPUS)
    given = design.model, machine, load_fit("prior")
    assert demo_study.shapes_under([fast, full, slow], *given) == [design.shape] * 2
    assert tried == [fast.plan, full.plan, slow.plan]
    with pytest.raises(InputError, match="no shape fits"):
        demo_study.shapes_under([full], *given)


def group(row):
    """What the runs of one group share."""
    return tuple(row[name] for name in ("n_layers", "d_model", "n_gpus", "tp", "pp"))


def test_no_group_is_both_fitted_and_held_out():
    kept, held_out = demo_study.split(load_hardware())
    assert len(kept) > 3 * len(held_out) > 20
    assert not {group(row) for row in kept} & {group(row) for row in held_out}
    assert all(row["step_time_s"] for row in [*kept, *held_out])


def test_the_plan_that_was_used_is_valid():
    assert violations(demo_study.model(demo_study.MODEL), demo_study.AS_TRAINED, demo_study.N_GPUS) == []
    assert demo_study.AS_TRAINED.global_batch_size_seqs == demo_study.BATCH


def test_the_planned_run_belongs_to_the_runs_that_were_fitted():
    """Else neither their effects nor the scatter of their memory would count."""
    kept, _ = demo_study.split(load_hardware())
    measured, _ = measured_runs(kept)
    assert all(level in measured.levels.column(kind) for kind, level in demo_study.LEVELS.items())


def test_the_best_plan_beats_the_one_that_was_used(design):
    trained = sum(design.as_trained.values())
    assert design.plans.best.step_time < design.plans_then.best.step_time <= trained * (1 + 1e-6)
    assert 100.0 < design.measured < 110.0
    assert set(design.as_trained) == set(StepTime.__dataclass_fields__)
    labels = [plan_label(scored.plan) for scored in demo_study.distinct(design.plans)]
    assert len(set(labels)) == len(labels)


def test_the_better_shape_obeys_its_plan(design):
    shape = design.shape.rounded.model
    assert violations(shape, design.shape_plan, demo_study.N_GPUS) == []
    # The published shape has stages of unequal depth; another one is better by more than that costs.
    is_published = float(shape.n_layers) == float(design.model.n_layers)
    assert is_published or float(shape.n_layers) % design.shape_plan.words()["pp"] == 0
    assert -1e-9 <= design.gain < 0.5


def test_the_grid_has_no_holes(design):
    assert np.isfinite(design.grid.step_times).all()
    assert np.isfinite(design.grid.curve_times).all()
    assert np.all(np.diff(design.grid.step_times, axis=0) > 0), "deeper takes longer"


def test_elasticities_have_the_sign_of_their_physics(design):
    assert design.elasticities["peak flop/s (16 bit)"] < 0.0
    assert design.elasticities["bandwidth between nodes"] < 0.0
    assert 0.5 < design.elasticities["sequence length"] < 1.5


def test_the_sections_hold_every_figure(design, tmp_path):
    report = Report("demo")
    add_plans(report, design)
    add_shape(report, design)
    report.save(tmp_path)
    pictures = {"step_breakdown.png", "sensitivity.png", "shape_map.png", "shape_profile.png"}
    assert pictures | {"report.html", "report.md"} == {path.name for path in tmp_path.iterdir()}


def test_the_numbers_of_its_document_stand_whole_on_every_terminal(design):
    errors = {"n": 43, "mape": 4.81, "median_ape": 3.57, "p90_ape": 9.9, "coverage_90": 0.953}
    result: Any = SimpleNamespace(n=212, mape_train=3.94, mape_cv=5.26)
    result.to_json = lambda: vars(result)
    held_out: Any = SimpleNamespace(errors=lambda: errors)
    runs: Any = ()
    calibration = demo_study.DemoCalibration(result, held_out, runs)
    document = demo_document(calibration, design)
    percents = [*(document["fit"][name] for name in ("mape_train", "mape_cv")), errors["mape"], errors["median_ape"]]
    times = (
        document["plan_of_the_time"]["step_time_s"],
        document["as_trained_measured_s"],
        document["plan"]["step_time_s"],
    )
    expected = [*map(Expected, percents), *(Expected(time, is_time=True) for time in times)]
    for width in WIDTHS:
        screen = screen_of(lambda: console.print_result(*summary_lines(calibration, design)), width)
        assert not too_long(screen, width) and shows(expected, tokens_of(screen))
