"""Tables of losses: schema, named tables, bad input and doubts."""

import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.laws.loss_fit import check_losses
from jaxscale.laws.loss_reader import (
    LOSS_COLUMN,
    LOSS_COLUMNS,
    best_of,
    count_of,
    loss_table,
    loss_table_names,
    losses_of,
    meaning,
    read_losses,
)

GOOD = [(1e8, 2e9, 3.5), (1e8, 8e9, 3.2), (4e8, 8e9, 2.9), (4e8, 3e10, 2.7), (1.6e9, 3e10, 2.5)]


@pytest.fixture
def written(tmp_path):
    """Writer of a table of losses."""

    def write(rows=GOOD, header="n_params,tokens,loss", name="losses.csv"):
        path = tmp_path / name
        path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
        return path

    return write


def test_every_shipped_table_is_in_the_schema():
    names = [column.name for column in LOSS_COLUMNS]
    for name in loss_table_names(judged=False):
        table = loss_table(name)
        assert [column for column in table.columns if column not in names] == []
        assert len(table) >= 17 and table.family
        assert (table.loss > 0.5).all() and (table.tokens >= 5e7).all()
    assert LOSS_COLUMN["loss"].required and not LOSS_COLUMN["lr"].required


def test_named_tables_have_the_published_rows():
    """770 and 199 of Gemstones, 240 of Besiroglu et al., 17 pairs of Step Law."""
    sizes = {name: len(loss_table(name)) for name in ("gemstones", "gemstones-cooldown", "chinchilla", "steplaw")}
    assert sizes == {"gemstones": 770, "gemstones-cooldown": 199, "chinchilla": 240, "steplaw": 17}
    with pytest.raises(InputError, match="unknown; expected one like gemstones"):
        loss_table("gemstone")


def test_counts_are_named_and_never_mixed(written):
    total, other = loss_table("gemstones"), loss_table("gemstones", "non-embedding")
    assert (total.count, other.count) == ("total", "non-embedding")
    vocabulary = total.number("vocab_size") * total.number("d_model")
    np.testing.assert_allclose(total.n_params - other.n_params, vocabulary)
    rows = [(*row, kind) for row, kind in zip(GOOD, ["total"] * 4 + ["non-embedding"], strict=True)]
    mixed = written(rows, "n_params,tokens,loss,n_params_kind")
    with pytest.raises(InputError, match="mixes counts of parameters"):
        read_losses(mixed)
    with pytest.raises(InputError, match=r"csv:2: no count of parameters is 'non-embedding'"):
        read_losses(mixed, count="non-embedding")
    assert count_of("total, tied embedding counted once") == "total"
    assert count_of("active, non-embedding") != count_of("non-embedding")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1e9, 2e10, 0.0), r"losses.csv:7: column 'loss' = '0.0': zero; expected a number > 0"),
        ((1e9, 2e10, "nan"), r"losses.csv:7: column 'loss' = 'nan': not a number"),
        ((1e9, 2e10, ""), r"losses.csv:7: column 'loss' = '': empty"),
        ((-1e9, 2e10, 2.0), r"column 'n_params' = '-1000000000.0': negative"),
        ((1e9, "many", 2.0), r"column 'tokens' = 'many': not a number"),
        ((1e9, 2e10), r"losses.csv:7: 2 cells; expected 3"),
    ],
)
def test_bad_cells_are_refused_in_one_line(written, row, message):
    with pytest.raises(InputError, match=message) as refusal:
        read_losses(written([*GOOD, row]))
    assert "\n" not in str(refusal.value)
    assert len(read_losses(written())) == len(GOOD)


def test_bad_tables_are_refused(written, tmp_path):
    with pytest.raises(InputError, match="missing 'loss'"):
        read_losses(written([row[:2] for row in GOOD], "n_params,tokens"))
    with pytest.raises(InputError, match="appears twice"):
        read_losses(written([(1, *row) for row in GOOD], "loss,n_params,tokens,loss"))
    with pytest.raises(InputError, match="no data rows"):
        read_losses(written([]))
    with pytest.raises(InputError, match="cannot be read"):
        read_losses(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="no row has group = x"):
        read_losses(written([(*row, "a") for row in GOOD], "n_params,tokens,loss,group"), where={"group": "x"})
    with pytest.raises(InputError, match=r"below batch_tokens = 1e\+11"):
        check_losses(read_losses(written([(*row, 1e11) for row in GOOD], "n_params,tokens,loss,batch_tokens")))
    with pytest.raises(InputError, match="3 rows are too few"):
        check_losses(read_losses(written(GOOD[:3])))
    with pytest.raises(InputError, match="'n_layers' is empty; the term 'shape' needs it"):
        check_losses(read_losses(written()), ("shape",))


def test_other_headings_are_understood(written):
    table = read_losses(written(header="N,D,val_loss"))
    assert table.n_params[0] == 1e8 and table.loss[-1] == 2.5


LOSS_HEADINGS = (
    *("eval/loss", "eval_loss", "train/loss", "train_loss", "Final val loss", "final loss", "Final loss"),
    *("val loss", "validation loss", "Validation Loss", "test loss", "test/loss", "lm loss validation", "lm loss"),
    *("lm-loss-validation/lm loss validation", "loss_metrics/global_avg_loss", "validation_metrics/loss"),
    *("Mean eval loss", "final_eval_loss", "heldout loss", "cross entropy", "val/nll"),
)
"""Headings of wandb, transformers, Megatron-LM, torchtitan and of tables that people write."""


@pytest.mark.parametrize("heading", LOSS_HEADINGS)
def test_headings_of_losses(heading):
    assert meaning(heading)[:2] == ("loss", 1.0) and not meaning(heading).unit


@pytest.mark.parametrize(
    ("heading", "unit"),
    [
        ("lm loss validation ppl", "perplexity"),
        ("eval/perplexity", "perplexity"),
        ("final val bpb", "bits per byte"),
        ("test bits_per_byte", "bits per byte"),
    ],
)
def test_headings_of_losses_in_other_units(heading, unit):
    assert (meaning(heading).column, meaning(heading).unit) == ("loss", unit)


@pytest.mark.parametrize("heading", ["loss_std", "val tokens per second", "aux loss", "eval", "global_max_loss"])
def test_headings_that_are_no_loss(heading):
    """Negative control: a loss besides is none."""
    assert meaning(heading).column == heading


STRANGERS = (
    ("Params (B),Tokens (B),eval/loss", lambda n, d, loss: (n / 1e9, d / 1e9, loss), ""),
    ("model_size,train_tokens,val_loss", lambda n, d, loss: (f"{n / 1e6:g}M", f"{d / 1e9:g} B", loss), ""),
    ("Model Params,Compute (FLOPs),loss", lambda n, d, loss: (n, 6.0 * n * d, loss), "tokens of 5 rows are flops"),
    ("compute,tokens,loss", lambda n, d, loss: (6.0 * n * d, d, loss), "n_params of 5 rows are flops"),
    ("n,d,Perplexity", lambda n, d, loss: (n, d, np.exp(loss)), "logarithms of the perplexities: nat per token"),
    ("n,d,val/bpb", lambda n, d, loss: (n, d, loss / np.log(2.0)), "bits per byte times ln 2: nat per byte"),
)
"""Headings of other tools, their rows of a run, and the note that they get."""


@pytest.mark.parametrize(("header", "row", "note"), STRANGERS)
def test_tables_of_strangers_are_the_same_table(written, header, row, note):
    plain, table = read_losses(written()), read_losses(written([row(*cells) for cells in GOOD], header))
    for name in ("n_params", "tokens", "loss"):
        np.testing.assert_allclose(getattr(table, name), getattr(plain, name), rtol=1e-9)
    assert note in " / ".join(table.notes) and bool(table.notes) == bool(note)
    assert check_losses(table)[: len(table.notes)] == list(table.notes) and not plain.notes
    assert list(table.headings.values()) == header.split(",")


def test_tokens_follow_from_steps_and_batch(written):
    table = read_losses(written([(n, d / 1e6, 1e6, loss) for n, d, loss in GOOD], "params,steps,batch_tokens,loss"))
    np.testing.assert_allclose(table.tokens, [row[1] for row in GOOD])
    np.testing.assert_allclose(best_of(table, ("n_params", "tokens")).tokens, table.tokens)


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("params,val_loss,loss_nats", GOOD, "'val_loss' and 'loss_nats' both mean 'loss'"),
        (
            "params,steps,loss",
            GOOD,
            "missing 'tokens' among params, steps, loss; expected at least the columns n_params",
        ),
        ("params,tokens,ppl", [(1e8, 2e9, 0.9)], r"column 'loss' \(perplexity\) = '0.9': not the perplexity of a loss"),
        ("params,tokens,loss", [("7X", 2e9, 3.0)], "column 'n_params' = '7X': not a number"),
        ("params,compute,loss", [(1e8, "", 3.0)], "column 'tokens' = '': empty"),
    ],
)
def test_what_strangers_leave_open_is_refused(written, header, rows, message):
    with pytest.raises(InputError, match=message):
        read_losses(written(rows, header))


def test_a_column_under_its_own_name_comes_first(written):
    table = read_losses(written([(*row, 9.0) for row in GOOD], "n_params,tokens,loss,train_loss"))
    assert table.loss[0] == GOOD[0][2] and "train_loss" in table.columns


def told(rows, **more):
    n, d, loss = (np.asarray(column, float) for column in zip(*rows, strict=True))
    return " / ".join(check_losses(losses_of({"n_params": n, "tokens": d, "loss": loss, **more})))


def test_doubts_are_told():
    assert told(GOOD) == ""
    assert "one value of n_params" in told([(1e9, d, 3.0) for d in (1e9, 1e10, 1e11, 2e11)])
    assert "2 budgets" in told([(n, c / n, 3.0) for c in (1e18, 1e19) for n in (1e8, 4e8, 1.6e9)])
    assert "1 rows repeat another row" in told([*GOOD, GOOD[0]])
    assert "tokens per parameter span less" in told([(n, 20 * n, 3.0) for n in (1e8, 3e8, 1e9, 3e9, 1e10)])
    assert "several learning rates" in told([*GOOD, (1e8, 2e9, 3.6)], lr=[1e-3] * 5 + [3e-3])
    assert "in millions or billions" in told([(n / 1e9, d / 1e9, loss) for n, d, loss in GOOD])


def test_the_best_of_a_sweep_is_kept():
    sweep, best = loss_table("steplaw-sweep"), loss_table("steplaw")
    assert len(sweep) > 1000 and len(best) == 17
    for row in range(len(best)):
        same = (sweep.n_params == best.n_params[row]) & (sweep.tokens == best.tokens[row])
        assert best.loss[row] == sweep.loss[same].min()
    with pytest.raises(InputError, match="column 'colour' is not there"):
        best_of(best, ["colour"])
