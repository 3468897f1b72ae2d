import pytest

from swiftspec.policies import POLICIES, Request
from swiftspec.policies.effects import Prefill, Role
from swiftspec.policies.scoring import PromptScoring


def pieces(num_tokens: int) -> list[Prefill]:
    request = Request(prompt=tuple(range(num_tokens)), max_new_tokens=1)
    found = list(PromptScoring(num_candidates=3).programs(request)[Role.TARGET])
    assert all(isinstance(piece, Prefill) for piece in found)
    return [piece for piece in found if isinstance(piece, Prefill)]


@pytest.mark.parametrize("num_tokens", [1, 2, 128, 129, 130, 300])
def test_every_token_but_the_first_is_scored_once_and_the_last_is_not_computed(num_tokens: int) -> None:
    found = pieces(num_tokens)
    assert [token for piece in found for token in piece.tokens] == list(range(num_tokens - 1))
    assert [token for piece in found for token in piece.scored] == list(range(1, num_tokens))
    assert [piece.position for piece in found] == list(range(0, num_tokens - 1, 128))
    assert {len(piece.tokens) - len(piece.scored) for piece in found} <= {0}


def test_a_part_of_a_prefill_keeps_what_is_scored_beside_its_tokens() -> None:
    whole = Prefill(Role.TARGET, (1, 2, 3, 4), 7, scored=(2, 3, 4, 5), num_candidates=2)
    assert whole.part(1, 2) == Prefill(Role.TARGET, (2, 3), 8, scored=(3, 4), num_candidates=2)
    assert Prefill(Role.DRAFT, (1, 2, 3)).part(2, 1) == Prefill(Role.DRAFT, (3,), 2)


def test_it_is_no_policy_that_plans_may_choose() -> None:
    assert PromptScoring.name not in POLICIES


def test_a_negative_number_of_candidates_is_refused() -> None:
    with pytest.raises(ValueError, match="num_candidates is -1; expected at least 0"):
        PromptScoring(num_candidates=-1)
