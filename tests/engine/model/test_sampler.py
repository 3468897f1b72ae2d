import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from swiftspec.engine.model.sampling.sampler import Sampler, top_candidates

pytestmark = pytest.mark.usefixtures("one_thread")


def random_logits(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    return 2.0 * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))


def filtered_distribution(logits: torch.Tensor, sampler: Sampler) -> torch.Tensor:
    """Distribution that transformers would sample from, [R, V]."""
    tokens = torch.zeros(1, 0, dtype=torch.long)
    scores = TemperatureLogitsWarper(sampler.temperature)(tokens, logits)
    if sampler.top_k:
        scores = TopKLogitsWarper(sampler.top_k)(tokens, scores)
    if sampler.top_p < 1.0:
        scores = TopPLogitsWarper(sampler.top_p)(tokens, scores)
    shares: torch.Tensor = torch.softmax(scores, -1)
    return shares


def test_temperature_zero_is_the_likeliest_token() -> None:
    logits = random_logits(9, 211)
    assert Sampler(temperature=0.0).choose(logits, range(9)) == logits.argmax(-1).tolist()


def test_token_depends_on_seed_and_position_alone() -> None:
    logits = random_logits(1, 500).expand(6, -1)
    sampler = Sampler(temperature=1.0, seed=7)
    together = sampler.choose(logits, [3, 4, 5, 6, 7, 8])
    alone = [sampler.choose(logits[:1], [position])[0] for position in range(3, 9)]
    assert together == alone
    assert len(set(together)) > 1
    assert sampler.choose(logits[:2], [5, 5]) == [together[2]] * 2
    assert Sampler(temperature=1.0, seed=8).choose(logits, [3, 4, 5, 6, 7, 8]) != together


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 6},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 10, "top_p": 0.9},
    ],
    ids=str,
)
@pytest.mark.parametrize("over", ["seeds", "positions"])
def test_draws_follow_the_filtered_distribution(settings: dict[str, float], over: str) -> None:
    num_draws, vocab_size = 4000, 24
    sampler = Sampler(**settings)  # type: ignore[arg-type]  # top_k is an int
    logits = random_logits(1, vocab_size, seed=3)
    expected = filtered_distribution(logits, sampler)[0].double().numpy()
    if over == "positions":
        drawn = sampler.choose(logits.expand(num_draws, -1), range(num_draws))
    else:
        samplers = [replace(sampler, seed=seed) for seed in range(num_draws)]
        drawn = [sampler.choose(logits, [11])[0] for sampler in samplers]
    counts = np.bincount(drawn, minlength=vocab_size)
    assert counts[expected == 0].sum() == 0
    # Cells that expect fewer than five draws are merged, as the chi-square approximation demands.
    rare = expected * num_draws < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum()) * num_draws
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    assert statistic < chi2.ppf(0.999, len(wanted) - 1)


@pytest.mark.parametrize("vocab_size", [5, 300, 3000])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.9), (0, 0.05), (0, 0.999), (40, 1.0), (40, 0.7), (10**6, 1.0)])
def test_filters_keep_what_transformers_keeps(vocab_size: int, top_k: int, top_p: float) -> None:
    logits = random_logits(4, vocab_size)
    sampler = Sampler(temperature=0.8, top_k=top_k, top_p=top_p)
    kept = sampler._filtered(logits / 0.8) > -math.inf
    expected = filtered_distribution(logits, sampler) > 0
    assert ((kept == expected) | at_top_p_boundary(logits, sampler)).all()


def at_top_p_boundary(logits: torch.Tensor, sampler: Sampler) -> torch.Tensor:
    """Tokens [R, V] before which the likelier ones reach `top_p` to within fp32 rounding: either answer is right."""
    scores = TemperatureLogitsWarper(sampler.temperature)(torch.zeros(1, 0, dtype=torch.long), logits.double())
    if sampler.top_k:
        scores = TopKLogitsWarper(sampler.top_k)(torch.zeros(1, 0, dtype=torch.long), scores)
    ordered, order = scores.softmax(-1).sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    rounding = 4 * torch.finfo(torch.float32).eps
    close: torch.Tensor = torch.empty_like(before, dtype=torch.bool)
    return close.scatter_(-1, order, (before - sampler.top_p).abs() < rounding)


def test_boundary_of_top_p_is_narrow() -> None:
    sampler = Sampler(temperature=0.8, top_p=0.999)
    assert at_top_p_boundary(random_logits(4, 3000), sampler).sum() <= 1


def test_flat_distribution_larger_than_the_first_guess_is_filtered_exactly() -> None:
    logits = torch.linspace(0.0, 0.1, 2000).unsqueeze(0)
    kept = Sampler(temperature=1.0, top_p=0.5)._filtered(logits) > -math.inf
    shares = torch.softmax(logits.double(), -1)[0].flip(0).cumsum(0)
    assert int(kept.sum()) == int((shares < 0.5).sum()) + 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"acceptance": "never"}, "acceptance is 'never'; expected follow or residual"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampler(**settings)  # type: ignore[arg-type]  # top_k is an int


def test_one_position_per_row_is_required() -> None:
    with pytest.raises(ValueError, match="positions are 1; expected one for each of 2 rows"):
        Sampler().choose(random_logits(2, 5), [0])


def test_candidates_are_sorted_log_probabilities() -> None:
    logits = random_logits(3, 100)
    tokens, log_probs = top_candidates(logits, 7)
    expected = torch.log_softmax(logits.double(), -1)
    for row in range(3):
        assert tokens[row] == expected[row].argsort(descending=True)[:7].tolist()
        assert log_probs[row] == pytest.approx(expected[row, tokens[row]].tolist(), abs=1e-5)


def test_candidates_are_cut_to_the_vocabulary() -> None:
    tokens, log_probs = top_candidates(random_logits(1, 4), 9)
    assert sorted(tokens[0]) == [0, 1, 2, 3]
    assert sum(math.exp(log_prob) for log_prob in log_probs[0]) == pytest.approx(1.0)


class TestNoiseOfTheTargetsDraw:
    """Guesses of a draft whose logits are the target's but for some disturbance."""

    TARGET = random_logits(1, 60, seed=1)
    DRAFT = TARGET + 0.8 * random_logits(1, 60, seed=2)
    NUM_POSITIONS = 6000

    def matched(self, sampler: Sampler, k: int = 1) -> float:
        """Share of positions where the target's draw is among the best guesses."""
        positions = range(self.NUM_POSITIONS)
        drawn = torch.tensor(sampler.choose(self.TARGET.expand(self.NUM_POSITIONS, -1), positions))
        guesses = sampler.with_noise(self.DRAFT.expand(self.NUM_POSITIONS, -1), positions).topk(k).indices
        return float((guesses == drawn[:, None]).any(-1).float().mean())

    @pytest.mark.parametrize("temperature", [0.6, 1.0])
    def test_a_guess_is_right_as_often_as_communication_free_coupling_promises(self, temperature: float) -> None:
        sampler = Sampler(temperature=temperature, seed=4)
        target, draft = (torch.softmax(logits / temperature, -1) for logits in (self.TARGET, self.DRAFT))
        common = float(torch.minimum(target, draft).sum())  # one minus the distance, the most that any rule accepts
        likeliest = float(target[0, self.DRAFT.argmax()])
        found = self.matched(sampler)
        assert common / (2 - common) < found < common + 0.02
        assert found > 1.1 * likeliest

    def test_a_draft_of_the_targets_law_is_always_right(self) -> None:
        sampler = Sampler(temperature=1.0, seed=4)
        positions = range(200)
        logits = random_logits(200, 60)
        assert sampler.with_noise(logits, positions).argmax(-1).tolist() == sampler.choose(logits, positions)

    def test_four_guesses_are_better_than_the_four_likeliest_tokens(self) -> None:
        sampler = Sampler(temperature=1.0, seed=4)
        likeliest = float(torch.softmax(self.TARGET, -1)[0, self.DRAFT.topk(4).indices[0]].sum())
        assert self.matched(sampler, 4) > 1.1 * likeliest

    def test_a_token_that_the_draft_alone_excludes_is_guessed_late_and_not_never(self) -> None:
        sampler = Sampler(temperature=1.0, seed=4, top_p=0.5)
        scores = sampler.with_noise(self.DRAFT, [0])
        assert scores.isfinite().all()
        kept = sampler.scores(self.DRAFT).isfinite()
        assert 0 < int(kept.sum()) < 60
        assert torch.equal(scores[kept], Sampler(temperature=1.0, seed=4).with_noise(self.DRAFT, [0])[kept])

    def test_greedy_guesses_are_the_logits(self) -> None:
        assert Sampler().with_noise(self.DRAFT, [0]) is self.DRAFT
