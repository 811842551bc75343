"""Records of any kind: coefficients as a sum over levels, files of older versions, files that are refused."""

import dataclasses
import math
import tomllib

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.documents import data_path, fit_path
from jaxscale.base.record_file import RecordFile
from jaxscale.calibration.base_record import LevelEffect, Record, effects_of
from jaxscale.calibration.kernel_coefficients import KernelFit, kernel_coefficients
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.spec import Prior, Spec, StandIns, longest_within
from jaxscale.islands.fleet_days import LooseFit, loose_law


def prior(median: float, kind: str) -> Prior:
    """What is known of a planted coefficient."""
    return Prior(median, 0.2, kind, "1", "Planted.", "nobody", (), 0.2, {})


SPEC = Spec(
    {"rate": prior(2.0, "positive"), "share": prior(0.4, "fraction"), "shift": prior(-1.0, "real")},
    kinds=("site", "chip", "engine"),
    stand_ins=StandIns(others={"chip": "card"}, usual={"site": "home"}, choices={"engine": longest_within}),
    retired=("speed_of_old",),
)


class Planted(Record):
    """A record of three coefficients."""

    file = RecordFile("planted record", "coefficients", "a planted file", "Planted.")

    @classmethod
    def spec(cls) -> Spec:
        """The planted coefficients."""
        return SPEC


SHIFTS = (
    ("site", "home", "rate", 0.3),
    ("site", "away", "rate", -0.2),
    ("site", "away", "shift", 4.0),
    ("chip", "a", "share", 0.5),
    ("chip", "b", "share", -2.0),
    ("chip", "b", "rate", 0.75),
    ("chip", "b", "rate", 0.25),
    ("engine", "fast", "shift", 0.25),
    ("engine", "faster", "shift", 0.5),
)
CENTRE = {"rate": 3.0, "share": 0.25, "shift": 7.0}
PLANTED = Planted("planted", CENTRE, effects_of(SHIFTS))


def test_a_record_of_two_kinds_of_level_is_a_plain_sum():
    random = np.random.default_rng(0)
    sites, chips = (random.choice(names, 200) for names in (["home", "away", "new"], ["a", "b", "c"]))
    levels = Levels.of_columns({"site": sites.tolist(), "chip": chips.tolist()}, 200)
    values = SPEC.constrained(PLANTED.unconstrained(levels))
    log_rate = np.log(3.0) + np.select([sites == "home", sites == "away"], [0.3, -0.2]) + np.where(chips == "b", 1, 0)
    logit = np.log(0.25 / 0.75) + np.select([chips == "a", chips == "b"], [0.5, -2.0])
    np.testing.assert_allclose(values[:, 0], np.exp(log_rate), rtol=1e-12)
    np.testing.assert_allclose(values[:, 1], 1.0 / (1.0 + np.exp(-logit)), rtol=1e-12)
    np.testing.assert_allclose(values[:, 2], 7.0 + np.where(sites == "away", 4.0, 0.0), rtol=1e-12)
    others = Planted("other", CENTRE, effects_of(one for one in SHIFTS if one[1] != "b"))
    moved = np.abs(others.unconstrained(levels) - PLANTED.unconstrained(levels)).max(axis=1) > 0.5
    np.testing.assert_array_equal(moved, chips == "b")
    table, index = PLANTED.unconstrained_table(levels)
    assert len(table) <= 9 and len(index) == 200, "each combination of levels is evaluated once"


@pytest.mark.parametrize(
    ("levels", "same"),
    [
        ({}, {"site": "home"}),
        ({"card": "b"}, {"chip": "b"}),
        ({"chip": "a", "card": "b"}, {"chip": "a"}),
        ({"engine": "my faster one"}, {"engine": "faster"}),
        ({"engine": "slow"}, {"engine": None}),
    ],
)
def test_levels_stand_in_for_others(levels: dict, same: dict):
    one, other = (PLANTED.unconstrained(Levels.of_rows([row])) for row in (levels, same))
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one, PLANTED.unconstrained(Levels.of_rows([{"site": "away", "chip": "c"}])))


def test_draws_scatter_as_the_spreads_say():
    record = Planted("planted", CENTRE, spreads={"centre": {"rate": 0.1, "shift": 2.0}})
    draws = record.draws(4000)
    assert np.log(draws["rate"]).mean() == pytest.approx(np.log(3.0), abs=0.01)
    assert np.log(draws["rate"]).std() == pytest.approx(0.1, rel=0.05)
    assert draws["shift"].std() == pytest.approx(2.0, rel=0.05)
    assert np.all(draws["share"] == pytest.approx(0.25)), "what has no spread stays"


def test_a_record_survives_its_file(tmp_path):
    record = dataclasses.replace(PLANTED, spreads={"site": {"rate": 0.5}}, known=(("site", "home"),), parent=PLANTED)
    record.save(tmp_path / "planted.toml")
    again = Planted.load(tmp_path / "planted.toml")
    assert again == record and hash(again) == hash(record)
    assert again != dataclasses.replace(record, centre={**CENTRE, "rate": 3.1})


def shipped() -> list[str]:
    """Names of the shipped fits of training."""
    return sorted(path.stem for path in fit_path("x").parent.glob("*.toml") if js.Fit.file.is_one(path))


def test_shipped_files_are_read_to_the_letter():
    """Whichever version wrote them, their numbers are those of their text."""
    assert {"default", "torchtitan", "maxtext_tpu"} <= set(shipped())
    for name in shipped():
        table = tomllib.loads(fit_path(f"{name}.toml").read_text(encoding="utf-8"))
        fit = js.load_fit(name)
        stated = {name: entry["value"] for name, entry in table["coefficients"].items()}
        assert {name: value for name, value in fit.centre.items() if name in stated}.items() <= stated.items()
        assert len(set(stated) & set(fit.centre)) > 30
        for effect, entry in zip(fit.effects, table.get("effects", []), strict=True):
            assert (effect.kind, effect.level) == (entry["kind"], entry["level"])
            assert dict(effect.shifts).items() <= entry["shifts"].items()
        for one, entry in zip(fit.scatter, table["scatter"], strict=True):
            absent = {name: math.nan for name in set(vars(one)) - set(entry)}
            assert str(vars(one)) == str({**entry, **absent}), "nan is nan"
        assert set(fit.known) == {(kind, level) for kind, levels in table["known"].items() for level in levels}
        assert (fit.parent is not None) == ("parent" in table)


TEXT = "[coefficients]\nrate = 1.5\n"
OLD = f"""{TEXT}speed_of_old = 3.0
[[effects]]
kind = "site"
level = "away"
shifts = {{ rate = 0.5, speed_of_old = 1.0 }}
"""
"""A file of before files said what they are, with a coefficient that there is no more."""

REFUSED = {
    "format = 2\n" + TEXT: "cut or of another version; expected a whole planted record, up to its last table .end.",
    "format = 99\n" + TEXT + "[end]\n": "format = 99 is of a later version; expected at most 2",
    'record = "fit"\n' + TEXT: "not a planted record but a fit; expected a planted file",
    "x = 1\n": r"not a planted record; expected a planted file, with tables \[coefficients\]",
    "[coefficients]\nspeed = 1\n": "coefficients.speed is not a coefficient; expected one of rate, share, shift",
    "[coefficients]\nshare = 1.5\n": "coefficients.share = 1.5 is out of range; expected a number between 0 and 1",
    TEXT + "[[effects]]\nkind = 'site'\nlevel = 'a'\nshifts = { speed = 1.0 }\n": "effect of site 'a': speed is not a",
    TEXT + "[[effects]]\nkind = 'site'\n": "its record is cut or of another version .'level' is missing",
}


@pytest.mark.parametrize(("text", "complaint"), REFUSED.items(), ids=lambda text: text[:20].strip())
def test_files_that_are_refused(tmp_path, text: str, complaint: str):
    path = tmp_path / "planted.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(js.InputError, match=f"planted.toml: {complaint}") as error:
        Planted.load(path)
    assert "\n" not in str(error.value)
    path.write_text(OLD, encoding="utf-8")
    old = Planted.load(path)
    assert old.centre == {"rate": 1.5, "share": 0.4, "shift": -1.0}
    assert old.effects == (LevelEffect("site", "away", (("rate", 0.5),)),)


def test_a_file_that_has_changed_is_read_again(tmp_path):
    path = tmp_path / "planted.toml"
    for value in (1.5, 2.25):
        path.write_text(f"[coefficients]\nrate = {value}\n", encoding="utf-8")
        assert Planted.load(path).centre["rate"] == value


def test_kernels_of_a_stack_are_those_of_its_table():
    """A stack that states no value takes the prior median; a stack of one program launches nothing from the host."""
    table = tomllib.loads(data_path("kernels.toml").read_text(encoding="utf-8"))
    for stack in ("jax", "pytorch"):
        values = {name: float(value) for name, value in vars(kernel_coefficients(stack)).items()}
        medians = {name: entry["median"] for name, entry in table["coefficients"].items()}
        assert values == {**medians, **table["fits"][stack]}
        assert min(values.values()) == 0.0
    with pytest.raises(js.InputError, match="coefficients.half_area = 0.0 is out of range"):
        KernelFit.of_tables(data_path("kernels.toml"), {"coefficients": {"half_area": 0.0}})


def test_a_law_of_looseness_survives_its_file(tmp_path):
    law = loose_law()
    fit = LooseFit("own", law, spreads={"centre": {"coefficient": 0.1}}, rms=0.25)
    fit.save(tmp_path / "law.toml")
    again = LooseFit.load(tmp_path / "law.toml")
    assert again == fit and again.law == law and again.rms == 0.25
    assert again.deviation == {"coefficient": 0.1}
