"""A demo's budget when stages take longer than expected, on a fake clock."""

from collections.abc import Callable

import pytest

from swiftspec.cli.demo_course import Course
from swiftspec.demo.budget import LADDER, STAGES
from swiftspec.demo.gauge import Gauge
from swiftspec.devices.contention import Contention
from swiftspec.files.document import ModelRef
from tests.clock import Clock
from tests.demo.test_budget import FAST, SCOPE, SLOW

pytestmark = pytest.mark.extra("engine")

MODEL = ModelRef(model="demo/target", dtype="float32")
MakeCourse = Callable[[Gauge], Course]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("swiftspec.cli.demo_course.time.monotonic", clock)
    return clock


@pytest.fixture
def new_course(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> MakeCourse:
    def make(gauge: Gauge) -> Course:
        def take(*_: ModelRef, num_devices: int) -> Gauge:
            assert num_devices == 2
            clock.now_s += 3.0
            return gauge

        monkeypatch.setattr("swiftspec.cli.demo_course.take_gauge", take)
        course = Course(budget_s=480.0, scope=SCOPE, ladder=LADDER)
        course.look(MODEL, MODEL, num_devices=2, inflate=None)
        return course

    return make


def spend(course: Course, clock: Clock, stage: str, *, pace: float = 1.0) -> None:
    with course.stage(stage):
        clock.now_s += pace * course.expected_s[stage]


def test_all_goes_as_expected(new_course: MakeCourse, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    course = new_course(FAST)
    course.show_choice()
    assert "Left out" not in capsys.readouterr().out
    for stage in STAGES:
        spend(course, clock, stage)
        course.refit()
    assert course.choice == LADDER[0]
    assert not course.no_more_prompts()
    course.was_validated(prompts=18, repeats=3)
    course.show_end()
    shown = capsys.readouterr().out
    assert "Ended early" not in shown
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.startswith("  ")}
    assert all(rows[stage][1] == rows[stage][2] for stage in STAGES)
    assert course.content["left_out"] == []


def test_a_slow_machine_is_told_what_is_left_out(new_course: MakeCourse, capsys: pytest.CaptureFixture[str]) -> None:
    course = new_course(SLOW)
    course.show_choice()
    shown = " ".join(capsys.readouterr().out.split())
    assert "Left out, to fit 8 minutes (--budget-minutes changes that)" in shown
    assert f"{course.choice.layers} instead of 48 layers of the target" in shown


def test_a_profile_that_takes_long_ends_early_and_leaves_less_for_the_rest(
    new_course: MakeCourse, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    course = new_course(FAST)
    stop, passes = course.no_more_passes(), 0
    with course.stage("profile"):
        for _ in range(course.choice.passes):
            clock.now_s += course.expected_s["profile"]  # three times as long as expected
            passes += 1
            if stop():
                break
    assert passes < course.choice.passes
    course.refit()
    assert "That took longer than expected" in capsys.readouterr().out
    assert course.choice.validated * course.choice.repeats < LADDER[0].validated * LADDER[0].repeats
    assert course.choice.layers == LADDER[0].layers  # it is profiled already
    for stage in ("trace", "plan", "run"):
        spend(course, clock, stage, pace=3.0)
    course.refit()
    clock.now_s = 1000.0 + 479.0
    assert course.no_more_prompts()
    with course.stage("validate"):
        pass
    course.was_validated(prompts=4, repeats=1)
    course.show_end()
    shown = " ".join(capsys.readouterr().out.split())
    assert "Ended early:" in shown
    assert f"{passes} of 3 passes of the profile" in shown
    assert f"4 of {course.choice.validated} prompts validated when time ran out" in shown


def test_a_busy_machine_is_said_to_be_busy(
    new_course: MakeCourse, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    course = new_course(FAST)
    for stage in STAGES:
        spend(course, clock, stage)
        course.contention[stage] = Contention(others_share=0.4 if stage == "validate" else 0.01)
    course.contention["first look"] = Contention(others_share=0.0)
    course.show_end()
    shown = " ".join(capsys.readouterr().out.split())
    assert "other processes took 40.0 % of these cores' time during the validate" in shown
    assert course.content["was_busy"]
