import pytest

from minattn import experiment


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ValueError("width: got 3,\n needs 4"), 2, "error: width: got 3, needs 4\n"),
        (FloatingPointError("step 3: non-finite"), 2, "error: step 3: non-finite\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_bad_endings_are_one_line(error, status, line, capsys):
    def main():
        raise error

    with pytest.raises(SystemExit) as ending:
        experiment.run(main)
    assert ending.value.code == status
    assert capsys.readouterr().err == line


def test_other_errors_are_not_hidden():
    def main():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        experiment.run(main)


def test_too_little_memory_is_one_line(capsys):
    def main():
        raise MemoryError("Unable to allocate 1 TiB")

    with pytest.raises(SystemExit) as ending:
        experiment.run(main)
    assert ending.value.code == 2
    assert capsys.readouterr().err == "error: not enough memory: Unable to allocate 1 TiB\n"
