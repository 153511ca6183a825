"""Faults of other kinds: messages between ranks, ragged collectives, further misuse of memory,
threads and the clock by custom calls, complex numbers; and correct programs like them. As in
cases.py, what is at fault is called `bad`."""

from cases import CUSTOM, Case, call, loop, memory, plain
from spread import ALL, STEP, infinity, ranks_of
from steps import RESULT, full

EIGHT = dict(ranks=(8,))
SOON = ("--timeout", "2s")
MESSAGE = "(f32[64], u32[], token[])"


def pairs(*between):
    text = ",".join(f"{{{a},{b}}}" for a, b in between)
    return f"channel_id=7, frontend_attributes={{_xla_send_recv_source_target_pairs={{{text}}}}}"


RING = [(rank, (rank + 1) % 8) for rank in range(8)]
CHAIN = RING[:-1]


def send(name, what, between, token="token", given="given"):
    return f"  {name} = {MESSAGE} send({what}, {token}), {pairs(*between)}\n  {given} = token[] send-done({name}), channel_id=7\n"


def take(name, between, token="token"):
    return f"  {name} = {MESSAGE} recv({token}), {pairs(*between)}\n"


def recv(name, value, between, token="token", takes=True):
    return (
        (take(name, between, token) if takes else "")
        + f"  {name}_end = (f32[64], token[]) recv-done({name}), channel_id=7\n"
        f"  {value} = f32[64] get-tuple-element({name}_end), index=0\n"
    )


TOKEN = "  token = token[] after-all()\n"
NEVER = "  most = f32[] constant(1e9)\n  head = f32[1] slice(p), slice={[0:1]}\n  number = f32[] reshape(head)\n  is_more = pred[] compare(number, most), direction=GT\n"
SENDS = "\nsends {\n  sx = f32[64] parameter(0)\n  stoken = token[] after-all()\n" + send("sent", "sx", [(0, 1)], "stoken") + "  ROOT sy = f32[64] negate(sx)\n}\n\nkeeps {\n  kx = f32[64] parameter(0)\n  ROOT ky = f32[64] negate(kx)\n}\n"
TAKES = "\ntakes {\n  tx = f32[64] parameter(0)\n  ttoken = token[] after-all()\n" + recv("taken", "came", [(0, 1)], "ttoken") + "  ROOT ty = f32[64] add(came, tx)\n}\n\nkeeps {\n  kx = f32[64] parameter(0)\n  ROOT ky = f32[64] negate(kx)\n}\n"


def ragged(name, first, count, place, expected, source="before"):
    """Every rank sends rows to all; each has 64 rows, and room for 64."""

    def numbers(of, values):
        return f"  {of} = s32[8] constant({{{', '.join(map(str, values))}}})\n"

    return (
        numbers("first", first) + numbers("count", count) + numbers("place", place) + numbers("expected", expected)
        + f"  {name} = f32[64] ragged-all-to-all({source}, q, first, count, place, expected), channel_id=5, replica_groups={ALL}\n"
    )


EVENLY = [8 * rank for rank in range(8)]
# A rank's rows go to the place of its number at each receiver, so the places differ from rank to
# rank.
SHIFT = "  id = u32[] partition-id()\n  mine = s32[] convert(id)\n  wide = s32[8] broadcast(mine), dimensions={}\n"


def own_rows(name, source):
    """Every rank sends row r of `source` to rank r, where it comes to the place of the sender's
    number."""
    return (
        SHIFT
        + "  first = s32[8] constant({0, 1, 2, 3, 4, 5, 6, 7})\n  ones = s32[8] constant({1, 1, 1, 1, 1, 1, 1, 1})\n"
        + f"  {name} = f32[64] ragged-all-to-all({source}, q, first, ones, wide, ones), channel_id=5, replica_groups={ALL}\n"
    )


COMPLEX = "  nothing = f32[64] subtract(p, p)\n"
GREATER = "\ngreater {\n  ga = f32[] parameter(0)\n  gb = f32[] parameter(1)\n  ROOT gc = f32[] maximum(ga, gb)\n}\n"
TIMES = "\ntimes {\n  ma = f32[] parameter(0)\n  mb = f32[] parameter(1)\n  ROOT mc = f32[] multiply(ma, mb)\n}\n"
REDUCE = f"channel_id=CHANNEL, replica_groups={ALL}, use_global_device_ids=true, to_apply=add"
ORDERS = "".join(
    f"\n{name} {{\n  {name}_x = f32[64] parameter(0)\n"
    f"  {name}_a = f32[64] all-reduce({name}_x), {REDUCE.replace('CHANNEL', channels[0])}\n"
    f"  {name}_b = f32[64] all-reduce({name}_a), {REDUCE.replace('CHANNEL', channels[1])}\n  ROOT {name}_y = f32[64] negate({name}_b)\n}}\n"
    for name, channels in (("forth", ("21", "22")), ("back", ("23", "24")))
)

OTHER_FAULTS = [
    # Messages.
    Case("nobody-sends", "rank 1 waits for a message that rank 0 sends in a branch that it does not take", TOKEN + recv("bad", "came", [(0, 1)]) + NEVER + "  other = f32[64] conditional(is_more, before, before), true_computation=sends, false_computation=keeps\n  result = f32[64] add(came, other)", kinds=("hang",), rank=1, computations=SENDS, options=SOON, **EIGHT),
    Case("nobody-takes", "rank 0 sends a message that rank 1 would receive in a branch that it does not take", TOKEN + send("bad", "before", [(0, 1)]) + NEVER + "  other = f32[64] conditional(is_more, before, before), true_computation=takes, false_computation=keeps\n  result = f32[64] add(q, other)", kinds=("apart",), rank=0, computations=TAKES, options=SOON, **EIGHT),
    Case("all-take-first", "every rank sends to the next one what it has received from the previous one", TOKEN + recv("bad", "came", RING) + "  more = f32[64] add(came, q)\n" + send("sent", "more", RING) + "  result = f32[64] add(more, q)", kinds=("hang",), options=SOON, **EIGHT),
    infinity("infinity-by-message", "rank 2 makes an infinity, and sends it to rank 3", ranks_of(two=2) + full("far", 1000) + "  small = f32[64] subtract(p, p)\n  much = f32[64] select(on_two, far, small)\n  bad = f32[64] exponential(much)\n" + TOKEN + recv("taken", "came", [(2, 3)]) + send("sent", "bad", [(2, 3)]) + "  result = f32[64] add(came, q)", rank=2, sums=False, **EIGHT),
    Case("nan-along-a-chain", "a NaN of rank 2 that goes from rank to rank", ranks_of(two=2) + "  low = f32[64] negate(before)\n  mine = f32[64] select(on_two, low, before)\n  bad = f32[64] sqrt(mine)\n" + TOKEN + recv("taken", "came", CHAIN) + send("sent", "bad", CHAIN) + "  kept = f32[64] select(on_two, q, bad)\n  result = f32[64] add(came, kept)", inputs=plain(), rank=2, sums=False, **EIGHT),
    # Ragged collectives.
    Case("ragged-beyond-the-rows", "a rank sends rows that it does not have", ragged("bad", [8 * rank + 1 for rank in range(8)], [8] * 8, EVENLY, [8] * 8) + RESULT, kinds=("apart",), **EIGHT),
    Case("ragged-beyond-the-room", "a rank sends rows to where there is no room", ragged("bad", EVENLY, [8] * 8, [60] * 8, [8] * 8) + RESULT, kinds=("apart",), **EIGHT),
    Case("ragged-counts-differ", "ranks expect another number of rows than are sent", ragged("bad", EVENLY, [3] * 8, [0] * 8, [2] * 8) + RESULT, kinds=("apart",), **EIGHT),
    infinity("infinity-by-ragged-rows", "rank 4 makes infinities that it sends to all", ranks_of(four=4) + full("far", 1000) + "  small = f32[64] subtract(p, p)\n  much = f32[64] select(on_four, far, small)\n  bad = f32[64] exponential(much)\n" + own_rows("rows", "bad").replace("  id = u32[] partition-id()\n", "") + "  result = f32[64] add(rows, q)", rank=4, **EIGHT),
    # Custom calls.
    memory("counts-bytes-as-elements", "a custom call clears four times as much as its output has"),
    Case("second-result-too-far", "a custom call writes past the end of its second result", '  pair = (f32[64], f32[64]) custom-call(before), custom_call_target="second_too_far"\n  bad = f32[64] get-tuple-element(pair), index=0\n  two = f32[64] get-tuple-element(pair), index=1\n  result = f32[64] add(bad, two)', kinds=("out-of-bounds",), kernel="pair", options=CUSTOM),
    memory("frees-twice", "a custom call frees memory twice", kinds=("crash",)),
    memory("raises-a-signal", "a custom call raises a signal that ends the process", kinds=("crash",)),
    Case("locks-twice", "a custom call waits for a lock that it holds", call("locks_twice"), kinds=("hang",), options=CUSTOM + SOON),
    Case("waits-for-its-thread", "a custom call waits for a thread that does not end", call("waits_for_its_thread"), kinds=("hang",), options=CUSTOM + SOON),
    memory("stores-an-address", "a custom call stores an address as a number", kinds=("chance",)),
    memory("reads-random-bytes", "a custom call takes random bytes from the system", kinds=("chance",)),
    memory("flushes-subnormals", "a custom call that has its thread flush subnormals to zero", kinds=("rounding",)),
    memory("gives-nan", "a custom call that returns NaN for finite inputs", kinds=("nan",)),
    memory("gives-infinity", "a custom call that returns an infinity for finite inputs", kinds=("infinity",)),
    memory("asserts", "a custom call whose own check fails", kinds=("crash",)),
    Case("hangs-in-a-loop", "a custom call that does not return in the third iteration of a loop", loop("", "", "").body.replace("bad", "turns"), kinds=("hang",), options=CUSTOM + SOON, ranks=(1,), computations=loop("", "", STEP + '  bad = f32[64] custom-call(x), custom_call_target="hangs_later"\n  y = f32[64] negate(bad)').computations),
    # Numbers.
    Case("variance-by-cancellation", "a mean of squares minus the square of a mean, which is negative, under a root", full("large", 8193) + full("off", 16) + "  more = f32[64] multiply(q, large)\n  squares = f32[64] multiply(more, more)\n  mean = f32[64] add(squares, off)\n  variance = f32[64] subtract(squares, mean)\n  bad = f32[64] sqrt(variance)\n" + RESULT, inputs=plain()),
    infinity("logit-of-one", "the odds of a probability of one", full("one", 1) + "  left = f32[64] subtract(one, q)\n  bad = f32[64] divide(q, left)\n  logit = f32[64] log(bad)\n  result = f32[64] add(logit, q)"),
    infinity("running-product", "a running product that f32 cannot hold", full("ten", 10) + "  one = f32[] constant(1)\n  tens = f32[64] multiply(q, ten)\n  bad = f32[64] reduce-window(tens, one), window={size=64 pad=63_0}, to_apply=times\n" + RESULT, computations=TIMES),
    Case("complex-division", "a complex number divided by zero", COMPLEX + "  zero = c64[64] complex(nothing, nothing)\n  some = c64[64] complex(q, q)\n  bad = c64[64] divide(some, zero)\n  size = f32[64] real(bad)\n  result = f32[64] add(size, q)", kinds=("nan", "infinity"), inputs=plain()),
    infinity("double-to-single", "a number that f64 holds and f32 does not", "  huge_1 = f64[] constant(1e300)\n  huge = f64[64] broadcast(huge_1), dimensions={}\n  wide = f64[64] convert(q)\n  much = f64[64] multiply(wide, huge)\n  bad = f32[64] convert(much)\n" + RESULT),
    infinity("zero-to-a-negative-power", "zero to the power of minus one", full("minus", -1) + "  nothing = f32[64] subtract(p, p)\n  bad = f32[64] power(nothing, minus)\n" + RESULT),
    Case("nan-by-a-maximum", "a NaN of rank 4 that a maximum over ranks spreads", ranks_of(four=4) + "  low = f32[64] negate(before)\n  mine = f32[64] select(on_four, low, before)\n  bad = f32[64] log(mine)\n" + f"  most = f32[64] all-reduce(bad), channel_id=5, replica_groups={ALL}, use_global_device_ids=true, to_apply=greater\n  result = f32[64] add(most, q)", inputs=plain(), rank=4, computations=GREATER, **EIGHT),
    infinity("rounded-beyond-range", "a number whose exponent is reduced to five bits", full("large", "1e6") + "  much = f32[64] multiply(q, large)\n  bad = f32[64] reduce-precision(much), exponent_bits=5, mantissa_bits=10\n" + RESULT),
    Case("collectives-by-branch", "even and odd ranks take branches with other collectives", "  id = u32[] partition-id()\n  one = u32[] constant(1)\n  low = u32[] and(id, one)\n  is_odd = pred[] compare(low, one), direction=EQ\n  bad = f32[64] conditional(is_odd, before, before), true_computation=forth, false_computation=back\n  result = f32[64] add(bad, q)", kinds=("apart", "hang"), kernel=None, computations=ORDERS, options=("--timeout", "3s"), **EIGHT),
]

STATE = f"(s32[], f32[64], {MESSAGE})"
PIPELINE = (
    f"\ngoes {{\n  s = {STATE} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  n = s32[] constant(3)\n"
    "  ROOT g = pred[] compare(i, n), direction=LT\n}\n"
    f"\nturn {{\n  t = {STATE} parameter(0)\n  j = s32[] get-tuple-element(t), index=0\n  x = f32[64] get-tuple-element(t), index=1\n"
    f"  open = {MESSAGE} get-tuple-element(t), index=2\n  over = (f32[64], token[]) recv-done(open), channel_id=7\n"
    "  came = f32[64] get-tuple-element(over), index=0\n  after = token[] get-tuple-element(over), index=1\n"
    "  one = s32[] constant(1)\n  k = s32[] add(j, one)\n  y = f32[64] add(came, x)\n"
    f"  next = {MESSAGE} recv(after), {pairs(*RING)}\n  sent = {MESSAGE} send(y, after), {pairs(*RING)}\n"
    "  given = token[] send-done(sent), channel_id=7\n"
    f"  ROOT u = {STATE} tuple(k, y, next)\n}}\n"
)

OTHER_CORRECT = [
    Case("correct-ring", "every rank receives what the previous one sends", TOKEN + take("taken", RING) + send("sent", "before", RING) + recv("taken", "came", RING, takes=False) + "  result = f32[64] add(came, q)", **EIGHT),
    Case("correct-chain", "a chain of ranks, of which the first one gets zeros", TOKEN + recv("taken", "came", CHAIN) + "  more = f32[64] add(came, before)\n" + send("sent", "more", CHAIN) + "  result = f32[64] add(more, q)", **EIGHT),
    Case("correct-pipeline", "a message that is awaited in the next iteration of a loop", TOKEN + f"  open = {MESSAGE} recv(token), {pairs(*RING)}\n  sent = {MESSAGE} send(before, token), {pairs(*RING)}\n  given = token[] send-done(sent), channel_id=7\n  zero = s32[] constant(0)\n  begin = {STATE} tuple(zero, before, open)\n  turns = {STATE} while(begin), condition=goes, body=turn\n  result = f32[64] get-tuple-element(turns), index=1", computations=PIPELINE, **EIGHT),
    Case("correct-ragged", "every rank sends a row to each", own_rows("rows", "before") + "  result = f32[64] add(rows, q)", **EIGHT),
    Case("correct-feeds", "numbers that a host would feed, and others that it would get", TOKEN + "  fed = ((f32[64], s32[2]), token[]) infeed(token)\n  parts = (f32[64], s32[2]) get-tuple-element(fed), index=0\n  some = f32[64] get-tuple-element(parts), index=0\n  next = token[] get-tuple-element(fed), index=1\n  shown = token[] outfeed(before, next), outfeed_shape=f32[64]\n  result = f32[64] add(some, q)"),
    Case("correct-factors", "a Cholesky factor of a positive matrix", "  square = f32[8,8] reshape(before)\n  turned = f32[8,8] transpose(square), dimensions={1,0}\n  product = f32[8,8] dot(square, turned), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  row = s32[8,8] iota(), iota_dimension=0\n  col = s32[8,8] iota(), iota_dimension=1\n  on = pred[8,8] compare(row, col), direction=EQ\n  nine_1 = f32[] constant(9)\n  nines = f32[8,8] broadcast(nine_1), dimensions={}\n  nil_1 = f32[] constant(0)\n  nils = f32[8,8] broadcast(nil_1), dimensions={}\n  diagonal = f32[8,8] select(on, nines, nils)\n  whole = f32[8,8] add(product, diagonal)\n  pair = (f32[8,8], s32[]) custom-call(whole), custom_call_target=\"lapack_spotrf_ffi\", api_version=API_VERSION_TYPED_FFI, backend_config={uplo = 76 : ui8}\n  factor = f32[8,8] get-tuple-element(pair), index=0\n  flat = f32[64] reshape(factor)\n  result = f32[64] add(flat, q)"),
    Case("correct-complex", "a phase that is rotated, and rotated back", "  none = f32[64] subtract(p, p)\n  some = c64[64] complex(none, q)\n  turned = c64[64] exponential(some)\n  back = c64[64] divide(turned, turned)\n  result = f32[64] real(back)"),
    Case("correct-cache", "a custom call that keeps a table from its first call on", call("caches").replace("bad", "made"), options=CUSTOM),
    Case("correct-lock", "a custom call whose threads share a lock", call("shares_a_lock").replace("bad", "made"), options=CUSTOM),
    Case("correct-two-results", "a custom call with two results", '  pair = (f32[64], f32[64]) custom-call(before), custom_call_target="gives_two"\n  one = f32[64] get-tuple-element(pair), index=0\n  two = f32[64] get-tuple-element(pair), index=1\n  result = f32[64] add(one, two)', options=CUSTOM),
    Case("correct-restored-rounding", "a custom call that changes the rounding mode, and restores it", call("rounds_and_restores").replace("bad", "made"), options=CUSTOM),
    Case("correct-subnormals", "subnormal numbers", full("tiny", "1e-40") + "  small = f32[64] multiply(q, tiny)\n  twice = f32[64] add(small, small)\n  result = f32[64] add(twice, q)"),
    Case("correct-nothing", "arrays without elements", "  none = f32[0] slice(before), slice={[0:0]}\n  more = f32[0] exponential(none)\n  result = f32[64] concatenate(more, before), dimensions={0}"),
    Case("correct-division-by-nothing", "integers that are divided by zero", "  some = s32[64] iota(), iota_dimension=0\n  none = s32[64] subtract(some, some)\n  parts = s32[64] divide(some, none)\n  real = f32[64] convert(parts)\n  result = f32[64] add(real, q)"),
    Case("correct-running-sum", "a running sum", "  nil = f32[] constant(0)\n  result = f32[64] reduce-window(before, nil), window={size=64 pad=63_0}, to_apply=add"),
    Case("correct-random-bits", "random bits that become numbers below one", "  state = u64[2] constant({1, 2})\n  made = (u64[2], u32[64]) rng-bit-generator(state), algorithm=rng_three_fry\n  bits = u32[64] get-tuple-element(made), index=1\n  nine_1 = u32[] constant(9)\n  nine = u32[64] broadcast(nine_1), dimensions={}\n  fewer = u32[64] shift-right-logical(bits, nine)\n  one_1 = u32[] constant(1065353216)\n  one = u32[64] broadcast(one_1), dimensions={}\n  joined = u32[64] or(fewer, one)\n  real = f32[64] bitcast-convert(joined)\n  result = f32[64] subtract(real, q)"),
]

# What scripts/test runs of them: some of each kind; scripts/nightly runs all.
SAMPLE = {"nobody-sends", "nobody-takes", "infinity-by-message", "ragged-counts-differ", "infinity-by-ragged-rows", "counts-bytes-as-elements", "frees-twice", "reads-random-bytes", "flushes-subnormals", "complex-division", "running-product"}
CORRECT_SAMPLE = {"correct-ring", "correct-pipeline", "correct-ragged", "correct-feeds", "correct-factors", "correct-cache", "correct-restored-rounding", "correct-nothing"}
