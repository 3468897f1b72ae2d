"""What prompts share: as drawn, as saved, and as moved to other arrivals."""

from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.workload import Workload
from swiftspec.workload import Arrivals, Lengths, Prefixes, make_workload, with_arrivals
from tests.workload.samples import workload

POISSON = Arrivals.parse("poisson:2", field="arrivals")


def made(count: int = 20, *, prompts: str = "uniform:50:150", arrivals: Arrivals = POISSON, **shared: Any) -> Workload:
    return make_workload(
        arrivals,
        num_requests=count,
        prompt_tokens=Lengths.parse(prompts, field="prompt_tokens"),
        output_tokens=Lengths.parse("fixed:30", field="output_tokens"),
        prefixes=Prefixes(**shared),
    )


def test_a_system_prompt_comes_before_a_prompts_own_tokens() -> None:
    plain, found = made(), made(system_prompt_tokens=1000, system_prompts=3)
    assert [each.prompt_tokens for each in found.requests] == [1000 + each.prompt_tokens for each in plain.requests]
    assert [each.shared for each in found.requests[:4]] == [((f"system-{one}", 1000),) for one in (0, 1, 2, 0)]
    assert [each.arrival_s for each in found.requests] == [each.arrival_s for each in plain.requests]
    total = sum(each.prompt_tokens for each in found.requests)
    assert found.repeated_share == pytest.approx(17 * 1000 / total), "three of them are new"


def test_distinct_prompts_come_again_in_their_lengths() -> None:
    found = made(distinct_prompts=4, system_prompt_tokens=10)
    lengths = [each.prompt_tokens for each in found.requests]
    assert lengths == lengths[:4] * 5
    assert found.requests[1].shared == found.requests[5].shared
    assert found.requests[1].shared[1] == ("prompt-1", lengths[1] - 10)
    assert len({each.segments for each in found.requests}) == 4


def test_turns_have_the_text_so_far_and_wait_for_answers() -> None:
    found = made(7, prompts="fixed:100", turns=3, think_time_s=5.0, system_prompt_tokens=1000)
    assert [each.prompt_tokens for each in found.requests] == [1100, 1230, 1360, 1100, 1230, 1360, 1100]
    assert [each.think_time_s for each in found.requests] == [None, 5, 5, None, 5, 5, None]
    assert found.requests[4].shared == (("system-0", 1000), ("conversation-1", 230))
    assert [each.conversation for each in found.starts] == ["conversation-0", "conversation-1", "conversation-2"]
    assert found.requests[0].arrival_s == found.requests[2].arrival_s < found.requests[3].arrival_s
    assert found.duration_s == pytest.approx(3 / 2), "three conversations at two a second"
    new = [1100, 100, 100, 100, 100, 100, 100]
    assert found.repeated_share == pytest.approx(1 - sum(new) / sum(each.prompt_tokens for each in found.requests))


def test_turns_keep_to_their_conversation_at_other_arrivals() -> None:
    found = made(6, turns=2)
    faster = found.scaled(rate=8.0)
    assert (faster.rate, faster.arrivals.rate) == (8.0, 4.0)
    closed = with_arrivals(found, Arrivals.parse("closed:2", field="arrivals"))
    assert (closed.duration_s, closed.has_turns) == (0.0, True)
    constant = with_arrivals(found, Arrivals.parse("constant:1", field="arrivals"))
    assert [each.arrival_s for each in constant.requests] == [1, 1, 2, 2, 3, 3]


def test_stages_set_the_number_of_requests(tmp_path: Path) -> None:
    stages = Arrivals.parse("poisson:2x10,6x5", field="arrivals")
    lengths = Lengths.parse("fixed:9", field="prompt_tokens")
    found = make_workload(stages, prompt_tokens=lengths, output_tokens=lengths)
    times = [each.arrival_s for each in found.requests]
    assert (len(times), sum(time_s <= 10 for time_s in times)) == (50, 20)
    assert times[-1] == pytest.approx(15.0)
    found.save(tmp_path / "w.json")
    assert Workload.load(tmp_path / "w.json") == found
    doubled = found.scaled(rate=2 * 50 / 15)
    assert [each.rate for each in doubled.arrivals.stages] == pytest.approx([4.0, 12.0])
    assert doubled.duration_s == pytest.approx(sum(each.seconds for each in doubled.arrivals.stages))
    chats = make_workload(stages, prompt_tokens=lengths, output_tokens=lengths, prefixes=Prefixes(turns=3))
    assert (len(chats.requests), len(chats.starts)) == (150, 50)
    with pytest.raises(ValueError, match=r"num_requests is 9, but the stages poisson:2x10,6x5 set the number"):
        make_workload(stages, num_requests=9, prompt_tokens=lengths, output_tokens=lengths)


def test_a_workload_that_shares_nothing_is_written_as_before() -> None:
    text = workload().to_json()
    assert not any(name in text for name in ("shared", "think_time_s", "stages"))
    assert workload().repeated_share == 0.0


@pytest.mark.parametrize(
    ("shared", "complaint"),
    [
        ({"turns": 0}, "turns is 0; expected 1 to"),
        ({"think_time_s": -1.0}, "think_time_s is -1; expected 0 or more"),
        ({"turns": 2, "distinct_prompts": 3}, "distinct_prompts is 3; all 2 turns of a conversation have new ones"),
        ({"system_prompt_tokens": -1}, "system_prompt_tokens is -1; expected 0 to"),
    ],
)
def test_what_cannot_be_shared_is_one_sentence(shared: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Prefixes(**shared)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"shared": [["a", 8], ["b", 3]]}, r"requests\[0\]\.shared has 11 tokens; prompt_tokens is 10"),
        ({"think_time_s": 1.0}, r"requests\[0\]\.think_time_s is 1; expected an earlier request of conversation None"),
        ({"shared": [["", 3]]}, r"requests\[0\]\.shared\[0\]\[0\] is ''"),
    ],
)
def test_a_file_that_shares_what_is_not_there_is_one_sentence(changes: dict[str, Any], complaint: str) -> None:
    content = workload().model_dump(mode="json")
    content["requests"][0] |= changes
    with pytest.raises(ValueError, match=complaint):
        Workload.checked(content, source="w.json")
