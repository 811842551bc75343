"""`jaxscale shape`: JSON, table, templates of the user's own, refusals."""

from collections.abc import Iterable

import pytest
from screens import Document, Promise, number, stands_whole

from jaxscale.models import model
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.plans.plan import Plan
from jaxscale.plans.rules import violations

SMALL = ("shape", "--gpu", "h100-80gb", "--n-gpus", 16, "--fit", "prior")
PROMISED = {"n_layers", "d_model", "d_ff", "n_heads", "global_batch_tokens", "plan", "step_time_s", "training_days"}
PROMISED |= {"loss", "gradient_norm", "relaxed_optimum", "integer_gap", "shadow_prices"}


def design(document: Document) -> Iterable[Promise]:
    names = ("n_layers", "d_model", "d_ff", "n_heads", "tokens", "step_time_s", "training_days", "loss", "memory_gb")
    relaxed = document["relaxed_optimum"]
    yield Promise([[(*number(document[name]), *number(relaxed.get(name)))] for name in names])
    yield Promise([[number(price)] for price in document["shadow_prices"].values() if abs(price) >= 1e-3], False)


def test_document_and_screens(ask):
    answer = ask(" ".join(map(str, SMALL)) + " --days 7")
    document = answer.document
    stands_whole(answer, design(document))
    assert set(document) >= PROMISED
    assert document["training_days"] == pytest.approx(7.0, rel=1e-6)
    assert document["memory_gb"] < 80.0
    sizes = {name: document[name] for name in ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff", "vocab_size")}
    shape = Transformer(**sizes, seq_len=document["seq_len"], gated_mlp=True)
    assert violations(shape, Plan(**document["plan"]), 16) == []
    assert document["params"] == pytest.approx(float(n_params(shape)), rel=1e-6)
    assert document["seq_len"] == model("llama3-8b").seq_len


def test_table_and_template_of_ones_own(run, tmp_path):
    path = tmp_path / "model.toml"
    path.write_text("n_layers = 8\nd_model = 1024\nn_heads = 8\nseq_len = 1024\nvocab_size = 32000\n")
    pictures = ("--plot", tmp_path / "prices.svg", "--report", tmp_path / "report")
    outcome = run(*SMALL, "--params", "1e9", "--model", path, *pictures)
    assert outcome.code == 0, outcome.err
    assert [line.split()[0] for line in outcome.err.splitlines()] == ["sequences", "wrote", "wrote"]
    assert "<svg" in (tmp_path / "prices.svg").read_text()
    assert {one.name for one in (tmp_path / "report").glob("*.png")} == {"step.png", "prices.png"}
    assert "16 h100-80gb, budget: params 1e+09" in outcome.out
    assert "Shadow prices" in outcome.out
    assert "KKT residual" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "no budget; expected exactly one of --days, --loss, --flop, --params"),
        (("--days", 1, "--loss", 2), "--days beside --loss; expected exactly one of"),
        (("--days", 0), "days = 0 is out of range"),
        (("--days", "nan"), "days = nan is out of range"),
        (("--loss", 1), "loss = 1 is out of reach; expected more than the irreducible"),
        (("--params", 1e15), "no integer design keeps"),
        (("--days", 1, "--model", "gpt-9"), "model 'gpt-9' is not in the catalogue"),
        (("--days", 1, "--fit", "potato"), "fit 'potato' is not shipped"),
        (("--days", 1, "--gpu", "potato"), "gpu 'potato' is not in the hardware catalogue"),
        (("--days", 1, "--n-gpus", 0), "--n-gpus = 0 is out of range"),
        (("--days", "soon"), "soon"),
    ],
)
def test_refusals(run, arguments, expected):
    outcome = run(*SMALL, *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1
