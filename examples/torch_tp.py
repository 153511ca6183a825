#!/usr/bin/env python3
"""Trains a small tensor-parallel transformer on four ranks of this machine.

python examples/torch_tp.py [--eager | --halflap] [--steps N] [--report-dir DIR]
"""

import launch

if __name__ == "__main__":
    launch.main("tensor_parallel", __doc__)
