from pathlib import Path

import pytest

from swiftspec.artifacts.trace import AcceptanceTrace
from tools.iid_trace import synthesise_trace


def test_synthetic_ranks_have_the_given_shares_and_name_the_targets_token() -> None:
    trace = synthesise_trace((0.6, 0.25), prompt_lengths=(8, 8), num_tokens=20_000, seed=5)
    assert trace.rank_acceptance(2) == pytest.approx([0.6, 0.25], abs=0.01)
    prompt = trace.prompts[0]
    for token, candidates, rank in zip(prompt.target_tokens[:200], prompt.draft.tokens, prompt.ranks, strict=False):
        assert list(candidates).index(token) == rank if rank < 2 else token not in candidates


def test_synthetic_traces_can_be_saved_and_loaded(tmp_path: Path) -> None:
    trace = synthesise_trace((0.6, 0.25), prompt_lengths=(8, 8), num_tokens=4, seed=5)
    trace.save(tmp_path / "trace.npz")
    loaded = AcceptanceTrace.load(tmp_path / "trace.npz")
    assert loaded.source == "synthesised"
    assert all((a.target_tokens == b.target_tokens).all() for a, b in zip(trace.prompts, loaded.prompts, strict=True))


@pytest.mark.parametrize("shares", [(), (0.3, 0.6), (0.8, 0.4), (0.5, 0.0)])
def test_impossible_rank_shares_are_errors(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rank_acceptance is"):
        synthesise_trace(shares, prompt_lengths=(2,), num_tokens=4, seed=0)
