"""A custom operator in a compiled model that writes a number of elements too far (or, below zero,
too early). What it does not write is undefined, or with `nan` NaN."""

import ctypes
import subprocess
import sys
import tempfile

import torch

SOURCE = b"void shift(const float *in, float *out, long n, long by) { for (long i = 0; i < n; ++i) out[i + by] = in[i]; }"
folder = tempfile.TemporaryDirectory()
library = f"{folder.name}/shift.so"
subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=SOURCE, check=True)
function = ctypes.CDLL(library).shift
by = int(sys.argv[1])


@torch.library.custom_op("mine::shift", mutates_args=())
def shift(x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, float("nan")) if "nan" in sys.argv else torch.empty_like(x)
    arrays = (ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()))
    function(*arrays, ctypes.c_long(x.numel()), ctypes.c_long(by))
    return out


@shift.register_fake
def _(x):
    return torch.empty_like(x)


@torch.compile
def model(x):
    y = torch.sin(x) + 1
    z = torch.ops.mine.shift(y)
    return torch.cos(z) @ z.T


print("done", model(torch.ones(32, 32)).shape)
