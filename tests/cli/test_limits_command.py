"""`jaxscale limits`: its document, its figure, its refusals."""

from collections.abc import Iterable

import pytest
from screens import Document, Expected, Promise, number, power, stands_whole

from jaxscale.cli.main import main


def limits(documents: Document) -> Iterable[Promise]:
    several = documents if isinstance(documents, list) else [documents]
    highest = (one.get("plateau", max(one["utilisation"])) for one in several)
    rows = [[number(100 * high), *map(power, one["thresholds"].values())] for high, one in zip(highest, several)]  # noqa: B905
    yield Promise(rows)
    if elasticities := several[0]["elasticities"]:  # a search among whole numbers has none
        by_field = zip(*(fields.values() for fields in elasticities.values()), strict=True)
        yield Promise([[tuple(map(Expected, row))] for row in by_field if max(map(abs, row)) > 0.06], False)


def test_document_of_two_scenarios(ask, tmp_path):
    figure = tmp_path / "limits.png"
    answer = ask(f"limits --scenario default --scenario global-nvlink --from 1e26 --to 1e31 --plot {figure}")
    default, joined = answer.document
    stands_whole(answer, limits(answer.document))
    assert default["scenario"] == "default" and joined["scenario"] == "global-nvlink"
    assert default["training_flop"][0] == pytest.approx(1e26) and default["training_flop"][-1] == pytest.approx(1e31)
    assert all(0.0 <= value <= 0.7 for value in default["utilisation"])
    thresholds = default["thresholds"]
    assert list(thresholds) == ["end_of_linear", "half", "tenth", "wall"]
    assert thresholds["end_of_linear"] < thresholds["half"] < thresholds["tenth"] < thresholds["wall"]
    assert joined["thresholds"]["end_of_linear"] > 10.0 * thresholds["end_of_linear"]
    assert default["elasticities"]["wall"]["training_time"] > 1.0
    low, high = default["threshold_bands"]["wall"]
    assert low < thresholds["wall"] < high
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_transformer_on_a_chip(ask, tmp_path):
    figure = tmp_path / "transformer.png"
    answer = ask(f"limits --model transformer --gpu h100-80gb --from 1e23 --to 1e26 --plot {figure}")
    found = answer.document
    stands_whole(answer, limits(found))
    assert (found["scenario"], found["gpu"]) == ("default", "h100-80gb")
    assert list(found["thresholds"]) == ["end_of_linear", "half", "tenth", "wall"]
    assert len(found["utilisation"]) == len(found["training_flop"]) and 0.3 < max(found["utilisation"]) < 0.7
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--scenario", "globl-nvlink"), "did you mean global-nvlink"),
        (("--gpu", "h1000"), "h1000"),
        (
            ("--gpu", "h100"),
            "is ambiguous, as chips of that name differ in form or memory; expected one of h100-80gb, ",
        ),
        (("--plot", "/proc/figure.png"), "/proc/figure.png: "),
        (("--plot", "{long}.png"), "file name too long"),
        (("--model", "transformer"), "expected --gpu"),
        (("--from", "1e30", "--to", "1e20"), "no range"),
        (("--scenarios", "{own}"), "not valid TOML"),
        (("--plot", "{own}/figure.png"), "expected an existing folder"),
        (("--fit", "mosaic_llm_foundry"), "expected --model transformer"),
    ],
)
def test_refusals_are_one_line(arguments, said, capsys, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text("[scenarios")
    assert main(["limits", *(argument.format(own=own, long="x" * 300) for argument in arguments)]) == 2
    refusal = capsys.readouterr().err.strip()
    assert said in refusal and "\n" not in refusal


def test_a_chip_in_place_of_that_of_a_scenario_is_told(capsys):
    assert main(["limits", "--gpu", "MI300X", "--from", "1e26", "--to", "1e27"]) == 0
    assert "on MI300X instead; else H100" in capsys.readouterr().out
