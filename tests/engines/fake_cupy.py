"""Enough of CuPy, on NumPy arrays, to run the engine "cupy" where there is no GPU.

It is strict where CuPy is: a device array never becomes a host array, nor meets one, unasked. It is
stricter in that NumPy's functions refuse device arrays. Kernels run as `cuda_on_cpu` compiles them;
cuBLAS is the definition of its batched product, on addresses.
"""

import contextlib
import copy
import ctypes
from time import perf_counter
from types import SimpleNamespace

import numpy as np
from cuda_on_cpu import Kernel

__version__ = "stand-in"


class ndarray:  # noqa: N801
    """A device array: a NumPy array that only this module may touch."""

    __array_ufunc__ = None
    __cuda_array_interface__ = {}  # noqa: RUF012

    def __init__(self, host):
        self._host = host

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    @property
    def flags(self):
        return SimpleNamespace(c_contiguous=self._host.flags.c_contiguous)

    @property
    def data(self):
        return SimpleNamespace(ptr=self._host.ctypes.data)

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __setitem__(self, index, value):
        self._host[index] = _host(value)

    def __deepcopy__(self, memo):
        return ndarray(copy.deepcopy(self._host, memo))

    def __int__(self):
        return int(self._host)

    def __float__(self):
        return float(self._host)

    def __bool__(self):
        return bool(self._host)

    def sum(self, axis=None, dtype=None, out=None, keepdims=False):
        assert out is None
        return _device(self._host.sum(axis=axis, dtype=dtype, keepdims=keepdims))


def _host(value):
    """Return what is behind a device array; a host array with axes is refused."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, (list, tuple)):
        return type(value)(_host(one) for one in value)
    return value


def _device(value):
    return ndarray(np.asarray(value))


def _function(function):
    def call(*args, **kwargs):
        return _device(function(*map(_host, args), **{n: _host(v) for n, v in kwargs.items()}))

    return call


def _writing(function):
    """Return a function that writes to `out`, a device array."""

    def call(*args, out, **kwargs):
        function(*map(_host, args), out=out._host, **kwargs)
        return out

    return call


def _method(name):
    def call(self, *args, **kwargs):
        return _function(getattr(self._host, name))(*args, **kwargs)

    return call


for _name in ("shape", "dtype", "ndim", "size", "strides", "itemsize", "nbytes"):
    setattr(ndarray, _name, property(lambda self, name=_name: getattr(self._host, name)))
for _name in ("add", "sub", "mul", "truediv", "matmul"):
    setattr(ndarray, f"__{_name}__", _method(f"__{_name}__"))
    setattr(ndarray, f"__r{_name}__", _method(f"__r{_name}__"))
for _name in ("neg", "getitem", "eq", "ne", "lt", "gt", "le", "ge"):
    setattr(ndarray, f"__{_name}__", _method(f"__{_name}__"))
for _name in ("reshape", "swapaxes", "mean", "max", "copy", "astype"):
    setattr(ndarray, _name, _method(_name))


def _in_place(name):
    def call(self, other):
        getattr(self._host, name)(_host(other))
        return self

    return call


for _name in ("__iadd__", "__isub__", "__imul__"):
    setattr(ndarray, _name, _in_place(_name))


def asarray(value):
    return value if isinstance(value, ndarray) else ndarray(np.array(value))


def asnumpy(value):
    return value._host.copy() if isinstance(value, ndarray) else value


def ascontiguousarray(value):
    value = asarray(value)
    return value if value.flags.c_contiguous else ndarray(np.ascontiguousarray(value._host))


def array(value, order="K"):
    return ndarray(np.array(_host(value), order=order))


def copyto(to, value, where=True):
    np.copyto(to._host, _host(value), where=_host(where))


def concatenate(parts, axis=0, out=None):
    joined = np.concatenate(_host(parts), axis=axis, out=None if out is None else out._host)
    return ndarray(joined) if out is None else out


add = _writing(np.add)
sum = _writing(np.sum)
empty_like = _function(np.empty_like)
empty = _function(lambda shape, dtype: np.full(shape, 77, dtype))  # as if something had been there
zeros = _function(np.zeros)
where = _function(np.where)
stack = _function(np.stack)
sqrt = _function(np.sqrt)
tanh = _function(np.tanh)


class RawModule:
    def __init__(self, code, options=()):
        self._code, self._options = code, options

    def get_function(self, name):
        return Kernel(self._code, self._options, name)


def _strided_batched(kind):
    """Return gemmStridedBatched as cuBLAS defines it: column by column, C = alpha A B + beta C."""

    def operand(address, turned, rows, columns, lead, step, count):
        if turned:
            return operand(address, 0, columns, rows, lead, step, count).swapaxes(1, 2)
        assert lead >= max(1, rows)
        length = step * (count - 1) + lead * (columns - 1) + rows
        entries = np.ctypeslib.as_array((kind * length).from_address(address))
        steps = [entries.itemsize * n for n in (step, 1, lead)]
        return np.lib.stride_tricks.as_strided(entries, (count, rows, columns), steps)

    def gemm(handle, a_turned, b_turned, m, n, k, alpha, *rest):
        A, a_lead, a_step, B, b_lead, b_step, beta, C, c_lead, c_step, count = rest
        assert handle == "handle"
        assert kind.from_address(alpha).value == 1
        assert kind.from_address(beta).value == 0
        a = operand(A, a_turned, m, k, a_lead, a_step, count)
        b = operand(B, b_turned, k, n, b_lead, b_step, count)
        operand(C, 0, m, n, c_lead, c_step, count)[...] = a @ b

    return gemm


class CUDARuntimeError(RuntimeError):
    pass


class _Event:
    def record(self):
        self.time = perf_counter()

    def synchronize(self):
        pass


_runtime = SimpleNamespace(
    driverGetVersion=lambda: 13000,
    getDeviceCount=lambda: 1,
    getDeviceProperties=lambda number: {"name": b"a stand-in"},
    CUDARuntimeError=CUDARuntimeError,
)
cuda = SimpleNamespace(
    Event=_Event,
    get_elapsed_time=lambda before, after: 1e3 * (after.time - before.time),
    runtime=_runtime,
    cublas=SimpleNamespace(
        sgemmStridedBatched=_strided_batched(ctypes.c_float),
        dgemmStridedBatched=_strided_batched(ctypes.c_double),
    ),
    device=SimpleNamespace(get_cublas_handle=lambda: "handle"),
    nvrtc=SimpleNamespace(),
)


@contextlib.contextmanager
def installed():
    """Have `import cupy` find this module, and the engine anew."""
    import sys

    names = ("cupy", "minattn.engines.cupy_gpu", "minattn.engines.cupy_products")
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.modules["cupy"] = sys.modules[__name__]
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)
