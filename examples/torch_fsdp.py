#!/usr/bin/env python3
"""Trains a small transformer with fully sharded parameters on four ranks of this machine.

python examples/torch_fsdp.py [--eager | --halflap] [--steps N] [--report-dir DIR]
"""

import launch

if __name__ == "__main__":
    launch.main("fsdp", __doc__)
