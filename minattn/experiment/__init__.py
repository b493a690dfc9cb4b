"""What the sims share: arguments, the results folder, what a summary must say, clean endings."""

from __future__ import annotations

from minattn.experiment.arguments import (
    Parser,
    beside,
    check_windows,
    given_as,
    load_windows,
    names,
    parser,
)
from minattn.experiment.ending import run
from minattn.experiment.folder import RESULTS, ResultFolder, finish, publish, result_folder
from minattn.experiment.rerun import check as check_rerun
from minattn.experiment.rerun import config
from minattn.experiment.summary import (
    FORMAT,
    curve_rows,
    estimates,
    summary,
    text_facts,
    versions,
    write_csv,
    write_json,
)

__all__ = [
    "FORMAT",
    "RESULTS",
    "Parser",
    "ResultFolder",
    "beside",
    "check_rerun",
    "check_windows",
    "config",
    "curve_rows",
    "estimates",
    "finish",
    "given_as",
    "load_windows",
    "names",
    "parser",
    "publish",
    "result_folder",
    "run",
    "summary",
    "text_facts",
    "versions",
    "write_csv",
    "write_json",
]
