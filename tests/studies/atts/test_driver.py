"""Samples on real engines of the bundled pair: the same decisions and texts in whatever order requests end."""

import asyncio
import json
from importlib.resources import files
from pathlib import Path

import pytest

from swiftspec.artifacts.prompts import Prompt
from swiftspec.policies.effects import Role
from swiftspec.studies.atts.document import AttsFigures, AttsOptions, AttsRun, Ending
from swiftspec.studies.atts.driver import Driver
from swiftspec.studies.atts.scaling import AttsServer, atts
from swiftspec.studies.atts.scripts import replayed_scripts
from swiftspec.studies.atts.selection import Selections
from swiftspec.studies.atts.servers import Segment, end_perplexity
from tests.studies.atts.plans import DRAFT, TARGET, plan_of
from tools.served import served

pytestmark = pytest.mark.extra("engine")

OPTIONS = AttsOptions(
    num_samples=8, num_turns=3, draft_tokens=24, target_tokens=24, is_per_question=True, end_marker="nowhere in it"
)


@pytest.fixture(scope="module")
def questions() -> list[str]:
    lines = files("swiftspec.demo").joinpath("prompts/validate.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(lines[number])["prompt"] for number in (3, 40)]


def run(questions: list[str], options: AttsOptions = OPTIONS, *, target: AttsServer | None = None) -> AttsRun:
    return atts(
        questions,
        target=target or AttsServer(plan=plan_of(TARGET)),
        draft=AttsServer(plan=plan_of(DRAFT)),
        options=options,
    )


@pytest.fixture(scope="module")
def asynchronous(questions: list[str]) -> AttsRun:
    return run(questions)


def decided(run: AttsRun) -> list[object]:
    """All of a run but its times."""
    return [
        (
            question.question_id,
            run.calibration[question.question_id],
            [
                (sample.answer, sample.ending, [(turn.score, turn.is_taken_over) for turn in sample.turns])
                for sample in question.samples
            ],
        )
        for question in run.questions
    ]


def test_samples_are_written_scored_and_taken_over(asynchronous: AttsRun, questions: list[str]) -> None:
    for question, text in zip(asynchronous.questions, questions, strict=True):
        assert question.prompt_tokens > 10
        assert len({sample.answer for sample in question.samples}) == 8
        assert not any(sample.answer.startswith(text) for sample in question.samples)
        assert min(asynchronous.calibration[question.question_id]) > 1
    figures = AttsFigures.of(asynchronous.questions)
    assert figures == asynchronous.figures
    assert 0 < figures.taken_over < 1
    assert figures.draft_tokens <= 24
    assert figures.survivors[0] == 16


@pytest.mark.parametrize(
    ("calls", "policy"),
    [((1, 1), "autoregressive"), ((8, 4), "serial_chain")],
    ids=["one at a time", "speculation inside"],
)
def test_asynchrony_changes_no_output(
    asynchronous: AttsRun, questions: list[str], calls: tuple[int, int], policy: str
) -> None:
    """Nor does speculation in a server: each segment is its model's own."""
    draft_calls, target_calls = calls
    options = OPTIONS.model_copy(update={"draft_calls": draft_calls, "target_calls": target_calls})
    shape = {"num_draft_tokens": 3} if policy == "serial_chain" else {}
    other = run(questions[:1], options, target=AttsServer(plan=plan_of(TARGET, policy, **shape)))
    assert decided(other) == decided(asynchronous)[:1]


def test_the_same_over_http(asynchronous: AttsRun, questions: list[str], tmp_path: Path) -> None:
    plan_of(TARGET).save(tmp_path / "plan.json")
    with served(tmp_path / "plan.json", "--max-running", "4", log=tmp_path / "log") as (_, url):
        assert decided(run(questions[:1], target=AttsServer(url=url))) == decided(asynchronous)[:1]


def test_a_barrier_makes_every_turn_wait_for_the_slowest(questions: list[str]) -> None:
    found = run(questions[:1], OPTIONS.model_copy(update={"is_barrier": True}))
    assert found.figures.taken_over == pytest.approx(0.4, abs=0.05)
    for question in found.questions:
        total_s, before_s = 0.0, 0.0
        for number in range(OPTIONS.num_turns):
            turns = [sample.turns[number] for sample in question.samples if len(sample.turns) > number]
            assert min(turn.began_s for turn in turns) >= before_s
            assert min(turn.selected_s for turn in turns) >= max(turn.scored_s for turn in turns)
            before_s = max(turn.ended_s for turn in turns)
            written_s = [turn.ended_s - turn.selected_s for turn in turns if turn.is_taken_over]
            total_s += max(turn.scored_s - turn.began_s for turn in turns) + max(written_s, default=0.0)
        assert question.makespan_s == pytest.approx(total_s, rel=0.1)


def test_a_run_can_be_replayed(asynchronous: AttsRun) -> None:
    for script, question in zip(replayed_scripts(asynchronous).questions, asynchronous.questions, strict=True):
        for played, sample in zip(script.samples, question.samples, strict=True):
            assert [turn.draft_tokens for turn in played.turns] == [turn.draft_tokens for turn in sample.turns]
            assert played.ending is sample.ending


def test_samples_end_at_the_marker_and_where_there_is_no_room(questions: list[str]) -> None:
    options = OPTIONS.model_copy(update={"num_samples": 2, "end_marker": "[a-z]", "is_barrier": True})
    found = run([questions[0], "def f():\n    return 1\n" * 400], options)
    first, long = found.questions
    assert {(sample.ending, len(sample.turns)) for sample in first.samples} == {(Ending.MARKER, 1)}
    assert {(sample.ending, len(sample.turns)) for sample in long.samples} == {(Ending.CONTEXT, 0)}


class Failing:
    """A server that fails in its third request."""

    def __init__(self) -> None:
        self.num_requests = 0

    async def write(self, text: str, *, num_tokens: int, temperature: float, seed: int) -> Segment:
        self.num_requests += 1
        if self.num_requests == 3:
            raise ValueError("the server has gone")
        await asyncio.sleep(0)
        return Segment("x", num_tokens, has_ended=False)

    async def score(self, text: str, *, num_characters: int) -> float:
        return 1.0

    async def count(self, text: str) -> int:
        return len(text)


def test_a_server_that_fails_ends_the_run_even_if_samples_wait() -> None:
    options = OPTIONS.model_copy(update={"is_barrier": True})

    async def fail() -> None:
        driver = Driver(dict.fromkeys(Role, Failing()), options)
        await driver.run(Prompt(prompt_id="q", text="?"), Selections(options, {}).of("q"))

    with pytest.raises(ValueError, match="the server has gone"):
        asyncio.run(asyncio.wait_for(fail(), 5.0))


def test_the_end_of_a_text_is_all_tokens_with_one_of_its_characters() -> None:
    tokens = [("ab", None), ("cd", -8.0), ("ef", -1.0), ("g", -3.0)]
    e = 2.718281828459045
    assert end_perplexity(tokens, 1) == pytest.approx(e**3)
    assert end_perplexity(tokens, 2) == end_perplexity(tokens, 3) == pytest.approx(e**2)
    assert end_perplexity(tokens, 4) == pytest.approx(e**4)
    assert end_perplexity(tokens, 99) == pytest.approx(e**4)
    with pytest.raises(ValueError, match="log_probs are empty"):
        end_perplexity(tokens[:1], 1)


def test_a_server_is_a_plan_or_an_address() -> None:
    with pytest.raises(ValueError, match="expected either a plan or a url"):
        AttsServer()
