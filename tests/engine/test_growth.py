from tests.engine.conftest import two_cores
from tests.engine.growth import WARM_PROMPTS, grow


@two_cores
def test_no_process_grows_with_prompts_of_varied_lengths() -> None:
    """A short one; `make soak` runs five hundred prompts."""
    grown = grow(num_prompts=4 * WARM_PROMPTS, max_new_tokens=8, seed=0, report=lambda _: None)
    assert grown.requests == 4 * WARM_PROMPTS
    assert grown.is_clean, grown
