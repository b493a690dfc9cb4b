"""Where text comes from: a file, a folder, or the help topics that Python brings along."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

from minattn import checks


def help_topics() -> tuple[str, str]:
    """Return the name and the text of `pydoc_data.topics`, sorted by title."""
    from pydoc_data.topics import topics

    return "pydoc_data.topics", "\n\n".join(topics[title] for title in sorted(topics))


def read_path(path: Any) -> tuple[str, str]:
    """Return the name and the text of a file, or of the visible files of a folder.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    tuple of str
        The last part of the path, and the text: files of a folder sorted and joined by blank lines.

    Raises
    ------
    ValueError
        If there is nothing at the path, or a file cannot be read or is not UTF-8.
    """
    if not isinstance(path, (str, os.PathLike)) or path == "":
        checks.fail("path", repr(path), "an existing file or folder")
    if os.path.isdir(path):
        files = _visible_files(Path(path))
        if not files:
            checks.fail("path", f"the folder {str(path)!r} without a file", "text")
        return Path(path).resolve().name, "\n\n".join(_read_file(file) for file in files)
    # Unlike the methods of Path, this is False even for text that was taken for a path.
    if not os.path.isfile(path):
        checks.fail("path", repr(str(path)), "an existing file or folder")
    return Path(path).name, _read_file(Path(path))


def _visible_files(folder: Path) -> list[Path]:
    """List regular files without a hidden part in their path below `folder`, sorted by path."""
    files = []
    for inside, folders, names in os.walk(folder, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(inside, name) for name in names if not name.startswith(".")]
    return sorted(file for file in files if file.is_file())


def _read_file(file: Path) -> str:
    """Return the text exactly: neither line ends nor a byte order mark are touched."""
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        checks.fail("path", f"{str(file)!r}, not UTF-8 at byte {error.start}", "text in UTF-8")
    except OSError as error:
        _unreadable(error)


def _unreadable(error: OSError) -> NoReturn:
    checks.fail("path", f"{str(error.filename)!r} ({error.strerror})", "files that can be read")
