"""Course of a demo: the sizes chosen to fit its budget, the time of its stages, and the load of other processes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from swiftspec.cli import console
from swiftspec.demo.budget import (
    STAGES,
    Choice,
    Scope,
    choose,
    closing_seconds,
    left_out,
    restricted,
    stage_seconds,
)
from swiftspec.demo.gauge import instructions, take_gauge
from swiftspec.devices.contention import Contention, watch_contention
from swiftspec.files.document import ModelRef
from swiftspec.reports.formatting import count, milliseconds, percent

__all__ = ["Course"]

_ROWS = 8  # of the forwards that are shown


class Course:
    """Stages of a demo against its budget.

    budget_s: seconds from now until the end. ladder: from the full demo to the smallest; the first that fits is taken.

    choice: the choice that fits, set by `look`; reduced by `refit` if stages take longer than expected. expected_s:
    seconds that each stage should take, as estimated by `look`. contention: CPU time of other processes, by stage.
    """

    choice: Choice

    def __init__(self, *, budget_s: float, scope: Scope, ladder: Sequence[Choice]) -> None:
        self._start_s = time.monotonic()
        self._budget_s = budget_s
        self._scope = scope
        self._ladder = ladder
        self._wanted = ladder[0]
        self.expected_s: dict[str, float] = {}
        self._took_s: dict[str, float] = {}
        self.contention: dict[str, Contention] = {}
        self._profiled = 1.0  # share of the passes chosen
        self._cut_short: list[str] = []

    def look(self, target: ModelRef, draft: ModelRef, *, num_devices: int, inflate: str | None) -> None:
        """Time the machine and choose what fits; `inflate` is a shape that the user gave."""
        with self._watched("first look"):
            self._gauge = take_gauge(target, draft, num_devices=num_devices)
        if inflate is not None:
            self._ladder = restricted(self._ladder, layers=self._gauge.deep_layers)
            self._wanted = self._ladder[0]
        self._took_s["first look"] = time.monotonic() - self._start_s
        self._take(self._fitting())
        estimated_s = stage_seconds(self._gauge, self._scope, self.choice)
        self.expected_s = {"first look": self._took_s["first look"]} | estimated_s

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage, and measure the load of other processes."""
        start_s = time.monotonic()
        with self._watched(name):
            yield
        self._took_s[name] = time.monotonic() - start_s

    def refit(self) -> None:
        """Choose again for the remaining stages if the finished ones took longer than expected."""
        self._ladder = restricted(self._ladder, layers=self.choice.layers, passes=self.choice.passes)
        fitting = self._fitting()
        if fitting != self.choice:
            console.paragraph()
            console.paragraph("That took longer than expected, so the remaining stages do less:")
            self._list(left_out(fitting, self.choice))
            self._take(fitting)

    def no_more_passes(self) -> Callable[[], bool]:
        """Callable for the profile to ask between passes: whether another pass would take time from other stages."""
        start_s, done = time.monotonic(), 0
        whole_s = sum(self.expected_s.values())
        allowed_s = self.expected_s["profile"] * max(1.0, self._budget_s / whole_s)

        def stop() -> bool:
            nonlocal done
            done += 1
            passed_s = time.monotonic() - start_s
            if passed_s * (done + 1) / done <= allowed_s:
                return False
            self._profiled = done / self.choice.passes
            self._cut_short.append(f"{done} of {self.choice.passes} passes of the profile, which took {passed_s:.0f} s")
            return True

        return stop

    def no_more_prompts(self) -> bool:
        """Whether the validation has to end now so that the demo stays within its budget."""
        closing_s = closing_seconds(self._gauge, self._scope, self.choice) * max(1.0, self._pace)
        return time.monotonic() - self._start_s + closing_s > self._budget_s

    def was_validated(self, *, prompts: int, repeats: int) -> None:
        """Record how much was measured of what was chosen."""
        for done, chosen, what in (
            (prompts, self.choice.validated, "prompts validated"),
            (repeats, self.choice.repeats, "repetitions of the validation"),
        ):
            if done < chosen:
                self._cut_short.append(f"{done} of {chosen} {what} when time ran out")

    def show_choice(self) -> None:
        """Print the machine, what was chosen for it, and what was left out."""
        gauge, choice = self._gauge, self.choice
        whole_s = sum(self.expected_s.values())
        console.paragraph(
            f"{count(gauge.num_devices, 'core')} with {instructions()}. A forward of {_ROWS} rows on one core takes "
            f"{milliseconds(gauge.base.at(_ROWS))} ms with the bundled target, "
            f"{milliseconds(gauge.deep.at(_ROWS))} ms when inflated to {gauge.deep_layers} layers."
        )
        self._show_contention("first look", "takes longer and is less accurate")
        console.paragraph(
            f"Chosen: a target of {choice.layers} layers; passes of the profile: {choice.passes}; prompts traced: "
            f"{choice.traced}; prompts validated: {choice.validated}, repetitions: {choice.repeats}. "
            f"Expected: {whole_s / 60:.1f} of {self._budget_s / 60:g} minutes."
        )
        if whole_s > self._budget_s:
            console.paragraph("This is the smallest useful demo; it takes longer than the budget here.")
        if sentences := left_out(choice, self._wanted):
            console.paragraph(f"Left out, to fit {self._budget_s / 60:g} minutes (--budget-minutes changes that):")
            self._list(sentences)

    def show_end(self) -> None:
        """Print the expected and actual time of every stage, and whether the machine was busy."""
        rows = [
            (
                name,
                f"{self.expected_s[name]:.0f}",
                f"{self._took_s[name]:.0f}",
                percent(self.contention[name].others_share),
            )
            for name in ("first look", *STAGES)
        ]
        total = ("all", f"{sum(self.expected_s.values()):.0f}", f"{time.monotonic() - self._start_s:.0f}", "")
        columns = ("stage", "expected s", "took s", "other processes")
        console.table("Time, and the share of the cores that other processes took", columns, [*rows, total])
        if sentences := left_out(self.choice, self._wanted):
            console.paragraph("Left out:")
            self._list(sentences)
        if self._cut_short:
            console.paragraph("Ended early:")
            self._list(self._cut_short)
        busiest = max(self.contention, key=lambda name: self.contention[name].others_share)
        self._show_contention(busiest, "took longer and is less accurate")

    @property
    def content(self) -> dict[str, Any]:
        """Content of `--json`."""
        return {
            "choice": asdict(self.choice),
            "left_out": [*left_out(self.choice, self._wanted), *self._cut_short],
            "stages": [
                {
                    "stage": name,
                    "expected_s": self.expected_s[name],
                    "took_s": self._took_s[name],
                    "others_share": self.contention[name].others_share,
                }
                for name in ("first look", *STAGES)
            ],
            "was_busy": any(found.is_busy for found in self.contention.values()),
        }

    def _show_contention(self, stage: str, so: str) -> None:
        found = self.contention[stage]
        if found.is_busy:
            console.paragraph(
                f"The machine is busy: other processes took {percent(found.others_share)} of these cores' time during "
                f"the {stage}. Everything {so} than on a quiet one."
            )

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        with watch_contention() as found:
            yield
        self.contention[name] = found

    @property
    def _pace(self) -> float:
        """Ratio of actual to expected time over the finished stages."""
        done = [name for name in STAGES if name in self._took_s]
        shares = {"profile": self._profiled}
        expected_s = sum(self.expected_s[name] * shares.get(name, 1.0) for name in done)
        return sum(self._took_s[name] for name in done) / expected_s if expected_s else 1.0

    def _fitting(self) -> Choice:
        return choose(
            self._gauge,
            self._scope,
            budget_s=self._budget_s,
            ladder=self._ladder,
            spent_s=self._took_s,
            pace=self._pace,
        )

    def _take(self, choice: Choice) -> None:
        """Adopt a choice; whatever it leaves out stays left out."""
        self.choice = choice
        self._ladder = self._ladder[self._ladder.index(choice) :]

    @staticmethod
    def _list(sentences: Sequence[str]) -> None:
        for sentence in sentences:
            console.paragraph(sentence, indent="  ")
