"""A run again, as its summary.json says."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from minattn import checks
from minattn.engines import set_threads
from minattn.experiment.summary import FORMAT, plain, versions

# Options that no number depends on: free beside --from, and no part of a summary's config.
FREE = ("again", "out", "publish", "format", "film", "workers", "scheduler", "resume")
# Where material lies: it may have moved, and is known by its hash.
PLACES = ("text", "wav", "paths")
_NEEDED = {"config": dict, "seeds": list, "engine": str, "threads": int, "versions": dict}


class Unset(list[Any]):
    """What an option is that was not given; a list, to which argparse may append."""


def config(options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Return what a summary says of the options, and `more` that its numbers depend on."""
    return {name: value for name, value in vars(options).items() if name not in FREE} | more


def read(path: Path, name: str) -> dict[str, Any]:
    """Read the summary.json of a run of the sim `name`.

    Raises
    ------
    ValueError
        If it is not one, of this sim and in this format.
    """
    needs = f"the summary.json of a run of {name}"
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        checks.fail("--from", f"{path} ({error})", needs)
    if not isinstance(run, dict) or not all(isinstance(run.get(k), t) for k, t in _NEEDED.items()):
        checks.fail("--from", f"{path}, which is none", needs)
    if run.get("name") != name:
        checks.fail("--from", f"{path}, a run of {run.get('name')}", needs)
    if run.get("format") != FORMAT:
        checks.fail("--from", f"{path}, in format {run.get('format')}", f"format {FORMAT}")
    return run | {"path": path}


def as_arguments(actions: Iterable[argparse.Action], run: Mapping[str, Any]) -> list[str]:
    """Return the arguments that give a run's options, its seed and its engine."""
    said = {"seed": run["seeds"][-1]} | run["config"] | {"engine": run["engine"]}
    arguments = []
    for action in actions:
        value = said.get(action.dest)
        if not action.option_strings or action.dest in FREE or value is None or value is False:
            continue
        option = action.option_strings[-1]
        if action.nargs == 0:
            arguments.append(option)
        elif isinstance(action, argparse._AppendAction):
            arguments.extend(f"{option}={item}" for item in value)
        elif isinstance(value, list):
            arguments.append(f"{option}={','.join(map(str, value))}")
        else:
            arguments.append(f"{option}={value}")
    return arguments


def check(
    options: argparse.Namespace,
    settings: Mapping[str, Any],
    engine: str,
    digests: Mapping[str, str] | None = None,
) -> None:
    """Before work is done, see that it is the run that --from names, and take its threads.

    Does nothing if no run is to be repeated. Says which versions differ: those may round otherwise.

    Parameters
    ----------
    options : Namespace
    settings : mapping
        The config that this run's summary will have.
    engine : str
        Name of the engine that will compute.
    digests : mapping, optional
        SHA-256 of what will be read, by name.

    Raises
    ------
    ValueError
        If the settings, the engine or what is read differ.
    """
    run = options.again
    if run is None:
        return
    path = run["path"]
    _check_settings(path, run["config"], json.loads(json.dumps(plain(settings))))
    if run["engine"] != engine:
        checks.fail("--from", f"{path}, computed by {run['engine']}", f"a run by {engine}")
    was = _digests(run)
    for name, digest in (digests or {}).items():
        if was.get(name) != digest:
            got = f"{path}, whose {name} has sha256 {was.get(name)}"
            checks.fail("--from", got, f"the {name} that is read here, sha256 {digest}")
    for library, version in versions().items():
        if run["versions"].get(library) != version:
            before = run["versions"].get(library)
            print(f"repeated with {library} {version} instead of {before}: rounding may differ")
    set_threads(run["threads"])


def _check_settings(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Fail if a setting of the run to repeat is unknown here, or another one."""
    for name, value in there.items():
        got = f"{path}, a run with {name} = {value!r}"
        if name not in (*FREE, *PLACES, "engine") and name not in here:
            checks.fail("--from", got, "one whose every option is known here")
        if _comparable({name: value}) != _comparable({name: here.get(name)}):
            checks.fail("--from", got, f"a run with {here.get(name)!r}, as in this version")


def _comparable(value: Any) -> Any:
    """Return a config without what may differ between equal runs, at any depth."""
    if isinstance(value, dict):
        free = (*FREE, *PLACES, "engine")
        return {name: _comparable(item) for name, item in value.items() if name not in free}
    return value


def _digests(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the hashes of what a run has read, by name."""
    read = dict(run.get("materials") or {})
    if run.get("text"):
        read["text"] = run["text"]
    return {name: facts["sha256"] for name, facts in read.items()}
