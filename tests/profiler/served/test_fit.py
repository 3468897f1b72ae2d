"""Fits of a server's steps, against steps whose coefficients are known."""

from itertools import pairwise

import numpy as np
import pytest

from swiftspec.profiler.served.fit import fit_above, fit_steps, typical
from swiftspec.profiler.served.measure import ProbeSizes
from swiftspec.profiler.served.probes import Drafting, Measured, Probe, PromptProbe, PromptTime, Work
from tests.profiler.served.steps import KNOWN, SIZES

LENGTHS = {Drafting.PLAIN: (0, 0, 0, 0), Drafting.LOOKUP: (8, 5, 3, 1), Drafting.DRAFT: (8, 3, 6, 2)}


def probed(noise: float = 0.0) -> list[Measured]:
    """What probes of all sizes would measure, three times."""
    rng = np.random.default_rng(0)
    found: list[tuple[Probe | PromptProbe, Work]] = []
    for _ in range(3):
        for drafting, lengths in LENGTHS.items():
            for probe in SIZES.decoding():
                levels = lengths[(probe.sequences - 1).bit_length()]
                cached = probe.sequences * (probe.prompt_tokens + 12.0)
                found.append((probe, Work(drafting, probe.sequences, probe.sequences * (1.0 + levels), cached, levels)))
        for prompt in SIZES.prompts():
            read = Work(Drafting.PLAIN, read=prompt.tokens - prompt.cached, read_before=prompt.cached)
            found.append((prompt, read))
    return [
        Measured(probe, work, KNOWN.seconds(work) * float(np.exp(noise * rng.standard_normal())))
        for probe, work in found
    ]


def works() -> list[Work]:
    """Steps that no probe had."""
    return [
        Work(Drafting.PLAIN, 3, 3.0, 900.0),
        Work(Drafting.PLAIN, 6, 6.0, 300.0),
        Work(Drafting.LOOKUP, 3, 12.0, 600.0, 3.0),
        Work(Drafting.DRAFT, 1, 5.0, 300.0, 4.0),
        Work(Drafting.DRAFT, 4, 16.0, 800.0, 3.0),
        Work(Drafting.PLAIN, 2, 2.0, 200.0, read=100),
    ]


def test_steps_that_follow_the_law_are_found_again() -> None:
    fitted = fit_steps(typical(probed()))
    for work in works():
        assert fitted.seconds(work) == pytest.approx(KNOWN.seconds(work), rel=0.02), work


def test_noise_is_no_bias() -> None:
    fitted = fit_steps(typical(probed(noise=0.05)))
    errors = [fitted.seconds(work) / KNOWN.seconds(work) - 1 for work in works()]
    assert abs(float(np.mean(errors))) < 0.05


def test_more_rows_never_take_less() -> None:
    fitted = fit_steps(typical(probed(noise=0.1)))
    times = [fitted.forward_s(rows) for rows in range(1, 700)]
    assert all(later >= sooner for sooner, later in pairwise(times))


def test_probes_cover_requests_contexts_and_prompts() -> None:
    decoding, prompts = list(ProbeSizes(sequences=6, longest=512).decoding()), list(SIZES.prompts())
    assert {probe.sequences for probe in decoding} == {1, 2, 4, 6}
    assert {probe.prompt_tokens for probe in decoding} == {16, 256}
    assert PromptProbe(512) in prompts
    assert any(probe.cached for probe in prompts)
    assert all(isinstance(probe, Probe) for probe in decoding)


def test_what_lies_above_the_engine_grows_with_the_prompt() -> None:
    times = [PromptTime(tokens, 0.2 + 0.006 + 2e-6 * tokens, 0.2) for tokens in (16, 64, 256, 1024)]
    assert fit_above(times) == pytest.approx((0.006, 2e-6))
