"""Faulty modules: what each does, and what is to blame.

A body has the lines of an entry computation on arrays `p` and `q` of 64 numbers each; what is at
fault is called `bad`, what comes before it and after it has other names. On several ranks its
result goes through an all-reduce."""

import dataclasses
import struct


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    what: str
    body: str
    kinds: tuple = ("nan",)
    kernel: str | None = "bad"
    rank: int | None = None
    options: tuple = ()
    inputs: dict | None = None
    ranks: tuple = (1, 8)
    element: str = "f32"
    computations: str = ""
    buffer: str | None = None
    sums: bool = True
    ending: str | None = None
    iteration: tuple | None = None
    #: Words of the note that is given instead of a finding.
    note: tuple | None = None
    #: Whether there must be no note on a comparison.
    quiet: bool = False
    #: Words of the finding.
    says: tuple = ()
    #: The instruction in the kernel.
    instruction: str | None = None

    def text(self, ranks):
        return text(self, ranks)


def text(case, ranks):
    """The module of a body."""
    group = ",".join(map(str, range(ranks)))
    reduce = (
        f"all-reduce(result), channel_id=1, replica_groups={{{{{group}}}}}, use_global_device_ids=true, to_apply=add"
        if case.sums
        else "negate(result)"
    )
    e = case.element
    ending = case.ending or f"  sum = {e}[64] {reduce}\n  ROOT after = {e}[64] add(sum, q)"
    body = case.body.replace("GROUP", f"{{{{{group}}}}}").replace("RANKS", str(ranks))
    return f"""HloModule {case.name.replace("-", "_")}, num_partitions={ranks}

add {{
  a = {e}[] parameter(0)
  b = {e}[] parameter(1)
  ROOT c = {e}[] add(a, b)
}}
{case.computations}
ENTRY main {{
  p = {e}[64] parameter(0)
  q = {e}[64] parameter(1)
  before = {e}[64] add(p, q)
{body}
{ending}
}}
"""


def npy(values, descr="<f4", form="f", shape=None):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape or (len(values),)}, }}"
    header += " " * ((-len(header) - 11) % 64) + "\n"
    data = struct.pack(f"<{len(values)}{form}", *values)
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


ONES = [1.0] * 64
NAN = float("nan")


def plain(p=ONES, q=ONES):
    """The same inputs for all ranks."""
    return lambda ranks: {f"in_{n:03}_r{r}": npy(v) for r in range(ranks) for n, v in enumerate((p, q))}


def call(target, operands="before", element="f32"):
    return f"""  bad = {element}[64] custom-call({operands}), custom_call_target="{target}"
  result = {element}[64] add(bad, q)"""


LIBRARY = "LIBRARY"
CUSTOM = ("--custom-calls", LIBRARY)
SECOND = """  other = f32[64] all-reduce(before), channel_id=2, replica_groups=GROUP, use_global_device_ids=true, to_apply=add
  third = f32[64] all-reduce(p), channel_id=3, replica_groups=GROUP, use_global_device_ids=true, to_apply=add
  both = f32[64] add(other, third)
  result = f32[64] multiply(both, q)"""
RANK = """  id = u32[] partition-id()
  three = u32[] constant(3)
  is_three = pred[] compare(id, three), direction=EQ
  mask = pred[64] broadcast(is_three), dimensions={}"""


def nan(name, what, line, **more):
    return Case(name, what, f"  {line}\n  result = f32[64] add(bad, q)", **more)


def memory(name, what, target=None, kinds=("out-of-bounds",), **more):
    return Case(name, what, call((target or name).replace("-", "_")), kinds=kinds, options=CUSTOM, **more)


def kept(name, what, keeps, uses):
    """Two custom calls, of which the second uses what the first was given, and which is alive."""
    body = f"""  id = u32[] partition-id()
  held = f32[64] custom-call(before, id), custom_call_target="{keeps}"
  more = f32[64] multiply(held, q)
  bad = f32[64] custom-call(more, id), custom_call_target="{uses}"
  result = f32[64] add(bad, before)"""
    return Case(name, what, body, kinds=("not-its-own",), options=CUSTOM + ("--input-order",))


def loop(name, what, turn, start="before", **more):
    """A loop that runs while its counter is below 6; a turn is lines that make `k` of `j`, and `y`
    of `x`."""
    state = "(s32[], f32[64])"
    computations = f"""
goes {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(6)
  ROOT g = pred[] compare(i, n), direction=LT
}}

turn {{
  t = {state} parameter(0)
  j = s32[] get-tuple-element(t), index=0
  x = f32[64] get-tuple-element(t), index=1
{turn}
  ROOT u = {state} tuple(k, y)
}}
"""
    body = f"""  zero = s32[] constant(0)
  begin = {state} tuple(zero, {start})
  bad = {state} while(begin), condition=goes, body=turn
  result = f32[64] get-tuple-element(bad), index=1"""
    return Case(name, what, body, computations=computations, **more)


MINUS = "  low = f32[64] negate(before)\n"
CASES = [
    # Numbers.
    nan("nan-log", "log of a negative number", "low = f32[64] negate(before)\n  bad = f32[64] log(low)", inputs=plain()),
    nan("nan-sqrt", "square root of a negative number", "low = f32[64] negate(before)\n  bad = f32[64] sqrt(low)", inputs=plain()),
    nan("nan-rsqrt", "inverse square root of a negative number", "low = f32[64] negate(before)\n  bad = f32[64] rsqrt(low)", inputs=plain()),
    nan("nan-power", "a fractional power of a negative number", "low = f32[64] negate(before)\n  half = f32[] constant(0.5)\n  halves = f32[64] broadcast(half), dimensions={}\n  bad = f32[64] power(low, halves)", inputs=plain()),
    nan("nan-divide", "zero divided by zero", "zero = f32[64] subtract(p, p)\n  bad = f32[64] divide(zero, zero)"),
    nan("nan-remainder", "remainder of a division by zero", "zero = f32[64] subtract(p, p)\n  bad = f32[64] remainder(before, zero)"),
    nan("nan-zero-times-infinity", "zero times a constant infinity", "zero = f32[64] subtract(p, p)\n  most = f32[] constant(inf)\n  many = f32[64] broadcast(most), dimensions={}\n  bad = f32[64] multiply(zero, many)"),
    nan("nan-tan-of-infinity", "sine of a constant infinity", "most = f32[] constant(inf)\n  many = f32[64] broadcast(most), dimensions={}\n  bad = f32[64] sine(many)"),
    nan("nan-in-fusion", "log of a negative number, inside a fusion", "bad = f32[64] fusion(before), kind=kLoop, calls=inside", inputs=plain(), computations="\ninside {\n  x = f32[64] parameter(0)\n  y = f32[64] negate(x)\n  ROOT z = f32[64] log(y)\n}\n"),
    nan("nan-in-reduce", "a sum of infinities of both signs", "most = f32[] constant(inf)\n  least = f32[] constant(-inf)\n  up = f32[1,64] broadcast(most), dimensions={}\n  down = f32[1,64] broadcast(least), dimensions={}\n  pair = f32[2,64] concatenate(up, down), dimensions={0}\n  nothing = f32[] constant(0)\n  bad = f32[64] reduce(pair, nothing), dimensions={0}, to_apply=add"),
    nan("nan-in-dot", "a product of matrices with an infinity and a zero", "zero = f32[64] subtract(p, p)\n  most = f32[] constant(inf)\n  many = f32[64,64] broadcast(most), dimensions={}\n  bad = f32[64] dot(zero, many), lhs_contracting_dims={0}, rhs_contracting_dims={0}"),
    Case("nan-in-loop", "the square root of a number that becomes negative, in the third iteration of a loop", "  zero = s32[] constant(0)\n  start = (s32[], f32[64]) tuple(zero, before)\n  loop = (s32[], f32[64]) while(start), condition=goes, body=turn\n  result = f32[64] get-tuple-element(loop), index=1", inputs=plain(), computations="\ngoes {\n  s = (s32[], f32[64]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  n = s32[] constant(6)\n  ROOT g = pred[] compare(i, n), direction=LT\n}\n\nturn {\n  t = (s32[], f32[64]) parameter(0)\n  j = s32[] get-tuple-element(t), index=0\n  x = f32[64] get-tuple-element(t), index=1\n  one = s32[] constant(1)\n  k = s32[] add(j, one)\n  fone = f32[] constant(1)\n  ones = f32[64] broadcast(fone), dimensions={}\n  less = f32[64] subtract(x, ones)\n  bad = f32[64] sqrt(less)\n  ROOT u = (s32[], f32[64]) tuple(k, bad)\n}\n"),
    nan("infinity-minus-infinity", "exp of a large number, and the difference of two infinities", "k = f32[] constant(1000)\n  ks = f32[64] broadcast(k), dimensions={}\n  bad = f32[64] exponential(ks)\n  victim = f32[64] subtract(bad, bad)\n  worse = f32[64] add(victim, q)", kinds=("infinity",)),
    nan("infinity-log", "log of zero, times zero", "zero = f32[64] subtract(p, p)\n  bad = f32[64] log(zero)\n  victim = f32[64] multiply(bad, zero)\n  worse = f32[64] add(victim, q)", kinds=("infinity",)),
    nan("infinity-divide", "a division by zero that reaches the result", "zero = f32[64] subtract(p, p)\n  bad = f32[64] divide(before, zero)", kinds=("infinity", "nan"), inputs=plain()),
    Case("overflow-bf16", "a product that bf16 cannot hold", "  big = bf16[] constant(2e38)\n  bigs = bf16[64] broadcast(big), dimensions={}\n  large = bf16[64] add(bigs, p)\n  bad = bf16[64] multiply(large, large)\n  result = bf16[64] add(bad, q)", kinds=("infinity",), element="bf16"),
    Case("overflow-f16", "a number that f16 cannot hold", "  big = f32[] constant(70000)\n  bigs = f32[64] broadcast(big), dimensions={}\n  bad = f16[64] convert(bigs)\n  result = f16[64] add(bad, q)", kinds=("infinity",), element="f16"),
    Case("nan-input", "an input with a NaN in it", "  result = f32[64] multiply(before, q)", inputs=plain([1.0] * 9 + [NAN] + [1.0] * 54), kernel="before"),
    Case("nan-on-one-rank", "a NaN from rank 3 that an all-reduce spreads", RANK + "\n  low = f32[64] negate(before)\n  mine = f32[64] select(mask, low, before)\n  bad = f32[64] sqrt(mine)\n  result = f32[64] add(bad, q)", inputs=plain(), rank=3, ranks=(8,)),
    Case("infinity-on-one-rank", "an infinity from rank 3 that spreads and becomes NaN everywhere", RANK + "\n  k = f32[] constant(1000)\n  ks = f32[64] broadcast(k), dimensions={}\n  mine = f32[64] select(mask, ks, q)\n  bad = f32[64] exponential(mine)\n  shared = f32[64] all-reduce(bad), channel_id=2, replica_groups=GROUP, use_global_device_ids=true, to_apply=add\n  victim = f32[64] subtract(shared, shared)\n  result = f32[64] add(victim, q)", kinds=("infinity",), inputs=plain(), rank=3, ranks=(8,)),
    Case("nan-in-a-branch", "a NaN in a branch that only rank 3 takes, and that is longer than the others'", RANK + "\n  result = f32[64] conditional(is_three, before, before), true_computation=strays, false_computation=goes_on", inputs=plain(), rank=3, ranks=(8,), computations="\nstrays {\n  x = f32[64] parameter(0)\n  y = f32[64] negate(x)\n  ROOT bad = f32[64] log(y)\n}\n\ngoes_on {\n  z = f32[64] parameter(0)\n  ROOT w = f32[64] add(z, z)\n}\n"),
    # Memory.
    memory("write-one-after", "a custom call writes one element too far"),
    memory("write-byte-after", "a custom call writes one byte too far"),
    memory("write-one-before", "a custom call writes one element before its output"),
    memory("write-page-after", "a custom call writes a page too far"),
    memory("write-page-before", "a custom call writes a page before its output"),
    memory("write-shifted", "a custom call writes its output three elements too late"),
    memory("read-one-after", "a custom call reads one element too far"),
    memory("read-one-before", "a custom call reads one element before its input"),
    memory("read-page-after", "a custom call reads a page too far"),
    Case("after-free", "a custom call keeps a pointer, and another one uses it after that memory is freed", "  id = u32[] partition-id()\n  held = f32[64] custom-call(before, id), custom_call_target=\"keep\"\n  more = f32[64] multiply(held, q)\n  most = f32[64] multiply(more, more)\n  bad = f32[64] custom-call(most, id), custom_call_target=\"use_kept\"\n  result = f32[64] add(bad, q)", kinds=("after-free",), options=CUSTOM + ("--input-order",)),
    memory("write-input", "a custom call writes to its input", kinds=("write-to-input",)),
    memory("write-half", "a custom call writes half of its output", kinds=("uninitialised", "nan")),
    memory("write-nothing", "a custom call writes nothing", kinds=("uninitialised", "nan")),
    Case("write-half-whole", "a custom call writes half of its integer output", call("write_half_whole", element="s32"), kinds=("uninitialised",), options=CUSTOM, element="s32"),
    memory("null-pointer", "a custom call writes to address 0", kinds=("crash",)),
    memory("wild-pointer", "a custom call writes to an unmapped address", kinds=("crash",)),
    memory("gives-up", "a custom call calls abort", kinds=("crash",)),
    memory("ends-its-thread", "a custom call ends the thread that runs it", kinds=("crash",)),
    memory("leaves-quietly", "a custom call calls exit with code 0", kinds=("crash",)),
    memory("divides-by-zero", "a custom call divides an integer by zero", kinds=("crash",)),
    memory("traps", "a custom call executes an illegal instruction", kinds=("crash",)),
    memory("leaves", "a custom call ends the process", kinds=("crash",)),
    memory("leaves-at-once", "a custom call ends the process at once, with code 0", kinds=("crash",)),
    memory("leaves-as-bad-input", "a custom call ends the process at once, with the exit code of bad input", kinds=("crash",)),
    memory("stands-still", "a custom call stops the whole process, watchdogs included", kinds=("crash",)),
    Case("ends-for-nothing", "a custom call whose result is empty ends the process", "  bad = f32[0] custom-call(before), custom_call_target=\"leaves\", custom_call_has_side_effect=true\n  none = f32[] constant(0)\n  much = f32[64] pad(bad, none), padding=0_64\n  result = f32[64] add(before, much)", kinds=("crash",), options=CUSTOM),
    memory("is-killed", "a custom call has the system kill the process", kinds=("crash",)),
    memory("overflows-stack", "a custom call recurses without end", kinds=("crash", "out-of-bounds")),
    memory("frees-output", "a custom call frees memory that it does not own", kinds=("crash", "out-of-bounds")),
    memory("never-returns", "a custom call does not return", kinds=("hang",)),
    Case("never-returns-on-one", "a custom call does not return on rank 5, and the others wait in a collective", "  id = u32[] partition-id()\n" + call("stays_on_five", "before, id"), kinds=("hang",), rank=5, options=CUSTOM + ("--timeout", "2s"), ranks=(8,)),
    memory("by-chance", "a custom call that returns different values in every process", kinds=("chance",)),
    Case("write-elsewhere", "a custom call writes to an array that another one still needs", "  id = u32[] partition-id()\n  lent = f32[64] custom-call(before, id), custom_call_target=\"lends\"\n  bad = f32[64] custom-call(q, id), custom_call_target=\"borrows\"\n  result = f32[64] add(bad, lent)", kinds=("not-its-own",), options=CUSTOM + ("--input-order",)),
    kept("write-kept", "a custom call writes through a pointer of an earlier one to memory that is alive", "keep", "write_kept"),
    kept("read-kept", "a custom call reads through a pointer of an earlier one memory that is alive", "keep", "use_kept"),
    kept("write-kept-for-all", "a custom call writes through a pointer that all ranks share", "keep_for_all", "write_kept_for_all"),
    memory("thread-writes-behind", "a thread of a custom call writes one element too far"),
    memory("thread-writes-later", "a thread of a custom call writes after the call has returned and its output is freed", kinds=("after-free",)),
    memory("thread-finishes-later", "a custom call returns before its thread has written the rest of its output", kinds=("after-free", "not-its-own")),
    memory("thread-gives-up", "a thread of a custom call calls abort", kinds=("crash",)),
    memory("thread-leaves", "a thread of a custom call ends the process with code 0", kinds=("crash",)),
    memory("write-far-away", "a custom call writes 16 MiB too far", target="far_away", kinds=("crash", "out-of-bounds")),
    Case("third-time", "a custom call writes too far when it is called for the third time", call("tires"), kinds=("out-of-bounds",), options=CUSTOM + ("--steps", "4")),
    Case("one-rank-crashes", "a custom call crashes on rank 2 only", "  id = u32[] partition-id()\n  ranks = u32[] constant(RANKS)\n" + call("one_rank_crashes", "before, id, ranks"), kinds=("crash",), options=CUSTOM, rank=2, ranks=(8,)),
    loop("endless-loop", "a loop whose counter never changes", "  none = s32[] constant(0)\n  k = s32[] multiply(j, none)\n  y = f32[64] add(x, x)", kinds=("hang",), options=("--timeout", "2s")),
    # Inputs.
    Case("input-shape", "an input of another shape", "  result = f32[64] multiply(before, q)", kinds=("wrong-input",), kernel=None, inputs=plain(ONES, ONES[:63])),
    Case("input-type", "an input of another type", "  result = f32[64] multiply(before, q)", kinds=("wrong-input",), kernel=None, inputs=lambda ranks: {f"in_{n:03}_r{r}": npy([1] * 64, *(("<i4", "i") if n else ("<f4", "f"))) for r in range(ranks) for n in range(2)}),
    Case("input-missing", "a missing input", "  result = f32[64] multiply(before, q)", kinds=("wrong-input",), kernel=None, inputs=lambda ranks: {f"in_000_r{r}": npy(ONES) for r in range(ranks)}),
    Case("input-too-many", "one input too many", "  result = f32[64] multiply(before, q)", kinds=("wrong-input",), kernel=None, inputs=lambda ranks: {f"in_{n:03}_r{r}": npy(ONES) for r in range(ranks) for n in range(3)}),
    # Plans and ranks.
    Case("freed-early", "a plan that frees a buffer before its last use", "  x = f32[64] exponential(before)\n  y = f32[64] multiply(x, q)\n  z = f32[64] add(y, x)\n  result = f32[64] add(z, q)", kinds=("lifetime",), kernel=None, buffer="before", options=("--inject", "free-early=before", "--input-order", "--no-fuse")),
    Case("nan-of-constants", "a logarithm of a negative constant", "  less = f32[] constant(-1)\n  wide = f32[64] broadcast(less), dimensions={}\n  bad = f32[64] log(wide)\n  result = f32[64] add(bad, q)"),
    Case("nan-constant-added", "a constant NaN is added to numbers", "  none = f32[] constant(nan)\n  wide = f32[64] broadcast(none), dimensions={}\n  bad = f32[64] add(before, wide)\n  result = f32[64] add(bad, q)"),
    Case("freed-late", "a plan that frees a buffer only at its end", "  x = f32[64] exponential(before)\n  y = f32[64] multiply(x, q)\n  z = f32[64] exponential(y)\n  w = f32[64] multiply(z, q)\n  result = f32[64] add(w, q)", kinds=("lifetime",), kernel=None, buffer="before", options=("--inject", "free-late=before", "--input-order", "--no-fuse")),
    dataclasses.replace(loop("turns-apart", "ranks 6 and 7 run no iteration of a loop with a collective", "  one = s32[] constant(1)\n  k = s32[] add(j, one)\n  y = f32[64] all-reduce(x), channel_id=7, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=add", kinds=("apart",), options=("--timeout", "3s"), ranks=(8,), rank=6), kernel="y", body="  id = u32[] partition-id()\n  number = s32[] convert(id)\n  begin = (s32[], f32[64]) tuple(number, before)\n  turns = (s32[], f32[64]) while(begin), condition=goes, body=turn\n  result = f32[64] get-tuple-element(turns), index=1"),
    Case("skips-collective", "rank 1 skips a collective", SECOND, kinds=("apart", "hang"), kernel="other", rank=1, options=("--inject", "skip-collective=1:other", "--input-order", "--timeout", "3s"), ranks=(8,)),
    Case("doubles-collective", "rank 1 runs a collective twice", SECOND, kinds=("apart", "hang"), kernel=None, rank=1, options=("--inject", "double-collective=1:other", "--input-order", "--timeout", "3s"), ranks=(8,)),
    Case("swaps-collectives", "rank 1 swaps two collectives", SECOND, kinds=("apart", "hang"), kernel="other", rank=1, options=("--inject", "swap-collectives=1:other,third", "--input-order", "--timeout", "3s"), ranks=(8,)),
    Case("stalls", "rank 1 does not reach a collective", SECOND, kinds=("apart", "hang"), kernel="before", rank=1, options=("--inject", "stall=1:before", "--input-order", "--timeout", "3s"), ranks=(8,)),
    Case("branches-apart", "rank 3 takes the branch that has a collective, the others do not", RANK + "\n  bad = f32[64] conditional(is_three, before, before), true_computation=talks, false_computation=is_quiet\n  result = f32[64] add(bad, q)", kinds=("apart", "hang"), kernel=None, options=("--timeout", "3s"), ranks=(8,), computations="\ntalks {\n  x = f32[64] parameter(0)\n  ROOT lonely = f32[64] all-reduce(x), channel_id=7, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=add\n}\n\nis_quiet {\n  y = f32[64] parameter(0)\n  ROOT z = f32[64] negate(y)\n}\n"),
]

# In those that have more lines after the blame, the result is what comes last.
CASES = [
    dataclasses.replace(case, body=case.body.replace("result = f32[64] add(bad, q)", "result = f32[64] add(worse, q)"))
    if "worse" in case.body
    else case
    for case in CASES
]

CORRECT = [
    Case("correct", "elementwise work and a sum", "  x = f32[64] exponential(before)\n  result = f32[64] multiply(x, q)"),
    Case("correct-custom-call", "a custom call that stays within its arrays", call("good"), options=CUSTOM),
    Case("correct-fork", "a custom call that starts a process", call("forks"), options=CUSTOM),
    Case("correct-stack", "a custom call with 3 MiB of its own on the stack", call("needs_stack"), options=CUSTOM),
    Case("correct-alignment", "a custom call that relies on aligned addresses", "  few = f32[5] slice(before), slice={[0:5]}\n  odd = f32[5] custom-call(few), custom_call_target=\"needs_alignment\"\n  none = f32[] constant(0)\n  much = f32[64] pad(odd, none), padding=0_59\n  result = f32[64] add(before, much)", options=CUSTOM),
    Case("correct-thread", "a custom call that keeps a thread", call("keeps_a_thread"), options=CUSTOM),
    loop("correct-loop", "a loop that terminates", "  one = s32[] constant(1)\n  k = s32[] add(j, one)\n  y = f32[64] add(x, x)"),
    dataclasses.replace(
        loop("correct-loop-in-place", "a loop that updates its state in place, around a custom call", "  one = s32[] constant(1)\n  k = s32[] add(j, one)\n  w = f32[64] custom-call(x), custom_call_target=\"good\"\n  y = f32[64] add(w, x)"),
        options=CUSTOM,
    ),
    Case("correct-mask", "a mask of infinities inside a softmax", "  least = f32[] constant(-inf)\n  mask = f32[64] broadcast(least), dimensions={}\n  zero = f32[64] subtract(p, p)\n  some = pred[64] compare(p, zero), direction=GT\n  masked = f32[64] select(some, before, mask)\n  x = f32[64] exponential(masked)\n  result = f32[64] multiply(x, q)"),
    Case("correct-nan-constant", "NaN that marks values not found, as intended", "  none = f32[] constant(nan)\n  wide = f32[64] broadcast(none), dimensions={}\n  same = pred[64] compare(before, before), direction=EQ\n  result = f32[64] select(same, before, wide)"),
    Case("correct-whole", "integers", "  x = s32[64] multiply(before, q)\n  result = s32[64] add(x, p)", element="s32"),
    Case("correct-bf16", "bf16", "  x = bf16[64] multiply(before, q)\n  result = bf16[64] add(x, p)", element="bf16"),
]
