"""Acceptance that a user gives comes out of simulated serial chains again."""

from pathlib import Path

import numpy as np
import pytest

from swiftspec.acceptance.given import GivenAcceptance
from swiftspec.acceptance.model import tree_acceptance
from swiftspec.acceptance.records import AcceptanceRecord, AcceptanceRecords, Form
from swiftspec.acceptance.synthesis import synthesise
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.files.document import ModelRef, Origin
from swiftspec.policies import DraftKind, make_policy
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import simulate
from tests.builders import machine_profile

MODEL = ModelRef(model="synthetic", dtype="float32")


def chains(text: str, *, num_draft_tokens: int) -> np.ndarray:
    """By position, the share of simulated serial chains that were accepted up to there, over four texts of 4096."""
    counts = np.zeros(num_draft_tokens + 1)
    for seed in range(4):
        trace: AcceptanceTrace = synthesise(
            GivenAcceptance.parse(text).acceptance_model(),
            num_prompts=16,
            prompt_length=4,
            num_tokens=256,
            seed=seed,
            target=MODEL,
            draft=MODEL,
        )
        timelines = simulate(
            make_policy("serial_chain", num_draft_tokens=num_draft_tokens),
            degrees={Role.TARGET: 1},
            profile=machine_profile(),
            trace=trace,
        )
        for timeline in timelines:
            # The first commit is the prefill's token, the last one is cut short.
            accepted = [span.tokens - 1 for span in timeline.commits[1:-1]]
            counts += np.bincount(accepted, minlength=num_draft_tokens + 1)
    reached: np.ndarray = counts[::-1].cumsum()[::-1][1:] / counts.sum()
    return reached


@pytest.mark.parametrize(
    ("text", "rate", "tokens"),
    [("0.75", 0.75, 1), ("0.44@5", 0.44, 5), ("0.75@3", 0.75, 3), ("0.1", 0.1, 1), ("0.95@4", 0.95, 4)],
)
def test_a_simulated_chain_has_the_rate_that_was_given(text: str, rate: float, tokens: int) -> None:
    assert chains(text, num_draft_tokens=tokens).mean() == pytest.approx(rate, abs=0.01)


@pytest.mark.parametrize("text", ["0.8,0.7,0.6", "0.63,0.41,0.27", "0.75,0.55,0.42,0.32,0.25"])
def test_a_simulated_chain_has_the_rates_by_position(text: str) -> None:
    rates = [float(rate) for rate in text.split(",")]
    assert chains(text, num_draft_tokens=len(rates)) == pytest.approx(rates, abs=0.02)


def test_a_rate_depends_on_the_chain_it_was_measured_with() -> None:
    single, of_five = (GivenAcceptance.parse(text).acceptance_model() for text in ("0.44", "0.44@5"))
    assert of_five.mean_logit > single.mean_logit + 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("much", "--acceptance is 'much'; expected a share as 0.75 or 75%, "),
        ("", "--acceptance is ''; expected a share"),
        ("0.5,", "--acceptance is '0.5,'; expected a share"),
        ("0.5@x", "--acceptance is '0.5@x'; expected a share"),
        ("0.5,0.4@2", "--acceptance is '0.5,0.4@2'; expected a share"),
        ("75", "--acceptance is 75; expected shares from 0 to 1, or tokens per round as 2.9@5"),
        ("4.5@3", "--acceptance is 4.5; expected 1 to 4 tokens per round of chains of 3"),
        ("0.5@3-4-8", "--acceptance is 0.5; expected 1 to 4 tokens per round of trees of 3 steps, top-k 4 and 8 rows"),
        ("2.5@3-0-8", "--acceptance is '2.5@3-0-8'; expected a tree of at least top-k 1 and 2 rows"),
        ("-0.5", "--acceptance is -0.5; expected shares"),
        ("nan", "--acceptance is nan; expected shares"),
        ("inf", "--acceptance is inf; expected shares"),
        ("0.6,0.7", "--acceptance is '0.6,0.7', which rises; expected for every position "),
        ("0.5@0", "--acceptance is '0.5@0', of chains of 0 tokens; expected 1 to 64"),
        ("0.5@65", "--acceptance is '0.5@65', of chains of 65 tokens; expected 1 to 64"),
        ("%", "--acceptance is '%'; expected a share as 0.75 or 75%"),
        ("173%", "--acceptance is 1.73; expected shares from 0 to 1"),
    ],
)
def test_what_is_no_acceptance_is_one_sentence(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="--acceptance") as raised:
        GivenAcceptance.parse(text, field="--acceptance")
    assert str(raised.value).startswith(complaint)


def test_rates_that_no_draft_model_has_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.9,0\.5,0\.2; no draft model has such rates, .* as 0\.53@3"):
        GivenAcceptance.parse("0.9,0.5,0.2").acceptance_model()


@pytest.mark.parametrize("text", ["0", "1", "0@64", "1@64", "0.001@64", "0.999@64", "0,0,0", "1,1,1", "0.9,0.8,0"])
def test_counts_of_none_and_of_all_can_be_planned_with(text: str) -> None:
    given = GivenAcceptance.parse(text)
    found = tree_acceptance(given.acceptance_model(), (1,) * given.num_draft_tokens)
    assert sum(found) / len(found) == pytest.approx(sum(given.rates) / len(given.rates), abs=0.05)


@pytest.mark.parametrize(
    ("text", "same"), [("73.5%", "0.735"), ("44%@5", "0.44@5"), ("80%,70%", "0.8, 0.7"), ("0%", "0")]
)
def test_percentages_are_shares(text: str, same: str) -> None:
    found, expected = GivenAcceptance.parse(text), GivenAcceptance.parse(same)
    assert found.rates == pytest.approx(expected.rates)
    assert found.num_draft_tokens == expected.num_draft_tokens


def test_tokens_per_round_are_the_share_that_yields_them() -> None:
    length, share = (GivenAcceptance.parse(text) for text in ("3.2@5", "0.44@5"))
    assert length.rates == pytest.approx(share.rates)
    assert length.describe() == "3.2 tokens per round of chains of 5"


def test_a_trees_tokens_per_round_are_fewer_in_a_chain() -> None:
    tree = GivenAcceptance.parse("3.4@3-4-8")
    assert tree.num_draft_tokens == 3
    assert 1 < 1 + 3 * tree.rates[0] < 3.4
    assert tree.describe() == "3.4 tokens per round of trees of 3 steps, top-k 4 and 8 rows"


def record_file(path: Path, *records: AcceptanceRecord) -> Path:
    origin = Origin(command="c", created_utc="2026-01-01T00:00:00+00:00", versions={}, device="none")
    AcceptanceRecords(origin=origin, records=records).save(path)
    return path


RECORD = AcceptanceRecord(
    target="t",
    drafter="d",
    kind=DraftKind.SERIAL,
    dataset="GSM8K",
    quantity=Form.RATES,
    bonus=False,
    num_draft_tokens=3,
    values=(0.8, 0.6, 0.0),
    source="by hand",
)


def test_a_record_is_read_from_its_file(tmp_path: Path) -> None:
    given = GivenAcceptance.parse(str(record_file(tmp_path / "a.json", RECORD)))
    assert given.rates == (0.8, 0.6, 0.0)
    assert given.describe() == "a.json, of t with d (serial), on GSM8K, from rates by position"
    mean = RECORD.model_copy(update={"quantity": Form.LENGTH, "bonus": True, "values": (2.5,)})
    given = GivenAcceptance.parse(str(record_file(tmp_path / "a.json", mean)))
    assert given.rates == pytest.approx((0.5,))
    assert given.num_draft_tokens == 3


def test_a_file_of_several_records_is_refused(tmp_path: Path) -> None:
    path = record_file(tmp_path / "a.json", RECORD, RECORD)
    with pytest.raises(ValueError, match=rf"{path}: records has 2 items; expected one"):
        GivenAcceptance.parse(str(path))


@pytest.mark.parametrize("values", [(0.8,), (0.0, 0.0), (1.0, 1.0), (0.7, 0.71, 0.5), (0.99,) * 64])
def test_what_is_typed_and_what_is_in_a_file_agree(tmp_path: Path, values: tuple[float, ...]) -> None:
    typed = GivenAcceptance.parse(",".join(map(str, values)))
    changes = {"values": values, "num_draft_tokens": len(values)}
    read = GivenAcceptance.load(record_file(tmp_path / "a.json", RECORD.model_copy(update=changes)))
    assert (read.rates, read.num_draft_tokens) == (typed.rates, typed.num_draft_tokens)
    assert read.acceptance_model() == typed.acceptance_model()


def test_rates_that_rise_are_refused_in_a_file_too(tmp_path: Path) -> None:
    values = {"values": (0.6, 0.7), "num_draft_tokens": 2}
    path = record_file(tmp_path / "a.json", RECORD.model_copy(update=values))
    with pytest.raises(ValueError, match=rf"^{path}: values is 0\.6,0\.7, which rises; expected for every position"):
        GivenAcceptance.load(path)
