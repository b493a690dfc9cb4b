import os
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import minattn as ma
from minattn import experiment, sweep
from minattn.engines import get_threads, set_threads
from minattn.engines.threads import available_cores


@dataclass(frozen=True)
class Setting:
    number: int
    folder: str = ""
    size: tuple[int, ...] = (2, 3)


def train(setting):
    """Long enough a batch to be cut into shards wherever there is more than one thread."""
    config = ma.TransformerConfig(vocab_size=4, width=8, layers=1, heads=1, max_length=64)
    params = ma.init_params(config, replicas=2, seed=setting.number)
    chain = ma.data.MarkovChain.random(4, seed=setting.number)
    history = ma.fit(config, params, chain, ma.next_token, steps=3, batch_size=32, length=64)
    return history.params | {"threads": np.array(get_threads())}


def count(setting):
    """Leave a mark each time a setting is computed."""
    with open(Path(setting.folder) / f"{setting.number}.log", "a") as log:
        log.write("x")
    return {"square": np.full(setting.size, setting.number**2), "none": np.zeros((0, 2))}


def die_once(setting):
    """Kill the worker at the first try of setting 1."""
    mark = Path(setting.folder) / "died"
    if setting.number == 1 and not mark.exists():
        mark.touch()
        os._exit(1)
    return count(setting)


def die_always(setting):
    """Kill the worker of setting 1, but not before setting 0 is kept."""
    if setting.number == 1:
        while not list(Path(setting.folder).glob("store/*.safetensors")):
            time.sleep(0.01)
        os._exit(1)
    return count(setting)


def stop_at_two(setting):
    if setting.number == 2 and not (Path(setting.folder) / "go on").exists():
        raise KeyboardInterrupt
    return count(setting)


def refuse(setting):
    raise ValueError(f"setting {setting.number} is not wanted")


def settings_in(folder, n=4):
    return [Setting(number, str(folder)) for number in range(n)]


def computed(folder):
    return {int(path.stem): len(path.read_text()) for path in folder.glob("*.log")}


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def test_results_come_in_the_order_of_the_settings_and_are_kept(tmp_path, store):
    settings = settings_in(tmp_path)[::-1]
    results = sweep.run(count, settings, folder=store)
    assert [int(result["square"][0, 0]) for result in results] == [9, 4, 1, 0]
    assert results[0]["none"].shape == (0, 2)
    assert len(list(store.glob("*.safetensors"))) == 4


def test_numbers_do_not_depend_on_how_the_work_was_split(store):
    settings = [Setting(number) for number in range(3)]
    set_threads(2)
    alone = sweep.run(train, settings, folder=store)
    assert get_threads() == 2
    processes = sweep.run(train, settings, folder=store / "two", workers=2)
    for one, other in zip(alone, processes, strict=True):
        assert one.keys() == other.keys()
        assert one["threads"] == 1
        for name, value in one.items():
            assert value.dtype == other[name].dtype
            np.testing.assert_array_equal(value, other[name])


def test_resume_uses_what_is_finished_and_a_new_run_does_not(tmp_path, store):
    first = sweep.run(count, settings_in(tmp_path, 2), folder=store)
    again = sweep.run(count, settings_in(tmp_path), folder=store, resume=True)
    assert computed(tmp_path) == {0: 1, 1: 1, 2: 1, 3: 1}
    np.testing.assert_array_equal(first[1]["square"], again[1]["square"])
    other = sweep.run(count, settings_in(tmp_path, 1), folder=store, label="a second one")
    assert computed(tmp_path)[0] == 2
    assert len(list(store.glob("*.safetensors"))) == 5  # sweeps leave each other's files alone
    sweep.run(count, settings_in(tmp_path, 1), folder=store)
    assert computed(tmp_path)[0] == 3
    assert len(list(store.glob("*.safetensors"))) == 2
    np.testing.assert_array_equal(other[0]["square"], first[0]["square"])


def test_resume_computes_anew_what_is_damaged_or_of_another_setting(tmp_path, store, monkeypatch):
    sweep.run(count, settings_in(tmp_path, 3), folder=store)
    one, two, _ = sorted(store.glob("*.safetensors"))
    one.write_bytes(one.read_bytes()[:40])
    two.write_bytes(sorted(store.glob("*.safetensors"))[2].read_bytes())
    sweep.run(count, settings_in(tmp_path, 3), folder=store, resume=True)
    assert sorted(computed(tmp_path).values()) == [1, 2, 2]
    monkeypatch.setattr(ma, "__version__", "another")
    sweep.run(count, settings_in(tmp_path, 3), folder=store, resume=True)
    assert sorted(computed(tmp_path).values()) == [2, 3, 3]


def test_a_pool_that_loses_a_worker_goes_on(tmp_path, store):
    results = sweep.run(die_once, settings_in(tmp_path), folder=store, workers=2)
    assert (tmp_path / "died").exists()
    assert [int(result["square"][0, 0]) for result in results] == [0, 1, 4, 9]


def test_a_setting_whose_workers_keep_dying_is_given_up_and_the_others_kept(
    tmp_path, store, monkeypatch
):
    monkeypatch.setattr(sweep, "RETRIES", 1)
    with pytest.raises(ChildProcessError, match=r"number=1.*died 2 times"):
        sweep.run(die_always, settings_in(tmp_path, 2), folder=store, workers=2)
    assert len(list(store.glob("*.safetensors"))) == 1


def test_ctrl_c_keeps_what_is_finished(tmp_path, store):
    with pytest.raises(KeyboardInterrupt):
        sweep.run(stop_at_two, settings_in(tmp_path), folder=store)
    (tmp_path / "go on").touch()
    sweep.run(stop_at_two, settings_in(tmp_path), folder=store, resume=True)
    assert computed(tmp_path) == {0: 1, 1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_of_the_function_pass_through(store, workers):
    with pytest.raises(ValueError, match="setting 0 is not wanted"):
        sweep.run(refuse, [Setting(0)], folder=store, workers=workers)


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        (count, [3], "settings"),
        (count, [Setting], "settings"),
        (count, [Setting(0), Setting(0)], "equal"),
        (count, [Setting(np.array(0))], "JSON"),
        (lambda setting: [1], [Setting(0)], "dict of arrays"),
        (lambda setting: {"word": np.array("a")}, [Setting(0)], "'word'"),
    ],
)
def test_what_cannot_be_swept_is_refused(function, settings, message, store):
    with pytest.raises(ValueError, match=message):
        sweep.run(function, settings, folder=store)


def test_no_workers_are_refused(store):
    with pytest.raises(ValueError, match="workers"):
        sweep.run(count, [Setting(0)], folder=store, workers=0)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="folder"):
        sweep.run(count, [Setting(0, str(tmp_path))], folder=tmp_path / "file")


def test_options():
    parser = experiment.parser("some_sim", None)
    sweep.add_options(parser)
    default = {"workers": available_cores(), "resume": False}
    assert vars(parser.parse_args([])).items() >= default.items()
    assert parser.parse_args(["--quick"]).workers == 1
    assert parser.parse_args(["--workers", "3", "--resume"]).workers == 3
    for text in ("0", "-1", "two"):
        with pytest.raises(ValueError, match="--workers"):
            parser.parse_args([f"--workers={text}"])


def test_a_cluster_without_its_package_is_one_clear_error(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ValueError, match=r"minattn\[cluster\]"):
        sweep.run(count, [Setting(0)], folder=store, scheduler="tcp://localhost:8786")


SCRIPT = """
import sys
from dataclasses import dataclass

from helper import square
from minattn import sweep

@dataclass(frozen=True)
class Setting:
    number: int

def work(setting: Setting):
    assert isinstance(setting, Setting)
    return {"square": square(setting.number)}

if __name__ == "__main__":
    folder, workers, scheduler = sys.argv[1:]
    settings = [Setting(2), Setting(3)]
    how = {"workers": int(workers), "scheduler": scheduler or None, "resume": True}
    print(sum(int(r["square"]) for r in sweep.run(work, settings, folder=folder, **how)))
"""


IN_A_PACKAGE = """
from parts.one.training import main

if __name__ == "__main__":
    main()
"""


def run_script(tmp_path, store, workers=1, scheduler="", packaged=False):
    sims = tmp_path / "sims"
    sims.mkdir(exist_ok=True)
    (sims / "helper.py").write_text("def square(x):\n    return x * x\n")
    script = SCRIPT
    if packaged:
        (sims / "parts" / "one").mkdir(parents=True, exist_ok=True)
        (sims / "parts" / "__init__.py").touch()
        name = 'if __name__ == "__main__":'
        text = SCRIPT.replace(name, "def main():").replace("from helper", "from parts.one.helper")
        (sims / "parts" / "one" / "training.py").write_text(text)
        (sims / "helper.py").rename(sims / "parts" / "one" / "helper.py")
        script = IN_A_PACKAGE
    (sims / "script.py").write_text(script)
    command = [sys.executable, sims / "script.py", store, str(workers), scheduler]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout


@pytest.mark.parametrize("packaged", [False, True])
def test_functions_of_a_script_reach_processes(tmp_path, store, packaged):
    assert run_script(tmp_path, store, workers=2, packaged=packaged) == "13\n"


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed", reason="needs the extra [cluster]")

    import dask

    with dask.config.set({"distributed.scheduler.allowed-failures": 1}):
        with warnings.catch_warnings():
            # After a second it takes the disk for a slow one; the machine may just be busy.
            warnings.filterwarnings("ignore", "Creating scratch directories", UserWarning)
            cluster = distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
            )
        with cluster:
            yield cluster


def test_a_cluster_that_loses_a_worker_goes_on(tmp_path, store, cluster):
    how = {"folder": store, "scheduler": cluster.scheduler_address}
    results = sweep.run(die_once, settings_in(tmp_path), **how)
    assert (tmp_path / "died").exists()
    assert [int(result["square"][0, 0]) for result in results] == [0, 1, 4, 9]
    assert len(list(store.glob("*.safetensors"))) == 4


def test_a_cluster_gives_up_a_setting_whose_workers_keep_dying(tmp_path, store, cluster):
    how = {"folder": store, "scheduler": cluster.scheduler_address}
    with pytest.raises(ChildProcessError, match="Attempted"):
        sweep.run(die_always, settings_in(tmp_path, 2), **how)
    assert len(list(store.glob("*.safetensors"))) == 1


def test_numbers_of_a_cluster_are_those_of_this_process(store, cluster):
    alone = sweep.run(train, [Setting(0)], folder=store)
    there = sweep.run(
        train, [Setting(0)], folder=store / "there", scheduler=cluster.scheduler_address
    )
    for name, value in alone[0].items():
        np.testing.assert_array_equal(value, there[0][name])


@pytest.mark.parametrize("packaged", [False, True])
def test_functions_of_a_script_reach_workers_that_lack_its_folder(
    tmp_path, store, cluster, packaged
):
    address = cluster.scheduler_address
    assert run_script(tmp_path, store, scheduler=address, packaged=packaged) == "13\n"
