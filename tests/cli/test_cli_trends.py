"""`jaxscale trends`: document, table, figure, refusals."""

from collections.abc import Iterable

import pytest
from screens import Document, Expected, Promise, number, stands_whole

from jaxscale.trends.deployment_library import published_framework

SMALL = ("trends", "--from", 64, "--to", 4096)


def trends(document: Document) -> Iterable[Promise]:
    scales = {
        "n_chips": 1.0,
        "tokens_per_s_per_chip": 1.0,
        "mfu": 100.0,
        "exposed_share": 100.0,
        "memory_bytes": 1e-9,
        "chip_power_w": 1.0,
        "tokens_per_joule": 1.0,
        "tokens_per_dollar": 1e-6,
        "return_of_last_chip": 100.0,
    }
    columns = [[number(scale * value) for value in document[name]] for name, scale in scales.items()]
    best = document["best_tp"]
    columns += [[tuple(map(Expected, ends)) for ends in zip(best["value"], best["lo"], best["hi"], strict=True)]]
    yield Promise([list(row) for row in zip(*columns, strict=True)])


@pytest.fixture(scope="module")
def answers():
    """The answer to `SMALL`, once a test has asked."""
    return []


@pytest.fixture
def answer(ask, answers):
    if not answers:
        answers.append(ask(" ".join(map(str, SMALL))))
    return answers[0]


@pytest.fixture
def document(answer):
    return answer.document


def test_every_number_stands_whole_on_every_terminal(answer):
    stands_whole(answer, trends(answer.document))


def test_the_document_adds_up(document):
    totals = [sum(terms) for terms in zip(*document["terms_s"].values(), strict=True)]
    assert totals == pytest.approx(document["step_time_s"])
    assert document["n_chips"] == [64 * 2**i for i in range(7)]
    speed = [total / n for total, n in zip(document["tokens_per_s"], document["n_chips"], strict=True)]
    assert speed == pytest.approx(document["tokens_per_s_per_chip"])
    assert 64 < document["last_worthwhile_chip"] < 4096
    low, middle, high = (document["best_tp"][key] for key in ("lo", "value", "hi"))
    assert all(a <= b <= c for a, b, c in zip(low, middle, high, strict=True))


def test_help_names_the_software_that_is_taken(run):
    assert f"`{published_framework()}` where left out" in " ".join(run("trends", "--help").out.split())


def test_table_and_figure(run, tmp_path):
    target = tmp_path / "trends.png"
    outcome = run(*SMALL, "--plot", target, "--framework", "torchtitan")
    assert outcome.code == 0
    assert "returns %" in outcome.out and "an extra one returns less than 50 %" in outcome.out
    assert target.read_bytes().startswith(b"\x89PNG")


def test_clusters_without_the_memory_are_named(run, document):
    large = run("trends", "--model", "llama3-405b", "--from", 8, "--to", 64, "--json")
    assert large.code == 0 and "up to 64 chips do not have the memory" in large.err
    assert all(held > 80e9 for held in large.json["memory_bytes"])
    assert all(held < 80e9 for held in document["memory_bytes"])


def test_strong_scaling_falls_faster(run, document):
    strong = run(*SMALL[:1], "--from", 64, "--to", 512, "--global-batch", 128, "--tp", 4, "--json").json
    assert strong["global_batch_size_seqs"] == [128.0] * 4
    assert strong["mfu"][-1] / strong["mfu"][0] < document["mfu"][3] / document["mfu"][0]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--gpu", "l40s"), "no system power"),
        (("--model", "nothing"), "not in the catalogue"),
        (("--framework", "nothing"), "--framework = 'nothing' is unknown"),
        (("--fit", "nothing"), "is not shipped"),
        (("--from", 100, "--to", 10), "expected 1 <= from < to"),
        (("--to", "nan"), "expected 1 <= from < to"),
        (("--tp", 0), "--tp = 0 is out of range"),
        (("--tp", 16), "exceeds the fewest chips"),
        (("--global-batch", 32), "a replica gets"),
        (("--global-batch", 32, "--sequences-per-chip", 2), "expected one"),
        (("--sequences-per-chip", -1), "out of range"),
        (("--power-cap", 20), "expected above 70 W"),
        (("--least-return", 2), "between 0 and 1"),
        (("--plot", "missing/figure.png"), "does not exist"),
    ],
)
def test_bad_input_is_one_line(run, arguments, said):
    outcome = run("trends", *arguments)
    assert outcome.code == 2
    assert said in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert not outcome.out


def test_chips_have_the_names_of_the_catalogue(run, document):
    assert run(*SMALL, "--gpu", "NVIDIA H100 SXM", "--json").json == document
