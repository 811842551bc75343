"""Designs under fitted laws: what a fit passes on, and how far a design moves under other laws."""

import equinox as eqx
import pytest

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.designs import law_designs
from jaxscale.designs.budgets import Budget
from jaxscale.designs.design_result import DesignChoice
from jaxscale.designs.law_designs import evenly, replace_shape, shape_ends
from jaxscale.designs.time_to_loss import default_laws, laws_of, run_figures, shape_factor
from jaxscale.laws.loss_fit import fit_law
from jaxscale.laws.loss_reader import loss_table, losses_of, with_count
from jaxscale.models.transformer import embedding_params, n_params


@pytest.fixture(scope="module")
def law():
    """Law of a small table."""
    return fit_law(loss_table("gadre-c4"), n_draws=20)


def test_laws_of_a_design_hold_the_fitted_numbers(law):
    rules = laws_of(law)
    assert float(rules.loss.loss(7e9, 1.4e11)) == pytest.approx(float(law.predict(7e9, 1.4e11).loss[0]), rel=1e-6)
    assert rules.shape == default_laws().shape and rules.embeddings == 1.0
    assert laws_of(law, 3).loss != rules.loss
    assert laws_of(None).loss == default_laws().loss and laws_of(rules) is rules


def test_shape_and_batch_terms_pass_on():
    table = loss_table("gemstones-cooldown", "non-embedding")
    rules = laws_of(fit_law(table, "joint", ("shape",), prior=None, n_draws=0))
    assert rules.shape.drift == pytest.approx(0.32, abs=0.1) and rules.embeddings == 0.0
    model = js.model("llama3-8b")
    run = run_figures(model, model, rules, small_batch_tokens=2e11, batch_tokens=1e6, step_seconds=1.0, n_chips=64.0)
    inner = n_params(model) - embedding_params(model)
    ideal = rules.loss.loss(inner, 2e11) * shape_factor(model, model, rules)
    assert float(run.loss) == pytest.approx(float(ideal), rel=1e-6)
    total = eqx.tree_at(lambda one: one.embeddings, rules, 1.0)
    other = run_figures(model, model, total, small_batch_tokens=2e11, batch_tokens=1e6, step_seconds=1.0, n_chips=64.0)
    assert float(other.loss) < float(run.loss)


def test_an_unknown_count_is_refused(law):
    table = loss_table("gadre-c4")
    strange = losses_of(
        {"n_params": table.n_params, "tokens": table.tokens, "loss": table.loss}, n_params_kind=["odd"] * len(table)
    )
    with pytest.raises(InputError, match="counts parameters as 'odd'"):
        laws_of(fit_law(with_count(strange), n_draws=0))


def test_shape_laws_within_the_interval_span_it():
    ends = shape_ends()
    assert len(ends) == 4
    ratios = [float(one.best_ratio(3e10)) for one in ends.values()]
    assert max(ratios) > 2.0 * min(ratios)
    kaplan = replace_shape(default_laws(), ends["shape law of Kaplan"])
    assert kaplan.shape.drift == 0.0 and kaplan.loss == default_laws().loss
    assert evenly(100, 3) == [0, 50, 99] and evenly(100, 0) == []


def test_ends_of_the_shape_law_lie_evenly_about_it():
    ends = shape_ends()
    narrower, fitted, wider = (ends[f"shape law of Gemstones{end}"] for end in (", narrower end", "", ", wider end"))
    for name in ("ratio", "drift"):
        low, middle, high = (float(getattr(one, name)) for one in (narrower, fitted, wider))
        assert low < middle < high
        assert high - middle == pytest.approx(middle - low, rel=1e-6)


class Chosen(DesignChoice):
    """Stands for a design: figures that follow from the laws in closed form."""

    def __init__(self, cluster, budget, *, laws, **others):
        n, d = (float(value) for value in laws.loss.optimum(1e22))
        aspect = float(laws.shape.best_ratio(n))
        depth = (n / (12.0 * aspect**2)) ** (1.0 / 3.0)
        sizes = (depth, aspect * depth)
        model = eqx.tree_at(lambda one: (one.n_layers, one.d_model), js.model("llama3-8b"), sizes)
        values = {"params": n, "tokens": d, "global_batch_tokens": 2e6, "loss": float(laws.loss.loss(n, d))}
        self.__dict__.update(model=model, values=values)

    rounded = property(lambda self: self)
    relaxed = property(lambda self: self)
    problem = property(lambda self: self)

    def figures(self, values):
        """Figures of the design."""
        return values


def test_a_design_tells_how_far_it_hangs_on_the_law(law, monkeypatch):
    monkeypatch.setattr(law_designs, "best_design", Chosen)
    under = law_designs.law_design(law, Budget(days=3.0), js.cluster("h100-80gb", 64), n_draws=3)
    document = under.to_json()
    assert len(document["alternatives"]) == 4 + 3
    for name, moves in document["sensitivity"].items():
        assert moves["lo"] <= document["design"][name] <= moves["hi"]
    assert document["sensitivity"]["global_batch_tokens"]["safe"] and not document["sensitivity"]["aspect"]["safe"]
    assert under.flop == pytest.approx(1e22, rel=1e-6)
    assert document["compute_optimal"]["n_params"]["value"] == pytest.approx(document["design"]["params"], rel=1e-6)
    alone = law_designs.law_design(law, Budget(days=3.0), js.cluster("h100-80gb", 64), n_draws=0, shapes=False)
    assert all(alone.safe.values()) and not alone.alternatives
