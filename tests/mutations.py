"""Small mistakes that someone could make in a module: mutmut finds them, and we make them."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

try:
    from libcst.metadata import MetadataWrapper, WhitespaceInclusivePositionProvider
    from mutmut.mutation.file_mutation import create_mutations
except ImportError:
    raise SystemExit("mutmut is missing: python -m pip install -e '.[test,mutation]'") from None

# mutmut leaves out what is decorated, for the sake of its own runner: with ours it need not.
DECORATORS = re.compile(r"^( *)@(?=(property|cached_property|register_jitable)$)", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """One change: the characters start..stop of the module's text are replaced."""

    module: str
    function: str  # qualified name; "" outside functions and classes
    before: str  # the lines that it changes, in one
    after: str
    start: int
    stop: int
    replacement: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What stays the same when other lines of the module change."""
        return f"{self.module}.{self.function}".rstrip("."), self.before, self.after

    def made(self, text: str) -> str:
        """Return the module's text with the change."""
        return text[: self.start] + self.replacement + text[self.stop :]


def mutations(module: str, text: str) -> list[Mutation]:
    """Return all changes to a module's text, in its order."""
    tree, found, _, _ = create_mutations(module, DECORATORS.sub(r"\1#", text))
    places = MetadataWrapper(tree, unsafe_skip_copy=True).resolve(
        WhitespaceInclusivePositionProvider
    )
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    functions = dict(_functions_by_line(ast.parse(text)))
    changes = {}
    for one in found:
        place = places[one.original_node]
        start, stop = (starts[p.line - 1] + p.column for p in (place.start, place.end))
        replacement = tree.code_for_node(one.mutated_node)
        first = text.rfind("\n", 0, start) + 1
        last = text.find("\n", stop)
        lines = (text[first:last], text[first:start] + replacement + text[stop:last])
        before, after = (" ".join(line.split()) for line in lines)
        function = functions.get(place.start.line, "")
        changes[start, stop, replacement] = Mutation(
            module, function, before, after, start, stop, replacement
        )
    return list(changes.values())


def _functions_by_line(node: ast.AST, names: tuple[str, ...] = ()) -> Iterator[tuple[int, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = (*names, child.name)
            for line in range(child.lineno, (child.end_lineno or 0) + 1):
                yield line, ".".join(inner)
            yield from _functions_by_line(child, inner)


# Making a change in a module that others have imported


def install(module: ModuleType, text: str) -> None:
    """Let a module be as if it had been imported from this text, for all who hold parts of it."""
    assert module.__file__ is not None
    names: dict[str, Any] = {"__name__": module.__name__, "__file__": module.__file__}
    exec(compile(text, module.__file__, "exec"), names)
    for name, new in names.items():
        old = vars(module).get(name)
        if isinstance(new, type) and new.__module__ == module.__name__:
            for part, value in vars(new).items():
                if part in vars(old) and not _renewed(vars(old)[part], value, module.__file__):
                    setattr(old, part, value)
        elif not _renewed(old, new, module.__file__):
            for holder in list(sys.modules.values()):
                if vars(holder).get(name) is old:
                    setattr(holder, name, new)


def _renewed(old: Any, new: Any, file: str) -> bool:
    """Give a function its new code and defaults; return whether nothing is left to replace."""
    if isinstance(new, int | float | str | tuple | list | dict | set | None):
        return bool(repr(old) == repr(new))
    for one, other in zip(_functions(old), _functions(new), strict=True):
        if other.__code__.co_filename == file:
            one.__code__ = other.__code__
        if repr(one.__defaults__) != repr(other.__defaults__):
            one.__defaults__ = other.__defaults__
        if repr(one.__kwdefaults__) != repr(other.__kwdefaults__):
            one.__kwdefaults__ = other.__kwdefaults__
    return True


def _functions(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    elif isinstance(value, staticmethod | classmethod):
        value = value.__func__
    value = inspect.unwrap(value) if hasattr(value, "__wrapped__") else value
    if isinstance(value, FunctionType):
        yield value
