"""Has XLA and halflap read every HLO text in a checkout of openxla/xla, and counts which texts each
rejects, and why.

    python3 bench/xla_texts.py CHECKOUT [--halflap PATH] [--keep FOLDER] [--show N]

Texts are raw strings of C++ sources and the contents of .hlo and .txt files; files with several
modules, divided by lines of dashes, are several texts. Each text counts once. XLA's parser is
jaxlib's (pip install jaxlib), in processes of its own, because some texts end it. Nothing is
downloaded, and nothing of the checkout is kept, unless --keep names a folder for the texts that XLA
reads and halflap does not.
"""

import argparse
import collections
import concurrent.futures
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RAW = re.compile(r'R"([^\s()\\]{0,16})\((.*?)\)\1"', re.S)
DIVIDED = re.compile(r"^\s*// -----.*$", re.M)
# Longer ones are dumps of whole programs, which say nothing about the notation.
LONGEST = 4_000_000


def texts(checkout):
    """All texts that may be modules, each once, with a file that has it."""
    found = {}
    for path in sorted(checkout.rglob("*")):
        if path.suffix not in (".cc", ".h", ".hlo", ".txt") or not path.is_file():
            continue
        content = path.read_text(errors="replace")
        pieces = (
            DIVIDED.split(content)
            if path.suffix in (".hlo", ".txt")
            else [m[2] for m in RAW.finditer(content)]
        )
        for piece in pieces:
            text = piece.strip()
            if ("HloModule" in text or "ENTRY" in text) and len(text) <= LONGEST:
                found.setdefault(text, path.relative_to(checkout))
    return found


ASK = r"""
import os, struct, sys
from jaxlib import _hlo
stream = os.fdopen(os.dup(1), "wb", 0)
os.dup2(2, 1)
while head := sys.stdin.buffer.read(4):
    text = sys.stdin.buffer.read(struct.unpack("<I", head)[0]).decode()
    try:
        _hlo.hlo_module_from_text(text)
        answer = b"y"
    except Exception:
        answer = b"n"
    stream.write(answer)
"""


class Xla:
    """A process that has XLA read texts."""

    def __init__(self):
        self.process = None

    def reads(self, text):
        """Whether XLA reads a text; nothing if that ends it."""
        if self.process is None:
            command = [sys.executable, "-c", ASK]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
            )
        data = text.encode()
        try:
            self.process.stdin.write(len(data).to_bytes(4, "little") + data)
            self.process.stdin.flush()
            answer = self.process.stdout.read(1)
        except BrokenPipeError:
            answer = b""
        if answer:
            return answer == b"y"
        self.process.wait()
        self.process = None
        return None


def refused(halflap, text):
    """Why halflap does not read a text; nothing if it does."""
    command = [halflap, "simulate", "-"]
    try:
        ran = subprocess.run(command, input=text.encode(), capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "takes more than a minute"
    if ran.returncode == 0:
        return None
    said = ran.stderr.decode().split("\n")[0]
    said = re.sub(r"^.*?(line \d+ column \d+: )", "", said)
    said = re.sub(r"'[^']*'", "'...'", said)
    said = re.sub(r"\d+", "N", said)
    return said if ran.returncode in (1, 2) else f"exit {ran.returncode}: {said}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--halflap", type=Path, default=ROOT / "target/dist/halflap")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--show", type=int, default=40)
    args = parser.parse_args()
    found = texts(args.checkout)
    xla = Xla()
    reads = {text: xla.reads(text) for text in found}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        reasons = dict(zip(found, pool.map(lambda text: refused(args.halflap, text), found)))
    counts = collections.Counter((reads[text], reasons[text] is None) for text in found)
    print(f"{len(found)} texts")
    for answer, name in ((True, "XLA reads"), (False, "XLA refuses"), (None, "end XLA")):
        ours, not_ours = counts[answer, True], counts[answer, False]
        print(f"{name}: {ours + not_ours}, of which halflap reads {ours} and refuses {not_ours}")
    why = collections.Counter(reasons[text] for text in found if reads[text] and reasons[text])
    for reason, count in why.most_common(args.show):
        print(f"{count:6}  {reason}")
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
        wrong = [text for text in found if reads[text] and reasons[text]]
        for number, text in enumerate(wrong):
            (args.keep / f"{number:04}.txt").write_text(
                f"// {found[text]}\n// {reasons[text]}\n{text}\n"
            )
    sys.exit(1 if why else 0)


if __name__ == "__main__":
    main()
