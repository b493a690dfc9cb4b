"""Small mistakes that someone could make in a module, found in its text."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

OPERATORS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
}
COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
JOINTS = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
# Calls that can be forgotten, so that what they are given is taken as it is.
METHODS = {"all", "any", "astype", "copy", "max", "mean", "min", "ravel", "reshape", "sum"}
METHODS |= {"swapaxes"}
FUNCTIONS = {"abs", "clip", "exp", "isfinite", "log", "max", "maximum", "min", "minimum"}
FUNCTIONS |= {"reversed", "sorted", "sqrt", "sum", "tanh", "tril", "triu"}
# Calls whose first two arguments may be swapped.
SYMMETRIC = {"array_equal", "clip", "cosine", "max", "maximum", "min", "minimum", "result_type"}
SYMMETRIC |= {"same_mask", "swapaxes"}
# What an error says is for readers.
FOR_READERS = {"needs", "got", "got_both", "got_type", "fit", "odd", "__all__"}


@dataclass(frozen=True)
class Mutation:
    """One change: the bytes start..stop of the module's file are replaced."""

    module: str
    function: str  # qualified name; "" outside functions
    before: str  # the lines that it changes, in one
    after: str
    start: int
    stop: int
    replacement: bytes

    @property
    def key(self) -> tuple[str, str, str]:
        """What stays the same when other lines of the module change."""
        return f"{self.module}.{self.function}".rstrip("."), self.before, self.after

    def made(self, text: bytes) -> bytes:
        """Return the module's text with the change."""
        return text[: self.start] + self.replacement + text[self.stop :]


def mutations(module: str, text: bytes) -> list[Mutation]:
    """Return all changes to a module's text, in its order."""
    finder = _Finder(text)
    finder.visit(ast.parse(text))
    found = {}
    for function, start, stop, replacement in finder.found:
        first = text.rfind(b"\n", 0, start) + 1
        last = text.find(b"\n", stop)
        lines = (text[first:last], text[first:start] + replacement + text[stop:last])
        before, after = (" ".join(line.decode().split()) for line in lines)
        change = Mutation(module, function, before, after, start, stop, replacement)
        if before != after:
            found[start, stop, replacement] = change
    return sorted(found.values(), key=lambda change: (change.start, change.stop))


class _Finder(ast.NodeVisitor):
    def __init__(self, text: bytes) -> None:
        self.text = text
        self.found: list[tuple[str, int, int, bytes]] = []
        self.names: list[str] = []  # of the classes and the function around
        self.bound: set[str] = set()  # in this function, so far
        starts = [0]
        for line in text.split(b"\n"):
            starts.append(starts[-1] + len(line) + 1)
        self.starts = starts

    def span(self, node: Any) -> tuple[int, int]:
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def source(self, node: Any) -> bytes:
        start, stop = self.span(node)
        return self.text[start:stop]

    def add(self, start: int, stop: int, replacement: bytes) -> None:
        self.found.append((".".join(self.names), start, stop, replacement))

    def replace(self, node: ast.AST, replacement: bytes | str) -> None:
        replacement = replacement.encode() if isinstance(replacement, str) else replacement
        self.add(*self.span(node), replacement)

    def between(self, left: ast.AST, right: ast.AST, signs: tuple[str, str]) -> None:
        """Change the sign between two operands."""
        start, stop = self.span(left)[1], self.span(right)[0]
        gap = self.text[start:stop]
        self.add(start, stop, gap.replace(*(sign.encode() for sign in signs), 1))

    def swap(self, one: ast.AST, other: ast.AST) -> None:
        (start, a), (b, stop) = self.span(one), self.span(other)
        self.add(start, stop, self.source(other) + self.text[a:b] + self.source(one))

    # Where changes are looked for

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self.names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if any("overload" in ast.unparse(decorator) for decorator in node.decorator_list):
            return
        bound, arguments = self.bound, node.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self.bound = {argument.arg for argument in named}
        self.names.append(node.name)
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self.names.pop()
        self.bound = bound

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and "TypeAlias" not in ast.unparse(node.annotation):
            self.visit(node.value)

    def skip(self, node: ast.AST) -> None:
        """Look for nothing in there."""

    visit_Assert = visit_Raise = visit_Import = visit_ImportFrom = visit_JoinedStr = skip

    # Statements

    def visit_Assign(self, node: ast.Assign) -> None:
        targets = {
            name.id
            for target in node.targets
            for name in ast.walk(target)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        }
        if targets & FOR_READERS or "TypeVar" in ast.unparse(node.value):
            return
        if self.names and targets <= self.bound:
            self.replace(node, "pass")
        self.bound |= targets
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.replace(node, "pass")
        if type(node.op) in OPERATORS:
            old, new = OPERATORS[type(node.op)]
            self.between(node.target, node.value, (old + "=", new + "="))
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _checks(node.value):
            return
        if not isinstance(node.value, ast.Yield):
            self.replace(node, "pass")
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Tuple):
            self.swap(*node.value.elts[:2])
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.replace(node, "break")

    def visit_Break(self, node: ast.Break) -> None:
        self.replace(node, "continue")

    def visit_If(self, node: Any) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    visit_IfExp = visit_While = visit_If

    def negate(self, test: ast.AST) -> None:
        plain = isinstance(test, ast.Compare) and type(test.ops[0]) not in (
            *(ast.Lt, ast.LtE, ast.Gt, ast.GtE),
        )
        if not plain and not isinstance(test, ast.UnaryOp):
            self.replace(test, b"not (" + self.source(test) + b")")

    # Expressions

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS:
            self.between(node.left, node.right, OPERATORS[type(node.op)])
        self.replace(node, self.source(node.left))
        if isinstance(node.op, ast.Sub | ast.Div | ast.MatMult | ast.Add | ast.Mult):
            self.replace(node, self.source(node.right))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between(left, right, JOINTS[type(node.op)])
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, right, sign in zip(operands, operands[1:], node.ops, strict=False):
            self.between(left, right, COMPARISONS[type(sign)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.replace(node, self.source(node.operand))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.replace(node, str(not value))
        elif isinstance(value, int):
            self.replace(node, str(value + 1 if value < 1000 else 2 * value))
        elif isinstance(value, float):
            self.replace(node, repr(2 * value or 1.0))

    def visit_Tuple(self, node: ast.Tuple) -> None:
        if isinstance(node.ctx, ast.Store):
            self.swap(*node.elts[:2])
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _checks(node):
            return
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        module = owner is None or ast.unparse(owner) in ("np", "math", "xp", "self.xp", "engine.xp")
        if owner is not None and not module and name in METHODS:
            self.replace(node, self.source(owner))
        if module and name in FUNCTIONS and node.args:
            self.replace(node, self.source(node.args[0]))
        if module and name == "where" and len(node.args) == 3:
            self.replace(node, self.source(node.args[1]))
            self.replace(node, self.source(node.args[2]))
        if name not in SYMMETRIC and len(node.args) > 1:
            self.swap(*node.args[:2])
        parts = [*node.args, *node.keywords]
        for keyword in node.keywords:
            if keyword.arg in ("copy", "strict"):  # where memory comes from; a safeguard
                parts.remove(keyword)
                continue
            place = parts.index(keyword)
            start, stop = self.span(keyword)
            if place:
                start = self.span(parts[place - 1])[1]
            elif parts[1:]:
                stop = self.span(parts[1])[0]
            self.add(start, stop, b"")
        if name == "reshape":  # any negative number stands for what is left over
            parts = [part for part in parts if ast.unparse(part) != "-1"]
        for part in [node.func, *parts]:
            axes = name in ("swapaxes", "moveaxis") or getattr(part, "arg", None) == "axis"
            self.visit(_unsigned(part) if axes else part)


def _unsigned(node: ast.AST) -> ast.AST:
    """Return axes without their signs: counted from the other end, they may be the same."""
    if isinstance(node, ast.keyword):
        return _unsigned(node.value)
    if isinstance(node, ast.Tuple):
        return ast.List([_unsigned(element) for element in node.elts], node.ctx)
    return node.operand if isinstance(node, ast.UnaryOp) else node


def _checks(node: ast.AST) -> bool:
    """Whether it is a call that checks an argument or fails."""
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return called.startswith("checks.") or called in ("fail", "super().__post_init__")
