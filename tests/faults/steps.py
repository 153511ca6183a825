"""Faults of training and inference steps, as people write them: softmax, norms, optimizers, mixed
precision, linear algebra, caches; and correct programs like them. As in cases.py, what is at fault
is called `bad`."""

from cases import CUSTOM, Case, plain
from spread import EVEN, HALVES, INF, NAN, REDUCE, infinity, ranks_of


def full(name, value, element="f32", count=64):
    """An array of one number."""
    return (
        f"  {name}_1 = {element}[] constant({value})\n"
        f"  {name} = {element}[{count}] broadcast({name}_1), dimensions={{}}\n"
    )


def spread_of(name, scalar, element="f32"):
    return f"  {name} = {element}[64] broadcast({scalar}), dimensions={{}}\n"


SUM = "  nil = f32[] constant(0)\n"
RESULT = "  result = f32[64] add(bad, q)"
TOP = "\ntop {\n  ta = f32[] parameter(0)\n  tb = f32[] parameter(1)\n  ROOT tc = f32[] maximum(ta, tb)\n}\n"
LOW = "\nlow {\n  la = f32[] parameter(0)\n  lb = f32[] parameter(1)\n  ROOT lc = f32[] minimum(la, lb)\n}\n"
SQUARE = "  square = f32[8,8] reshape(before)\n"
EYE = """  row = s32[8,8] iota(), iota_dimension=0
  col = s32[8,8] iota(), iota_dimension=1
  on = pred[8,8] compare(row, col), direction=EQ
  zero_1 = f32[] constant(0)
  zeros = f32[8,8] broadcast(zero_1), dimensions={}
"""
HALF = dict(element="f16")

STEP_FAULTS = [
    # Attention and losses.
    infinity("softmax-without-maximum", "a softmax that does not subtract the maximum", full("big", 1000) + SUM + "  logits = f32[64] multiply(before, big)\n  bad = f32[64] exponential(logits)\n  whole = f32[] reduce(bad, nil), dimensions={0}, to_apply=add\n" + spread_of("wholes", "whole") + "  soft = f32[64] divide(bad, wholes)\n  result = f32[64] add(soft, q)"),
    Case("softmax-of-a-masked-row", "a softmax of a row in which everything is masked", full("mask", "-inf") + "  least = f32[] constant(-inf)\n  scores = f32[64] add(before, mask)\n  most = f32[] reduce(scores, least), dimensions={0}, to_apply=top\n" + spread_of("mosts", "most") + "  bad = f32[64] subtract(scores, mosts)\n  soft = f32[64] exponential(bad)\n  result = f32[64] add(soft, q)", inputs=plain(), computations=TOP),
    infinity("logarithm-of-a-probability", "the logarithm of a probability that underflows, times a label of zero", full("far", -1000) + "  chance = f32[64] exponential(far)\n  bad = f32[64] log(chance)\n  label = f32[64] subtract(q, q)\n  loss = f32[64] multiply(bad, label)\n  result = f32[64] add(loss, q)"),
    infinity("exponent-in-half", "an exponential of an f16 logit whose result f16 cannot hold", full("logit", 12, "f16") + "  bad = f16[64] exponential(logit)\n  result = f16[64] add(bad, q)", inputs=None, **HALF),
    infinity("logarithm-of-a-saturated-chance", "the logarithm of a sigmoid that is zero for some elements and one for others", full("far", 1000) + "  wide = f32[64] multiply(p, far)\n  chance = f32[64] logistic(wide)\n  bad = f32[64] log(chance)\n  result = f32[64] add(bad, q)", inputs=plain([1.0, -1.0] * 32)),
    # Norms.
    Case("norm-of-a-zero-vector", "a vector of zeros divided by its length", SUM + "  zero = f32[64] subtract(p, p)\n  squares = f32[64] multiply(zero, zero)\n  whole = f32[] reduce(squares, nil), dimensions={0}, to_apply=add\n  length = f32[] sqrt(whole)\n" + spread_of("lengths", "length") + "  bad = f32[64] divide(zero, lengths)\n" + RESULT, inputs=plain()),
    Case("epsilon-with-a-wrong-sign", "a variance of zero minus epsilon under a root", full("epsilon", "1e-5") + "  variance = f32[64] subtract(p, p)\n  less = f32[64] subtract(variance, epsilon)\n  bad = f32[64] rsqrt(less)\n" + RESULT, inputs=plain()),
    infinity("norm-without-epsilon", "the inverse root of a variance of zero", "  variance = f32[64] subtract(p, p)\n  bad = f32[64] rsqrt(variance)\n  centred = f32[64] multiply(q, bad)\n  result = f32[64] add(centred, q)"),
    Case("deviation-of-one-sample", "a sum of squares of one sample, divided by zero", SUM + "  off = f32[64] subtract(p, p)\n  whole = f32[] reduce(off, nil), dimensions={0}, to_apply=add\n  one = f32[] constant(1)\n  fewer = f32[] subtract(one, one)\n  bad = f32[] divide(whole, fewer)\n" + spread_of("all", "bad") + "  result = f32[64] add(all, q)", inputs=plain()),
    # Optimizers and mixed precision.
    Case("adam-without-epsilon", "a first step of Adam for a gradient of zero", "  gradient = f32[64] subtract(p, p)\n  second = f32[64] multiply(gradient, gradient)\n  root = f32[64] sqrt(second)\n  bad = f32[64] divide(gradient, root)\n" + RESULT, inputs=plain()),
    infinity("loss-scale", "a loss scale that f16 cannot hold", full("scale", 60000, "f16") + full("loss", 3, "f16") + "  bad = f16[64] multiply(loss, scale)\n  result = f16[64] add(bad, q)", inputs=None, **HALF),
    infinity("unscaled-by-zero", "a gradient divided by a loss scale that became zero", "  scale = f32[64] subtract(p, p)\n  bad = f32[64] divide(q, scale)\n" + RESULT),
    infinity("divided-by-a-subnormal", "a division by a number so small that its inverse is too large", full("tiny", "1e-44") + "  bad = f32[64] divide(q, tiny)\n" + RESULT),
    infinity("squares-of-large-numbers", "a sum of squares of numbers that f32 holds", full("large", "1e25") + "  much = f32[64] multiply(large, q)\n  bad = f32[64] multiply(much, much)\n" + RESULT),
    infinity("integer-to-half", "an integer that f16 cannot hold", "  count = s32[64] constant({" + ", ".join(["70000"] * 64) + "})\n  bad = f16[64] convert(count)\n  result = f16[64] add(bad, q)", inputs=None, **HALF),
    Case("quantized-beyond-eight-bits", "a number that f8e4m3fn cannot hold", full("scale", 1000) + "  wide = f32[64] multiply(before, scale)\n  bad = f8e4m3fn[64] convert(wide)\n  back = f32[64] convert(bad)\n  result = f32[64] add(back, q)", kinds=("nan", "infinity"), inputs=plain()),
    Case("infinity-of-eight-bits", "a product that f8e5m2 cannot hold", full("scale", 30000) + "  wide = f32[64] multiply(q, scale)\n  small = f8e5m2[64] convert(wide)\n  bad = f8e5m2[64] multiply(small, small)\n  back = f32[64] convert(bad)\n  result = f32[64] add(back, q)", kinds=("infinity",), inputs=plain()),
    # Functions beyond where they are defined.
    Case("arcsine-of-two", "an arcsine of a cosine similarity above one", "  bad = f32[64] asin(before)\n" + RESULT, inputs=plain()),
    Case("logarithm-of-one-plus", "log1p of a number below -1", full("down", -3) + "  low = f32[64] multiply(q, down)\n  bad = f32[64] log-plus-one(low)\n" + RESULT, inputs=plain()),
    Case("area-cosine-below-one", "an inverse hyperbolic cosine below one", full("half", 0.5) + "  low = f32[64] multiply(q, half)\n  bad = f32[64] acosh(low)\n" + RESULT, inputs=plain()),
    infinity("area-tangent-of-one", "an inverse hyperbolic tangent of one", "  bad = f32[64] atanh(q)\n" + RESULT),
    infinity("hyperbolic-cosine", "a hyperbolic cosine that f32 cannot hold", full("far", 100) + "  wide = f32[64] multiply(q, far)\n  bad = f32[64] cosh(wide)\n" + RESULT),
    infinity("power-beyond-range", "a power that f32 cannot hold", full("ten", 10) + full("forty", 40) + "  base = f32[64] multiply(q, ten)\n  bad = f32[64] power(base, forty)\n" + RESULT),
    # Larger operations.
    Case("factor-of-no-positive-matrix", "a Cholesky factor of a matrix that is not positive definite", SQUARE + "  down = f32[8,8] negate(square)\n  bad = f32[8,8] cholesky(down), lower=true\n  flat = f32[64] reshape(bad)\n  result = f32[64] add(flat, q)", inputs=plain()),
    Case("singular-triangle", "a triangular system with a diagonal of zeros", SQUARE + EYE + "  hollow = f32[8,8] select(on, zeros, square)\n  bad = f32[8,8] triangular-solve(hollow, square), left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE\n  flat = f32[64] reshape(bad)\n  result = f32[64] add(flat, q)", kinds=("infinity", "nan"), inputs=plain()),
    infinity("convolution-beyond-range", "a convolution whose sums f32 cannot hold", full("large", "1e30") + "  much = f32[64] multiply(before, large)\n  line = f32[1,64,1] reshape(much)\n  few = f32[3] slice(much), slice={[0:3]}\n  taps = f32[3,1,1] reshape(few)\n  bad = f32[1,64,1] convolution(line, taps), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f\n  flat = f32[64] reshape(bad)\n  result = f32[64] add(flat, q)"),
    infinity("pooled-beyond-range", "sums over windows that f32 cannot hold", full("large", "1e38") + SUM + "  much = f32[64] multiply(before, large)\n  bad = f32[64] reduce-window(much, nil), window={size=5 pad=2_2}, to_apply=add\n" + RESULT),
    infinity("scattered-beyond-range", "rows of a gradient that are added at the same place", full("large", "1e38") + "  table = f32[64] subtract(p, p)\n  rows = f32[64] multiply(before, large)\n  at = s32[64,1] constant({" + ", ".join(["{5}"] * 64) + "})\n  bad = f32[64] scatter(table, at, rows), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add\n" + RESULT),
    infinity("transform-of-an-infinity", "a Fourier transform of an exponential that overflows", full("far", 1000) + "  wide = f32[64] multiply(before, far)\n  bad = f32[64] exponential(wide)\n  waves = c64[33] fft(bad), fft_type=RFFT, fft_length={64}\n  back = f32[64] fft(waves), fft_type=IRFFT, fft_length={64}\n  result = f32[64] add(back, q)"),
    Case("mapped-nan", "a computation that is mapped over an array takes a root of negative numbers", "  down = f32[64] negate(before)\n  bad = f32[64] map(down), dimensions={0}, to_apply=rooted\n" + RESULT, inputs=plain(), computations="\nrooted {\n  mx = f32[] parameter(0)\n  ROOT my = f32[] sqrt(mx)\n}\n"),
    Case("sorted-nan", "an array with NaN that is sorted, and its last element used", "  down = f32[64] negate(before)\n  bad = f32[64] log(down)\n  rows = f32[64] sort(bad), dimensions={0}, to_apply=less\n  result = f32[64] add(rows, q)", inputs=plain(), computations="\nless {\n  sa = f32[] parameter(0)\n  sb = f32[] parameter(1)\n  ROOT sc = pred[] compare(sa, sb), direction=LT, type=TOTALORDER\n}\n"),
    # Ranks.
    infinity("divides-by-its-number", "a rank that divides by the distance of its number from two", "  id = u32[] partition-id()\n  mine = f32[] convert(id)\n  two = f32[] constant(2)\n  off = f32[] subtract(mine, two)\n" + spread_of("offs", "off") + "  bad = f32[64] divide(q, offs)\n" + RESULT, rank=2, ranks=(8,)),
    Case("logarithm-of-its-number", "rank 0 alone takes the logarithm of a negative number", "  id = u32[] partition-id()\n  mine = f32[] convert(id)\n  half = f32[] constant(0.5)\n  off = f32[] subtract(mine, half)\n" + spread_of("offs", "off") + "  bad = f32[64] log(offs)\n" + RESULT, inputs=plain(), rank=0, ranks=(8,)),
    infinity("nobody-sends-to-it", "rank 0 gets zeros from a permute without a pair for it, and divides by them", "  sent = f32[64] collective-permute(before), channel_id=5, source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7}}\n  bad = f32[64] divide(q, sent)\n" + RESULT, rank=0, ranks=(8,)),
    Case("mean-of-no-samples", "a mean over ranks of which none has a sample", "  mine = f32[64] subtract(p, p)\n  all = f32[64] all-reduce(mine), channel_id=5, replica_groups=GROUP, use_global_device_ids=true, to_apply=add\n  bad = f32[64] divide(mine, all)\n" + RESULT, inputs=plain(), ranks=(8,)),
    Case("write-to-a-rank-that-ended", "a custom call of rank 3 writes to memory of rank 5, which has ended", '  id = u32[] partition-id()\n  lent = f32[64] custom-call(before, id), custom_call_target="lends"\n  bad = f32[64] custom-call(lent, id), custom_call_target="writes_to_another"\n' + RESULT, kinds=("after-free", "not-its-own"), rank=3, ranks=(8,), sums=False, options=CUSTOM),
    infinity("overflow-in-one-group", "sums of one of two groups of ranks that f32 cannot hold", ranks_of(six=6) + full("large", "3e38") + f"  small = f32[64] subtract(p, p)\n  much = f32[64] select(on_six, large, small)\n  some = f32[64] maximum(much, q)\n  twice = f32[64] all-reduce(some), {REDUCE.format(5, HALVES)}\n  bad = f32[64] add(twice, much)\n" + RESULT, rank=6, ranks=(8,), sums=False),
]

WINDOW = "window={size=3 pad=1_1}"
STEP_CORRECT = [
    Case("correct-softmax", "a softmax of large logits that subtracts the maximum", full("big", 1000) + SUM + "  least = f32[] constant(-inf)\n  logits = f32[64] multiply(before, big)\n  most = f32[] reduce(logits, least), dimensions={0}, to_apply=top\n" + spread_of("mosts", "most") + "  off = f32[64] subtract(logits, mosts)\n  powers = f32[64] exponential(off)\n  whole = f32[] reduce(powers, nil), dimensions={0}, to_apply=add\n" + spread_of("wholes", "whole") + "  result = f32[64] divide(powers, wholes)", computations=TOP),
    Case("correct-masked-softmax", "a softmax in which half is masked with infinities", EVEN + full("mask", "-inf") + SUM + "  scores = f32[64] select(even, before, mask)\n  least = f32[] constant(-inf)\n  most = f32[] reduce(scores, least), dimensions={0}, to_apply=top\n" + spread_of("mosts", "most") + "  off = f32[64] subtract(scores, mosts)\n  powers = f32[64] exponential(off)\n  whole = f32[] reduce(powers, nil), dimensions={0}, to_apply=add\n" + spread_of("wholes", "whole") + "  result = f32[64] divide(powers, wholes)", computations=TOP),
    Case("correct-maximum-pool", "a maximum over windows that begins with an infinity", "  least = f32[] constant(-inf)\n  result = f32[64] reduce-window(before, least), " + WINDOW + ", to_apply=top", computations=TOP),
    Case("correct-minimum", "a minimum that begins with an infinity", "  most = f32[] constant(inf)\n  least = f32[] reduce(before, most), dimensions={0}, to_apply=low\n" + spread_of("result", "least").rstrip("\n"), computations=LOW),
    Case("correct-clipped-infinity", "an overflow that is clamped", full("far", 1000) + full("most", 10) + "  wide = f32[64] multiply(before, far)\n  wild = f32[64] exponential(wide)\n  result = f32[64] minimum(wild, most)", inputs=plain()),
    Case("correct-replaced-nan", "NaN that is replaced by zeros", full("zero", 0) + "  down = f32[64] negate(before)\n  roots = f32[64] sqrt(down)\n  is = pred[64] compare(roots, roots), direction=NE\n  result = f32[64] select(is, zero, roots)", inputs=plain()),
    Case("correct-safe-division", "a division by zero whose result is not used", full("one", 1) + "  nothing = f32[64] subtract(p, p)\n  is = pred[64] compare(nothing, one), direction=LT\n  part = f32[64] divide(q, nothing)\n  result = f32[64] select(is, q, part)", inputs=plain()),
    Case("correct-hash", "integers that wrap around", "  seeds = s32[64] iota(), iota_dimension=0\n  prime_1 = s32[] constant(1103515245)\n  prime = s32[64] broadcast(prime_1), dimensions={}\n  mixed = s32[64] multiply(seeds, prime)\n  again = s32[64] multiply(mixed, prime)\n  real = f32[64] convert(again)\n  result = f32[64] multiply(real, q)"),
    Case("correct-eight-bits", "numbers that are stored in eight bits, within their range", full("scale", 100) + "  wide = f32[64] multiply(q, scale)\n  small = f8e4m3fn[64] convert(wide)\n  twice = f8e4m3fn[64] add(small, small)\n  back = f32[64] convert(twice)\n  result = f32[64] add(back, q)", inputs=plain()),
    Case("correct-four-bits", "weights in four bits that are scaled", full("scale", 7) + "  wide = f32[64] multiply(q, scale)\n  small = s4[64] convert(wide)\n  back = f32[64] convert(small)\n  result = f32[64] add(back, q)", inputs=plain()),
    Case("correct-triangle", "a triangular system with a good diagonal", SQUARE + EYE + "  one_1 = f32[] constant(4)\n  fours = f32[8,8] broadcast(one_1), dimensions={}\n  good = f32[8,8] select(on, fours, square)\n  solved = f32[8,8] triangular-solve(good, square), left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE\n  result = f32[64] reshape(solved)", inputs=plain()),
    Case("correct-transform", "a Fourier transform and its inverse", "  waves = c64[33] fft(before), fft_type=RFFT, fft_length={64}\n  result = f32[64] fft(waves), fft_type=IRFFT, fft_length={64}"),
    Case("correct-sort-with-padding", "rows that are padded with infinities, sorted and cut", full("most", "inf", count=8) + "  long = f32[72] concatenate(before, most), dimensions={0}\n  rows = f32[72] sort(long), dimensions={0}, to_apply=less\n  result = f32[64] slice(rows), slice={[0:64]}", computations="\nless {\n  sa = f32[] parameter(0)\n  sb = f32[] parameter(1)\n  ROOT sc = pred[] compare(sa, sb), direction=LT\n}\n"),
    Case("correct-ranks-with-branches", "ranks that take different branches with the same sums", ranks_of(three=3) + "  chosen = f32[64] conditional(is_three, before, before), true_computation=left, false_computation=right\n  result = f32[64] add(chosen, q)", ranks=(8,), computations="\nleft {\n  lx = f32[64] parameter(0)\n  ROOT ly = f32[64] multiply(lx, lx)\n}\n\nright {\n  rx = f32[64] parameter(0)\n  ROOT ry = f32[64] add(rx, rx)\n}\n"),
    Case("correct-open-pipeline", "rank 0 gets zeros from a permute without a pair for it, and adds them", "  sent = f32[64] collective-permute(before), channel_id=5, source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7}}\n  result = f32[64] add(sent, q)", ranks=(8,)),
    Case("correct-nan-aware-sum", "an input with NaN, which are left out of a sum", full("zero", 0) + SUM + "  is = pred[64] compare(p, p), direction=EQ\n  kept = f32[64] select(is, p, zero)\n  whole = f32[] reduce(kept, nil), dimensions={0}, to_apply=add\n" + spread_of("result", "whole").rstrip("\n"), inputs=plain([NAN, 1.0] * 32)),
    Case("correct-logarithm-of-a-mask", "scores to which the logarithm of a mask is added", "  on = pred[64] compare(p, q), direction=GT\n  mask = f32[64] convert(on)\n  logs = f32[64] log(mask)\n  result = f32[64] add(before, logs)", inputs=plain([3.0, 1.0] * 32)),
    Case("correct-infinite-bound", "an input of bounds, some of which are infinite", "  result = f32[64] minimum(q, p)", inputs=plain([INF, 1.0] * 32)),
]
