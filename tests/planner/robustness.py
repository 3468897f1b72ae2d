"""Loss of plans if forwards are a little slower than predicted: `python -m tests.planner.robustness`.

Plans for pairs, devices, weight formats, numbers of devices and objectives drawn from a list; the choice of each is
simulated again with all forwards, with the target's alone and with the draft's alone 0.97 and 1.03 times as long. These
simulations know exactly one machine: nothing in them is averaged. Exits with 1 unless nine plans in ten change by at
most 5 %, whichever forwards are scaled.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.plan import Candidate, Goal, Objective
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.for_device import prepare
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.planned_model import planned_pair
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator
from swiftspec.timing.steps import Latencies
from tests.planner.making import made_plan

WHOSE = {"all": tuple(Role), "target": (Role.TARGET,), "draft": (Role.DRAFT,)}  # forwards that are scaled
SCALES = (0.97, 1.03)  # of forwards, against the plan's own
MOST_CHANGE = 0.05
LEAST_SHARE = 0.9  # of plans that keep to it
PAIRS = (
    ("llama-3-70b", "llama-3.2-1b"),
    ("llama-3-70b", "llama-3-8b"),
    ("llama-2-70b", "llama-68m"),
    ("llama-3.1-8b", "llama-3.2-1b"),
    ("qwen2.5-72b", "qwen2.5-1.5b"),
    ("qwen2.5-32b", "qwen2.5-0.5b"),
    ("qwen3-32b", "qwen3-0.6b"),
    ("qwen3-14b", "qwen3-1.7b"),
)
DEVICES = ("h100-sxm", "h200-sxm", "h800-sxm", "a100-sxm", "l40s", "b200")
QUANTISATIONS = ("bf16", "fp8", "int4")
NUM_DEVICES = (1, 2, 4, 8)
OBJECTIVES = (Objective.TOKENS_PER_S, Objective.TPOT, Objective.TPOT_P95, Objective.TOKENS_PER_GPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Inputs of a plan."""

    target: str
    draft: str
    device: str
    num_devices: int
    quant: str
    objective: Objective

    def __str__(self) -> str:
        return f"{self.target} + {self.draft}, {self.num_devices} x {self.device}, {self.quant}, {self.objective}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Tokens/s of a plan's choice: as predicted, as simulated on that very machine, and on others.

    changes: by how much the speed changes where the forwards of these roles are `SCALES` times as long.
    """

    case: Case
    chosen: str
    predicted: float
    simulated: float
    changes: dict[str, tuple[float, ...]]
    seconds: float

    def most(self, whose: str) -> float:
        """The largest change where these forwards are scaled, without its sign."""
        return max(map(abs, self.changes[whose]))


def cases(*, seed: int) -> Iterator[Case]:
    """All combinations in random order."""
    combinations = list(product(PAIRS, DEVICES, NUM_DEVICES, QUANTISATIONS, OBJECTIVES))
    random.Random(seed).shuffle(combinations)
    for (target, draft), device, num_devices, quant, objective in combinations:
        yield Case(target=target, draft=draft, device=device, num_devices=num_devices, quant=quant, objective=objective)


def check(case: Case, *, jobs: int = 1) -> Checked:
    """Plan, and simulate the choice on other machines. ValueError where nothing fits."""
    start_s = time.perf_counter()
    machine = Deployment(device=case.device, num_devices=case.num_devices, quant=case.quant, draft_quant=case.quant)
    target, draft = planned_pair(case.target, case.draft)
    inputs = prepare(machine, target=target, draft=draft)
    made = made_plan(
        profile=inputs.profile,
        trace=inputs.trace,
        num_devices=case.num_devices,
        policy=None,
        seed=0,
        num_jobs=jobs,
        progress=lambda *_: None,
        goal=Goal(objective=case.objective),
        memory=MemoryModel(
            device=machine.spec,
            specs=dict(zip(Role, (target.spec, draft.spec), strict=True)),
            quantisation=dict(zip(Role, (machine.quant, machine.draft_quant), strict=True)),
        ),
        acceptance=inputs.acceptance,
    )
    chosen = made.chosen
    simulated = _speed(inputs.profile, inputs.trace, chosen, 1.0, tuple(Role))
    changes = {
        whose: tuple(_speed(inputs.profile, inputs.trace, chosen, scale, roles) / simulated - 1 for scale in SCALES)
        for whose, roles in WHOSE.items()
    }
    return Checked(
        case=case,
        chosen=chosen.describe(),
        predicted=chosen.prediction.metrics.figures.tokens_per_s,
        simulated=simulated,
        changes=changes,
        seconds=time.perf_counter() - start_s,
    )


def _speed(profile: Profile, trace: AcceptanceTrace, chosen: Candidate, scale: float, roles: Sequence[Role]) -> float:
    """Tokens/s on every prompt, with the forwards of these roles longer by a factor."""
    latencies: Latencies = profile.latencies.changed(
        lambda table, grid: grid.scaled(scale) if table.role in roles else grid
    )
    run = Simulator(latencies, trace).run(
        chosen.build(),
        degrees={role: len(group) for role, group in chosen.groups.items()},
        ranks=chosen.ranks,
        seed=0,
    )
    return measure(run.timelines).figures.tokens_per_s


def is_robust(checked: Sequence[Checked]) -> bool:
    """Whether nine plans in ten change by at most 5 %, whichever forwards are scaled."""
    return all(_num_kept(checked, whose) >= math.ceil(LEAST_SHARE * len(checked)) for whose in WHOSE)


def _num_kept(checked: Sequence[Checked], whose: str) -> int:
    return sum(found.most(whose) <= MOST_CHANGE for found in checked)


def main() -> int:
    """Check a number of plans, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.planner.robustness", description=__doc__)
    parser.add_argument("--plans", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write every figure")
    options = parser.parse_args()
    checked: list[Checked] = []
    for case in cases(seed=options.seed):
        if len(checked) == options.plans:
            break
        try:
            found = check(case, jobs=options.jobs)
        except ValueError as error:
            sys.stderr.write(f"{case}: {error}\n")
            continue
        checked.append(found)
        print(_line(found), flush=True)
    print(_summary(checked), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(found) for found in checked], indent=1))
    return 0 if is_robust(checked) else 1


def _line(found: Checked) -> str:
    changes = "  ".join(f"{whose} {_percents(values)}" for whose, values in found.changes.items())
    policy = " ".join(found.chosen.split()[:2])
    return (
        f"{found.predicted:7.1f} predicted {found.simulated:7.1f} simulated  {changes}  {found.seconds:5.1f} s  "
        f"{policy:16s} {found.case}"
    )


def _percents(values: Sequence[float]) -> str:
    return " ".join(f"{value * 100:+5.1f}" for value in values) + " %"


def _summary(checked: Sequence[Checked]) -> str:
    kept = ", ".join(f"{_num_kept(checked, whose)} ({whose} forwards)" for whose in WHOSE)
    errors = sorted(found.predicted / found.simulated - 1 for found in checked)
    return (
        f"Of {len(checked)} plans these change by at most {MOST_CHANGE:.0%} where forwards are "
        f"{' or '.join(map(str, SCALES))} times as long: {kept}. Predicted against simulated: {errors[0]:+.1%} to "
        f"{errors[-1]:+.1%}, mean {sum(errors) / len(errors):+.1%}"
    )


if __name__ == "__main__":
    sys.exit(main())
