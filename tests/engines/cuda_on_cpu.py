"""CUDA kernels on the CPU: `cuda_on_cpu.h` lets a C++ compiler make them, one thread at a time."""

import ctypes
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

COMPILER = shutil.which("g++")
SHIM = Path(__file__).with_name("cuda_on_cpu.h")
NAME = re.compile(r'extern "C" __global__ void (\w+)\(')


@cache
def compiled(source, options=()):
    """Compile the text of a .cu file for the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        code, library = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
        names = "".join(f"CUDA_ON_CPU({name})\n" for name in NAME.findall(source))
        code.write_text(f'#include "{SHIM}"\n{source}\n{names}')
        command = [COMPILER, "-std=c++17", "-O1", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", *options]
        subprocess.run([*command, str(code), "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))


class Kernel:
    """A kernel that takes grid, block and arguments as CuPy's do."""

    def __init__(self, source, options, name):
        self.run = getattr(compiled(source, tuple(options)), f"run_{name}")
        body = source.split(f" {name}(")[1].split('extern "C"')[0]
        self.waits = bool(re.search(r"\b(warp_\w+|__\w+)\(", body))

    def __call__(self, grid, block, arguments):
        values = [_argument(value) for value in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        sizes = [(ctypes.c_uint * 3)(*size, *[1] * (3 - len(size))) for size in (grid, block)]
        if not self.run(*sizes, pointers, self.waits):
            raise RuntimeError("threads of one warp wait in different places")


def _argument(value):
    """Lay a value out as CuPy does: arrays by address, Python's numbers in 8 bytes."""
    if hasattr(value, "strides"):
        assert value.flags.c_contiguous
        address = value.ctypes.data if isinstance(value, np.ndarray) else value.data.ptr
        return ctypes.c_void_p(address)
    return {int: ctypes.c_longlong, float: ctypes.c_double}[type(value)](value)
