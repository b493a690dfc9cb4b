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
