from pathlib import Path

from tests.engine.conftest import two_cores
from tests.engine.soak import WARM_PROMPTS, soak


@two_cores
def test_a_fault_in_every_prompt_changes_nothing(tmp_path: Path) -> None:
    """A short one; `make soak` runs two hundred prompts."""
    result = soak(tmp_path, num_prompts=10, seed=1, report=lambda _: None)
    assert result.is_clean, result
    assert sum(result.faults.values()) == 10 < WARM_PROMPTS
    assert result.losses > 0
