"""A plan's candidate under an engine that serves: its rounds are recorded once, and the load is simulated by arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from swiftspec.artifacts.load_goal import LoadGoal
from swiftspec.artifacts.load_metrics import CacheUse, ServedRecord, SimulatedLoad, load_metrics
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.steps import Latencies
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.workload import Workload
from swiftspec.devices import DeviceSpec
from swiftspec.engines.description import Engine
from swiftspec.models.spec import ModelSpec
from swiftspec.planner.under_load.arrays import simulate
from swiftspec.planner.under_load.deployed import Deployed
from swiftspec.planner.under_load.drafts import DraftModel, chains_of
from swiftspec.planner.under_load.rounds import Round, rounds_of
from swiftspec.planner.under_load.served import ArrayRun, Chains, Requests
from swiftspec.planner.under_load.workloads import requests_of
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator

__all__ = ["ServingEngine", "chains_from", "closed_loop", "recorded_rounds", "serve_under_engine"]

_LEAST_REQUESTS, _REQUESTS_PER_CLIENT = 8, 3  # of a closed loop
_PROMPTS, _TOKENS = 16, 96  # whose rounds are recorded, and output tokens of each


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEngine:
    """An engine, and the pair of models that it serves.

    Parameters
    ----------
    engine : Engine
    settings : mapping of str to str
        The user's limits, by the engine's words.
    device : DeviceSpec
    target : ModelSpec
    quant : str
        Format of the target's weights.
    draft : DraftModel
    """

    engine: Engine
    settings: Mapping[str, str] = field(default_factory=dict)
    device: DeviceSpec
    target: ModelSpec
    quant: str
    draft: DraftModel

    def deployed(self, degree: int, *, context: int) -> Deployed:
        """The target on a group of devices; context: tokens of the longest request."""
        return Deployed(
            engine=self.engine,
            device=self.device,
            degree=degree,
            spec=self.target,
            quant=self.quant,
            settings=self.settings,
            context=context,
        )

    @property
    def step_tokens(self) -> int:
        """Tokens of a step, at most."""
        return self.engine.limits(self.device, self.settings).step_tokens

    def described(self) -> str:
        """The engine and the limits of its steps, a clause."""
        limits = self.engine.limits(self.device, self.settings)
        graphs = f", graphs up to {limits.captured_tokens}" if limits.captured_tokens else ""
        ahead = "formed while one runs" if limits.runs_ahead else "formed after the one before"
        return (
            f"{self.engine.described()} with steps of at most {limits.step_tokens} tokens and {limits.requests} "
            f"requests, {ahead}{graphs}"
        )


def serve_under_engine(
    candidate: Candidate,
    workload: Workload,
    *,
    serving: ServingEngine,
    latencies: Latencies,
    trace: AcceptanceTrace,
    goal: LoadGoal,
    transfer_s: float | None = None,
    seed: int = 0,
) -> SimulatedLoad:
    """Serve all requests by a candidate that verifies chains on its target's devices.

    Between a request's first and last token its chunks are taken as equally far apart. transfer_s: as of `Requests`.

    Raises
    ------
    ValueError
        If the target does not fit, or is in no table.
    """
    policy = candidate.build()
    longest = max(request.prompt_tokens + request.output_tokens for request in workload.requests)
    deployed = serving.deployed(len(candidate.groups[Role.TARGET]), context=longest)
    rounds = recorded_rounds(policy, deployed.degree, latencies=latencies, trace=trace, seed=seed)
    chains = chains_from(rounds, deployed, serving.draft)
    engine = deployed.under_load(chains)
    run = simulate(requests_of(workload, transfer_s=transfer_s), engine, seed=seed)
    records = _records(run, workload, goal, tokens_per_round=fmean(one.tokens for one in rounds))
    return SimulatedLoad(
        metrics=load_metrics(records),
        records=records,
        timelines=(),
        mean_batch=run.mean_running,
        busy_fraction=min(1.0, run.busy_s / run.end_s),
        cache=CacheUse(tokens=engine.cache_tokens, hit_rate=run.hit_rate),
    )


def recorded_rounds(
    policy: Policy, degree: int, *, latencies: Latencies, trace: AcceptanceTrace, seed: int, ranks: int = 1
) -> list[Round]:
    """Rounds of one simulated request after another, of a policy whose models share devices."""
    count = len(trace.prompts)
    indices = np.linspace(0, count - 1, min(count, _PROMPTS)).round().astype(int)
    run = Simulator(latencies, trace).run(
        policy,
        degrees={Role.TARGET: degree},
        ranks={Role.TARGET: ranks},
        prompt_indices=indices.tolist(),
        seed=seed,
        max_new_tokens=_TOKENS,
    )
    return rounds_of(run.timelines)


def chains_from(rounds: Sequence[Round], deployed: Deployed, draft: DraftModel) -> Chains | None:
    """Drafting in lockstep, as recorded rounds have it; None for plain decoding."""
    rows = round(fmean(one.verify_rows for one in rounds))
    if rows <= 1:
        return None
    levels = max(len(one.draft_rows) for one in rounds)
    width = [
        round(fmean(one.draft_rows[level] for one in rounds if level < len(one.draft_rows))) for level in range(levels)
    ]
    return chains_of(
        deployed,
        draft if levels else None,
        forward_rows=width,
        rows=rows,
        tokens=np.array([one.tokens for one in rounds]),
    )


def closed_loop(
    served: Deployed, chains: Chains | None, clients: int, *, prompt_tokens: int, output_tokens: int, seed: int = 0
) -> ArrayRun:
    """Clients that each send the next request when one ends, all of one length."""
    count = max(_LEAST_REQUESTS, _REQUESTS_PER_CLIENT * clients)
    load = Requests(
        arrival_s=np.zeros(count),
        prompt_tokens=np.full(count, prompt_tokens),
        output_tokens=np.full(count, output_tokens),
        num_clients=clients,
    )
    return simulate(load, served.under_load(chains), seed=seed)


def _records(run: ArrayRun, workload: Workload, goal: LoadGoal, *, tokens_per_round: float) -> tuple[ServedRecord, ...]:
    limits = {each.name: each for each in goal.classes}
    records = []
    for number, request in enumerate(workload.requests):
        arrival_s = float(run.arrival_s[number])
        first_s, last_s = arrival_s + float(run.ttft_s[number]), arrival_s + float(run.e2e_s[number])
        chunks = max(1, round((request.output_tokens - 1) / tokens_per_round)) if request.output_tokens > 1 else 0
        record = ServedRecord(
            arrival_s=arrival_s,
            queued_s=float(run.queued_s[number]),
            commits_s=(first_s, *np.linspace(first_s, last_s, chunks + 1)[1:].tolist()),
            num_tokens=request.output_tokens,
            num_rounds=max(1, chunks),
            num_preemptions=int(run.preemptions[number]),
            class_name=request.class_name,
        )
        of_class = limits[request.class_name]
        records.append(record.judged(of_class.ttft_s, of_class.tpot_s))
    return tuple(records)
