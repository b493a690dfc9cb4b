"""The source of the kernels: it compiles for devices, and the emulation on CPUs is to be trusted.

What kernels compute is tested in `test_cupy_gpu.py`, by emulation.
"""

import re
import shutil
import subprocess
from pathlib import Path

import cuda_on_cpu
import numpy as np
import pytest

import minattn.engines

SOURCE = Path(minattn.engines.__file__).with_name("cupy_kernels.cu")
NVCC = shutil.which("nvcc")
REALS = ("double", "float")


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("real", REALS)
def test_nvcc_compiles_the_kernels_without_a_warning(real, tmp_path):
    target = tmp_path / "kernels.cubin"
    options = [f"-DREAL={real}", "-arch=sm_90", "-cubin", "-Werror=all-warnings"]
    subprocess.run([NVCC, *options, "-o", str(target), str(SOURCE)], check=True)
    assert target.stat().st_size


@pytest.mark.parametrize("real", REALS)
def test_the_run_time_compiler_compiles_the_kernels(real):
    cupy = pytest.importorskip("cupy", reason="needs cupy")
    try:
        nvrtc = cupy.cuda.nvrtc
    except ImportError as error:
        pytest.skip(f"needs CUDA's libraries ({error})")
    program = nvrtc.createProgram(SOURCE.read_text(), "kernels.cu", [], [])
    nvrtc.compileProgram(program, [f"-DREAL={real}", "-arch=compute_90"])
    ptx = nvrtc.getPTX(program)
    ptx = ptx.decode() if isinstance(ptx, bytes) else ptx
    assert set(re.findall(r"\.entry (\w+)", ptx)) == set(
        cuda_on_cpu.NAME.findall(SOURCE.read_text())
    )


# The emulation

emulated = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
KERNELS = r"""
extern "C" __global__ void reversed(long long size, const double* x, double* out) {
    __shared__ double copy[64];
    copy[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = copy[size - 1 - threadIdx.x];
}
extern "C" __global__ void neighbours(const double* x, double* out) {
    double value = x[threadIdx.x];
    for (int offset = 1; offset < 32; offset *= 2) value += __shfl_xor_sync(~0u, value, offset);
    out[threadIdx.x] = value;
}
extern "C" __global__ void counted(const double* x, long long* out) {
    int first = __syncthreads_count(x[threadIdx.x] > 0);
    int second = __syncthreads_count(x[threadIdx.x] > 1);
    out[threadIdx.x] = 100 * first + second;
}
extern "C" __global__ void numbered(long long* out, double scale) {
    long long width = blockDim.x * gridDim.x, x = blockIdx.x * blockDim.x + threadIdx.x;
    long long y = blockIdx.y * blockDim.y + threadIdx.y;
    out[y * width + x] = scale * (10 * blockIdx.x + threadIdx.y);
}
extern "C" __global__ void astray(double* out) {
    if (threadIdx.x == 3) __syncthreads();
    else { out[threadIdx.x] = 1; __syncthreads(); }
}
"""


def run(name, grid, block, *arguments):
    cuda_on_cpu.Kernel(KERNELS, (), name)(grid, block, arguments)


@emulated
def test_threads_wait_for_each_other():
    x, out = np.arange(64.0), np.zeros(64)
    run("reversed", (1,), (64,), 64, x, out)
    np.testing.assert_array_equal(out, x[::-1])


@emulated
def test_warps_exchange_values_step_by_step():
    x, out = np.random.default_rng(0).normal(size=64), np.zeros(64)
    run("neighbours", (1,), (32, 1), x[:32], out[:32])
    run("neighbours", (1,), (64,), x, out)
    np.testing.assert_allclose(out, np.repeat(x.reshape(2, 32).sum(axis=1), 32))


@emulated
def test_threads_of_a_block_are_counted():
    x, out = np.array([0.5, 2, -1, 3, 0, 7]), np.zeros(6, np.int64)
    run("counted", (1,), (6,), x, out)
    assert out.tolist() == [403] * 6


@emulated
def test_blocks_and_threads_have_their_numbers():
    out = np.zeros((4, 6), np.int64)
    run("numbered", (3, 2), (2, 2), out, 2.0)
    row = np.repeat([0, 20, 40], 2)
    np.testing.assert_array_equal(out, [row, row + 2, row, row + 2])


@emulated
def test_threads_that_wait_in_different_places_are_an_error():
    with pytest.raises(RuntimeError, match="wait in different places"):
        run("astray", (1,), (32,), np.zeros(32))
