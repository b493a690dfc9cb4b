"""The arguments that every sim has, and those that several share."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from minattn import checks
from minattn.data import Corpus, load_text
from minattn.engines import NAMES as ENGINES
from minattn.engines.threads import available_cores
from minattn.experiment import rerun
from minattn.experiment.folder import FORMATS, RESULTS, result_folder
from minattn.params import DTYPES


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints end like every other bad argument."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sizes: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
        self.least = {"seed": 0}

    def add_sizes(self, full: Mapping[str, Any], quick: Mapping[str, Any], **options: int) -> None:
        """Have sizes, which --quick makes smaller; `options` are those that can be given.

        Parameters
        ----------
        full, quick : mapping
            Size by name; what is not given becomes an attribute of the parsed options.
        **options : int
            The least value of each size that is an option.
        """
        self.sizes = (full, quick)
        self.least |= options
        for name in options:
            text = f"default {full[name]}, with --quick {quick[name]}"
            self.add_argument(f"--{name}", type=int, help=text)

    def add_text(self) -> None:
        """Add --text; `load_text` reads what it names."""
        text = "a UTF-8 file or folder (default: Python's help)"
        self.add_argument("--text", type=Path, metavar="PATH", help=text)

    def add_engine(self) -> None:
        """Add --engine."""
        self.add_argument("--engine", choices=ENGINES, default="auto")

    def add_dtype(self, text: str = "of training") -> None:
        """Add --dtype."""
        self.add_argument("--dtype", choices=DTYPES, default="float32", help=text)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse, and settle what depends on other options, on a run to repeat or on the machine.

        Raises
        ------
        ValueError
            If an option is wrong, or could not be published after the run.
        """
        found, name = super().parse_args(args, namespace), Path(self.prog).stem
        if getattr(found, "again", None) is not None:
            found = self._repeat(args, found)
        for size, value in self.sizes[getattr(found, "quick", False)].items():
            if getattr(found, size, None) is None:
                setattr(found, size, value)
        for option, least in self.least.items():
            if hasattr(found, option):
                checks.integer(f"--{option}", getattr(found, option), least)
        if getattr(found, "out", name) is None:
            found.out = RESULTS / (name + "_quick" * found.quick)
        if getattr(found, "workers", 1) is None:
            found.workers = 1 if found.quick else available_cores()
        if getattr(found, "publish", False):
            if found.format != "png":
                checks.fail("--format", f"{found.format} beside --publish", "png: pages show it")
            with result_folder(RESULTS / "published" / name):
                pass
        return found

    def _repeat(self, args: Sequence[str] | None, found: argparse.Namespace) -> argparse.Namespace:
        """Return the options of the run that --from names, with those that are free beside it."""
        run = rerun.read(found.again, Path(self.prog).stem)
        unset = rerun.Unset()
        blank = argparse.Namespace(**dict.fromkeys(vars(found), unset))
        given = vars(super().parse_args(args, blank))
        options = super().parse_args(rerun.as_arguments(self._actions, run))
        for name, value in vars(found).items():
            if name in rerun.FREE or (name in rerun.PLACES and given[name] is not unset):
                setattr(options, name, value)
            elif given[name] is not unset:
                option = f"--{name.replace('_', '-')}"
                checks.fail(option, "a value beside --from", "to be left to the run repeated")
        for name in self.sizes[0]:
            value = run["config"].get(name)
            setattr(options, name, tuple(value) if isinstance(value, list) else value)
        options.again = run
        return options

    def error(self, message: str) -> NoReturn:
        """Raise the complaint instead of printing the usage and exiting."""
        raise ValueError(message)


def parser(name: str, description: str | None) -> Parser:
    """Return an argument parser with the options that every sim has."""
    made = Parser(
        prog=f"sims/{name}.py",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    made.add_argument("--seed", type=int, default=0, help="fixes every draw (default 0)")
    made.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"the result folder itself (default {RESULTS / name}; with --quick {name}_quick)",
    )
    made.add_argument(
        "--from",
        dest="again",
        type=Path,
        metavar="SUMMARY",
        help="repeat the run of this summary.json: its options, seed, engine and threads; refused "
        "if the text is another one, and beside options that would change numbers",
    )
    made.add_argument(
        "--format", choices=FORMATS, default="png", help="of the figures (default png)"
    )
    made.add_argument(
        "--publish",
        action="store_true",
        help=f"also copy summary and figures to {RESULTS / 'published' / name}",
    )
    return made


def names(value: str, option: str, known: Iterable[str]) -> tuple[str, ...]:
    """Read a comma-separated choice, in the order of `known`.

    Raises
    ------
    ValueError
        If a name is unknown or none is given.
    """
    known = tuple(known)
    chosen = [part.strip() for part in value.split(",") if part.strip()]
    for name in chosen:
        checks.one_of(option, name, known)
    if not chosen:
        checks.fail(option, repr(value), "one or more of " + ", ".join(known))
    return tuple(name for name in known if name in chosen)


def beside(options: argparse.Namespace, name: str, other: str, there: bool) -> None:
    """Refuse the option `name` where nothing would look at it: where `other` is not `there`.

    Raises
    ------
    ValueError
        If it is given all the same.
    """
    if getattr(options, name) not in (None, False) and not there:
        option = f"--{name.replace('_', '-')}"
        checks.fail(option, "a value that nothing would look at", f"{other} beside it")


@contextlib.contextmanager
def given_as(option: str, argument: str) -> Iterator[None]:
    """Have errors about `argument` speak of the option that it came from."""
    try:
        yield
    except ValueError as error:
        said = str(error)
        if not said.startswith(f"{argument}: "):
            raise
        raise ValueError(option + said.removeprefix(argument)) from error


def check_windows(option: str, validation: Any, length: int) -> None:
    """Refuse what an option names if its shorter part, to validate on, has no window.

    Raises
    ------
    ValueError
        If that is so.
    """
    if validation.windows(length) == 0:
        got = f"{len(validation.tokens)} tokens to validate on, a tenth of all"
        checks.fail(option, got, f"at least the {length} of a window")


def load_windows(options: argparse.Namespace) -> Corpus:
    """Return the text of `Parser.add_text`.

    Raises
    ------
    ValueError
        If it cannot be read, or a part is shorter than a window of `options.length`.
    """
    with given_as("--text", "path"):
        corpus = load_text(options.text)
    check_windows("--text", corpus.validation, options.length)
    return corpus
