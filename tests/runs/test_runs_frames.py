"""Runs and predictions as pandas DataFrames and back; Parquet files."""

import numpy as np
import pandas as pd
import pytest

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.cli import main

ROW = {
    "model": "llama3-8b",
    "gpu": "H100 SXM",
    "n_gpus": 8,
    "seq_len": 4096,
    "tp": 2,
    "pp": 1,
    "micro_batch_size": 1,
    "global_batch_size_seqs": 32,
    "step_time_s": [2.5, None],
}


def test_a_frame_becomes_runs_and_runs_a_frame():
    runs = js.read_runs(pd.DataFrame(ROW))
    frame = runs.to_pandas()
    assert frame["gpu"].tolist() == ["h100-80gb"] * 2
    np.testing.assert_array_equal(frame["step_time_s"].astype(float), [2.5, np.nan])
    again = js.read_runs(frame).to_pandas()
    pd.testing.assert_frame_equal(frame, again, check_dtype=False)


def test_predictions_as_a_frame():
    prediction = js.predict(pd.DataFrame(ROW), fit="prior")
    frame = prediction.to_pandas()
    assert frame["model"].tolist() == ["llama3-8b"] * 2 and frame["n_gpus"].tolist() == [8, 8]
    np.testing.assert_array_equal(frame["predicted_step_time_s"], prediction.step_time)
    terms = frame[[name for name in frame.columns if name.startswith("term_")]]
    np.testing.assert_allclose(terms.sum(axis=1), prediction.step_time, rtol=1e-5)


def test_a_bad_frame_is_refused():
    with pytest.raises(InputError, match="'tp' = 'two': not a number"):
        js.read_runs(pd.DataFrame(ROW).assign(tp="two"))


def test_parquet(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(main, "configure_jax", lambda **_: None)
    table, out = tmp_path / "runs.csv", tmp_path / "out.parquet"
    pd.DataFrame(ROW).to_csv(table, index=False)
    code = main.main(["predict", str(table), "--fit", "prior", "--out", str(out)])
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        assert code == 2 and "pip install jaxscale[tables]" in capsys.readouterr().err
        return
    assert code == 0
    frame = pd.read_parquet(out)
    assert (frame["predicted_step_time_s"] > 0.0).all() and frame["model"].tolist() == ["llama3-8b"] * 2


def test_a_name_of_the_release_before_answers_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"js.runs_from_pandas is now js.read_runs"):
        assert js.runs_from_pandas is js.read_runs
    with pytest.raises(AttributeError, match="no attribute 'runs_from_nowhere'"):
        js.runs_from_nowhere  # noqa: B018
