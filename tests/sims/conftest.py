"""What the tests of the sims share."""

import pytest

from minattn import experiment


@pytest.fixture
def refused(tmp_path, capsys):
    """Return a function that runs a sim that must end with one clear line, and returns it."""

    def run(main, *arguments):
        before = sorted(tmp_path.iterdir())
        with pytest.raises(SystemExit) as ending:
            experiment.run(lambda: main([*arguments, "--out", str(tmp_path / "run")]))
        assert ending.value.code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert sorted(tmp_path.iterdir()) == before
        return error

    return run
