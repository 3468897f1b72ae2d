import numpy as np

from swiftspec.simulator.random_streams import uniforms


def test_draws_are_the_generators_own() -> None:
    draw = uniforms((7, 1))
    assert [draw() for _ in range(200)] == np.random.default_rng((7, 1)).random(200).tolist()


def test_a_stream_begins_anew_each_time() -> None:
    first, again, other = uniforms((7, 1)), uniforms([7, 1]), uniforms((7, 2))
    drawn = [first() for _ in range(200)]
    assert [again() for _ in range(200)] == drawn
    assert [other() for _ in range(200)] != drawn
