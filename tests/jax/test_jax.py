"""halflap.jax with real JAX, on eight devices of this host: the same numbers, whatever is sharded
how.

Needs jax and the wheel; scripts/test makes an environment with both. Without jax there is nothing
to test.
"""

import os
import pathlib
import runpy
import subprocess
import sys

import pytest

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
# The folder of this file is called jax, too: what is in it tells them apart.
pytest.importorskip("jax.numpy")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import halflap  # noqa: E402
import halflap.jax  # noqa: E402

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "jax_fsdp.py"


def close(ours, theirs, tolerance=1e-5):
    """The same tree, and the same numbers, measured by the largest of an array: terms cancel."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for ours, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        np.testing.assert_allclose(
            ours, theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max()
        )


def sharding(*spec, shape=(8,), names=("a",), reverse=False):
    devices = np.array(jax.devices())
    devices = devices[::-1] if reverse else devices
    return NamedSharding(Mesh(devices.reshape(shape), names), PartitionSpec(*spec))


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def test_the_example_computes_what_jax_does(example):
    model, x = example["placed"]()
    module = halflap.jax.lower(jax.jit(example["step"]), model, x)
    assert module.ranks == 8
    expected = jax.jit(example["step"])(model, x)
    schedule = halflap.schedule(module, device="h100")
    assert (
        schedule.step_time < schedule.step_time_before
        and schedule.peak_memory <= schedule.peak_memory_before
    )
    close(module.run(model, x, order=schedule).value, expected)
    close(module.run(model, x, options={"input_order": True}).value, expected)


def test_orders_are_tried(example, tmp_path):
    model, x = example["placed"]()
    module = halflap.jax.lower(jax.jit(example["step"]), model, x)
    order = tmp_path / "order.json"
    options = {"tune": "1s", "effort": "quick", "memory_budgets": [1.0, "2x"], "order_out": order}
    ran = module.run(model, x, options=options)
    assert "chosen" in str(ran)
    again = module.run(model, x, order=order)
    assert all(
        (a == b).all() for a, b in zip(jax.tree.leaves(ran.value), jax.tree.leaves(again.value))
    )
    with pytest.raises(halflap.BadInput, match="cannot be used with"):
        module.run(model, x, order=order, options={"tune": True})


def test_the_example_runs_as_it_is(tmp_path):
    page = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--report", page], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    difference = float(done.stdout.rsplit("outputs:", 1)[1])
    assert difference < 1e-5
    assert "<html" in page.read_text()


def test_shapes_are_enough_to_look_at_a_program(example):
    model, x = example["placed"]()
    shapes = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding),
        (model, x),
    )
    module = halflap.jax.lower(example["step"], *shapes)
    assert "all-gather" in module.text
    explained = halflap.explain(module, device="h100")
    assert explained.collectives and "jax_fsdp.py" in str(explained)
    assert "<html" in halflap.report(module, device="h100").html


def test_both_stages_compute_the_same(example):
    model, x = example["placed"]()
    expected = jax.jit(example["step"])(model, x)
    module = halflap.jax.lower(jax.jit(example["step"]), model, x, stage="optimized")
    assert "fusion" in module.text
    close(module.run(model, x).value, expected)


def function(weights, x, unused, *, scale):
    """Collectives over both axes, whole numbers, bf16, and an argument that is left out."""
    y = jnp.tanh(x @ weights["a"]) @ weights["b"]
    return {
        "y": y * scale,
        "sum": y.sum(),
        "count": (x > 0).sum(),
        "half": (y[:8, :8]).astype(jnp.bfloat16),
    }


@pytest.mark.parametrize("reverse", [False, True])
def test_ranks_hold_the_parts_that_jax_says(reverse):
    grid = dict(shape=(4, 2), names=("a", "b"), reverse=reverse)
    random = np.random.default_rng(0)
    draw = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    weights = {
        "a": jax.device_put(draw(16, 32), sharding(None, ("a", "b"), **grid)),
        "b": jax.device_put(draw(32, 16), sharding("b", None, **grid)),
    }
    x = jax.device_put(draw(32, 16), sharding("a", None, **grid))
    jitted = jax.jit(function)
    module = halflap.jax.lower(jitted, weights, x, jnp.ones(3), scale=jnp.float32(2))
    ran = module.run(weights, x, np.ones(3, np.float32), scale=np.float32(2))
    expected = jitted(weights, x, jnp.ones(3), scale=jnp.float32(2))
    close(
        {name: value for name, value in ran.value.items() if name != "half"},
        {name: value for name, value in expected.items() if name != "half"},
    )
    close(ran.value["half"], expected["half"], 1e-2)
    # Each rank's parts, too: a whole array is put together from the last that holds a part.
    for leaf, array in enumerate(jax.tree.leaves(expected)):
        for shard in array.addressable_shards:
            rank = module._devices.index(shard.device)
            tolerance = 1e-2 if array.dtype == jnp.bfloat16 else 1e-5
            close(ran.ranks[rank][leaf], np.asarray(shard.data), tolerance)


def test_arguments_of_another_form_are_refused(example):
    model, x = example["placed"]()
    module = halflap.jax.lower(jax.jit(example["step"]), model, x)
    with pytest.raises(halflap.BadInput, match="the function takes"):
        module.run(x, model)
    with pytest.raises(halflap.BadInput, match="in_008_r0"):
        module.run(model, np.asarray(x, np.float64).astype(np.float16))


def test_random_keys_are_arguments_and_no_results():
    def draw(key, x):
        return x + jax.random.normal(key, x.shape)

    x, key = jax.device_put(np.zeros((16, 4), np.float32), sharding("a")), jax.random.key(3)
    close(halflap.jax.lower(jax.jit(draw), key, x).run(key, x).value, jax.jit(draw)(key, x))
    split = halflap.jax.lower(jax.jit(lambda key, x: (jax.random.split(key), x.sum())), key, x)
    with pytest.raises(halflap.BadInput, match="key_data"):
        split.run(key, x)


def test_a_function_on_one_device_is_told_apart():
    with pytest.raises(halflap.BadInput, match="stage='optimized'"):
        halflap.jax.lower(jax.jit(lambda x: x + 1), jnp.ones(4))
    module = halflap.jax.lower(jax.jit(lambda x: x + 1), jnp.ones(4), stage="optimized")
    close(module.run(jnp.ones(4)).value, jnp.ones(4) + 1)


def test_an_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="partitioned, optimized"):
        halflap.jax.lower(jax.jit(lambda x: x), jnp.ones(4), stage="before")
