from pathlib import Path

from tests.engine.conftest import two_cores
from tests.engine.load_soak import load_soak
from tests.engine.soak import WARM_PROMPTS, soak


@two_cores
def test_a_fault_in_every_prompt_changes_nothing(tmp_path: Path) -> None:
    """A short one; `make soak` runs two hundred prompts."""
    result = soak(tmp_path, num_prompts=10, seed=1, report=lambda _: None)
    assert result.is_clean, result
    assert sum(result.faults.values()) == 10 < WARM_PROMPTS
    assert result.losses > 0


@two_cores
def test_many_requests_at_once_survive_faults(tmp_path: Path) -> None:
    """A short one; `make soak` runs two thousand requests."""
    result = load_soak(tmp_path, num_requests=40, num_faults=3, seed=1, report=lambda _: None)
    assert result.is_clean, result
    assert result.left > 0
    assert result.preemptions > 0
