from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths, Process
from swiftspec.artifacts.workload import MOST_REQUESTS, PromptSource, RequestClass, Workload
from swiftspec.workload import PromptLengths, make_workload

POISSON = Arrivals(process=Process.POISSON, rate=2.0)
LOGNORMAL = Lengths(distribution=Distribution.LOGNORMAL, mean=200, cv=0.5)
FIXED = Lengths(distribution=Distribution.FIXED, tokens=96)
PROMPTS = PromptLengths(
    source=PromptSource(file="trace.npz", sha256="0" * 64),
    ids=("a", "b", "c"),
    prompt_tokens=(10, 20, 30),
    output_tokens=(1, 2, 3),
)


def make(**changes: Any) -> Workload:
    arguments: dict[str, Any] = {"num_requests": 500, "prompt_tokens": LOGNORMAL, "output_tokens": FIXED}
    return make_workload(**({"arrivals": POISSON} | arguments | changes))


def facts(made: Workload) -> dict[str, Any]:
    """Everything but the date."""
    return made.model_dump(exclude={"origin"})


def test_a_workload_is_what_was_asked_for() -> None:
    made = make(classes=[RequestClass(name="interactive", ttft_s=0.5, tpot_s=0.05)])
    assert (len(made.requests), made.rate, made.duration_s) == (500, 2.0, 250.0)
    assert {request.output_tokens for request in made.requests} == {96}
    assert made.num_by_class == {"interactive": 500}
    assert (made.arrivals, made.prompt_tokens, made.output_tokens, made.seed) == (POISSON, LOGNORMAL, FIXED, 0)
    assert (made.trace, made.prompts) == (None, None)


def test_a_workload_survives_its_file(tmp_path: Path) -> None:
    make().save(tmp_path / "w.json")
    assert facts(Workload.load(tmp_path / "w.json")) == facts(make())


def test_a_seed_gives_one_workload() -> None:
    assert facts(make(seed=7)) == facts(make(seed=7))
    assert facts(make(seed=7))["requests"] != facts(make(seed=8))["requests"]


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({"arrivals": Arrivals(process=Process.GAMMA, rate=1.0, shape=0.5)}, "arrival_s"),
        ({"prompt_tokens": FIXED}, "prompt_tokens"),
        ({"output_tokens": LOGNORMAL}, "output_tokens"),
        ({"classes": [RequestClass(name="a"), RequestClass(name="b")]}, "class_name"),
    ],
)
def test_one_choice_does_not_change_what_the_others_draw(changes: dict[str, Any], changed: str) -> None:
    columns = {"arrival_s", "prompt_tokens", "output_tokens", "class_name"}
    before, after = make(), make(**changes)
    different = {
        name
        for name in columns
        if any(getattr(a, name) != getattr(b, name) for a, b in zip(before.requests, after.requests, strict=True))
    }
    assert different == {changed}


def test_without_classes_all_requests_are_of_one_without_limits() -> None:
    made = make()
    assert made.classes == (RequestClass(name="default"),)
    assert made.class_of(made.requests[0]).ttft_s is None


def test_a_closed_loop_says_how_many_clients_it_has() -> None:
    made = make(arrivals=Arrivals(process=Process.CLOSED, num_clients=8))
    assert (made.is_closed, made.arrivals.num_clients, made.rate) == (True, 8, None)
    assert {request.arrival_s for request in made.requests} == {0.0}


def test_requests_name_prompts_with_their_lengths() -> None:
    made = make(prompt_tokens=None, output_tokens=None, prompts=PROMPTS)
    known = {"a": (10, 1), "b": (20, 2), "c": (30, 3)}
    assert all(known[str(each.prompt_id)] == (each.prompt_tokens, each.output_tokens) for each in made.requests)
    assert {each.prompt_id for each in made.requests} == set(known)
    assert made.prompts == PROMPTS.source
    assert str(made.prompt_tokens) == str(made.output_tokens) == "prompts"


def test_outputs_of_named_prompts_may_be_drawn() -> None:
    made = make(prompt_tokens=None, prompts=PROMPTS)
    assert {each.output_tokens for each in made.requests} == {96}
    assert made.output_tokens == FIXED


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_requests": 0}, f"num_requests is 0; expected 1 to {MOST_REQUESTS}"),
        ({"num_requests": 10**9}, "num_requests is 1000000000; expected 1 to"),
        ({"seed": -1}, "seed is -1; expected 0 or more"),
        ({"prompt_tokens": None}, "prompt_tokens is missing; expected fixed:TOKENS"),
        ({"output_tokens": None}, "output_tokens is missing; expected fixed:TOKENS"),
        ({"arrivals": Arrivals(process=Process.REPLAY)}, "arrivals is replay; expected poisson:RATE"),
        ({"prompt_tokens": Lengths(distribution=Distribution.REPLAY)}, "prompt_tokens is replay; expected fixed:"),
        ({"classes": []}, "classes is empty"),
        ({"classes": [RequestClass(name="a", share=0.5)]}, "shares of classes add up to 0.5; expected 1"),
        ({"prompts": PROMPTS}, "prompt_tokens is lognormal:200:0.5, but the lengths are those of trace.npz"),
    ],
)
def test_what_cannot_be_made_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=r"\bis\b|add up") as caught:
        make(**changes)
    assert str(caught.value).startswith(complaint)
