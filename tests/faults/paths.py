"""Faults at the end of longer paths: nested loops, branches and calls within them, groups of two,
messages in loops; each names the iteration where there is one. And correct programs like them. As
in cases.py, what is at fault is called `bad`."""

from cases import CUSTOM, Case, call, loop, npy, plain
from others import EIGHT, SOON, TOKEN, recv, send
from spread import ALL, NAN, STEP, infinity, ranks_of
from steps import RESULT, full

PAIRS = "{{0,1},{2,3},{4,5},{6,7}}"
STATE = "(s32[], f32[64])"


def inside(turn, more="", start="before"):
    """A loop of six turns, whose instruction is called `turns`, and its computations."""
    made = loop("", "", turn, start)
    return made.body.replace("bad", "turns"), made.computations.replace("\ngoes", more + "\ngoes", 1)


def in_loop(name, what, turn, computations="", start="before", **more):
    body, of_loop = inside(turn, computations, start)
    before = more.pop("before", "")
    return Case(name, what, before + body, computations=of_loop, **more)


def at(number, name="now"):
    """Whether a loop's counter `j` has a value."""
    return f"  {name}_n = s32[] constant({number})\n  {name} = pred[] compare(j, {name}_n), direction=EQ\n"


def on(rank, name="here"):
    return f"  {name}_id = u32[] partition-id()\n  {name}_n = u32[] constant({rank})\n  {name} = pred[] compare({name}_id, {name}_n), direction=EQ\n"


def picked(name, condition, then, otherwise):
    return f"  {name}_m = pred[64] broadcast({condition}), dimensions={{}}\n  {name} = f32[64] select({name}_m, {then}, {otherwise})\n"


def function(name, lines, root):
    return f"\n{name} {{\n  {name}_x = f32[64] parameter(0)\n{lines}  ROOT {name}_y = f32[64] {root}\n}}\n"


def repeated(name, count, turn, around=""):
    """A called computation with a loop of its own; `turn` makes `{name}_w` of `{name}_v`."""
    return f"""{around}
{name}_goes {{
  {name}_s = {STATE} parameter(0)
  {name}_i = s32[] get-tuple-element({name}_s), index=0
  {name}_c = s32[] constant({count})
  ROOT {name}_g = pred[] compare({name}_i, {name}_c), direction=LT
}}

{name}_turn {{
  {name}_t = {STATE} parameter(0)
  {name}_j = s32[] get-tuple-element({name}_t), index=0
  {name}_v = f32[64] get-tuple-element({name}_t), index=1
  {name}_o = s32[] constant(1)
  {name}_k = s32[] add({name}_j, {name}_o)
{turn}  ROOT {name}_u = {STATE} tuple({name}_k, {name}_w)
}}

{name} {{
  {name}_x = f32[64] parameter(0)
  {name}_z = s32[] constant(0)
  {name}_b = {STATE} tuple({name}_z, {name}_x)
  {name}_r = {STATE} while({name}_b), condition={name}_goes, body={name}_turn
  ROOT {name}_y = f32[64] get-tuple-element({name}_r), index=1
}}
"""


LOW = "  low = f32[64] negate(x)\n"
SQUARE = "  inner_q = f32[64] multiply(inner_v, inner_v)\n  inner_w = f32[64] add(inner_q, inner_q)\n"
SELF = "  alone_w = f32[64] multiply(alone_v, alone_v)\n"

#: The sum of exponentials of scores that are all masked.
NO_SUM = full("most", 1000) + full("none", "-inf") + """  kept = pred[64] compare(p, most), direction=GT
  scores = f32[64] select(kept, p, none)
  weights = f32[64] exponential(scores)
  nil = f32[] constant(0)
  total = f32[] reduce(weights, nil), dimensions={0}, to_apply=add
  sums = f32[64] broadcast(total), dimensions={}
"""

TURNED_STATE = "(s32[], f32[8,8]{0,1})"
TURNED = f"""  square = f32[8,8]{{1,0}} reshape(before)
  turned = f32[8,8]{{0,1}} bitcast(square)
  zero = s32[] constant(0)
  begin = {TURNED_STATE} tuple(zero, turned)
  turns = {TURNED_STATE} while(begin), condition=goes, body=turn
  out = f32[8,8]{{0,1}} get-tuple-element(turns), index=1
  result = f32[64] reshape(out)"""
TURNS = f"""
goes {{
  s = {TURNED_STATE} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(6)
  ROOT g = pred[] compare(i, n), direction=LT
}}

turn {{
  t = {TURNED_STATE} parameter(0)
  j = s32[] get-tuple-element(t), index=0
  x = f32[8,8]{{0,1}} get-tuple-element(t), index=1
  one = s32[] constant(1)
  k = s32[] add(j, one)
  si = f32[8,8]{{1,0}} sine(x)
  y = f32[8,8]{{0,1}} bitcast(si)
  ROOT u = {TURNED_STATE} tuple(k, y)
}}
"""

MARKS = """
marks {
  marks_x = f32[64] parameter(0)
  marks_n = f32[] parameter(1)
  marks_w = f32[64] broadcast(marks_n), dimensions={}
  marks_z = f32[] constant(0)
  marks_b = f32[64] broadcast(marks_z), dimensions={}
  marks_c = pred[64] compare(marks_x, marks_b), direction=GT
  ROOT marks_r = f32[64] select(marks_c, marks_x, marks_w)
}
"""
MARKS_ALL = """
marks_all {
  all_x = f32[64] parameter(0)
  all_n = f32[64] parameter(1)
  all_c = pred[64] compare(all_x, all_x), direction=LT
  ROOT all_r = f32[64] select(all_c, all_x, all_n)
}
"""
MARKED_STATE = "(s32[], f32[64], f32[8], f32[])"
MARKED_LOOP = f"""  none = f32[] constant(nan)
  nones = f32[64] broadcast(none), dimensions={{}}
  part = f32[8] slice(before), slice={{[0:8]}}
  zero = s32[] constant(0)
  begin = {MARKED_STATE} tuple(zero, nones, part, none)
  turns = {MARKED_STATE} while(begin), condition=goes, body=turn
  filled = f32[64] get-tuple-element(turns), index=1
  last = f32[] get-tuple-element(turns), index=3
  result = f32[64] call(filled, last), to_apply=marks"""
MARKED_STEP = MARKS + f"""
goes {{
  s = {MARKED_STATE} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(6)
  ROOT g = pred[] compare(i, n), direction=LT
}}

turn {{
  t = {MARKED_STATE} parameter(0)
  j = s32[] get-tuple-element(t), index=0
  x = f32[64] get-tuple-element(t), index=1
  y = f32[8] get-tuple-element(t), index=2
  m = f32[] get-tuple-element(t), index=3
  one = s32[] constant(1)
  k = s32[] add(j, one)
  eight = s32[] constant(8)
  at = s32[] multiply(j, eight)
  u = f32[64] dynamic-update-slice(x, y, at)
  ROOT r = {MARKED_STATE} tuple(k, u, y, m)
}}
"""

PATH_FAULTS = [
    Case("sum-over-nan-handed-to-a-callee", "a called computation adds what its caller marked with a NaN constant", "  none = f32[] constant(nan)\n  low = f32[64] negate(before)\n  one = f32[64] call(low, none), to_apply=marks\n  total = f32[] call(one), to_apply=adds\n  wide = f32[64] broadcast(total), dimensions={}\n  result = f32[64] add(wide, q)", kernel="bad", inputs=plain(), computations=MARKS + "\nsums_up {\n  ua = f32[] parameter(0)\n  ub = f32[] parameter(1)\n  ROOT uc = f32[] add(ua, ub)\n}\n\nadds {\n  adds_x = f32[64] parameter(0)\n  adds_z = f32[] constant(0)\n  bad = f32[] reduce(adds_x, adds_z), dimensions={0}, to_apply=sums_up\n  ROOT adds_r = f32[] negate(bad)\n}\n"),
    infinity("infinity-in-groups-of-two", "an infinity of rank 6 that its neighbour sums and a permutation takes further", ranks_of(it=6) + full("far", 1000) + "  small = f32[64] subtract(p, p)\n  much = f32[64] select(on_it, far, small)\n  bad = f32[64] exponential(much)\n" + f"  both = f32[64] all-reduce(bad), channel_id=5, replica_groups={PAIRS}, use_global_device_ids=true, to_apply=add\n  moved = f32[64] collective-permute(both), channel_id=6, source_target_pairs={{{{7,0}}}}\n  result = f32[64] add(moved, q)", rank=6, sums=False, **EIGHT),
    in_loop("nan-by-all-to-all-in-a-loop", "a NaN of rank 5 in the fourth iteration, exchanged among all", STEP + at(3) + on(5) + LOW + "  both = pred[] and(now, here)\n" + picked("mine", "both", "low", "x") + "  bad = f32[64] sqrt(mine)\n" + f"  all = f32[64] all-to-all(bad), channel_id=9, replica_groups={ALL}, dimensions={{0}}\n  y = f32[64] abs(all)", inputs=plain(), rank=5, iteration=(3,), sums=False, **EIGHT),
    in_loop("overflow-in-a-loop-in-a-call-in-a-loop", "an array that is squared in a loop within a computation that a loop calls", STEP + "  y = f32[64] call(x), to_apply=inner", repeated("inner", 3, SQUARE.replace("inner_w = f32[64] add", "bad = f32[64] add") + "  inner_w = f32[64] abs(bad)\n"), kinds=("infinity",), inputs=plain(), kernel="inner_q", iteration=(2, 0)),
    in_loop("nan-in-an-indexed-branch-in-a-loop", "the third branch of a conditional in a loop takes a root of what is below zero", STEP + "  y = f32[64] conditional(j, x, x, x), branch_computations={keeps, halves, roots}", function("keeps", "", "abs(keeps_x)") + function("halves", "", "add(halves_x, halves_x)") + function("roots", "  roots_n = f32[64] negate(roots_x)\n  bad = f32[64] sqrt(roots_n)\n", "abs(bad)"), inputs=plain(), iteration=(2,)),
    infinity("infinity-in-a-call-of-a-call", "an exponential in a computation that is called by one that is called", "  result = f32[64] call(before), to_apply=outer", computations=function("deep", full("deep_k", 1000) + "  deep_m = f32[64] multiply(deep_x, deep_k)\n  bad = f32[64] exponential(deep_m)\n", "negate(bad)") + function("outer", "  outer_c = f32[64] call(outer_x), to_apply=deep\n", "add(outer_c, outer_x)")),
    Case("permutations-that-differ", "rank 3 sends the other way than all others", ranks_of(three=3) + "  bad = f32[64] conditional(is_three, before, before), true_computation=one_way, false_computation=other_way\n  result = f32[64] add(bad, q)", kinds=("apart", "hang"), kernel=None, computations=function("one_way", "", "collective-permute(one_way_x), channel_id=11, source_target_pairs={{0,3},{3,0}}") + function("other_way", "", "collective-permute(other_way_x), channel_id=12, source_target_pairs={{0,3},{3,0}}"), options=("--timeout", "3s"), **EIGHT),
    Case("endless-in-a-branch", "rank 4 takes a branch with a loop that does not end, and the others wait in a sum", ranks_of(it=4) + "  mine = f32[64] conditional(is_it, before, before), true_computation=alone, false_computation=goes_on\n  result = f32[64] add(mine, q)", kinds=("hang",), kernel="alone_r", rank=4, computations=repeated("alone", 6, SELF).replace("alone_k = s32[] add(alone_j, alone_o)", "alone_k = s32[] multiply(alone_j, alone_o)") + function("goes_on", "", "negate(goes_on_x)"), options=SOON, **EIGHT),
    Case("nan-input-that-is-looked-up", "a NaN in a row of one rank's input that only an index reaches", "  where = s32[] constant(40)\n  part = f32[8] dynamic-slice(p, where), dynamic_slice_sizes={8}\n  nil = f32[] constant(0)\n  result = f32[64] pad(part, nil), padding=0_56", kernel=None, buffer="p", rank=6, inputs=lambda ranks: {f"in_{n:03}_r{r}": npy([NAN if (r, n, i) == (6, 0, 41) else 1.0 for i in range(64)]) for r in range(ranks) for n in range(2)}, **EIGHT),
    in_loop("writes-nothing-in-a-loop", "a custom call in a loop that does not write its output", STEP + '  bad = f32[64] custom-call(x), custom_call_target="write_nothing"\n  y = f32[64] add(bad, x)', kinds=("uninitialised", "nan"), options=CUSTOM, ranks=(1,)),
    Case("root-of-what-rounds-below-zero", "the root of one minus the square of a number just above one", full("more", "1.0001") + "  high = f32[64] multiply(q, more)\n  squared = f32[64] multiply(high, high)\n  rest = f32[64] subtract(q, squared)\n  bad = f32[64] sqrt(rest)\n" + RESULT, inputs=plain()),
    infinity("four-bits-of-exponent", "a number that is too large once its exponent has four bits", full("large", 1000) + "  much = f32[64] multiply(q, large)\n  bad = f32[64] reduce-precision(much), exponent_bits=4, mantissa_bits=3\n" + RESULT),
    Case("nan-of-a-rank-that-sends-late", "every rank receives before it computes, and rank 1 sends a NaN", ranks_of(one=1) + TOKEN + recv("taken", "came", [(0, 1), (1, 2), (2, 3)]) + "  low = f32[64] negate(before)\n  mine = f32[64] select(on_one, low, before)\n  bad = f32[64] sqrt(mine)\n  more = f32[64] add(bad, came)\n" + send("sent", "more", [(0, 1), (1, 2), (2, 3)]) + "  kept = f32[64] select(on_one, q, more)\n  result = f32[64] add(came, kept)", inputs=plain(), rank=1, sums=False, **EIGHT),
    Case("scores-masked-in-a-fusion", "scores that a fusion masks, all of them, less the largest of them", full("most", 1000) + "  kept = pred[64] compare(p, most), direction=GT\n  scores = f32[64] fusion(kept, p), kind=kLoop, calls=masks\n  least = f32[] constant(-inf)\n  top = f32[] reduce(scores, least), dimensions={0}, to_apply=larger\n  tops = f32[64] broadcast(top), dimensions={}\n  bad = f32[64] subtract(scores, tops)\n" + RESULT, inputs=plain(), computations="\nmasks {\n  keep = pred[64] parameter(0)\n  score = f32[64] parameter(1)\n  none = f32[] constant(-inf)\n  nones = f32[64] broadcast(none), dimensions={}\n  ROOT masked = f32[64] select(keep, score, nones)\n}\n\nlarger {\n  la = f32[] parameter(0)\n  lb = f32[] parameter(1)\n  ROOT lc = f32[] maximum(la, lb)\n}\n"),
    Case("sums-into-unset-memory", "a custom call adds to memory of its own that it has not set to zero", call("unset_heap"), kinds=("chance",), options=CUSTOM, ranks=(1,)),
    infinity("division-by-an-empty-sum", "numbers divided by a sum of exponentials whose terms are all masked", NO_SUM + "  bad = f32[64] divide(q, sums)\n" + RESULT),
]

PATH_CORRECT = [
    Case("correct-nan-handed-to-a-callee", "a NaN constant that a called computation marks elements with", "  none = f32[] constant(nan)\n  nones = f32[64] broadcast(none), dimensions={}\n  low = f32[64] negate(before)\n  one = f32[64] call(low, none), to_apply=marks\n  result = f32[64] call(one, nones), to_apply=marks_all", inputs=plain(), computations=MARKS + MARKS_ALL),
    Case("correct-nan-handed-to-a-branch", "a NaN constant that a branch marks elements with", "  none = f32[] constant(nan)\n  nones = f32[64] broadcast(none), dimensions={}\n  yes = pred[] constant(true)\n  given = (f32[64], f32[64]) tuple(before, nones)\n  result = f32[64] conditional(yes, given, given), true_computation=marked, false_computation=marked", inputs=plain(), computations=MARKS_ALL + "\nmarked {\n  marked_t = (f32[64], f32[64]) parameter(0)\n  marked_x = f32[64] get-tuple-element(marked_t), index=0\n  marked_n = f32[64] get-tuple-element(marked_t), index=1\n  ROOT marked_r = f32[64] call(marked_x, marked_n), to_apply=marks_all\n}\n"),
    Case("correct-nan-that-a-loop-replaces", "an array of NaN constants that a loop fills, but for the last elements", MARKED_LOOP, inputs=plain(), computations=MARKED_STEP),
    Case("correct-log-of-an-empty-sum", "the logarithm of a sum of exponentials whose terms are all masked", NO_SUM + "  size = f32[64] abs(sums)\n  result = f32[64] log(size)", inputs=plain()),
    Case("correct-nan-that-marks", "an array of NaN constants, of which eight elements get values", full("unknown", "nan") + "  part = f32[8] slice(before), slice={[0:8]}\n  where = s32[] constant(16)\n  result = f32[64] dynamic-update-slice(unknown, part, where)", inputs=plain()),
    Case("correct-nan-that-a-callee-drops", "a NaN in an element that a called computation does not return", "  result = f32[64] call(before), to_apply=drops", inputs=plain(), computations=function("drops", "  drops_n = f32[64] negate(drops_x)\n  drops_r = f32[64] sqrt(drops_n)\n  drops_w = f32[128] concatenate(drops_x, drops_r), dimensions={0}\n", "slice(drops_w), slice={[0:64]}")),
    Case("correct-infinity-that-is-exchanged", "an infinity of each rank, exchanged among all and replaced", full("none", "-inf") + "  wide = f32[64] add(none, p)\n" + f"  all = f32[64] all-to-all(wide), channel_id=9, replica_groups={ALL}, dimensions={{0}}\n  result = f32[64] maximum(all, q)", inputs=plain(), **EIGHT),
    in_loop("correct-loop-that-never-turns", "a loop within a loop that has no iteration", STEP + "  y = f32[64] call(x), to_apply=inner", repeated("inner", 0, SQUARE)),
    in_loop("correct-branches-in-turn", "a loop that takes another branch in each iteration", STEP + "  y = f32[64] conditional(j, x, x, x), branch_computations={first, second, third}", function("first", "", "sine(first_x)") + function("second", "", "cosine(second_x)") + function("third", "", "tanh(third_x)")),
    Case("correct-rounding-to-zero", "numbers that are too small for four bits of exponent", full("tiny", "1e-3") + "  little = f32[64] multiply(q, tiny)\n  zero = f32[64] reduce-precision(little), exponent_bits=4, mantissa_bits=3\n  result = f32[64] add(zero, q)", inputs=plain()),
    Case("correct-turned-loop-state", "a loop whose state is an array in another layout, before and after each iteration", TURNED, inputs=plain(), computations=TURNS),
    Case("correct-late-messages", "every rank receives before it computes and sends", TOKEN + recv("taken", "came", [(0, 1), (1, 2), (2, 3)]) + "  more = f32[64] add(before, came)\n" + send("sent", "more", [(0, 1), (1, 2), (2, 3)]) + "  result = f32[64] add(came, more)", inputs=plain(), **EIGHT),
    Case("correct-least-of-groups", "infinities that a minimum within groups of two replaces", "  id = u32[] partition-id()\n  one = u32[] constant(1)\n  low = u32[] and(id, one)\n  is_odd = pred[] compare(low, one), direction=EQ\n  odd = pred[64] broadcast(is_odd), dimensions={}\n" + full("none", "inf") + "  mine = f32[64] select(odd, none, before)\n" + f"  least = f32[64] all-reduce(mine), channel_id=5, replica_groups={PAIRS}, use_global_device_ids=true, to_apply=smaller\n  result = f32[64] add(least, q)", inputs=plain(), computations="\nsmaller {\n  sa = f32[] parameter(0)\n  sb = f32[] parameter(1)\n  ROOT sc = f32[] minimum(sa, sb)\n}\n", **EIGHT),
]

# Those that the tests run; bench/faults.py runs all.
PATH_SAMPLE = {"sum-over-nan-handed-to-a-callee", "infinity-in-groups-of-two", "nan-by-all-to-all-in-a-loop", "overflow-in-a-loop-in-a-call-in-a-loop", "nan-in-an-indexed-branch-in-a-loop", "permutations-that-differ", "nan-input-that-is-looked-up", "nan-of-a-rank-that-sends-late", "division-by-an-empty-sum", "scores-masked-in-a-fusion", "sums-into-unset-memory"}
PATH_CORRECT_SAMPLE = {"correct-nan-handed-to-a-callee", "correct-nan-handed-to-a-branch", "correct-nan-that-a-loop-replaces", "correct-nan-that-a-callee-drops", "correct-turned-loop-state", "correct-late-messages", "correct-least-of-groups", "correct-log-of-an-empty-sum", "correct-nan-that-marks"}
