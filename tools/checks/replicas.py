"""Several targets and drafts in one engine, predicted against measured.

Every forward takes the same time, whatever its rows (see `tools.paced_worker`), so that five processes and more can be
measured on two cores, and only what the engine does around forwards can be predicted wrongly. Requests are the traced
prompts of a plan of the demo pair, in a closed loop. Criterion: output tokens/s within 10 % for every number of targets
and drafts and every policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Annotated

from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.load_metrics import MeasuredLoad
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.artifacts.workload import Workload, WorkloadRequest
from swiftspec.cli import console
from swiftspec.engine.launcher import Launcher
from swiftspec.engine.process.run_folder import run_folder
from swiftspec.files.document import ModelRef
from swiftspec.policies import Request, make_policy
from swiftspec.policies.base import shape_of
from swiftspec.policies.effects import Role
from swiftspec.reports.formatting import signed_percent
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.routing import Replicas
from swiftspec.simulator.load import serve_workload
from swiftspec.simulator.setup import Setup
from swiftspec.timing.latency import NUM_QUANTILES, Provenance
from swiftspec.validation.load import LoadEngine
from tools.checks.criterion import Criterion, at_most
from tools.checks.workloads import drawn
from tools.paced_worker import PacedExecutor

_RECORDED = Path(__file__).resolve().parents[2] / "swiftspec/profiles/demo-zen4-2-cores/plan.json"
_POLICIES = ("swiftspec", "ssd", "pearl", "amusd", "minedraft")
_TOPOLOGIES = ("1:1", "2:1", "3:1", "1:2", "2:2", "3:2")
_OUTPUT_TOKENS = 48
_WITHIN = 10  # percent


def check(
    plan: Annotated[Path, "of the demo pair, for its trace and the host's times"] = _RECORDED,
    policies: tuple[str, ...] = _POLICIES,
    topologies: Annotated[tuple[str, ...], "TARGETS:DRAFTS"] = _TOPOLOGIES,
    clients: Annotated[int, "of the closed loop, for each target"] = 3,
    requests: Annotated[int, "for each target"] = 16,
    target_ms: Annotated[float, "of every forward of the target"] = 16.0,
    draft_ms: Annotated[float, "of every forward of the draft"] = 4.0,
) -> Iterator[Criterion]:
    """Serve each policy by each topology, and judge the errors."""
    planned = Planned.load(plan)
    pace_s = {Role.TARGET: target_ms / 1e3, Role.DRAFT: draft_ms / 1e3}
    profile = _paced(planned.profile, pace_s)
    rows, errors = [], []
    for text in topologies:
        num_targets, num_drafts = map(int, text.split(":"))
        replicas = Replicas(num_targets=num_targets, num_drafts=num_drafts)
        loop = _Loop(planned, profile, replicas, num_clients=clients * num_targets, num_requests=requests * num_targets)
        for policy in policies:
            predicted, measured = loop.predicted(policy), loop.measured(policy, pace_s)
            error = predicted / measured - 1
            errors.append((f"{policy} {text}", 100 * abs(error)))
            rows.append((policy, text, f"{predicted:.1f}", f"{measured:.1f}", signed_percent(error)))
            console.say("  ".join(rows[-1]))
    columns = ("policy", "targets:drafts", "predicted tokens/s", "measured", "error")
    console.table("Output under a closed loop", columns, rows, num_text_columns=2)
    yield at_most("error of output tokens/s", errors, _WITHIN, "%")


def _paced(profile: Profile, pace_s: dict[Role, float]) -> Profile:
    """The profile with the forwards' times replaced, which no pause, peer or further sequence changes."""

    def step(point: StepPoint) -> StepPoint:
        seconds = (pace_s[point.role],) * NUM_QUANTILES
        return point.model_copy(update={"quantiles_s": seconds, "provenance": Provenance.ASSUMED, "parts": ()})

    return profile.model_copy(
        update={"steps": tuple(map(step, profile.steps)), "warm_up": (), "sharing": None, "peers_interfere": False}
    )


class _Loop:
    """A closed loop of the traced prompts."""

    def __init__(
        self, planned: Planned, profile: Profile, replicas: Replicas, *, num_clients: int, num_requests: int
    ) -> None:
        self._planned, self._profile, self._replicas = planned, profile, replicas
        base = drawn(f"closed:{num_clients}", num_requests, prompt_tokens="fixed:8", output_tokens="fixed:8")
        prompts = [prompt for prompt in planned.trace.prompts if len(prompt.target_tokens) >= _OUTPUT_TOKENS]
        self._prompts = [prompts[number % len(prompts)] for number in range(num_requests)]
        asked = tuple(
            WorkloadRequest(
                arrival_s=0.0,
                prompt_tokens=len(prompt.prompt_tokens),
                output_tokens=_OUTPUT_TOKENS,
                class_name=base.classes[0].name,
                prompt_id=prompt.prompt_id,
            )
            for prompt in self._prompts
        )
        self._workload: Workload = base.model_copy(update={"requests": asked})
        self._options = LoadOptions(
            max_running=num_clients // replicas.num_targets,
            num_targets=replicas.num_targets,
            num_drafts=replicas.num_drafts,
        ).on("cpu")

    def predicted(self, policy: str) -> float:
        """Output tokens/s by simulation."""
        found = serve_workload(
            Setup.of(self._candidate(policy)),
            self._workload,
            latencies=self._profile.latencies,
            trace=self._planned.trace,
            goal=Goal(classes=self._workload.classes),
            options=self._options,
            replicas=self._replicas,
        )
        return found.metrics.output_throughput

    def measured(self, policy: str, pace_s: dict[Role, float]) -> float:
        """Output tokens/s of the engine."""
        plan, candidate = self._plain_plan(), self._candidate(policy)
        admission, batch = Setup.of(candidate).limits(self._options)
        requests = [
            Request(prompt=tuple(map(int, prompt.prompt_tokens)), max_new_tokens=_OUTPUT_TOKENS)
            for prompt in self._prompts
        ]
        with ExitStack() as stack:
            launcher = stack.enter_context(
                Launcher.for_candidate(
                    plan,
                    candidate,
                    max_context=512,
                    admission=AdmissionLimits(max_running=admission.max_running),
                    batch=batch,
                    replicas=self._replicas,
                    executor=PacedExecutor(stack.enter_context(run_folder()), pace_s),
                )
            )
            engine = LoadEngine(launcher=launcher, candidate=candidate, sampling=plan.sampling, interrupted=Event())
            engine.serve(self._workload, requests)  # the first time is slower
            served: MeasuredLoad = engine.serve(self._workload, requests)
        return served.metrics.output_throughput

    def _plain_plan(self) -> Plan:
        """The plan with the bundled pair as it is: inflation changes no output, and takes time."""
        plan = self._planned.plan
        models: Sequence[ModelRef] = (plan.target, plan.draft)
        target, draft = (model.model_copy(update={"inflate": None, "dtype": "float32"}) for model in models)
        return plan.model_copy(update={"target": target, "draft": draft})

    def _candidate(self, policy: str) -> Candidate:
        """The plan's candidate, or the policy's usual shape on the same devices if it has none."""
        found = self._planned.plan.candidates.get(policy)
        if found is not None:
            return found
        like, made = self._planned.plan.candidates["pearl"], make_policy(policy)
        return like.model_copy(update={"policy": policy, "shape": shape_of(made)})
