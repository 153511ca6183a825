"""Faults and correct programs in modules as XLA's CPU compiler writes them after optimisation, with
fusions, loops and branches: `programs.py` has the programs, `optimised` the modules. What differs
between a faulty and a correct one are often only its inputs."""

import dataclasses
import math
import pathlib
import re
import struct

from cases import Case, npy

FOLDER = pathlib.Path(__file__).resolve().parent / "optimised"
FORMS = {"f32": ("<f4", "f"), "f16": ("<f2", "e"), "s32": ("<i4", "i"), "bf16": ("|V2", "H")}
INF, NAN = math.inf, math.nan


@dataclasses.dataclass(frozen=True)
class Optimised(Case):
    """A case whose module is a file; `edits` replace parts of its text."""

    program: str = ""
    edits: tuple = ()

    def text(self, ranks):
        text = (FOLDER / f"{self.program}.txt").read_text()
        for old, new in self.edits:
            assert old in text, f"{self.name}: {old}"
            text = text.replace(old, new)
        return text


def parameters(text):
    """The type and dimensions of each parameter of the entry."""
    entry = text[text.index("\nENTRY") :]
    found = re.findall(r"= (\w+)\[([\d,]*)\]\S* parameter\((\d+)\)", entry)
    found.sort(key=lambda one: int(one[2]))
    return [(kind, [int(dim) for dim in dims.split(",") if dim]) for kind, dims, _ in found]


def usual(kind, argument, size):
    """Numbers between -1 and 1, or indices that are in range everywhere."""
    if kind == "s32":
        return [place % 7 for place in range(size)]
    return [math.sin(1.7 * place + argument) or 0.5 for place in range(size)]


def array(kind, dims, values):
    descr, form = FORMS[kind]
    if kind == "bf16":
        values = [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in values]
    shape = "(" + "".join(f"{dim}, " for dim in dims) + ")"
    return npy(values, descr, form, shape)


def inputs(text, given):
    """The inputs of all ranks: `given` has, for some parameters, their elements or how they depend
    on the rank and on the usual ones."""

    def of_ranks(ranks):
        arrays = {}
        for rank in range(ranks):
            for number, (kind, dims) in enumerate(parameters(text)):
                values = usual(kind, number, math.prod(dims))
                change = given.get(number)
                values = change(rank, values) if callable(change) else change or values
                arrays[f"in_{number:03}_r{rank}"] = array(kind, dims, values)
        return arrays

    return of_ranks


def case(name, what, program, given=None, **more):
    made = Optimised(name, what, "", program=program, **more)
    several = "num_partitions=8" in made.text(1)
    many = inputs(made.text(1), given or {})
    return dataclasses.replace(made, inputs=many, ranks=(8,) if several else (1,))


def fault(name, what, program, kernel, given=None, kinds=("infinity",), **more):
    return case(name, what, program, given, kernel=kernel, kinds=kinds, **more)


def noted(name, what, program, note, given=None, **more):
    """An index out of range."""
    return case(name, what, program, given, note=note, kernel=None, **more)


def all_of(number):
    return lambda rank, usual: [number] * len(usual)


def times(factor):
    return lambda rank, usual: [factor * number for number in usual]


def with_one(place, number, on=None):
    """The usual elements, but one; on one rank, or on all."""

    def changed(rank, usual):
        if on not in (None, rank):
            return usual
        return usual[:place] + [number] + usual[place + 1 :]

    return changed


def only_on(rank_at, values):
    """What one rank has; the others have ones."""
    return lambda rank, usual: values(rank, usual) if rank == rank_at else [1.0] * len(usual)


def positive(rank, usual):
    return [abs(number) + 0.1 for number in usual]


#: Row 2 of eight rows of 16 is the same number throughout.
def flat_row(number):
    return lambda rank, usual: usual[:32] + [number] * 16 + usual[48:]


EMPTY = lambda rank, usual: [0.0] * len(usual) if rank == 2 else [1.0] * len(usual)  # noqa: E731
PAIRED = lambda rank, usual: [0.0 if rank in (4, 5) else 1.0] * len(usual)  # noqa: E731
EVERY = "replica_groups={{0,1,2,3,4,5,6,7}}"
PAIRS = "replica_groups={{0,1},{2,3},{4,5},{6,7}}"
NOT_A_NUMBER = ("nan", "infinity")
START = "%copy.10 = s32[] copy(%constant.8.clone.1)"
OWN_START = (START, "%number = u32[] partition-id()\n  %copy.10 = s32[] convert(%number)")

OPTIMISED_FAULTS = [
    # Indices.
    noted("token-beyond-the-table", "a token that the table of a fused gather has no row for", "embedding", ("'add_bitcast_fusion' on rank 0", "index 19", "0 to 15"), {1: with_one(5, 19)}),
    noted("token-beyond-in-a-sum", "a token beyond the table, in a fusion that sums its rows", "embedding_sum", ("'multiply_reduce_fusion' on rank 0", "index 16", "0 to 15"), {1: with_one(2, 16)}),
    noted("negative-token-too-far", "a negative index that wraps around to one that is still negative", "embedding", ("'add_bitcast_fusion'", "index -4", "0 to 15"), {1: with_one(0, -20)}),
    noted("window-past-the-end", "a slice in a fused loop body that reaches past the end in its last iteration", "windows_by_three", ("'concatenate_add_fusion' on rank 0, iteration 5", "index 15", "0 to 14")),
    noted("cache-past-its-end", "an update of a cache in a fused loop body that does not fit in the last iteration", "cache_by_three", ("'select_dynamic-update-slice_fusion' on rank 0, iteration 5", "index 15", "0 to 14")),
    noted("token-beyond-in-a-loop", "a token beyond the table, in the fourth microbatch", "lookups_in_a_loop", ("'bitcast_add_fusion' on rank 0, iteration 3", "index 40", "0 to 15"), {1: with_one(3 * 8 + 1, 40)}),
    noted("token-beyond-in-a-branch", "a token beyond the table, in a branch", "lookup_in_a_branch", ("'sine_bitcast_fusion' on rank 0", "index 99", "0 to 15"), {0: all_of(1.0), 1: with_one(7, 99)}),
    noted("part-of-the-last-rank", "each rank takes its part of a table, which is too short for those of the last ones", "part_by_rank", ("'sine_multiply_fusion' on rank 5", "index 15", "0 to 14")),
    noted("token-of-one-rank", "a token of rank 6 beyond the table", "embedding_on_ranks", ("'add_bitcast_fusion' on rank 6", "index 31", "0 to 15"), {1: with_one(3, 31, on=6)}),
    noted("update-that-is-dropped", "a scatter whose index is far beyond its array", "scatter_dropped", ("'wrapped_scatter' on rank 0", "index 77", "0 to 15"), {1: with_one(3, 77)}),
    fault("label-beyond-the-classes", "a label that is no class, which JAX fills with NaN, in a loss", "cross_entropy", "multiply_negate_fusion", {1: with_one(4, 16)}, kinds=("nan",), says=("is given index 16 (of input 'labels.1')",)),
    # NaN that mark elements, and are then summed.
    fault("mean-of-marked-elements", "a mean over elements of which NaN marks some", "marked_mean", "wrapped_reduce-window", kinds=("nan",)),
    fault("token-filled-into-a-product", "a token beyond the table, which JAX fills with NaN, in a product of matrices", "filled_product", "broadcast_select_fusion", {1: with_one(4, 16)}, kinds=("nan",), says=("is given index 16 (of input 'tokens.1')", "0 to 15", "'ynn_fusion' combines")),
    fault("token-filled-into-an-average", "a token beyond the table, which JAX fills with NaN, in a product and an average", "filled_and_averaged", "broadcast_select_fusion", {1: with_one(6, -30)}, kinds=("nan",), says=("is given index -14 (of input 'tokens.1')", "0 to 15")),
    fault("token-filled-in-a-loop", "a token beyond the table in the fourth iteration, which JAX fills with NaN", "filled_in_a_loop", "add_bitcast_fusion", {1: with_one(3, 21)}, kinds=("nan",), iteration=(3,), says=("iteration 3 is given index 21", "0 to 15")),
    noted("token-filled-into-a-result", "a token beyond the table, which JAX fills with NaN, in a result", "filled_result", ("result 0", "is given index 16 (of input 'tokens.1')", "0 to 15"), {1: with_one(4, 16)}),
    # Comparisons of NaN.
    noted("argmax-of-nan", "the place of the largest of some roots, of which one is NaN", "greedy", ("makes NaN", "'reduce.2' in 'iota_reduce_fusion' compares it"), {0: lambda rank, usual: [abs(number) for number in usual[:63]] + [-1.0]}),
    noted("comparison-of-nan", "logarithms of negative numbers, which a condition compares", "compared_logarithm", ("'log.0' in 'broadcast_select_fusion'", "makes NaN", "'gt.0' in 'broadcast_select_fusion' compares it")),
    # Loops.
    fault("counter-that-goes-down", "a counter that goes down where it should go up to ten", "counted_down_from_zero", "while.2", kinds=("hang",), says=("element 0", "begins at 0 and changes by -1", "less than 10", "2147483649 iterations")),
    fault("counter-that-leaves-its-input", "a counter that goes down, while it is less than an input", "counted_down", "while.0", {1: all_of(12)}, kinds=("hang",), says=("changes by -1", "less than 12")),
    fault("failed-factor-in-a-fusion", "a Cholesky factor of a matrix that is not positive definite, which a fusion replaces", "factor", "broadcast_select_fusion", {1: all_of(-9.0)}, kinds=("nan",)),
    # Numbers.
    fault("softmax-without-its-maximum", "exponentials of large scores that are not shifted", "softmax_of_large", "multiply_exponential_fusion", {0: positive, 1: all_of(10.0)}),
    fault("variance-of-a-constant-row", "a row of equal numbers, normalised without an epsilon", "layer_norm", "multiply_rsqrt_fusion", {0: flat_row(0.5)}),
    fault("norm-of-a-row-of-zeros", "a row of zeros, divided by its norm", "unit_rows", "reduce_rsqrt_fusion", {0: flat_row(0.0)}),
    fault("entropy-of-zero", "a probability that underflows, times its logarithm", "entropy", "reduce_negate_fusion", {0: times(400.0)}, kinds=NOT_A_NUMBER),
    fault("logarithm-of-what-is-no-mask", "the logarithm of an input that should be a mask, and is zero but for two halves", "log_of_given_mask", "log_add_fusion", {1: lambda rank, usual: [0.5, 0.5] + [0.0] * 62}),
    fault("logarithm-of-zeros-alone", "the logarithm of an input of zeros", "log_of_given_mask", "log_add_fusion", {1: all_of(0.0)}),
    fault("square-in-half-precision", "squares that f16 cannot hold", "half_squares", "multiply_convert_fusion", {0: with_one(9, 300.0)}),
    fault("products-in-bfloat", "products that bf16 cannot hold", "bfloat_product", "add_convert_fusion", {0: with_one(9, 1e19), 1: all_of(10.0)}),
    fault("activations-that-explode", "activations that are squared in every iteration", "exploding", "wrapped_multiply", {0: all_of(2.0), 1: all_of(1.0)}, iteration=(4,)),
    fault("gradient-that-explodes", "a gradient that grows in every step of a recurrence", "exploding_gradient", None, {0: all_of(3000.0), 1: all_of(2.0)}),
    fault("step-without-epsilon", "an optimiser's step with a second moment of zero", "adam", None, {2: lambda rank, usual: [0.0] + [1.0] * 63}),
    fault("sum-of-underflows", "the logarithm of a sum of exponentials that all underflow", "naive_logsumexp", "log_multiply_fusion", {0: all_of(-30.0)}),
    fault("root-of-a-rounded-cosine", "the root of one minus the square of a cosine just above one", "distance", "broadcast_multiply_fusion", {0: with_one(9, 1.001), 1: all_of(1.0)}, kinds=("nan",)),
    fault("gradient-of-a-guarded-root", "the gradient of a root that a select guards: zero times an infinity", "guarded_root", "multiply_multiply_fusion", {0: with_one(9, 0.0)}, kinds=NOT_A_NUMBER),
    fault("row-without-keys", "attention of a row that is masked throughout", "padded_attention", "subtract_exponential_fusion", {2: lambda rank, usual: [8.0, 8.0, 0.0] + [8.0] * 5}, kinds=("nan",)),
    # Inside of fusions and loops.
    fault("logarithm-inside-of-a-fusion", "logarithms of negative numbers, which a fusion multiplies", "log_in_a_sum", "log_multiply_fusion", {0: positive}, kinds=("nan",), instruction="log.0"),
    fault("infinity-inside-of-a-fusion", "an exponential that overflows, times zero in the same fusion", "large_times_zero", "broadcast_add_fusion", {0: all_of(20.0), 1: positive}, instruction="exp.0", says=("'mul.0' in 'broadcast_add_fusion' makes NaN",)),
    fault("root-from-the-sixth-iteration-on", "roots of negative numbers from the sixth iteration on, in a fusion that adds them up", "roots_in_a_loop", "select_add_fusion", kinds=("nan",), instruction="sqrt.5", iteration=(5,)),
    fault("median-of-roots", "a median, which is NaN where it looks for NaN and finds some", "median_of_roots", None, kinds=("nan",), says=("'sqrt.",)),
    noted("function-outside-of-its-domain", "an inverse hyperbolic tangent of 1.5, for which a select puts NaN", "outside_of_its_domain", ("'atanh.55' in 'select_add_fusion'", "iteration 3", "first at [9]"), {1: with_one(9, 1.5)}),
    # Ranks.
    fault("mean-of-nothing-on-a-rank", "rank 2 keeps no element of those that it averages", "mean_of_kept", "reduce_divide_fusion", {1: EMPTY}, kinds=("nan",), rank=2),
    fault("mean-in-wrong-groups", "sums over pairs of ranks instead of over all, of which one pair has nothing", "mean_over_ranks", "wrapped_divide", {1: PAIRED}, kinds=("nan",), rank=4, edits=((EVERY, PAIRS),)),
    fault("gradient-of-one-rank-overflows", "a gradient of rank 3 whose square overflows before ranks sum", "gradient_norm", "wrapped_multiply", {0: with_one(20, 1e30, on=3)}, rank=3),
    fault("nan-input-of-one-rank", "an input of rank 5 with a NaN, which a fusion reads first", "gradient_norm", None, {0: with_one(20, NAN, on=5)}, kinds=("nan",), rank=5, buffer="param.2"),
    fault("temperature-of-one-rank", "a temperature of rank 6 that makes exponentials overflow", "tempered", "multiply_exponential_fusion", {0: positive}, rank=6),
    fault("turns-of-other-lengths", "ranks that sum in each iteration of a loop, of which each runs one less than the one before", "sums_by_turns", "psum.7", kinds=("apart", "hang"), options=("--timeout", "3s"), edits=(OWN_START,)),
    # Wrong inputs.
    case("tokens-as-floats", "tokens as floating-point numbers", "embedding", kernel=None, kinds=("wrong-input",)),
    case("table-turned", "a table with its dimensions the other way round", "embedding", kernel=None, kinds=("wrong-input",)),
]

OPTIMISED_CORRECT = [
    case("correct-tokens", "tokens that are rows of the table", "embedding", {1: with_one(5, 15)}),
    case("correct-negative-tokens", "negative indices that count from the end", "embedding", {1: with_one(5, -16)}),
    case("correct-clipped-tokens", "tokens beyond the table that the program clips", "embedding_clipped", {1: with_one(5, 99)}),
    case("correct-filled-tokens", "tokens beyond the table, whose rows the program fills with zeros", "embedding_filled", {1: with_one(5, 99)}),
    case("correct-windows", "slices in a fused loop body that fit", "windows_by_two"),
    case("correct-fused-cache", "updates of a cache in a fused loop body that fit", "cache_by_two"),
    case("correct-lookups-in-a-loop", "tokens of all microbatches that are rows of the table", "lookups_in_a_loop"),
    case("correct-clamped-slice", "a slice whose start the program clamps", "clamped_slice", {2: all_of(40)}),
    case("correct-other-branch", "a token beyond the table, in the branch that is not taken", "lookup_in_a_branch", {0: all_of(-1.0), 1: with_one(7, 99)}),
    case("correct-dropped-updates", "updates one past the end, where a program puts those that it drops", "scatter_dropped", {1: with_one(3, 16)}),
    case("correct-marks", "NaN in a result, which a fusion puts where a mask says so", "marked"),
    case("correct-mean-of-unmarked", "a mean that leaves out the elements that NaN marks", "nan_aware_mean"),
    case("correct-marks-in-a-branch", "NaN that a fusion in a branch marks elements with", "marked_in_a_branch", {0: positive}),
    case("correct-rows-filled-in-turn", "an array of NaN that a loop fills, except for its end", "filled_up"),
    case("correct-masked-scores-in-a-loop", "infinities and NaN that fusions in a loop body mask and mark with", "masked_scores_in_a_loop"),
    case("correct-factor-in-a-fusion", "a Cholesky factor of a good matrix", "factor", {1: lambda rank, usual: [9.0 * (place % 9 == 0) for place in range(64)]}),
    case("correct-causal-attention", "scores that a fusion masks with infinities", "causal_attention"),
    case("correct-padded-attention", "attention of rows of which each has a key", "padded_attention", {2: lambda rank, usual: [8.0, 1.0, 3.0] + [8.0] * 5}),
    case("correct-blockwise-attention", "a running maximum that begins at minus infinity, in a loop", "blockwise_attention"),
    case("correct-least-over-ranks", "a minimum over ranks of which one has infinities alone", "least_of_ranks", {0: lambda rank, usual: [-1.0] * 64 if rank == 2 else usual}),
    case("correct-doubly-guarded-root", "the gradient of a root that is guarded on both sides", "doubly_guarded_root", {0: with_one(9, 0.0)}),
    case("correct-mean-over-ranks", "a mean over ranks of which some keep nothing", "mean_over_ranks", {1: PAIRED}),
    case("correct-log-of-mask", "scores to which the logarithm of a mask of booleans is added", "log_of_mask"),
    case("correct-log-of-given-mask", "scores to which the logarithm of an input of zeros and ones is added", "log_of_given_mask", {1: lambda rank, usual: [float(place % 3 > 0) for place in range(64)]}),
    case("correct-filled-average", "tokens that are rows of the table, in a product and an average", "filled_and_averaged", {1: with_one(6, -16)}),
    case("correct-filled-in-a-loop", "tokens that are rows of the table, in a loop", "filled_in_a_loop", {1: with_one(3, 15)}),
    case("correct-argmax-without-nan", "the place of the largest root, without those that are NaN", "argmax_without_nan", quiet=True),
    case("correct-guarded-logarithm", "logarithms of which a select keeps those of positive numbers", "guarded_logarithm", quiet=True),
    case("correct-count-up", "a counter that goes up to an input", "counted_up", {1: all_of(12)}),
    case("correct-count-of-nothing", "a counter that goes down, and is not less than an input at once", "counted_down", {1: all_of(0)}),
    case("correct-counts-in-parts", "counts in a table of which each rank has a part, and drops the others' updates", "counts_in_parts", {1: lambda rank, usual: [(rank * 16 + 5 * place) % 128 for place in range(len(usual))]}),
    case("correct-small-scores", "a softmax without its maximum, of small scores", "softmax_of_large", {1: all_of(0.01)}),
]


def other(name, number, kind, dims):
    """An input of another type or shape."""
    found = next(one for one in OPTIMISED_FAULTS if one.name == name)
    size = math.prod(dims)

    def changed(ranks):
        arrays = inputs(found.text(1), {})(ranks)
        return arrays | {f"in_{number:03}_r0": array(kind, dims, usual(kind, number, size))}

    return dataclasses.replace(found, inputs=changed)


WRONG = {"tokens-as-floats": (1, "f32", [8]), "table-turned": (0, "f32", [4, 16])}
OPTIMISED_FAULTS = [
    other(one.name, *WRONG[one.name]) if one.name in WRONG else one for one in OPTIMISED_FAULTS
]

# Those that the tests run; bench/faults.py runs all.
OPTIMISED_SAMPLE = {
    "token-beyond-the-table", "cache-past-its-end", "token-of-one-rank", "label-beyond-the-classes",
    "token-filled-into-an-average", "token-filled-in-a-loop", "token-filled-into-a-result",
    "argmax-of-nan", "comparison-of-nan", "counter-that-goes-down", "counter-that-leaves-its-input", "logarithm-of-what-is-no-mask",
    "logarithm-inside-of-a-fusion", "infinity-inside-of-a-fusion", "root-from-the-sixth-iteration-on",
    "median-of-roots", "function-outside-of-its-domain", "mean-of-marked-elements", "activations-that-explode", "mean-in-wrong-groups",
}  # fmt: skip
OPTIMISED_CORRECT_SAMPLE = {
    "correct-clipped-tokens", "correct-filled-tokens", "correct-windows", "correct-marks-in-a-branch",
    "correct-counts-in-parts", "correct-log-of-mask", "correct-log-of-given-mask", "correct-filled-average",
    "correct-argmax-without-nan", "correct-guarded-logarithm", "correct-count-up", "correct-count-of-nothing",
    "correct-rows-filled-in-turn", "correct-mean-of-unmarked", "correct-blockwise-attention",
}  # fmt: skip
