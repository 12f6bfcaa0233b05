"""What a trace foretells: products and elements against counts by hand, bytes against the compiler's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from shoal.run import cost

X, W = jnp.ones((8, 16)), jnp.ones((16, 4))


def test_products_are_counted_with_every_loop_around_them():
    assert cost.of(lambda x, w: x @ w, X, W).flops == 2 * 8 * 16 * 4

    def loop(x, w):
        def step(c, _):
            return (c + (x @ w).sum(), None)

        return jax.lax.scan(lambda c, _: (jax.lax.scan(step, c, length=3)[0], None), 0.0, length=5)[0]

    assert cost.of(loop, X, W).flops == 15 * 2 * 8 * 16 * 4
    assert cost.of(jax.jit(loop), X, W).flops == 15 * 2 * 8 * 16 * 4
    batched = cost.of(jax.vmap(lambda x, w: x @ w, in_axes=(0, None)), jnp.ones((6, 8, 16)), W)
    assert batched.flops == 6 * 2 * 8 * 16 * 4


def test_a_gradient_costs_about_three_times_its_function():
    forward = cost.of(lambda w: jnp.tanh(X @ w).sum(), W).flops
    both = cost.of(jax.value_and_grad(lambda w, x: jnp.tanh(x @ w).sum(), argnums=(0, 1)), W, X).flops
    assert both == 3 * forward


def test_a_branch_counts_as_the_dearest_and_a_convolution_as_its_products():
    def choose(flag, x, w):
        return jax.lax.cond(flag, lambda: (x @ w).sum(), lambda: x.sum())

    assert cost.of(choose, True, X, W).flops == 2 * 8 * 16 * 4
    image, kernel = jnp.ones((2, 9, 9, 3)), jnp.ones((3, 3, 3, 5))

    def convolve(i, k):
        return jax.lax.conv_general_dilated(i, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    assert cost.of(convolve, image, kernel).flops == 2 * (2 * 9 * 9 * 5) * (3 * 3 * 3)


def test_elements_and_operations_by_hand():
    one = cost.of(lambda x: jnp.tanh(x) * 2.0 + 1.0, jnp.ones(100))
    assert (one.elements, one.operations) == (300, 3)
    assert cost.of(lambda x: x.sum(axis=0), jnp.ones((10, 7))).elements == 70
    many = cost.of(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=50)[0], jnp.ones(10))
    assert (many.elements, many.operations) == (500, 50)


@pytest.mark.parametrize("length", [10, 1000])
def test_bytes_cover_what_the_compiler_needs(length):
    def program(x):
        _, kept = jax.lax.scan(lambda c, _: (c * 0.9, jnp.sin(c)), x, length=length)
        return kept.sum(axis=0)

    x = jnp.ones(1000)
    sizes = jax.jit(program).lower(x).compile().memory_analysis()
    needed = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    foretold = cost.of(program, x).peak
    assert 0.5 * needed <= foretold <= 4 * needed
    assert foretold >= 4 * 1000 * length


def test_seconds_grow_with_each_kind_of_work():
    rates = cost.Rates()
    assert rates.seconds(cost.Cost(flops=1e6)) > 0
    assert rates.seconds(cost.Cost(elements=1e6)) > rates.seconds(cost.Cost(flops=1e6))
    assert rates.seconds(cost.Cost(peak=1e12)) == 0
