"""The folder of a run's results: filled beside the real one, which it replaces when complete.

A run that is killed leaves the old files or the new ones, never none. While they are replaced, each
file is the old or the new one, and summary.json comes last; a run killed then has left what it was
about to do beside the folder, and the next one that is to write there does it first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from minattn import checks
from minattn.saving import locked

RESULTS = Path("results")
FORMATS = ("png", "pdf")  # of figures
_NAMES = ".names"  # of all files of a complete run, while they move into place


class ResultFolder:
    """A folder that a run fills beside the real one, and that replaces it when complete."""

    def __init__(self, target: Path, partial: Path, figures: str) -> None:
        self.target = target
        self.partial = partial
        self.figures = figures

    def path(self, name: str) -> Path:
        """Return where to write the file `name`."""
        return self.partial / name

    def figure(self, name: str) -> Path:
        """Return where to write the figure `name`, given without an ending."""
        return self.partial / f"{name}.{self.figures}"

    def complete(self) -> None:
        """Replace the content of the old folder by that of the new one, summary.json last."""
        names = [path.name for path in self.partial.iterdir()]
        names.sort(key=lambda name: (name == "summary.json", name))
        (self.partial / _NAMES).write_text(json.dumps(names), encoding="utf-8")
        self.partial.rename(_beside(self.target, "complete"))  # from here on, the new run counts
        _move_into_place(self.target)

    def keep_interrupted(self) -> Path:
        """Keep what is done beside the target, whose own content stays as it was."""
        kept = self.target.with_name(self.target.name + ".interrupted")
        shutil.rmtree(kept, ignore_errors=True)
        self.partial.rename(kept)
        return kept


@contextlib.contextmanager
def result_folder(target: Path, figures: str = "png") -> Iterator[ResultFolder]:
    """Open a `ResultFolder` for one run; its partial files are gone if the run fails.

    Parameters
    ----------
    target : Path
    figures : {"png", "pdf"}
        Format of the run's figures.

    Raises
    ------
    ValueError
        If the folder cannot be written, holds something that no run wrote, or another run is
        writing to it.
    """
    target = Path(os.path.realpath(target))  # a link stays, what it leads to is replaced
    _check_target(target)
    lock = locked(target, "--out", "folder")
    partial = _beside(target, "partial")
    try:
        _move_into_place(target)  # of a run that was killed while it did
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        yield ResultFolder(target, partial, figures)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)


def _beside(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{kind}")


def _move_into_place(target: Path) -> None:
    """Move the files of a complete run, if one lies beside the target, into it; remove all others.

    Each step is repeated without harm: whoever is stopped between two of them can begin again.
    """
    complete = _beside(target, "complete")
    listed = complete / _NAMES
    if listed.exists():
        names = json.loads(listed.read_text(encoding="utf-8"))
        target.mkdir(exist_ok=True)
        for name in names:
            if (complete / name).exists():
                _remove_folder(target / name)  # nothing else that is in the way of a rename
                (complete / name).replace(target / name)
        for path in target.iterdir():
            if path.name not in names:
                _remove_folder(path)
                path.unlink(missing_ok=True)
        listed.unlink()
    _remove_folder(complete)


def _remove_folder(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)


def _check_target(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        checks.fail("--out", f"{target} ({error.strerror})", "a folder that can be made")
    here = Path.cwd().resolve()
    if target == here or target in here.parents:  # files would go under our feet
        checks.fail("--out", f"{target}, in which this process runs", "another folder")
    if target.exists() and not target.is_dir():
        checks.fail("--out", f"the file {target}", "a folder")
    ours = (target / "summary.json").exists() or _beside(target, "complete").exists()
    if target.is_dir() and any(target.iterdir()) and not ours:
        got = f"{target}, whose content no run has written"
        checks.fail("--out", got, "a new or empty folder, or one with a summary.json to replace")


def publish(folder: Path, name: str) -> Path:
    """Copy a completed run's summary and figures to results/published/NAME.

    Raises
    ------
    ValueError
        If that folder cannot be written.
    """
    with result_folder(RESULTS / "published" / name) as published:
        for file in sorted(folder.iterdir()):
            if file.suffix in (".json", ".md", ".png", ".gif"):
                shutil.copy(file, published.path(file.name))
        published.complete()
    return published.target


def finish(options: argparse.Namespace, name: str) -> None:
    """Say where the results are, and publish them if asked to."""
    print(f"results in {options.out}")
    if options.publish:
        print(f"published in {publish(options.out, name)}")
