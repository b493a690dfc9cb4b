"""Which row of the table of layouts a file follows."""

from __future__ import annotations

import re
from typing import NoReturn

from minattn import checks
from minattn.checkpoints.layouts import FAMILIES, LAYOUTS, Layout, Tower
from minattn.checkpoints.settings import Settings
from minattn.checkpoints.tensors import TensorFile

_SHOWN = 8  # tensors that an error lists


def choose(
    file: TensorFile, settings: Settings, family: str | None, prefix: str | None, gguf: bool
) -> tuple[Layout, str]:
    """Return the one row of the table, and prefix, that the file's tensors fit.

    What config.json says the model is decides; without it the names of the tensors do, and a row's
    mark where several rows share names.

    Raises
    ------
    ValueError
        If no row fits, or several do; if a layer is missing, or the scores are not bilinear.
    """
    rows = [layout for layout in LAYOUTS if layout.gguf == gguf]
    kind = settings.model_type
    if family is not None:
        rows = [layout for layout in rows if layout.family == family]
    elif kind is not None:
        rows = [layout for layout in rows if kind in layout.model_types]
    if kind is not None:  # one family can have a row for each of its kinds
        rows = [layout for layout in rows if kind in layout.model_types] or rows
    certain = family is not None or kind is not None
    fits = []
    for layout in rows:
        for start in layout.prefixes if prefix is None else (prefix,):
            marked = certain or not layout.mark or start + layout.mark in file.stored
            if marked and any(indices for _, indices in find_towers(file, layout, start)):
                fits.append((layout, start))
    if len(fits) != 1:
        _unclear(file, settings, [layout.family for layout, _ in fits])
    layout, start = fits[0]
    for tower, indices in find_towers(file, layout, start):
        _check_numbers(layout, tower, indices)
        _check_form(file, layout, start, indices)
    return layout, start


def find_towers(
    file: TensorFile, layout: Layout, prefix: str
) -> list[tuple[Tower, list[dict[str, int]]]]:
    """Return the towers that the file has, each with the numbers of its layers in order."""
    suffix = "" if layout.own else ".weight"
    found = []
    for tower in layout.towers:
        text = re.escape(prefix + tower.query + suffix)
        for number in "gl":
            text = text.replace(rf"\{{{number}\}}", rf"(?P<{number}>0|[1-9]\d{{0,5}})")
        pattern = re.compile(text)
        matches = (pattern.fullmatch(name) for name in file.stored)
        indices = [{k: int(v) for k, v in m.groupdict().items()} for m in matches if m]
        if indices:
            found.append(
                (tower, sorted(indices, key=lambda index: (index.get("g", 0), index["l"])))
            )
    return found


def _check_numbers(layout: Layout, tower: Tower, indices: list[dict[str, int]]) -> None:
    """Fail if a layer is missing between others."""
    expected: dict[int, int] = {}
    for index in indices:
        group = index.get("g", 0)
        if index["l"] != expected.get(group, 0) or (group and group - 1 not in expected):
            got = f"a {tower.name} without layer {expected.get(group, 0)}"
            checks.fail("path", got, f"every layer of a {layout.family} file")
        expected[group] = index["l"] + 1


def _check_form(
    file: TensorFile, layout: Layout, prefix: str, indices: list[dict[str, int]]
) -> None:
    """Fail if queries are normalised after the projection."""
    for stem in layout.refused:
        for index in indices:
            name = prefix + stem.format(**index) + ".weight"
            if name in file.stored:
                needs = "scores bilinear in the layer's input, without a norm of queries and keys"
                checks.fail("path", f"{name!r}", needs)


def _unclear(file: TensorFile, settings: Settings, fits: list[str]) -> NoReturn:
    if len(set(fits)) > 1:
        needs = "a config.json beside it, or the option family"
        checks.fail("path", f"tensors that fit {' and '.join(sorted(set(fits)))}", needs)
    if fits:
        checks.fail("path", "two models in one file", "the option prefix")
    pattern = re.compile(r"att|qkv|query|q_proj|W_q", re.IGNORECASE)
    seen = sorted(name for name in file.stored if pattern.search(name))
    more = f" and {len(seen) - _SHOWN} more" if len(seen) > _SHOWN else ""
    listed = ", ".join(f"{name:.80}" for name in seen[:_SHOWN]) + more if seen else "none"
    kind = "" if settings.model_type is None else f" of model type {settings.model_type!r}"
    needs = "one of the known layouts (" + ", ".join(FAMILIES) + "), or the options family, prefix"
    checks.fail("path", f"an unknown layout{kind}; its attention tensors: {listed}", needs)
