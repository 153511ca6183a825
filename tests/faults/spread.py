"""Faults that spread before they show: through collectives of some ranks, through loops, branches
and calls, beside infinities that are meant; and correct programs that look like them. As in
cases.py, what is at fault is called `bad`."""

from cases import CUSTOM, ONES, Case, call, loop, npy, plain

INF = float("inf")
NAN = float("nan")
HUGE = "  k = f32[] constant(1000)\n  ks = f32[64] broadcast(k), dimensions={}\n"
STEP = "  one = s32[] constant(1)\n  k = s32[] add(j, one)\n"
REDUCE = "channel_id={}, replica_groups={}, use_global_device_ids=true, to_apply=add"
HALVES = "{{0,1,2,3},{4,5,6,7}}"
ALL = "{{0,1,2,3,4,5,6,7}}"


def ranks_of(**numbers):
    """For each name, a mask that is true on one rank."""
    lines = ["  id = u32[] partition-id()"]
    for name, number in numbers.items():
        lines += [
            f"  n_{name} = u32[] constant({number})",
            f"  is_{name} = pred[] compare(id, n_{name}), direction=EQ",
            f"  on_{name} = pred[64] broadcast(is_{name}), dimensions={{}}",
        ]
    return "\n".join(lines) + "\n"


def two_makers(travel, masked):
    """`mild` is infinite on rank 1 and `bad` on rank 5; what `travel` makes of both is masked on
    the ranks that `masked` names by a comparison with 4, so that rank 1's does not reach a
    result."""
    return (
        ranks_of(one=1, five=5)
        + HUGE
        + f"""  small = f32[64] subtract(q, q)
  first = f32[64] select(on_one, ks, small)
  mild = f32[64] exponential(first)
  second = f32[64] select(on_five, ks, small)
  bad = f32[64] exponential(second)
  mine = f32[64] maximum(mild, bad)
{travel}
  four = u32[] constant(4)
  lower = pred[] compare(id, four), direction={masked}
  hides = pred[64] broadcast(lower), dimensions={{}}
  result = f32[64] select(hides, before, came)"""
    )



def infinity(name, what, body, **more):
    return Case(name, what, body, kinds=("infinity",), inputs=more.pop("inputs", plain()), **more)


def tuples(*names):
    """Each rank's inputs: p by rank, q all ones."""
    return lambda ranks: {f"in_{n:03}_r{r}": npy(v(r)) for r in range(ranks) for n, v in enumerate(names)}


LOW_RANK = lambda rank: [NAN if rank == 2 and i == 7 else 1.0 for i in range(64)]
EVEN = """  at = s32[64] iota(), iota_dimension=0
  two = s32[] constant(2)
  twos = s32[64] broadcast(two), dimensions={}
  rest = s32[64] remainder(at, twos)
  none = s32[] constant(0)
  nones = s32[64] broadcast(none), dimensions={}
  even = pred[64] compare(rest, nones), direction=EQ
"""
LEAST = "  least = f32[] constant(-inf)\n  mask = f32[64] broadcast(least), dimensions={}\n"
GROWS = "  big = f32[] constant(1e12)\n  bigs = f32[64] broadcast(big), dimensions={}\n"
NEGATIVE = [-1.0, 1.0] * 32

FAULTS = [
    # Collectives of some ranks.
    infinity("infinity-in-a-group", "an infinity of rank 5 in one replica group, beside a masked one in the other", two_makers(f"  came = f32[64] all-reduce(mine), {REDUCE.format(5, HALVES)}", "LT"), rank=5, ranks=(8,), sums=False),
    infinity("infinity-by-permute", "an infinity that rank 5 sends to rank 6, beside a masked one that rank 1 sends to rank 2", two_makers("  came = f32[64] collective-permute(mine), channel_id=5, source_target_pairs={{1,2},{5,6}}", "LT"), rank=5, ranks=(8,), sums=False),
    infinity("infinity-by-two-permutes", "an infinity that rank 5 sends to rank 6 and that one to rank 7", two_makers("  sent = f32[64] collective-permute(mine), channel_id=5, source_target_pairs={{1,2},{5,6}}\n  came = f32[64] collective-permute(sent), channel_id=6, source_target_pairs={{2,3},{6,7}}", "LT"), rank=5, ranks=(8,), sums=False),
    infinity("infinity-by-all-gather", "an infinity of rank 5 that its group gathers", two_makers(f"  all = f32[256] all-gather(mine), channel_id=5, replica_groups={HALVES}, use_global_device_ids=true, dimensions={{0}}\n  few = f32[64] slice(all), slice={{[64:128]}}\n  came = f32[64] add(few, small)", "LT"), rank=5, ranks=(8,), sums=False),
    infinity("infinity-by-reduce-scatter", "an infinity of rank 5 in a part that rank 6 gets", two_makers(f"  wide = f32[256] concatenate(small, small, mine, small), dimensions={{0}}\n  came = f32[64] reduce-scatter(wide), channel_id=5, replica_groups={HALVES}, use_global_device_ids=true, dimensions={{0}}, to_apply=add", "LT"), rank=5, ranks=(8,), sums=False),
    infinity("infinity-by-all-to-all", "an infinity of rank 5 in a part that rank 7 gets", two_makers(f"  wide = f32[256] concatenate(small, small, small, mine), dimensions={{0}}\n  swapped = f32[256] all-to-all(wide), channel_id=5, replica_groups={HALVES}, dimensions={{0}}\n  came = f32[64] slice(swapped), slice={{[64:128]}}", "LT"), rank=5, ranks=(8,), sums=False),
    infinity("infinity-by-all-to-all-of-arrays", "an infinity of rank 5 in the array that rank 7 gets", two_makers(f"  swapped = (f32[64], f32[64], f32[64], f32[64]) all-to-all(small, small, small, mine), channel_id=5, replica_groups={HALVES}\n  came = f32[64] get-tuple-element(swapped), index=1", "LT"), rank=5, ranks=(8,), sums=False),
    infinity("infinity-by-broadcast", "an infinity that rank 5 sends to three others", two_makers("  came = f32[64] collective-broadcast(mine), channel_id=5, replica_groups={{1,0,2,3},{5,4,6,7}}", "LT"), rank=5, ranks=(8,), sums=False),
    infinity("infinity-by-a-started-all-reduce", "an infinity of rank 5 in an all-reduce that is started and awaited", two_makers(f"  started = f32[64] all-reduce-start(mine), {REDUCE.format(5, HALVES)}\n  came = f32[64] all-reduce-done(started)", "LT"), rank=5, ranks=(8,), sums=False),
    infinity("infinity-of-another-part", "rank 5's infinity goes to rank 0, rank 1's to rank 3, which hides it", ranks_of(one=1, five=5, three=3) + HUGE + f"  small = f32[64] subtract(q, q)\n  first = f32[64] select(on_one, ks, small)\n  mild = f32[64] exponential(first)\n  second = f32[64] select(on_five, ks, small)\n  bad = f32[64] exponential(second)\n  wide = f32[512] concatenate(bad, small, small, mild, small, small, small, small), dimensions={{0}}\n  came = f32[64] reduce-scatter(wide), channel_id=5, replica_groups={ALL}, use_global_device_ids=true, dimensions={{0}}, to_apply=add\n  result = f32[64] select(on_three, before, came)", rank=5, ranks=(8,), sums=False),
    infinity("overflow-in-all-reduce", "a sum over ranks that f32 cannot hold, of numbers that it can", "  k = f32[] constant(1e38)\n  ks = f32[64] broadcast(k), dimensions={}\n  much = f32[64] multiply(ks, q)\n  bad = f32[64] all-reduce(much), channel_id=5, replica_groups=GROUP, use_global_device_ids=true, to_apply=add\n  result = f32[64] add(bad, q)", ranks=(8,), sums=False),
    Case("overflow-in-reduce-scatter", "a sum over ranks that f16 cannot hold", "  k = f16[] constant(30000)\n  ks = f16[64] broadcast(k), dimensions={}\n  bad = f16[8] reduce-scatter(ks), channel_id=5, replica_groups=GROUP, use_global_device_ids=true, dimensions={0}, to_apply=add\n  zero = f16[] constant(0)\n  wide = f16[64] pad(bad, zero), padding=0_56\n  result = f16[64] add(wide, q)", kinds=("infinity",), element="f16", ranks=(8,), sums=False),
    infinity("infinity-on-one-result", "only rank 6 has an infinite result", ranks_of(six=6) + HUGE + "  mine = f32[64] select(on_six, ks, q)\n  bad = f32[64] exponential(mine)\n  result = f32[64] add(bad, q)", rank=6, ranks=(8,), sums=False),
    Case("nan-in-a-group", "a NaN of rank 5 in one replica group, beside a masked one in the other", two_makers(f"  came = f32[64] all-reduce(mine), {REDUCE.format(5, HALVES)}", "LT").replace("f32[64] exponential(", "f32[64] log(").replace("constant(1000)", "constant(-1)").replace("small = f32[64] subtract(q, q)", "small = f32[64] maximum(q, q)").replace("maximum(mild, bad)", "add(mild, bad)"), inputs=plain(), rank=5, ranks=(8,), sums=False),
    # Borders.
    Case("infinity-before-a-loop", "an infinity that a loop turns into NaN", HUGE + "  bad = f32[64] exponential(ks)\n  zero = s32[] constant(0)\n  begin = (s32[], f32[64]) tuple(zero, bad)\n  turns = (s32[], f32[64]) while(begin), condition=goes, body=turn\n  result = f32[64] get-tuple-element(turns), index=1", kinds=("infinity",), inputs=plain(), computations=loop("", "", STEP + "  y = f32[64] subtract(x, x)").computations),
    Case("overflow-in-a-loop", "a number that grows beyond f32 in the fourth iteration of a loop", loop("", "", "").body.replace("bad", "turns"), kinds=("infinity",), inputs=plain(), computations=loop("", "", STEP + GROWS + "  bad = f32[64] multiply(x, bigs)\n  y = f32[64] abs(bad)").computations),
    Case("overflow-in-a-loop-and-nan-after-it", "a number that grows beyond f32 in a loop, and a NaN after it", "  zero = s32[] constant(0)\n  begin = (s32[], f32[64]) tuple(zero, before)\n  turns = (s32[], f32[64]) while(begin), condition=goes, body=turn\n  grown = f32[64] get-tuple-element(turns), index=1\n  victim = f32[64] subtract(grown, grown)\n  result = f32[64] add(victim, q)", kinds=("infinity",), inputs=plain(), computations=loop("", "", STEP + GROWS + "  bad = f32[64] multiply(x, bigs)\n  y = f32[64] abs(bad)").computations),
    Case("infinity-through-a-loop", "an infinity that a loop only passes on", HUGE + "  bad = f32[64] exponential(ks)\n  zero = s32[] constant(0)\n  begin = (s32[], f32[64], f32[64]) tuple(zero, before, bad)\n  turns = (s32[], f32[64], f32[64]) while(begin), condition=goes3, body=turn3\n  left = f32[64] get-tuple-element(turns), index=1\n  right = f32[64] get-tuple-element(turns), index=2\n  result = f32[64] add(left, right)", kinds=("infinity",), inputs=plain(), computations="\ngoes3 {\n  s = (s32[], f32[64], f32[64]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  n = s32[] constant(3)\n  ROOT g = pred[] compare(i, n), direction=LT\n}\n\nturn3 {\n  t = (s32[], f32[64], f32[64]) parameter(0)\n  j = s32[] get-tuple-element(t), index=0\n  x = f32[64] get-tuple-element(t), index=1\n  z = f32[64] get-tuple-element(t), index=2\n  one = s32[] constant(1)\n  k = s32[] add(j, one)\n  y = f32[64] multiply(x, x)\n  ROOT u = (s32[], f32[64], f32[64]) tuple(k, y, z)\n}\n"),
    infinity("infinity-in-a-branch", "an infinity in a branch that reaches the result", "  zero = f32[] constant(0)\n  head = f32[1] slice(p), slice={[0:1]}\n  number = f32[] reshape(head)\n  is_more = pred[] compare(number, zero), direction=GT\n  chosen = f32[64] conditional(is_more, before, before), true_computation=grows, false_computation=stays\n  result = f32[64] add(chosen, q)", computations="\ngrows {\n  x = f32[64] parameter(0)\n  h = f32[] constant(1000)\n  hs = f32[64] broadcast(h), dimensions={}\n  m = f32[64] multiply(x, hs)\n  bad = f32[64] exponential(m)\n  ROOT w = f32[64] negate(bad)\n}\n\nstays {\n  z = f32[64] parameter(0)\n  ROOT v = f32[64] add(z, z)\n}\n"),
    infinity("infinity-before-a-branch", "an infinity that a branch turns into NaN", HUGE + "  bad = f32[64] exponential(ks)\n  zero = f32[] constant(0)\n  head = f32[1] slice(p), slice={[0:1]}\n  number = f32[] reshape(head)\n  is_more = pred[] compare(number, zero), direction=GT\n  chosen = f32[64] conditional(is_more, bad, before), true_computation=loses, false_computation=stays\n  result = f32[64] add(chosen, q)", computations="\nloses {\n  x = f32[64] parameter(0)\n  ROOT w = f32[64] subtract(x, x)\n}\n\nstays {\n  z = f32[64] parameter(0)\n  ROOT v = f32[64] add(z, z)\n}\n"),
    infinity("infinity-in-a-call", "an infinity that a called computation makes", "  called = f32[64] call(before), to_apply=grows\n  result = f32[64] add(called, q)", computations="\ngrows {\n  x = f32[64] parameter(0)\n  h = f32[] constant(1000)\n  hs = f32[64] broadcast(h), dimensions={}\n  m = f32[64] multiply(x, hs)\n  bad = f32[64] exponential(m)\n  ROOT w = f32[64] negate(bad)\n}\n"),
    infinity("infinity-before-a-call", "an infinity that a called computation turns into NaN", HUGE + "  bad = f32[64] exponential(ks)\n  called = f32[64] call(bad), to_apply=loses\n  result = f32[64] add(called, q)", computations="\nloses {\n  x = f32[64] parameter(0)\n  ROOT w = f32[64] subtract(x, x)\n}\n"),
    Case("overflow-in-a-loop-in-a-loop", "a number that grows beyond f32 in an inner loop", loop("", "", "").body.replace("bad", "turns"), kinds=("infinity",), inputs=plain(), computations="\nruns {\n  s = (s32[], f32[64]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  n = s32[] constant(2)\n  ROOT g = pred[] compare(i, n), direction=LT\n}\n\ninner {\n  t = (s32[], f32[64]) parameter(0)\n  j = s32[] get-tuple-element(t), index=0\n  x = f32[64] get-tuple-element(t), index=1\n  one = s32[] constant(1)\n  k = s32[] add(j, one)\n  big = f32[] constant(1e8)\n  bigs = f32[64] broadcast(big), dimensions={}\n  bad = f32[64] multiply(x, bigs)\n  y = f32[64] abs(bad)\n  ROOT u = (s32[], f32[64]) tuple(k, y)\n}\n" + loop("", "", STEP + "  zero = s32[] constant(0)\n  begin = (s32[], f32[64]) tuple(zero, x)\n  in = (s32[], f32[64]) while(begin), condition=runs, body=inner\n  y = f32[64] get-tuple-element(in), index=1").computations.replace("  s = (s32", "  s0 = (s32").replace("get-tuple-element(s)", "get-tuple-element(s0)")),
    Case("infinity-in-a-loop-of-ranks", "rank 3 makes an infinity in the third iteration of a loop with an all-reduce", loop("", "", "").body.replace("bad", "turns"), kinds=("infinity",), inputs=plain(), rank=3, ranks=(8,), sums=False, computations=loop("", "", STEP + ranks_of(three=3) + "  two = s32[] constant(2)\n  is_third = pred[] compare(j, two), direction=EQ\n  thirds = pred[64] broadcast(is_third), dimensions={}\n  here = pred[64] and(thirds, on_three)\n  h = f32[] constant(1000)\n  hs = f32[64] broadcast(h), dimensions={}\n  small = f32[64] subtract(x, x)\n  mine = f32[64] select(here, hs, small)\n  bad = f32[64] exponential(mine)\n" + f"  shared = f32[64] all-reduce(bad), {REDUCE.format(9, ALL)}\n  y = f32[64] add(shared, bad)").computations),
    # Infinities that are meant, beside one that is not.
    infinity("infinity-beside-a-given-one", "an overflow beside an input with infinities that are masked", HUGE + LEAST + EVEN + "  hidden = f32[64] select(even, p, ks)\n  soft = f32[64] maximum(hidden, q)\n  bad = f32[64] exponential(soft)\n  result = f32[64] add(bad, q)", inputs=plain([-INF] * 64, ONES)),
    infinity("infinity-as-the-second-operand", "a sum of an infinite input and of an overflow", HUGE + "  bad = f32[64] exponential(ks)\n  both = f32[64] add(p, bad)\n  result = f32[64] maximum(both, q)", inputs=plain([INF] + [1.0] * 63, ONES)),
    infinity("infinity-in-a-masked-array", "a division by zero in an array that is masked with infinities elsewhere", LEAST + EVEN + "  masked = f32[64] select(even, mask, before)\n  zero = f32[64] subtract(p, p)\n  bad = f32[64] divide(masked, zero)\n  result = f32[64] maximum(bad, q)"),
    infinity("infinity-of-the-second-result", "the second of two results is infinite; the first is an infinite input", HUGE + "  bad = f32[64] exponential(ks)", ending="  second = f32[64] add(bad, q)\n  ROOT after = (f32[64], f32[64]) tuple(p, second)", inputs=plain([INF] * 64, ONES), ranks=(1,)),
    infinity("infinity-of-a-second-output", "the second array that a fusion makes is infinite", "  bad = (f32[64], f32[64]) fusion(before, q), kind=kLoop, calls=pair\n  fine = f32[64] get-tuple-element(bad), index=0\n  wild = f32[64] get-tuple-element(bad), index=1\n  result = f32[64] add(fine, wild)", computations="\npair {\n  x = f32[64] parameter(0)\n  z = f32[64] parameter(1)\n  h = f32[] constant(1000)\n  hs = f32[64] broadcast(h), dimensions={}\n  m = f32[64] multiply(x, hs)\n  w = f32[64] exponential(m)\n  v = f32[64] add(x, z)\n  ROOT both = (f32[64], f32[64]) tuple(v, w)\n}\n"),
    infinity("overflow-in-a-dot", "a product of matrices that f32 cannot hold", "  k = f32[] constant(1e30)\n  ks = f32[64] broadcast(k), dimensions={}\n  much = f32[64] multiply(ks, q)\n  wide = f32[64,64] broadcast(much), dimensions={0}\n  bad = f32[64] dot(much, wide), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n  result = f32[64] add(bad, q)"),
    Case("overflow-in-a-sum", "a sum that f16 cannot hold", "  k = f16[] constant(30000)\n  ks = f16[8,64] broadcast(k), dimensions={}\n  zero = f16[] constant(0)\n  bad = f16[64] reduce(ks, zero), dimensions={0}, to_apply=add\n  result = f16[64] add(bad, q)", kinds=("infinity",), element="f16"),
    infinity("infinity-that-is-gathered", "a row of a table is infinite, and a gather takes it", HUGE + "  rowed = f32[1,64] reshape(ks)\n  bad = f32[1,64] exponential(rowed)\n  tame = f32[1,64] reshape(before)\n  table = f32[2,64] concatenate(tame, bad), dimensions={0}\n  which = s32[1] constant({1})\n  row = f32[1,64] gather(table, which), offset_dims={0,1}, collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=0, slice_sizes={1,64}\n  flat = f32[64] reshape(row)\n  result = f32[64] add(flat, q)"),
    # NaN that matters beside NaN that does not.
    Case("nan-beside-a-guarded-one", "a guarded logarithm, and a square root that is not", "  zero = f32[] constant(0)\n  zeros = f32[64] broadcast(zero), dimensions={}\n  more = pred[64] compare(p, zeros), direction=GT\n  logs = f32[64] log(p)\n  safe = f32[64] select(more, logs, zeros)\n  less = f32[64] subtract(safe, q)\n  bad = f32[64] sqrt(less)\n  result = f32[64] add(bad, q)", inputs=plain(NEGATIVE)),
    Case("nan-mixed-with-a-guarded-one", "a guarded logarithm whose other side is NaN as well", "  zero = f32[] constant(0)\n  zeros = f32[64] broadcast(zero), dimensions={}\n  more = pred[64] compare(p, zeros), direction=GT\n  logs = f32[64] log(p)\n  bad = f32[64] sqrt(p)\n  safe = f32[64] select(more, logs, bad)\n  result = f32[64] add(safe, q)", inputs=plain(NEGATIVE)),
    infinity("nan-of-a-guarded-gradient", "the gradient of a guarded square root: zero times an infinity", "  zero = f32[] constant(0)\n  zeros = f32[64] broadcast(zero), dimensions={}\n  bad = f32[64] rsqrt(p)\n  more = pred[64] compare(p, zeros), direction=GT\n  back = f32[64] select(more, q, zeros)\n  victim = f32[64] multiply(back, bad)\n  result = f32[64] add(victim, q)", inputs=plain([0.0, 1.0] * 32)),
    Case("nan-in-one-rank-input", "a NaN in the input of rank 2, which an all-reduce spreads", "  result = f32[64] multiply(before, q)", inputs=tuples(LOW_RANK, lambda rank: ONES), kernel="before", rank=2, ranks=(8,)),
    Case("workspace-that-is-read", "a custom call leaves its second output unwritten, and it is read", "  bad = (f32[64], f32[64]) custom-call(before), custom_call_target=\"leaves_workspace\"\n  made = f32[64] get-tuple-element(bad), index=0\n  work = f32[64] get-tuple-element(bad), index=1\n  result = f32[64] add(made, work)", kinds=("uninitialised", "nan"), options=CUSTOM),
    Case("seeded-by-the-clock", "a custom call that seeds its random numbers with the time of day", call("by_clock"), kinds=("chance",), options=CUSTOM),
    Case("changes-rounding", "a custom call that changes the rounding mode", call("rounds_up"), kinds=("rounding",), options=CUSTOM),
    Case("endless-on-one-rank", "rank 3 does not leave a loop, and the others wait for it", ranks_of(three=3) + "  none = s32[] constant(0)\n  one = s32[] constant(1)\n  by = s32[] select(is_three, none, one)\n  begin = (s32[], f32[64], s32[]) tuple(none, before, by)\n  bad = (s32[], f32[64], s32[]) while(begin), condition=goes4, body=turn4\n  result = f32[64] get-tuple-element(bad), index=1", kinds=("hang",), rank=3, ranks=(8,), options=("--timeout", "2s"), computations="\ngoes4 {\n  s = (s32[], f32[64], s32[]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  n = s32[] constant(6)\n  ROOT g = pred[] compare(i, n), direction=LT\n}\n\nturn4 {\n  t = (s32[], f32[64], s32[]) parameter(0)\n  j = s32[] get-tuple-element(t), index=0\n  x = f32[64] get-tuple-element(t), index=1\n  z = s32[] get-tuple-element(t), index=2\n  k = s32[] add(j, z)\n  y = f32[64] add(x, x)\n  ROOT u = (s32[], f32[64], s32[]) tuple(k, y, z)\n}\n"),
]

ZEROS = "  zero = f32[] constant(0)\n  zeros = f32[64] broadcast(zero), dimensions={}\n"
SLOW = STEP + '  y = f32[64] custom-call(x), custom_call_target="naps"'

HARMLESS = [
    Case("correct-guarded-log", "where(x > 0, log(x), 0)", ZEROS + "  more = pred[64] compare(p, zeros), direction=GT\n  logs = f32[64] log(p)\n  result = f32[64] select(more, logs, zeros)", inputs=plain(NEGATIVE)),
    Case("correct-guarded-mean", "a mean of nothing, which a select replaces", ZEROS + "  count = f32[64] maximum(p, zeros)\n  sums = f32[64] multiply(count, q)\n  means = f32[64] divide(sums, count)\n  empty = pred[64] compare(count, zeros), direction=EQ\n  result = f32[64] select(empty, zeros, means)", inputs=plain(NEGATIVE)),
    Case("correct-nan-aware-mean", "NaN in an input that marks missing values", ZEROS + "  missing = pred[64] compare(p, p), direction=NE\n  result = f32[64] select(missing, zeros, p)", inputs=plain([NAN, 1.0] * 32)),
    Case("correct-packed-bits", "integers sent as floats, some of which are NaN", "  all = u32[] constant(4294967295)\n  ones = u32[64] broadcast(all), dimensions={}\n  at = u32[64] iota(), iota_dimension=0\n  words = u32[64] subtract(ones, at)\n  packed = f32[64] bitcast-convert(words)\n  moved = f32[64] reverse(packed), dimensions={0}\n  back = u32[64] bitcast-convert(moved)\n  some = u32[] constant(255)\n  low = u32[64] broadcast(some), dimensions={}\n  bits = u32[64] and(back, low)\n  numbers = f32[64] convert(bits)\n  result = f32[64] add(numbers, q)"),
    Case("correct-safe-gradient", "the gradient of a square root with a safe argument", ZEROS + "  more = pred[64] compare(p, zeros), direction=GT\n  safe = f32[64] select(more, p, q)\n  roots = f32[64] rsqrt(safe)\n  raw = f32[64] rsqrt(p)\n  twice = f32[64] multiply(raw, zeros)\n  result = f32[64] select(more, roots, zeros)", inputs=plain([0.0, 1.0] * 32)),
    Case("correct-nan-in-a-slice", "NaN in a part of an array that is cut off", "  wide = f32[128] concatenate(p, q), dimensions={0}\n  roots = f32[128] sqrt(wide)\n  result = f32[64] slice(roots), slice={[64:128]}", inputs=plain([-1.0] * 64)),
    Case("correct-nan-that-is-overwritten", "NaN in the state of a loop, which the next iteration replaces", loop("", "", "").body.replace("bad", "turns"), inputs=plain(), computations=loop("", "", STEP + "  low = f32[64] negate(x)\n  roots = f32[64] sqrt(low)\n  same = pred[64] compare(roots, roots), direction=EQ\n  y = f32[64] select(same, roots, x)").computations),
    Case("correct-nan-in-a-branch", "NaN in a branch that a select behind it hides", ZEROS + "  head = f32[1] slice(q), slice={[0:1]}\n  number = f32[] reshape(head)\n  is_more = pred[] compare(number, zero), direction=GT\n  chosen = f32[64] conditional(is_more, p, p), true_computation=logs, false_computation=stays\n  more = pred[64] compare(p, zeros), direction=GT\n  result = f32[64] select(more, chosen, zeros)", inputs=plain(NEGATIVE), computations="\nlogs {\n  x = f32[64] parameter(0)\n  ROOT w = f32[64] log(x)\n}\n\nstays {\n  z = f32[64] parameter(0)\n  ROOT v = f32[64] add(z, z)\n}\n"),
    Case("correct-nan-on-one-rank", "NaN on rank 3 alone, which it hides before the ranks meet", ranks_of(three=3) + ZEROS + "  low = f32[64] negate(before)\n  mine = f32[64] select(on_three, low, before)\n  roots = f32[64] sqrt(mine)\n  result = f32[64] select(on_three, zeros, roots)", inputs=plain(), ranks=(8,)),
    Case("correct-workspace", "a custom call leaves its second output unwritten, and nothing reads it", "  pair = (f32[64], f32[64]) custom-call(before), custom_call_target=\"leaves_workspace\"\n  made = f32[64] get-tuple-element(pair), index=0\n  result = f32[64] add(made, q)", options=CUSTOM),
    Case("correct-long-loop", "a loop that runs for longer than a kernel may", loop("", "", "").body.replace("bad", "turns"), options=CUSTOM + ("--timeout", "1s"), computations=loop("", "", SLOW).computations),
    Case("correct-long-loop-on-one-rank", "rank 3 is in a loop for longer than a kernel may, and the others wait", ranks_of(three=3) + "  none = s32[] constant(0)\n  most = s32[] constant(6)\n  start = s32[] select(is_three, none, most)\n  begin = (s32[], f32[64]) tuple(start, before)\n  turns = (s32[], f32[64]) while(begin), condition=goes, body=turn\n  result = f32[64] get-tuple-element(turns), index=1", options=CUSTOM + ("--timeout", "1s"), ranks=(8,), computations=loop("", "", SLOW).computations),
    Case("correct-running-maximum", "a running maximum over ranks that starts at minus infinity", LEAST + EVEN + f"  mine = f32[64] select(even, before, mask)\n  most = f32[64] all-reduce(mine), channel_id=5, replica_groups=GROUP, use_global_device_ids=true, to_apply=larger\n  less = f32[64] maximum(most, q)\n  result = f32[64] add(less, q)", computations="\nlarger {\n  a1 = f32[] parameter(0)\n  b1 = f32[] parameter(1)\n  ROOT c1 = f32[] maximum(a1, b1)\n}\n"),
    Case("correct-online-softmax", "a loop whose maximum starts at minus infinity", LEAST + "  zero = s32[] constant(0)\n  begin = (s32[], f32[64]) tuple(zero, mask)\n  turns = (s32[], f32[64]) while(begin), condition=goes, body=turn\n  most = f32[64] get-tuple-element(turns), index=1\n  result = f32[64] add(most, q)", computations=loop("", "", STEP + "  number = f32[] convert(j)\n  wide = f32[64] broadcast(number), dimensions={}\n  y = f32[64] maximum(x, wide)").computations),
    Case("correct-given-mask", "a mask of infinities that is an input", EVEN + "  scores = f32[64] add(p, q)\n  soft = f32[64] exponential(scores)\n  result = f32[64] add(soft, q)", inputs=plain([-INF, 1.0] * 32)),
    Case("correct-passed-infinity", "an infinity that is given, and handed back", "  zero = f32[] constant(0)", ending="  ROOT after = (f32[64], f32[64]) tuple(p, before)", inputs=plain([INF] + [1.0] * 63), ranks=(1,)),
]
