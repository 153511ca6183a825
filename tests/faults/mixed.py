"""Faults of mixed kinds: infinities through calls, loops and groups of ranks, narrow types, custom
calls that misread what they are given, collectives that differ between branches, loops that do not
end; and correct programs like them. As in cases.py, what is at fault is called `bad`."""

from cases import CUSTOM, ONES, Case, call, loop, memory, npy, plain
from others import EIGHT, SOON
from spread import ALL, HALVES, INF, NAN, REDUCE, STEP, infinity, ranks_of, tuples
from steps import RESULT, full, spread_of

WIDE = "  far_1 = f32[] constant(1000)\n  far = f32[64] broadcast(far_1), dimensions={}\n"


def one_rank(rank, name="bad"):
    """`name` is infinite on one rank, and one on the others."""
    return (
        ranks_of(it=rank) + WIDE + "  small = f32[64] subtract(p, p)\n"
        f"  much = f32[64] select(on_it, far, small)\n  {name} = f32[64] exponential(much)\n"
    )


def computation(name, lines, root, shape="f32[64]"):
    return f"\n{name} {{\n  {name}_x = {shape} parameter(0)\n{lines}  ROOT {name}_y = {root}\n}}\n"


def inner(count, what):
    """A loop within a computation that is called: its body doubles an array until it overflows."""
    state = "(s32[], f32[64])"
    return f"""
in_goes {{
  is = {state} parameter(0)
  ii = s32[] get-tuple-element(is), index=0
  in = s32[] constant({count})
  ROOT ig = pred[] compare(ii, in), direction=LT
}}

in_turn {{
  it = {state} parameter(0)
  ij = s32[] get-tuple-element(it), index=0
  ix = f32[64] get-tuple-element(it), index=1
  ione = s32[] constant(1)
  ik = s32[] add(ij, ione)
{what}
  ROOT iu = {state} tuple(ik, iy)
}}

inner {{
  px = f32[64] parameter(0)
  pz = s32[] constant(0)
  pb = {state} tuple(pz, px)
  pl = {state} while(pb), condition=in_goes, body=in_turn
  ROOT pr = f32[64] get-tuple-element(pl), index=1
}}
"""


SQUARES = "  bad = f32[64] multiply(ix, ix)\n  iy = f32[64] copy(bad)"
REDUCED = REDUCE.format(5, ALL)
STACK = "(s32[], f32[], f32[64])"
SCAN = f"""
more {{
  ms = {STACK} parameter(0)
  mi = s32[] get-tuple-element(ms), index=0
  mn = s32[] constant(64)
  ROOT mg = pred[] compare(mi, mn), direction=LT
}}

put {{
  ut = {STACK} parameter(0)
  uj = s32[] get-tuple-element(ut), index=0
  ux = f32[] get-tuple-element(ut), index=1
  us = f32[64] get-tuple-element(ut), index=2
  ten = f32[] constant(10)
  bad = f32[] multiply(ux, ten)
  row = f32[1] reshape(bad)
  new = f32[64] dynamic-update-slice(us, row, uj)
  uone = s32[] constant(1)
  uk = s32[] add(uj, uone)
  ROOT uu = {STACK} tuple(uk, bad, new)
}}
"""


def branches(name, what, left, right, **more):
    """Rank 3 takes another branch than the others, with another collective."""
    body = ranks_of(three=3) + (
        "  chosen = f32[64] conditional(is_three, before, before), true_computation=left, "
        "false_computation=right\n  result = f32[64] add(chosen, q)"
    )
    computations = (
        "\nmost {\n  ta = f32[] parameter(0)\n  tb = f32[] parameter(1)\n"
        "  ROOT tc = f32[] maximum(ta, tb)\n}\n"
        "\nhalves {\n  ha = bf16[] parameter(0)\n  hb = bf16[] parameter(1)\n"
        "  ROOT hc = bf16[] add(ha, hb)\n}\n" + left + right
    )
    return Case(
        name, what, body, kinds=("apart", "hang"), kernel=None, rank=3, computations=computations,
        options=("--timeout", "3s"), **EIGHT, **more,
    )


def reduced(name, channel, operation="add"):
    groups = f"channel_id={channel}, replica_groups={ALL}, use_global_device_ids=true"
    line = f"f32[64] all-reduce({name}_x), {groups}, to_apply={operation}"
    return computation(name, f"  {name}_s = {line}\n", f"f32[64] negate({name}_s)")


PART = (
    "  left_p = f32[32] slice(left_x), slice={[0:32]}\n"
    f"  left_s = f32[32] all-reduce(left_p), {REDUCED}\n"
    "  left_z = f32[] constant(0)\n"
)
NARROW = (
    "  left_p = bf16[64] convert(left_x)\n"
    f"  left_s = bf16[64] all-reduce(left_p), {REDUCED.replace('=add', '=halves')}\n"
)
NEWTON = """
goes {
  s = (s32[], f32[64]) parameter(0)
  v = f32[64] get-tuple-element(s), index=1
  first = f32[1] slice(v), slice={[0:1]}
  number = f32[] reshape(first)
  n = f32[] constant(DONE)
  ROOT g = pred[] compare(number, n), direction=HOW
}

turn {
  t = (s32[], f32[64]) parameter(0)
  j = s32[] get-tuple-element(t), index=0
  x = f32[64] get-tuple-element(t), index=1
  one = s32[] constant(1)
  k = s32[] add(j, one)
TURN
  ROOT u = (s32[], f32[64]) tuple(k, y)
}
"""


def until(name, what, turn, how, done, **more):
    """A loop that runs for as long as its first element compares so with `done`."""
    body = loop("", "", "").body
    computations = NEWTON.replace("TURN", turn).replace("HOW", how).replace("DONE", str(done))
    return Case(name, what, body, computations=computations, options=("--timeout", "3s"), **more)


def of_ranks(values):
    """Inputs in which `p` depends on the rank."""
    return lambda ranks: {
        f"in_{n:03}_r{r}": npy(v) for r in range(ranks) for n, v in enumerate((values(r), ONES))
    }


def without(ranks, rank):
    given = plain()(ranks)
    del given[f"in_001_r{rank}"]
    return given


ASYNC = """
scattered {
  sx = f32[512] parameter(0)
  ROOT sy = f32[64] reduce-scatter(sx), channel_id=5, replica_groups=GROUPS, dimensions={0}, use_global_device_ids=true, to_apply=add
}
""".replace("GROUPS", ALL)
VARIADIC = """
both {
  va = f32[] parameter(0)
  vb = f32[] parameter(1)
  vc = f32[] parameter(2)
  vd = f32[] parameter(3)
  ve = f32[] maximum(va, vc)
  vf = f32[] add(vb, vd)
  ROOT vg = (f32[], f32[]) tuple(ve, vf)
}
"""
INDEXED = (
    computation("first", "", "f32[64] negate(first_x)")
    + computation("second", "  bad = f32[64] exponential(second_x)\n", "f32[64] negate(bad)")
    + computation("third", "", "f32[64] add(third_x, third_x)")
)
TURNS = """
goes {
  s = (s32[], s32[], f32[64]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  ROOT g = pred[] compare(i, n), direction=LT
}

turn {
  t = (s32[], s32[], f32[64]) parameter(0)
  j = s32[] get-tuple-element(t), index=0
  m = s32[] get-tuple-element(t), index=1
  x = f32[64] get-tuple-element(t), index=2
  one = s32[] constant(1)
  k = s32[] add(j, one)
  y = f32[64] all-reduce(x), REDUCE
  ROOT u = (s32[], s32[], f32[64]) tuple(k, m, y)
}
"""


def turns(extra):
    """A loop with a collective, which each rank runs twice, and some once more."""
    return (
        f"{extra}  two = s32[] constant(2)\n  count = s32[] add(two, more)\n"
        "  zero = s32[] constant(0)\n  start = (s32[], s32[], f32[64]) tuple(zero, count, before)\n"
        "  end = (s32[], s32[], f32[64]) while(start), condition=goes, body=turn\n"
        "  result = f32[64] get-tuple-element(end), index=2"
    )


ON_THREE = ranks_of(three=3) + "  more = s32[] convert(is_three)\n"
UPPER = (
    "  id = u32[] partition-id()\n  four = u32[] constant(4)\n"
    "  is_upper = pred[] compare(id, four), direction=GE\n  more = s32[] convert(is_upper)\n"
)
LAPACK = """  row = s32[8,8] iota(), iota_dimension=0
  square = f32[8,8] reshape(before)
  factors = (f32[8,8], s32[]) custom-call(square), custom_call_target="lapack_spotrf_ffi", api_version=API_VERSION_TYPED_FFI, backend_config={uplo = 76 : ui8}
  factor = f32[8,8] get-tuple-element(factors), index=0
  info = s32[] get-tuple-element(factors), index=1
  zero = s32[] constant(0)
  is_good = pred[] compare(info, zero), direction=EQ
  good = pred[8,8] broadcast(is_good), dimensions={}
  none_1 = f32[] constant(nan)
  none = f32[8,8] broadcast(none_1), dimensions={}
  bad = f32[8,8] select(good, factor, none)
  flat = f32[64] reshape(bad)
  result = f32[64] add(flat, q)"""
ROOM = '  room = f32[64] custom-call(), custom_call_target="AllocateBuffer"\n  z = s32[] constant(0)\n'

MIXED_FAULTS = [
    # Infinities on their way.
    infinity("overflow-in-a-loop-in-a-call", "a number that grows beyond f32 in a loop of a called computation", full("three", 3) + "  more = f32[64] add(before, three)\n  called = f32[64] call(more), to_apply=inner\n  result = f32[64] add(called, q)", computations=inner(9, SQUARES)),
    infinity("overflow-in-a-branch-in-a-loop", "an overflow in a branch that a loop takes in its fourth iteration", loop("", "", "").body.replace("bad", "turns"), computations=computation("left", WIDE.replace("far", "lf") + "  lm = f32[64] multiply(left_x, lf)\n  bad = f32[64] exponential(lm)\n", "f32[64] negate(bad)") + computation("right", "", "f32[64] add(right_x, right_x)") + loop("", "", STEP + "  at = s32[] constant(3)\n  is_at = pred[] compare(j, at), direction=EQ\n  y = f32[64] conditional(is_at, x, x), true_computation=left, false_computation=right").computations),
    infinity("infinity-of-an-indexed-branch", "rank 4 takes the second of three branches, which overflows", ranks_of(four=4) + WIDE + "  which = s32[] convert(is_four)\n  chosen = f32[64] conditional(which, before, far, before), branch_computations={first, second, third}\n  result = f32[64] add(chosen, q)", computations=INDEXED, rank=4, **EIGHT),
    infinity("infinity-in-iota-groups", "an infinity of rank 5 that its group of four gathers, with groups as an iota", one_rank(5) + "  head = f32[16] slice(bad), slice={[0:16]}\n  all = f32[64] all-gather(head), channel_id=5, replica_groups=[2,4]<=[8], dimensions={0}, use_global_device_ids=true\n  result = f32[64] add(all, q)", rank=5, sums=False, **EIGHT),
    infinity("infinity-in-strided-groups", "an infinity of rank 5 in groups of every second rank", one_rank(5) + f"  all = f32[64] all-reduce(bad), {REDUCE.format(5, '[2,4]<=[4,2]T(1,0)')}\n  result = f32[64] add(all, q)", rank=5, sums=False, **EIGHT),
    infinity("infinity-in-a-called-sum", "an infinity of rank 2 that a called computation sums over ranks", one_rank(2) + "  all = f32[64] call(bad), to_apply=summed\n  result = f32[64] add(all, q)", computations=reduced("summed", 5), rank=2, **EIGHT),
    infinity("infinity-in-a-wrapped-reduce-scatter", "an infinity of rank 6 in a reduce-scatter that is started as a computation", one_rank(6) + "  long = f32[512] concatenate(bad, bad, bad, bad, bad, bad, bad, bad), dimensions={0}\n  begun = ((f32[512]), f32[64], s32[]) async-start(long), calls=scattered\n  part = f32[64] async-done(begun)\n  result = f32[64] add(part, q)", computations=ASYNC, rank=6, sums=False, **EIGHT),
    Case("infinity-along-a-ring", "an infinity of rank 2 that goes around a ring in a loop, and becomes NaN", one_rank(2) + loop("", "", "", start="bad").body.replace("bad = (", "turns = (").replace("(bad)", "(turns)"), kinds=("infinity", "nan"), inputs=plain(), rank=2, computations=loop("", "", STEP + "  came = f32[64] collective-permute(x), channel_id=5, source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}}\n  y = f32[64] subtract(came, x)").computations, sums=False, **EIGHT),
    infinity("overflow-of-a-stacked-loop", "a running product that a loop stacks, beyond f32 in its 39th iteration", "  z = s32[] constant(0)\n  one = f32[] constant(1)\n  begin = " + STACK + " tuple(z, one, q)\n  end = " + STACK + " while(begin), condition=more, body=put\n  result = f32[64] get-tuple-element(end), index=2", computations=SCAN),
    infinity("overflow-in-a-sum-of-two", "the second sum of a reduction of two arrays, beyond f32", full("large", "3e38") + "  least = f32[] constant(-inf)\n  nil = f32[] constant(0)\n  much = f32[64] multiply(q, large)\n  bad = (f32[], f32[]) reduce(before, much, least, nil), dimensions={0}, to_apply=both\n  two = f32[] get-tuple-element(bad), index=1\n" + spread_of("twos", "two") + "  result = f32[64] add(twos, q)", computations=VARIADIC),
    Case("clipped-by-an-infinite-norm", "a gradient is scaled by one over a norm that overflowed, and multiplied by it again", full("large", "1e30") + "  nil = f32[] constant(0)\n  grads = f32[64] multiply(q, large)\n  bad = f32[64] multiply(grads, grads)\n  whole = f32[] reduce(bad, nil), dimensions={0}, to_apply=add\n  norm = f32[] sqrt(whole)\n  one = f32[] constant(1)\n  scale = f32[] divide(one, norm)\n  back = f32[] multiply(scale, norm)\n" + spread_of("backs", "back") + "  result = f32[64] add(backs, q)", kinds=("nan", "infinity"), inputs=plain()),
    infinity("rounded-up-to-infinity", "the largest f32 becomes an infinity as bf16", full("large", "3.4e38") + "  much = f32[64] multiply(q, large)\n  bad = bf16[64] convert(much)\n  back = f32[64] convert(bad)\n  result = f32[64] add(back, q)"),
    Case("narrowed-to-nan", "a number that f8e5m2fnuz cannot hold", full("large", "1e6") + "  much = f32[64] multiply(q, large)\n  bad = f8e5m2fnuz[64] convert(much)\n  back = f32[64] convert(bad)\n  result = f32[64] add(back, q)", inputs=plain()),
    Case("complex-product", "a product of complex numbers that f32 cannot hold", full("large", "1e30") + "  much = f32[64] multiply(q, large)\n  wave = c64[64] complex(much, much)\n  bad = c64[64] multiply(wave, wave)\n  size = f32[64] imag(bad)\n  result = f32[64] add(size, q)", kinds=("nan", "infinity"), inputs=plain()),
    infinity("infinity-that-one-rank-lets-through", "all ranks overflow, and all but rank 6 clamp it", ranks_of(six=6) + WIDE + full("most", 10) + full("none", "inf") + "  wide = f32[64] multiply(before, far)\n  bad = f32[64] exponential(wide)\n  bound = f32[64] select(on_six, none, most)\n  result = f32[64] minimum(bad, bound)", rank=6, sums=False, **EIGHT),
    Case("factor-that-failed", "a Cholesky factor as JAX writes it, of a matrix that is not positive definite", LAPACK, inputs=plain([-1.0] * 64)),
    infinity("infinity-that-is-kept-back", "an infinity that a loop makes at once, and lets through in its last iteration", WIDE + loop("", "", "").body.replace("bad", "turns"), computations=loop("", "", STEP + "  far_1 = f32[] constant(1000)\n  lf = f32[64] broadcast(far_1), dimensions={}\n  more = f32[64] multiply(lf, lf)\n  bad = f32[64] exponential(more)\n  at = s32[] constant(5)\n  is_at = pred[] compare(j, at), direction=EQ\n  on = pred[64] broadcast(is_at), dimensions={}\n  y = f32[64] select(on, bad, x)").computations),
    Case("nan-later-in-a-loop", "a custom call that returns NaN at its third call", loop("", "", "").body.replace("bad", "turns"), options=CUSTOM, computations=loop("", "", STEP + '  bad = f32[64] custom-call(x), custom_call_target="gives_nan_later"\n  y = f32[64] negate(bad)').computations),
    # Custom calls.
    memory("writes-every-second", "a custom call writes with a stride of two"),
    Case("scalar-as-array", "a custom call writes 64 numbers where one is expected", '  bad = f32[] custom-call(before), custom_call_target="good"\n' + spread_of("all", "bad") + "  result = f32[64] add(all, q)", kinds=("out-of-bounds",), options=CUSTOM),
    Case("reads-a-short-operand", "a custom call reads 64 numbers of an operand that has one", '  head = f32[1] slice(before), slice={[0:1]}\n  bad = f32[64] custom-call(head), custom_call_target="good"\n' + RESULT, kinds=("out-of-bounds",), options=CUSTOM),
    Case("reads-half-as-single", "a custom call takes f16 for f32", '  half = f16[64] convert(before)\n  bad = f32[64] custom-call(half), custom_call_target="good"\n' + RESULT, kinds=("out-of-bounds",), options=CUSTOM),
    Case("writes-to-a-constant", "a custom call writes to its input, which is a constant", full("ones", 1).replace("broadcast(ones_1), dimensions={}", "constant({" + ", ".join(["1"] * 64) + "})") + '  bad = f32[64] custom-call(ones), custom_call_target="write_input"\n' + RESULT, kinds=("write-to-input",), options=CUSTOM),
    Case("reads-the-last-iteration", "a custom call reads what it was given in the previous iteration", loop("", "", "").body.replace("bad", "turns"), kinds=("after-free", "not-its-own"), computations=loop("", "", STEP + '  near = f32[64] add(x, x)\n  bad = f32[64] custom-call(near), custom_call_target="reads_the_last"\n  y = f32[64] multiply(bad, x)').computations, options=CUSTOM),
    memory("becomes-another-program", "a custom call replaces the process by another program", kinds=("crash",)),
    memory("is-overtaken-by-its-alarm", "a custom call that an alarm of its own ends", kinds=("crash",)),
    memory("ignores-a-failed-allocation", "a custom call uses memory that it did not get", kinds=("crash",)),
    Case("waits-for-a-ninth", "custom calls of eight ranks wait for a ninth", call("waits_for_a_ninth"), kinds=("hang",), options=CUSTOM + SOON, **EIGHT),
    # Ranks that differ.
    branches("sums-of-other-shapes", "rank 3 sums 32 numbers, the others 64", computation("left", PART, "f32[64] pad(left_s, left_z), padding=0_32"), reduced("right", 5)),
    branches("sums-of-other-types", "rank 3 sums bf16, the others f32", computation("left", NARROW, "f32[64] convert(left_s)"), reduced("right", 5)),
    branches("a-maximum-for-a-sum", "rank 3 takes the maximum over ranks, the others the sum", reduced("left", 5, "most"), reduced("right", 5)),
    Case("one-iteration-more", "rank 3 runs a loop with a collective once more", turns(ON_THREE), kinds=("apart", "hang"), kernel=None, rank=3, computations=TURNS.replace("REDUCE", REDUCED), options=("--timeout", "3s"), **EIGHT),
    Case("branch-of-its-input", "rank 4's input has it take a branch with a sum", "  head = f32[1] slice(p), slice={[0:1]}\n  number = f32[] reshape(head)\n  nil = f32[] constant(0)\n  is_low = pred[] compare(number, nil), direction=LT\n  chosen = f32[64] conditional(is_low, before, before), true_computation=left, false_computation=right\n  result = f32[64] add(chosen, q)", kinds=("apart", "hang"), kernel=None, rank=4, computations=reduced("left", 5) + computation("right", "", "f32[64] negate(right_x)"), inputs=of_ranks(lambda rank: [-1.0 if rank == 4 else 1.0] * 64), options=("--timeout", "3s"), **EIGHT),
    # Loops that do not end.
    until("never-converges", "a loop that swaps between two values", "  y = f32[64] negate(x)", "LT", 1e9, kinds=("hang",), inputs=plain()),
    until("nan-that-never-passes", "a loop whose condition compares a NaN", "  low = f32[64] negate(x)\n  bad = f32[64] sqrt(low)\n  y = f32[64] add(bad, x)", "NE", 0, kinds=("hang", "nan"), inputs=plain(), kernel=None),
    # Inputs.
    Case("input-of-one-rank-missing", "rank 5 has one input too few", RESULT.replace("bad", "before"), kinds=("wrong-input",), kernel=None, inputs=lambda ranks: without(ranks, 5), **EIGHT),
    Case("input-as-a-column", "an input with a dimension too many", RESULT.replace("bad", "before"), kinds=("wrong-input",), kernel=None, inputs=lambda ranks: plain()(ranks) | {"in_001_r0": npy(ONES, shape=(64, 1))}),
    Case("infinity-in-one-rank-input", "an infinity in the input of rank 2 that becomes NaN", "  less = f32[64] subtract(p, p)\n  result = f32[64] add(less, q)", kinds=("nan", "infinity"), kernel="less", inputs=of_ranks(lambda rank: [INF if rank == 2 and i == 9 else 1.0 for i in range(64)]), rank=2, **EIGHT),
]

LOGADD = """  least_1 = f32[] constant(-inf)
  least = f32[64] broadcast(least_1), dimensions={}
  copy = f32[64] minimum(least, p)
  apart = f32[64] subtract(least, copy)
  most = f32[64] maximum(least, copy)
  is = pred[64] compare(apart, apart), direction=NE
  low = f32[64] negate(apart)
  powers = f32[64] exponential(low)
  logs = f32[64] log-plus-one(powers)
  sums = f32[64] add(most, logs)
  both = f32[64] add(least, copy)
  scores = f32[64] select(is, both, sums)
  result = f32[64] exponential(scores)"""
SCALED = """  large_1 = f32[] constant(3e38)
  large = f32[64] broadcast(large_1), dimensions={}
  ten_1 = f32[] constant(10)
  ten = f32[64] broadcast(ten_1), dimensions={}
  much = f32[64] multiply(q, large)
  grads = f32[64] multiply(much, ten)
  fine = pred[64] is-finite(grads)
  yes = pred[] constant(true)
  all = pred[] reduce(fine, yes), dimensions={0}, to_apply=every
  keep = f32[64] conditional(all, grads, before), true_computation=left, false_computation=right
  result = f32[64] add(keep, q)"""
EVERY = (
    "\nevery {\n  ea = pred[] parameter(0)\n  eb = pred[] parameter(1)\n"
    "  ROOT ec = pred[] and(ea, eb)\n}\n"
)
SKIPS = (
    "\nskips {\n  ka = f32[] parameter(0)\n  kb = f32[] parameter(1)\n"
    "  ki = pred[] compare(kb, kb), direction=EQ\n  kz = f32[] constant(0)\n"
    "  kc = f32[] select(ki, kb, kz)\n  ROOT kd = f32[] add(ka, kc)\n}\n"
)
CACHE = """  at = s32[64] iota(), iota_dimension=0
  five_1 = s32[] constant(5)
  five = s32[64] broadcast(five_1), dimensions={}
  none_1 = f32[] constant(-inf)
  none = f32[64] broadcast(none_1), dimensions={}
  z = s32[] constant(0)
  head = f32[5] slice(before), slice={[0:5]}
  cache = f32[64] dynamic-update-slice(none, head, z)
  powers = f32[64] exponential(cache)
  logs = f32[64] log(powers)
  less = f32[64] subtract(cache, logs)
  is = pred[64] compare(at, five), direction=LT
  result = f32[64] select(is, less, q)"""
GATHERED = (
    one_rank(5, "wild")
    + f"  all = f32[512] all-gather(wild), channel_id=5, replica_groups={ALL}, dimensions={{0}}, use_global_device_ids=true\n"
    "  head = f32[320] slice(all), slice={[0:320]}\n  first = f32[64] slice(head), slice={[64:128]}\n"
    "  result = f32[64] add(first, q)"
)
SLOW = ranks_of(two=2) + '  took = f32[64] custom-call(before, id), custom_call_target="is_slow_on_two"\n  result = f32[64] add(took, q)'

MIXED_CORRECT = [
    Case("correct-sum-of-logarithms", "log(exp(a) + exp(b)) of two infinities below, as JAX writes it", LOGADD),
    Case("correct-skipped-step", "a step with an overflow that is not taken", SCALED, inputs=plain(), computations=EVERY + computation("left", "", "f32[64] negate(left_x)") + computation("right", "", "f32[64] add(right_x, right_x)")),
    Case("correct-sum-that-skips", "a sum whose computation leaves NaN out", "  nil = f32[] constant(0)\n  whole = f32[] reduce(p, nil), dimensions={0}, to_apply=skips\n" + spread_of("result", "whole").rstrip("\n"), inputs=plain([NAN, 1.0] * 32), computations=SKIPS),
    Case("correct-unfilled-cache", "a cache that is infinite where nothing was stored, which is not used", CACHE),
    Case("correct-unused-rows", "an infinity of rank 5 in gathered rows that nobody uses", GATHERED, inputs=plain(), **EIGHT),
    Case("correct-filled-allocation", "an allocated array that is filled before it is read", ROOM + "  t = s32[] constant(32)\n  half = f32[32] slice(before), slice={[0:32]}\n  one = f32[64] dynamic-update-slice(room, half, z)\n  two = f32[64] dynamic-update-slice(one, half, t)\n  result = f32[64] add(two, q)"),
    Case("correct-groups-apart", "one half of the ranks runs a loop with sums of its own once more", turns(UPPER), computations=TURNS.replace("REDUCE", REDUCE.format(5, HALVES)), **EIGHT),
    Case("correct-iterations", "ranks that iterate as often as their number says, without collectives", "  id = u32[] partition-id()\n  more = s32[] convert(id)\n" + turns(""), computations=TURNS.replace("all-reduce(x), REDUCE", "negate(x)"), **EIGHT),
    Case("correct-slow-rank", "a custom call that takes three seconds on rank 2", SLOW, options=CUSTOM, **EIGHT),
    Case("correct-own-maps", "a custom call that maps and unmaps memory of its own", call("maps_and_unmaps").replace("bad", "made"), options=CUSTOM),
    Case("correct-flags", "a custom call that raises floating-point flags", call("raises_flags").replace("bad", "made"), options=CUSTOM),
    Case("correct-alarm", "a custom call that sets an alarm, and clears it", call("clears_its_alarm").replace("bad", "made"), options=CUSTOM),
    Case("correct-factor-by-call", "a Cholesky factor as JAX writes it, of a good matrix", LAPACK.replace("reshape(before)", "select(on, fours, little)").replace("  square", "  col = s32[8,8] iota(), iota_dimension=1\n  on = pred[8,8] compare(row, col), direction=EQ\n  four_1 = f32[] constant(40)\n  fours = f32[8,8] broadcast(four_1), dimensions={}\n  little = f32[8,8] reshape(before)\n  square", 1), inputs=plain()),
    Case("correct-arctangent", "an arctangent of zeros, and zero to the power of zero", "  nothing = f32[64] subtract(p, p)\n  angle = f32[64] atan2(nothing, nothing)\n  one = f32[64] power(nothing, nothing)\n  result = f32[64] add(angle, one)"),
    until("correct-convergence", "a loop that ends when its value is small", "  half_1 = f32[] constant(0.5)\n  halves = f32[64] broadcast(half_1), dimensions={}\n  y = f32[64] multiply(x, halves)", "GT", 1e-6, inputs=plain()),
    Case("correct-missing-marker", "an input with NaN where nothing was measured, hidden by a mask that is sent along", "  is = pred[64] compare(q, q), direction=NE\n  wide = f32[64] select(is, p, q)\n  result = f32[64] add(wide, q)", inputs=tuples(lambda rank: [NAN] * 64, lambda rank: ONES), **EIGHT),
]


SINGULAR = """  square = f32[8,8] reshape(before)
  factors = (f32[8,8], s32[8], s32[]) custom-call(square), custom_call_target="lapack_sgetrf_ffi", api_version=API_VERSION_TYPED_FFI, backend_config={}
  upper = f32[8,8] get-tuple-element(factors), index=0
  bad = f32[8,8] triangular-solve(upper, square), left_side=true, lower=false, unit_diagonal=false, transpose_a=NO_TRANSPOSE
  flat = f32[64] reshape(bad)
  result = f32[64] add(flat, q)"""
PICKED = """  zero_1 = s32[] constant(0)
  far_1 = f32[] constant(1000)
  far = f32[64] broadcast(far_1), dimensions={}
  wide = f32[64] multiply(before, far)
  bad = f32[64] exponential(wide)
  spot = f32[1] dynamic-slice(bad, zero_1), dynamic_slice_sizes={1}
  one = f32[] reshape(spot)
  nil = f32[] constant(0)
  less = f32[] subtract(one, one)
  all = f32[64] broadcast(less), dimensions={}
  result = f32[64] add(all, q)"""


def strided(name, what, lines, **more):
    """A kernel of an iteration that only rank 5 spoils, in a loop with a sum over half of the
    ranks."""
    turn = STEP + lines
    computations = loop("", "", turn).computations
    return Case(name, what, loop("", "", "").body.replace("bad", "turns"), computations=computations, **EIGHT, **more)


ON_FIVE = (
    "  lid = u32[] partition-id()\n  lfive = u32[] constant(5)\n"
    "  lis = pred[] compare(lid, lfive), direction=EQ\n  lat = s32[] constant(2)\n"
    "  lthen = pred[] compare(j, lat), direction=EQ\n  lboth = pred[] and(lis, lthen)\n"
    "  lon = pred[64] broadcast(lboth), dimensions={}\n"
)
HALF_SUMS = f"channel_id=5, replica_groups={HALVES}, use_global_device_ids=true, to_apply=add"

MIXED_FAULTS += [
    strided("nan-of-one-rank-and-iteration", "rank 5 takes a root of negative numbers in the third iteration, and its half sums them", ON_FIVE + "  down = f32[64] negate(x)\n  mine = f32[64] select(lon, down, x)\n  bad = f32[64] sqrt(mine)\n  y = f32[64] all-reduce(bad), " + HALF_SUMS, inputs=plain(), rank=5),
    strided("infinity-of-one-rank-and-iteration", "rank 5 divides by zero in the third iteration, and its half sums it", ON_FIVE + "  none = f32[64] subtract(x, x)\n  by = f32[64] select(lon, none, x)\n  bad = f32[64] divide(x, by)\n  y = f32[64] all-reduce(bad), " + HALF_SUMS, kinds=("infinity",), inputs=plain(), rank=5),
    Case("one-element-that-is-picked", "one element of an overflow is picked, and becomes NaN", PICKED, kinds=("nan", "infinity"), inputs=plain()),
    Case("singular-system", "a system whose matrix has equal rows", SINGULAR, kinds=("nan", "infinity"), kernel=None, inputs=plain()),
    Case("nan-of-a-nested-tuple", "a branch returns a tuple of which an element is NaN", ranks_of(two=2) + "  pair = (f32[64], f32[64]) conditional(is_two, before, before), true_computation=wrong, false_computation=right\n  one = f32[64] get-tuple-element(pair), index=0\n  two = f32[64] get-tuple-element(pair), index=1\n  result = f32[64] add(one, two)", inputs=plain(), rank=2, computations="\nwrong {\n  wx = f32[64] parameter(0)\n  wl = f32[64] negate(wx)\n  bad = f32[64] log(wl)\n  ROOT wt = (f32[64], f32[64]) tuple(wx, bad)\n}\n\nright {\n  rx = f32[64] parameter(0)\n  ry = f32[64] log(rx)\n  ROOT rt = (f32[64], f32[64]) tuple(rx, ry)\n}\n", **EIGHT),
    Case("started-call-too-far", "a custom call that is started as a computation writes too far", '  begun = ((f32[64]), f32[64], s32[]) async-start(before), calls=outside\n  came = f32[64] async-done(begun)\n  result = f32[64] add(came, q)', kinds=("out-of-bounds",), kernel=None, options=CUSTOM, computations='\noutside {\n  ox = f32[64] parameter(0)\n  ROOT bad = f32[64] custom-call(ox), custom_call_target="write_one_after"\n}\n'),
    Case("called-call-too-far", "a custom call in a called computation writes too far", "  came = f32[64] call(before), to_apply=outside\n  result = f32[64] add(came, q)", kinds=("out-of-bounds",), options=CUSTOM, computations='\noutside {\n  ox = f32[64] parameter(0)\n  on = f32[64] negate(ox)\n  ROOT bad = f32[64] custom-call(on), custom_call_target="write_one_after"\n}\n'),
    Case("write-to-input-on-one-rank", "a custom call of rank 6 writes to its input", '  id = u32[] partition-id()\n  bad = f32[64] custom-call(before, id), custom_call_target="writes_to_input_on_six"\n  more = f32[64] add(bad, before)\n  result = f32[64] add(more, q)', kinds=("write-to-input",), rank=6, options=CUSTOM, **EIGHT),
    memory("breaks-its-stack", "a custom call writes beyond an array on its stack", kinds=("crash",)),
    memory("corrupts-the-heap", "a custom call writes beyond memory that it allocated, and frees it", kinds=("crash",)),
    Case("ranks-lock-each-other", "custom calls of two ranks wait for a lock that the other one holds", '  id = u32[] partition-id()\n  bad = f32[64] custom-call(before, id), custom_call_target="locks_crosswise"\n' + RESULT, kinds=("hang",), options=CUSTOM + SOON, **EIGHT),
    Case("second-step-alone", "a custom call that returns NaN at its third call, in the third step", call("gives_nan_later"), options=CUSTOM + ("--steps", "4")),
    branches("sums-in-other-groups", "rank 3 sums with its half, the others with all", computation("left", f"  left_s = f32[64] all-reduce(left_x), {HALF_SUMS}\n", "f32[64] negate(left_s)"), reduced("right", 5)),
    branches("sums-in-another-order", "rank 3 sums two arrays in another order than the others", computation("left", f"  left_n = f32[64] negate(left_x)\n  left_a = f32[64] all-reduce(left_n), {REDUCE.format(8, ALL)}\n  left_b = f32[64] all-reduce(left_x), {REDUCE.format(7, ALL)}, control-predecessors={{left_a}}\n", "f32[64] add(left_a, left_b)"), computation("right", f"  right_b = f32[64] all-reduce(right_x), {REDUCE.format(7, ALL)}\n  right_n = f32[64] negate(right_x)\n  right_a = f32[64] all-reduce(right_n), {REDUCE.format(8, ALL)}, control-predecessors={{right_b}}\n", "f32[64] add(right_a, right_b)")),
    Case("gathers-of-other-kinds", "rank 3 gathers, the others sum", ranks_of(three=3) + "  chosen = f32[64] conditional(is_three, before, before), true_computation=left, false_computation=right\n  result = f32[64] add(chosen, q)", kinds=("apart", "hang"), kernel=None, rank=3, options=("--timeout", "3s"), computations=computation("left", f"  left_h = f32[8] slice(left_x), slice={{[0:8]}}\n  left_s = f32[64] all-gather(left_h), channel_id=5, replica_groups={ALL}, dimensions={{0}}, use_global_device_ids=true\n", "f32[64] negate(left_s)") + reduced("right", 5), **EIGHT),
    until("newton-that-swings", "Newton's iteration swings between three values", "  one_1 = f32[] constant(1)\n  ones = f32[64] broadcast(one_1), dimensions={}\n  off = f32[64] subtract(ones, x)\n  y = f32[64] divide(ones, off)", "LT", 1e9, kinds=("hang",), inputs=plain([1.0] * 64, [1.0] * 64)),
    Case("input-of-one-rank-too-short", "rank 6 has an input of 63 numbers", RESULT.replace("bad", "before"), kinds=("wrong-input",), kernel=None, inputs=lambda ranks: plain()(ranks) | {"in_000_r6": npy(ONES[:-1])}, **EIGHT),
    Case("input-of-integers", "an input of 64-bit integers", RESULT.replace("bad", "before"), kinds=("wrong-input",), kernel=None, inputs=lambda ranks: plain()(ranks) | {"in_001_r0": npy([1] * 64, "<i8", "q")}),
    infinity("infinity-of-a-window", "the mean of a window without elements", "  one = f32[] constant(0)\n  nothing = f32[64] subtract(p, p)\n  counts = f32[64] reduce-window(nothing, one), window={size=3 pad=1_1}, to_apply=add\n  bad = f32[64] divide(q, counts)\n" + RESULT),
    infinity("four-bits-to-infinity", "a scale in eight bits that underflows to zero, by which weights are divided", full("tiny", "1e-9") + "  scale = f32[64] multiply(q, tiny)\n  small = f8e4m3fn[64] convert(scale)\n  back = f32[64] convert(small)\n  bad = f32[64] divide(q, back)\n" + RESULT),
]
MIXED_CORRECT += [
    Case("correct-epsilon-in-bits", "a scale that underflows in eight bits, with an epsilon", full("tiny", "1e-9") + full("epsilon", "1e-6") + "  scale = f32[64] multiply(q, tiny)\n  small = f8e4m3fn[64] convert(scale)\n  back = f32[64] convert(small)\n  safe = f32[64] add(back, epsilon)\n  result = f32[64] divide(q, safe)", inputs=plain()),
    Case("correct-started-call", "a custom call that is started as a computation", '  begun = ((f32[64]), f32[64], s32[]) async-start(before), calls=outside\n  came = f32[64] async-done(begun)\n  result = f32[64] add(came, q)', options=CUSTOM, computations='\noutside {\n  ox = f32[64] parameter(0)\n  ROOT made = f32[64] custom-call(ox), custom_call_target="good"\n}\n'),
    Case("correct-steps", "a custom call that counts its calls, over several steps", call("counts_its_calls").replace("bad", "made"), options=CUSTOM + ("--steps", "3")),
    Case("correct-pick", "an element of an overflow that is not the one that overflows", "  at = s32[64] iota(), iota_dimension=0\n  zero = s32[] constant(0)\n  zeros = s32[64] broadcast(zero), dimensions={}\n  is = pred[64] compare(at, zeros), direction=EQ\n" + WIDE + "  much = f32[64] select(is, q, far)\n  wild = f32[64] exponential(much)\n  spot = f32[1] slice(wild), slice={[0:1]}\n  one = f32[] reshape(spot)\n" + spread_of("result", "one").rstrip("\n"), inputs=plain()),
    Case("correct-branches-alike", "branches that sum with the same collective in the same order", ranks_of(three=3) + "  chosen = f32[64] conditional(is_three, before, before), true_computation=left, false_computation=right\n  result = f32[64] add(chosen, q)", computations=computation("left", "", "f32[64] negate(left_x)") + computation("right", "", "f32[64] add(right_x, right_x)"), **EIGHT),
]

# What scripts/test runs of them; scripts/nightly runs all.
MIXED_SAMPLE = {"infinity-in-strided-groups", "infinity-in-a-wrapped-reduce-scatter", "infinity-along-a-ring", "factor-that-failed", "reads-half-as-single", "reads-the-last-iteration", "sums-of-other-types", "one-iteration-more", "never-converges", "nan-that-never-passes", "infinity-of-one-rank-and-iteration", "started-call-too-far", "newton-that-swings", "input-of-one-rank-missing"}
MIXED_CORRECT_SAMPLE = {"correct-sum-of-logarithms", "correct-groups-apart", "correct-convergence", "correct-unfilled-cache", "correct-started-call"}
