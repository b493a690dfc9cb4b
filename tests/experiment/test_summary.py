import json

import numpy as np
import pytest

from minattn import experiment
from minattn.claims import HOLDS, Claim


def test_summary_is_strict_json(tmp_path):
    claim = Claim("c", "p", 1.0, (0.5, np.inf), "r", HOLDS)
    summary = experiment.summary("own", {"steps": np.int64(3)}, 0, "numpy", [claim])
    summary["array"] = np.array([1.0, np.nan])
    experiment.write_json(tmp_path / "summary.json", summary)
    read = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert read["claims"][0]["interval"] == [0.5, "inf"]
    assert read["array"] == [1.0, None]
    assert read["config"] == {"steps": 3}
    assert {"minattn", "python", "numpy", "numba"} <= read["versions"].keys()


def test_a_name_that_is_no_utf8_is_written(tmp_path):
    experiment.write_json(tmp_path / "x.json", {"name": "\udcff.txt"})
    assert json.loads((tmp_path / "x.json").read_bytes()) == {"name": "\udcff.txt"}


def test_estimates_are_over_replicas_and_none_where_undefined():
    one, two, three = experiment.estimates(np.array([[1.0, 3.0], [2.0, 2.0], [1.0, np.nan]]))
    assert one["mean"] == 2
    assert one["low"] < 1 < 3 < one["high"]
    assert two == {"mean": 2, "low": 2, "high": 2}
    assert three is None


def test_curves_have_a_row_a_value_and_no_layer_where_there_is_none():
    metrics = {"loss": np.array([[1.0, 2.0]]), "score": np.array([[[3.0, 4.0]]])}
    rows = list(experiment.curve_rows(("text", "arm"), np.array([7]), metrics))
    assert rows == [
        ("text", "arm", 0, "", 7, "loss", 1.0),
        ("text", "arm", 1, "", 7, "loss", 2.0),
        ("text", "arm", 0, 0, 7, "score", 3.0),
        ("text", "arm", 1, 0, 7, "score", 4.0),
    ]
