"""``python -m minattn``: what can run here, and the sims that there are."""

from __future__ import annotations

import ast
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import minattn
from minattn.engines import availability, choose, get_threads

SIMS = Path(minattn.__file__).parent.parent / "sims"


def main() -> None:
    """Print version, engines, threads, BLAS and sims."""
    system = f"{platform.system()} {platform.machine()}"
    print(f"minattn {minattn.__version__}, Python {platform.python_version()}, {system}\n")
    for title, lines in (
        ("engines", engines()),
        ("threads", [f"{get_threads()} (minattn.set_threads changes it)"]),
        ("BLAS", blas()),
        ("sims", sims(SIMS)),
    ):
        for number, line in enumerate(lines):
            print(f"{title if number == 0 else '':9}{line}")


def engines() -> Iterator[str]:
    """Yield a line an engine: that it can run here, or why it cannot."""
    yield f'"auto" is {choose("auto").name}'
    for name, lack in availability().items():
        if lack is None:
            yield f"{name:9}can run ({', '.join(choose(name).dtypes)})"
        else:
            yield f"{name:9}cannot run here: it needs {' '.join(lack.split())}"


def blas() -> Iterator[str]:
    """Yield a line a BLAS library that NumPy and SciPy have loaded."""
    import numpy.linalg  # noqa: F401  # what is not loaded is not found
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    for library in found:
        parts = (library["internal_api"], library["version"], library.get("architecture"))
        words = " ".join(str(part) for part in parts if part)
        yield f"{words}; threads: {library['num_threads']}, inside a training step 1"
    if not found:
        yield "none that threadpoolctl knows: its threads are not limited inside a training step"


def sims(folder: Path) -> Iterator[str]:
    """Yield each script of a folder with the first line of its docstring, or where to get them."""
    scripts = sorted(folder.glob("*.py"))
    width = max((len(path.name) for path in scripts), default=0)
    for path in scripts:
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        yield f"{path.name:{width}}  {text.partition(chr(10))[0]}"
    if scripts:
        yield f"run one with: python {folder}/NAME.py --quick"
    else:
        yield "not beside this package: the folder sims/ of the source distribution has them"


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has read enough: `python -m minattn | head -3`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
