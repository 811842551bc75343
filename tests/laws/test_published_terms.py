"""Published laws of batch and repetition from their runs, and the frontier of flop beside that of hours."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.laws.approaches import optimal_batch
from jaxscale.laws.loss_fit import fit_law
from jaxscale.laws.loss_forms import number_names
from jaxscale.laws.loss_reader import loss_table, losses_of
from jaxscale.laws.loss_solver import huber_loss

MUENNIGHOFF = {
    "irreducible": np.exp(0.6254804),
    "params_coefficient": np.exp(6.255414),
    "tokens_coefficient": np.exp(7.3049974),
    "params_exponent": 0.3526596,
    "tokens_exponent": 0.3526596,
}
"""Law of one epoch of Muennighoff et al. 2023 (their notebook), held while repetition is fitted."""

REPETITION = {"repeated_params": 5.309743, "repeated_tokens": 15.387756}
"""Their numbers of repetition."""


def sweep(exponent):
    """Runs of a known batch law: seven batches and five learning rates at each of four lengths of two sizes."""
    sizes, lengths = np.meshgrid([2e8, 8e8], np.geomspace(4e9, 1e11, 4), indexing="ij")
    batches, rates = np.meshgrid(np.geomspace(0.2, 5.0, 7), np.geomspace(0.3, 3.0, 5), indexing="ij")
    n, d = (np.repeat(values.ravel(), batches.size) for values in (sizes, lengths))
    far, off = (np.tile(np.log(values.ravel()), sizes.size) for values in (batches, rates))
    best = 2.5e5 * (d / 1e10) ** exponent
    rate = 1e-3 * (n / 1e9) ** -0.6 * (d / 1e10) ** 0.2 * np.exp(0.35 * far + off)
    loss = (1.8 + 400.0 * n**-0.34 + 500.0 * d**-0.31) * np.exp(0.006 * far**2 + 0.008 * off**2)
    return losses_of({"n_params": n, "tokens": d, "loss": loss, "batch_tokens": best * np.exp(far), "lr": rate})


@pytest.mark.parametrize("exponent", [0.4, 0.6])
def test_a_known_batch_law_is_recovered(exponent):
    found = optimal_batch(sweep(exponent))
    assert found.batch_exponent == pytest.approx(exponent, abs=1e-4)
    assert found.batch == pytest.approx(2.5e5, rel=1e-3)
    assert (found.params_exponent, found.tokens_exponent) == pytest.approx((-0.6, 0.2), abs=1e-4)
    assert (found.batch_curvature, found.rate_curvature) == pytest.approx((0.006, 0.008), rel=1e-3)


def test_the_batch_of_step_law_grows_as_published():
    """Li et al. 2025: B* ~ D^0.571; read from the repository alone, since the table may not ship."""
    try:
        table = loss_table("steplaw-sweep")
    except InputError:
        pytest.skip("the table is not here")
    found = optimal_batch(table)
    assert found.n == 1609
    assert 0.57 <= found.batch_exponent <= 0.64 and found.batch_error < 0.02
    assert found.batch == pytest.approx(0.58 * 1e10**0.571, rel=0.2)


def test_a_sweep_without_batches_is_refused():
    with pytest.raises(InputError, match="5 runs near their optimum"):
        optimal_batch(sweep(0.5).select(np.arange(5)))
    bare = losses_of({name: sweep(0.5).number(name) for name in ("n_params", "tokens", "loss")})
    with pytest.raises(InputError, match="'batch_tokens' is empty"):
        optimal_batch(bare)


def test_the_worth_of_repeated_tokens_is_not_identified():
    """Better than the published numbers on the same runs, and honest about it: R_D* may be anything above a few."""
    table = loss_table("muennighoff-repetition")
    law = fit_law(
        table, "additive", ("repetition",), prior=None, held=MUENNIGHOFF, likelihood="huber", n_draws=20
    )  # fmt: skip
    numbers = law.fitted.numbers.copy()
    for name, value in REPETITION.items():
        numbers[number_names(law.terms).index(name)] = np.log(value)
    published = replace(law, fitted=law.fitted._replace(numbers=numbers))
    costs = [float(np.sum(huber_loss(jnp.log(table.loss / one.predict_table(table).loss)))) for one in (law, published)]
    assert costs[0] < costs[1]
    entry = law.parameters["repeated_tokens"]
    assert not entry["identified"] and entry["value"] > REPETITION["repeated_tokens"]
    assert any("repeated_tokens" in doubt for doubt in law.warnings)
    assert law.parameters["params_exponent"]["identified"], "what is held is not in doubt"


def frontier(cost, loss):
    """Runs on the convex hull of log cost and log loss, up to the least loss."""
    x, y = np.log(cost), np.log(loss)
    hull: list[int] = []
    for run in np.argsort(x):
        while len(hull) >= 2:
            before, last = hull[-2:]
            turn = (x[last] - x[before]) * (y[run] - y[before]) - (y[last] - y[before]) * (x[run] - x[before])
            if turn > 0.0:
                break
            hull.pop()
        hull.append(int(run))
    return np.asarray(hull[: int(np.argmin(y[hull])) + 1])


def test_the_frontier_of_hours_is_wider_than_that_of_flop():
    """McLeish et al. 2025: width over depth on the hull of loss against chip hours, and against flop, as measured."""
    table = loss_table("gemstones")
    aspect = table.number("d_model") / table.number("n_layers")
    hours = table.number("step_seconds") * table.number("n_chips") * table.tokens / table.number("batch_tokens")
    by_hours, by_flop = (np.median(aspect[frontier(cost, table.loss)]) for cost in (hours, np.exp(table.log_flop)))
    assert by_hours >= 4.0 * by_flop
    # At one time per parameter and token the two are the same.
    even = np.median(aspect[frontier(table.n_params * table.tokens / 1e12, table.loss)])
    assert even == by_flop
