"""How fast `halflap analyze` reads a large trace, and in how much memory.

    python3 bench/analyze.py [--halflap BIN] [--size MB] [--keep DIR]

makes a trace of the given size (1,000 MB) with the mix of events that torch.profiler writes with
stacks and shapes, reads it plain and gzipped, and prints the rate and the peak memory of each.
"""

import argparse
import gzip
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, at::detail::Array<char*, 3>)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4, false, false, cutlass::bfloat16_t> >"
    "(flash::Flash_fwd_params)",
    "triton_poi_fused__to_copy_add_mul_silu_7",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_11",
]
OPS = [
    "aten::linear",
    "aten::mm",
    "aten::add",
    "aten::empty_strided",
    "aten::as_strided",
    "c10d::_allgather_base_",
]
FRAMES = [
    "torch/nn/modules/module.py(1751): _wrapped_call_impl",
    "torch/nn/modules/module.py(1762): _call_impl",
    "model/transformer.py(214): forward",
    "<built-in method linear of Builtin object at 0x7f1e2c3b4d90>",
]
COLLECTIVES = [
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "_allgather_base"),
    (
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "_reduce_scatter_base",
    ),
]


def event(**fields):
    """An event on several lines, as Kineto writes it."""
    head = {name: value for name, value in fields.items() if name not in ("args", "ts", "dur")}
    lines = ["  {", "    " + json.dumps(head)[1:-1] + ","]
    times = [f'"{name}": {fields[name]:.3f}' for name in ("ts", "dur") if name in fields]
    lines.append("    " + ", ".join(times) + ("," if "args" in fields else ""))
    if "args" in fields:
        lines += ['    "args": {', "      " + json.dumps(fields["args"])[1:-1], "    }"]
    return "\n".join(lines + ["  }"])


def layer(rng, at, number):
    """The events of one operation: Python frames, the operators, the launch, the kernel, its
    arrow."""
    for depth in range(6):
        yield event(
            ph="X",
            cat="python_function",
            name=FRAMES[(number + depth) % len(FRAMES)],
            pid=4037,
            tid=4037,
            ts=at + depth * 0.4,
            dur=40.0 - depth,
            args={"Python parent id": number, "Python id": number + depth},
        )
    for depth in range(4):
        shapes = [[rng.randrange(1, 8192) for _ in range(3)] for _ in range(3)]
        yield event(
            ph="X",
            cat="cpu_op",
            name=OPS[(number + depth) % len(OPS)],
            pid=4037,
            tid=4037,
            ts=at + 3 + depth,
            dur=30.0 - depth,
            args={
                "External id": number * 4 + depth,
                "Record function id": 0,
                "Concrete Inputs": ["", "", ""],
                "Input type": ["c10::BFloat16"] * 3,
                "Input Dims": shapes,
                "Ev Idx": number * 4 + depth,
            },
        )
    yield event(
        ph="X",
        cat="cuda_runtime",
        name="cudaLaunchKernel",
        pid=4037,
        tid=4037,
        ts=at + 9,
        dur=4.5,
        args={"External id": number * 4, "cbid": 211, "correlation": number},
    )
    yield event(ph="s", id=number, pid=4037, tid=4037, ts=at + 9, cat="ac2g", name="ac2g")
    yield event(ph="f", id=number, pid=0, tid=7, ts=at + 20, cat="ac2g", name="ac2g", bp="e")


def gpu(rng, at, number):
    common = {
        "External id": number * 4,
        "queued": 0,
        "device": 0,
        "context": 1,
        "correlation": number,
        "registers per thread": 128,
        "shared memory": 49152,
        "blocks per SM": 12.8,
        "warps per SM": 51.2,
        "grid": [1024, 1, 1],
        "block": [256, 1, 1],
        "est. achieved occupancy %": 25,
    }
    yield event(
        ph="X",
        cat="kernel",
        name=KERNELS[number % len(KERNELS)],
        pid=0,
        tid=7,
        ts=at + 20,
        dur=rng.uniform(2, 38),
        args=common | {"stream": 7},
    )
    if number % 20 == 0:
        name, collective = COLLECTIVES[number // 20 % 2]
        yield event(
            ph="X",
            cat="kernel",
            name=name,
            pid=0,
            tid=24,
            ts=at + 21,
            dur=rng.uniform(50, 700),
            args=common
            | {
                "stream": 24,
                "Collective name": collective,
                "In msg nelems": 4194304,
                "Out msg nelems": 33554432,
                "Group size": 8,
                "dtype": "BFloat16",
                "Process Group Name": "0",
                "Process Group Description": "default_pg",
                "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
            },
        )


def make(path, size):
    """Writes a trace of about `size` bytes, and gives the number of its kernels."""
    rng = random.Random(7)
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
    }
    written = number = 0
    with open(path, "w") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        while written < size:
            at = 4458677009853.0 + number * 40.0
            text = ",\n".join([*layer(rng, at, number), *gpu(rng, at, number)]) + ",\n"
            written += file.write(text)
            number += 1
        file.write(
            '{"ph": "i", "name": "Record Window End", "ts": 4458677009853.0, "s": "g"}\n],\n'
        )
        file.write('"displayTimeUnit": "ms", "baseTimeNanoseconds": 1711964646000000000}\n')
    return number


def measure(binary, path, text_bytes):
    """Seconds, MB/s of unpacked text, and the peak memory in MB."""
    started = time.perf_counter()
    command = ["/usr/bin/env", "python3", "-c", WATCHED, binary, "analyze", str(path), "--json"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        sys.exit(f"{path}: {done.stderr}")
    return seconds, text_bytes / 1e6 / seconds, int(done.stderr.split()[-1]) / 1e3


# A process of its own, so that the peak is that of its only child.
WATCHED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--halflap", default=str(ROOT / "target/dist/halflap"))
    parser.add_argument("--size", type=int, default=1000, help="megabytes (default 1000)")
    parser.add_argument(
        "--keep", help="a folder to keep the traces in, and to take them from if they are there"
    )
    args = parser.parse_args()
    folder = Path(args.keep or tempfile.mkdtemp(prefix="halflap-analyze-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        plain, packed = folder / f"{args.size}.json", folder / f"{args.size}.json.gz"
        if not plain.exists():
            make(plain, args.size * 1_000_000)
        if not packed.exists():
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
                shutil.copyfileobj(source, target, 1 << 20)
        size = plain.stat().st_size
        print(
            "| trace | size | seconds | MB/s of text | peak memory |\n| --- | --- | --- | --- | --- |"
        )
        for name, path in (("plain", plain), ("gzipped", packed)):
            seconds, rate, peak = min(measure(args.halflap, path, size) for _ in range(3))
            print(
                f"| {name} | {path.stat().st_size / 1e6:,.0f} MB | {seconds:.2f} | {rate:,.0f} | {peak:.0f} MB |"
            )
    finally:
        if not args.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
