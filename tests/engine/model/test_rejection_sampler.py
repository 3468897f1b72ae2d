from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from swiftspec.engine.model.sampling.rejection_sampler import Proposal, RejectionSampler, accept, drawn
from swiftspec.engine.model.sampling.sampler import Floats, Sampler, gumbel, stream
from swiftspec.policies import POLICIES, Layout, Request, make_policy
from swiftspec.policies.chains.serial import SerialChain, SerialTree
from swiftspec.policies.effects import Role, Row
from tests.engine.tables import Pair, TableModel, random_pair, random_table
from tools import run_alone

pytestmark = pytest.mark.usefixtures("one_thread")

RESIDUAL = Sampler(temperature=1.0, acceptance="residual")
FOLLOW = replace(RESIDUAL, acceptance="follow")
NONE = frozenset[int]()


def shares(*values: float) -> Floats:
    return np.array(values, dtype=np.float32)


def proposal(*tokens: int) -> Proposal:
    return Proposal(tokens, shares(0.5, 0.3, 0.2))


def draw(rows: torch.Tensor, num_tokens: int) -> list[tuple[int, ...]]:
    noise = torch.from_numpy(gumbel(stream(0, 0), tuple(rows.shape)))
    return [candidates.tokens for candidates in drawn(rows, rows.log() + noise, num_tokens)]


def test_candidates_are_drawn_without_replacement() -> None:
    rows = torch.tensor([0.5, 0.3, 0.2]).expand(20_000, -1)
    counts = Counter(draw(rows, 2))
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    wanted = [0.5 * 0.3 / 0.5, 0.5 * 0.2 / 0.5, 0.3 * 0.5 / 0.7, 0.3 * 0.2 / 0.7, 0.2 * 0.5 / 0.8, 0.2 * 0.3 / 0.8]
    assert counts.keys() == set(pairs)
    assert chisquare([counts[pair] for pair in pairs], [20_000 * share for share in wanted]).pvalue > 1e-3


def test_no_more_candidates_than_the_draft_finds_possible() -> None:
    first, second = draw(torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]), 5)
    assert first == (1,)
    assert set(second) == {0, 2}


def test_a_token_the_target_likes_as_much_as_the_draft_is_accepted() -> None:
    assert all(accept(shares(0.5, 0.2, 0.3), proposal(0), {0}, stream(seed, 0))[0] == 0 for seed in range(50))


def test_acceptance_is_the_ratio_of_the_shares() -> None:
    accepted = [accept(shares(0.2, 0.4, 0.4), proposal(0), {0}, stream(seed, 0))[0] == 0 for seed in range(4000)]
    assert np.mean(accepted) == pytest.approx(0.2 / 0.5, abs=4 * (0.4 * 0.6 / 4000) ** 0.5)


def test_what_is_left_after_rejections_is_the_residual() -> None:
    token, left = accept(shares(0.0, 0.4, 0.6), proposal(0), {0}, stream(0, 0))
    assert token is None
    assert left == pytest.approx([0.0, 0.1 / 0.5, 0.4 / 0.5])
    token, left = accept(shares(0.0, 0.0, 1.0), proposal(0, 1), {0, 1}, stream(0, 0))
    assert token is None
    assert left == pytest.approx([0.0, 0.0, 1.0])


def test_a_candidate_that_is_not_verified_is_only_out_of_the_draw() -> None:
    """Behind token 0, token 1 had a share of 0.3 / 0.5; the target's shares are as they were."""
    target = shares(0.4, 0.3, 0.3)
    accepted = [accept(target, proposal(0, 1), {1}, stream(seed, 0))[0] == 1 for seed in range(4000)]
    assert np.mean(accepted) == pytest.approx(0.3 / 0.6, abs=4 * (0.25 / 4000) ** 0.5)
    token, left = accept(target, proposal(0, 1, 2), set(), stream(0, 0))
    assert token is None
    assert left == pytest.approx(target)


def test_a_rejection_by_rounding_leaves_something_to_draw_from() -> None:
    sure = shares(0.0, 1.0, 0.0)
    token, left = accept(sure, Proposal((1,), sure), {1}, Mock(random=lambda: 1.0))
    assert token is None
    assert left == pytest.approx(sure)


def test_book_finds_proposals_by_path_and_forgets_what_the_draft_drops() -> None:
    book, (first, second, third) = RejectionSampler(RESIDUAL), (proposal(token) for token in range(3))
    book.prefill(Role.TARGET, (7, 8))
    book.prefill(Role.DRAFT, (7, 8))
    book.enter((Row(1, 2, 0),), [first])
    book.enter((Row(3, 3, 0b1), Row(4, 3, 0b1)), [second, third])
    subtree = (Row(1, 2, 0), Row(4, 3, 0b1), Row(5, 4, 0b11), Row(5, 3, 0b1))
    assert book.look_up(subtree) == [(first, frozenset({4, 5})), (third, frozenset({5})), (None, NONE), (None, NONE)]
    book.keep(Role.TARGET, (0,), 1)
    book.keep(Role.DRAFT, (0, 2), 1)
    assert len(book._proposals) == 1
    assert book.look_up((Row(4, 3, 0), Row(9, 4, 0b1))) == [(third, frozenset({9})), (None, NONE)]
    book.keep(Role.TARGET, (0,), 1)
    book.keep(Role.DRAFT, (0,), 1)
    assert len(book._proposals) == 0


def test_same_tokens_in_another_place_are_another_path() -> None:
    book = RejectionSampler(RESIDUAL)
    book.enter((Row(1, 0, 0), Row(2, 1, 0b1), Row(1, 0, 0)), [proposal(0), proposal(1), proposal(2)])
    (_, _), (found, _) = book.look_up((Row(2, 0, 0), Row(2, 1, 0b1)))
    assert found is None


def test_a_tree_that_survives_a_second_round_is_followed() -> None:
    book = RejectionSampler(RESIDUAL)
    book.enter((Row(1, 0, 0), Row(2, 1, 0b1), Row(3, 2, 0b11)), [proposal(0), proposal(1), proposal(2)])
    book.keep(Role.DRAFT, (0, 1, 2), 1)
    book.keep(Role.TARGET, (), 0)
    book._caches[Role.TARGET].prefill((1,))
    assert book.look_up((Row(2, 1, 0),))[0][0] is not None
    book.keep(Role.TARGET, (0,), 1)
    book.keep(Role.DRAFT, (0, 1), 1)
    assert book.look_up((Row(3, 2, 0),))[0][0] is None


@pytest.mark.parametrize("name", [name for name in POLICIES if POLICIES[name].layout is not Layout.DISAGGREGATED])
def test_greedy_output_does_not_depend_on_the_method(name: str) -> None:
    pair, request = random_pair(9), Request(prompt=(1, 2), max_new_tokens=30, mask_token=8)
    outputs = [
        pair.generate(make_policy(name), request, sampler)[0] for sampler in (Sampler(), Sampler(acceptance="residual"))
    ]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("name", [name for name in POLICIES if POLICIES[name].layout is Layout.TARGET_ONLY])
def test_without_a_draft_model_the_target_is_followed(name: str) -> None:
    pair, request = random_pair(9), Request(prompt=(1, 2), max_new_tokens=30)
    outputs = [pair.generate(make_policy(name), request, sampler)[0] for sampler in (FOLLOW, RESIDUAL)]
    assert outputs[0] == outputs[1]


def test_same_seed_gives_the_same_output() -> None:
    pair, request = random_pair(9), Request(prompt=(1, 2), max_new_tokens=30)
    first, again, other = (pair.generate(SerialTree(), request, replace(RESIDUAL, seed=seed))[0] for seed in (3, 3, 4))
    assert first == again != other


def test_a_chain_of_the_targets_own_distribution_is_always_accepted() -> None:
    table = random_table(16, seed=0, spread=1.0)
    pair = Pair(target=TableModel(table), draft=TableModel(table))
    request = Request(prompt=(1, 2), max_new_tokens=100)
    _, commits, _ = pair.generate(SerialChain(num_draft_tokens=4), request, RESIDUAL)
    assert [len(tokens) for tokens in commits] == [5] * 20


@pytest.mark.parametrize(
    ("name", "measured"), [("serial_chain", 1.06), ("serial_tree", 0.85), ("eagle2_tree", 0.86), ("sequoia_tree", 1.01)]
)
def test_accepted_tokens_beside_those_of_following(name: str, measured: float) -> None:
    """The `measured` ratio of accepted tokens a round: a guess with the noise is nearly as good, several are better."""
    pair, request = random_pair(32, spread=4.0, disagreement=0.5), Request(prompt=(1, 2), max_new_tokens=1500)
    rounds = [len(pair.generate(make_policy(name), request, sampler)[1]) for sampler in (FOLLOW, RESIDUAL)]
    followed, sampled = (request.max_new_tokens / number - 1 for number in rounds)
    assert sampled / followed == pytest.approx(measured, rel=0.05)


def test_proposals_are_at_hand_and_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    missing: list[bool] = []

    class Watched(RejectionSampler):
        def look_up(self, rows: Sequence[Row]) -> list[tuple[Proposal | None, frozenset[int]]]:
            sizes.append(len(self._proposals))
            found = super().look_up(rows)
            missing.extend(known is None for known, children in found if children and self._rounds_kept < 2)
            return found

    monkeypatch.setattr(run_alone, "RejectionSampler", Watched)
    for policy in (SerialTree(), make_policy("eagle2_tree"), make_policy("sequoia_tree")):
        random_pair(32, disagreement=0.5).generate(policy, Request(prompt=(1, 2), max_new_tokens=400), RESIDUAL)
        assert 0 < max(sizes) <= policy.draft_rows
        assert not any(missing)
        sizes.clear()
