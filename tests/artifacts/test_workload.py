import json
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.workload import MOST_REQUESTS, RequestClass, Workload
from tests.workload.samples import ORIGIN, replayed, workload


def content(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(workload().to_json())
    return whole | changes


def request(**changes: Any) -> dict[str, Any]:
    return {"arrival_s": 0.0, "prompt_tokens": 10, "output_tokens": 5, "class_name": "chat"} | changes


def test_saved_workload_loads_as_it_was(tmp_path: Path) -> None:
    for made in (workload(), replayed()):
        made.save(tmp_path / "w.json")
        assert Workload.load(tmp_path / "w.json") == made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"requests": []}, "requests is []; tuple should have at least 1 item"),
        ({"classes": []}, "classes is []; tuple should have at least 1 item"),
        ({"requests": [request(arrival_s=-1)]}, "requests[0].arrival_s is -1; input should be greater than or equal"),
        (
            {"requests": [request(arrival_s=2.0), request(arrival_s=1.5)]},
            "requests[1].arrival_s is 1.5, before the 2.0 of the request before it; expected ascending times",
        ),
        ({"requests": [request(output_tokens=0)]}, "requests[0].output_tokens is 0; input should be greater than"),
        ({"requests": [request(prompt_tokens=1.5)]}, "requests[0].prompt_tokens is 1.5; input should be a valid int"),
        ({"requests": [request(text="x")]}, "requests[0].text is 'x'; extra inputs are not permitted"),
        ({"requests": [request(class_name="x")]}, "requests[0].class_name is 'x'; expected one of classes"),
        ({"requests": [request(prompt_id="a")]}, "requests[0].prompt_id is 'a'; expected one if there are prompts"),
        ({"classes": [{"name": ""}]}, "classes[0].name is ''; string should match pattern"),
        ({"classes": [{"name": "chat", "tpot_s": 0}]}, "classes[0].tpot_s is 0; input should be greater than 0"),
        ({"classes": [{"name": "chat"}, {"name": "chat"}]}, "classes holds 2 entries named 'chat'; expected one each"),
        ({"arrivals": {"process": "bursty"}}, "arrivals.process is 'bursty'; input should be 'poisson', 'gamma'"),
        ({"arrivals": {"process": "poisson", "rate": 0}}, "arrivals.rate is 0; input should be greater than"),
        ({"arrivals": {"process": "replay"}}, "trace is missing; arrivals.process is replay"),
        ({"prompts": {"file": "p", "sha256": "0"}}, "prompts is given; prompt_tokens.distribution is lognormal"),
        ({"seed": -1}, "seed is -1; input should be greater than or equal to 0"),
        ({"version": 2}, "version of swiftspec.workload is 2; this swiftspec reads version 1"),
    ],
)
def test_what_is_wrong_is_named_with_file_field_and_value(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps(content(**changes)))
    with pytest.raises(ValueError, match=r"w\.json: ") as caught:
        Workload.load(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_requests_of_a_closed_loop_have_no_times() -> None:
    arrivals = {"process": "closed", "num_clients": 2}
    complaint = r"^w: requests\[1\]\.arrival_s is 1\.0; expected 0, since arrivals are closed:2$"
    with pytest.raises(ValueError, match=complaint):
        Workload.parse(content(arrivals=arrivals, requests=[request(), request(arrival_s=1.0)]), source="w")
    made = Workload.parse(content(arrivals=arrivals, requests=[request(), request()]), source="w")
    assert (made.is_closed, made.duration_s, made.rate, made.gap_cv) == (True, 0.0, None, None)


def test_more_requests_than_a_file_takes_are_refused() -> None:
    made = workload()
    with pytest.raises(ValueError, match="at most"):
        made.checked(
            {name: getattr(made, name) for name in type(made).model_fields}
            | {"requests": made.requests * (MOST_REQUESTS // len(made.requests) + 1)},
            source="w",
        )


def test_the_largest_file_can_be_read_again(tmp_path: Path) -> None:
    """With the longest names, and times of many digits."""
    name = "n" * 32
    made = Workload(
        origin=ORIGIN,
        arrivals=workload().arrivals,
        prompt_tokens=workload().prompt_tokens,
        output_tokens=workload().output_tokens,
        seed=0,
        classes=(RequestClass(name=name),),
        requests=tuple(
            workload()
            .requests[0]
            .model_copy(
                update={
                    "arrival_s": 1e6 + index / 7,
                    "prompt_tokens": 9_999_999,
                    "output_tokens": 9_999_999,
                    "class_name": name,
                    "conversation": "s" * 64,
                }
            )
            for index in range(MOST_REQUESTS)
        ),
    )
    made.save(tmp_path / "w.json")
    assert Workload.load(tmp_path / "w.json").requests[-1] == made.requests[-1]


def test_rate_is_requests_over_the_time_of_the_last_one() -> None:
    made = workload(arrivals_s=(1.0, 2.0, 3.0, 8.0))
    assert (made.duration_s, made.rate) == (8.0, 0.5)
    assert made.gap_cv == pytest.approx((32 / 9) ** 0.5 / (7 / 3))  # gaps of 1, 1 and 5


def test_one_request_at_the_start_has_neither_rate_nor_gaps() -> None:
    made = workload(arrivals_s=(0.0,))
    assert (made.rate, made.gap_cv, made.duration_s) == (None, None, 0.0)


def test_requests_are_counted_by_class_and_know_their_limits() -> None:
    made = workload(arrivals_s=(0.0, 1.0, 2.0), names=("chat", "batch", "chat"))
    assert made.num_by_class == {"chat": 2, "batch": 1, "unused": 0}
    assert made.class_of(made.requests[0]) == RequestClass(name="chat", ttft_s=0.5, tpot_s=0.05)


def test_scaled_keeps_the_pattern_at_another_rate() -> None:
    made = workload(arrivals_s=(1.0, 2.0, 3.0, 8.0))
    faster = made.scaled(rate=2.0)
    assert [each.arrival_s for each in faster.requests] == [0.25, 0.5, 0.75, 2.0]
    assert (faster.rate, faster.arrivals.rate) == (2.0, 2.0)
    assert faster.gap_cv == pytest.approx(made.gap_cv)
    assert [each.prompt_tokens for each in faster.requests] == [each.prompt_tokens for each in made.requests]
    assert made.rate == 0.5


def test_scaled_replay_says_so() -> None:
    faster = replayed().scaled(rate=2.0)
    assert faster.trace is not None
    assert (faster.rate, faster.trace.rate, faster.arrivals) == (2.0, 2.0, replayed().arrivals)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e-9])
def test_a_rate_out_of_range_is_named(rate: float) -> None:
    with pytest.raises(ValueError, match=rf"^rate is {rate:g}; expected 0\.0001 to 1e\+06 requests per second"):
        workload().scaled(rate=rate)


def test_what_has_no_gaps_cannot_be_scaled() -> None:
    with pytest.raises(ValueError, match="rate is 2, but all requests arrive at 0"):
        workload(arrivals_s=(0.0, 0.0)).scaled(rate=2.0)
    closed = Workload.parse(content(arrivals={"process": "closed", "num_clients": 2}, requests=[request()]), source="w")
    with pytest.raises(ValueError, match="rate is 2, but in a closed loop the ends of requests set the rate"):
        closed.scaled(rate=2.0)
