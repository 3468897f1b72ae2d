import numpy as np

from swiftspec.simulator.random_streams import uniforms


def test_draws_are_the_generators_own() -> None:
    draw = uniforms((7, 1))
    assert [draw() for _ in range(200)] == np.random.default_rng((7, 1)).random(200).tolist()


def test_draws_continue_a_generator() -> None:
    rng, twin = np.random.default_rng(3), np.random.default_rng(3)
    assert rng.random() == twin.random()
    assert uniforms(rng)() == twin.random()
