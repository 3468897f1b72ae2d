"""AdaServe's experiment: the order of the systems, and what is fitted to what."""

import pytest

from swiftspec.acceptance.model import tree_acceptance
from swiftspec.backtest.adaserve import SYSTEMS, _acceptance_model, attainment, published


def test_every_system_has_a_published_attainment_at_every_rate() -> None:
    facts = published()
    assert facts["attainment"].keys() == SYSTEMS.keys()
    assert {len(values) for values in facts["attainment"].values()} == {len(facts["requests_per_s"])}


def test_acceptance_is_that_of_the_published_chains() -> None:
    # Nearly flat: an independent chain with the tokens of the shortest one would have 4.3 and 5.1 at 6 and 8.
    for depth, tokens in published()["accepted_tokens"].items():
        assert sum(tree_acceptance(_acceptance_model(), (1,) * int(depth))) == pytest.approx(tokens, rel=0.05)


def test_at_high_load_adaserve_is_first_and_plain_decoding_last() -> None:
    found = {name: attainment(name, 4.8, num_requests=240) for name in ("AdaServe", "vLLM-spec(4)", "vLLM")}
    assert found["AdaServe"] > found["vLLM-spec(4)"] > found["vLLM"]
