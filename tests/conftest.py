"""For all tests that start torch: kernels are compiled once, and what the processor can do is not tried out anew."""

import os
import pathlib

os.environ.setdefault("CXX", str(pathlib.Path(__file__).parent / "torch" / "cxx"))
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
