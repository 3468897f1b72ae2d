"""Servers that are simulated, and what their /metrics would answer."""

from dataclasses import dataclass, replace

import numpy as np

from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.served import Served
from swiftspec.engines.words import Method
from swiftspec.loadtest.readings import Reading
from swiftspec.planner.under_load.arrays import simulate
from swiftspec.planner.under_load.decoding import Chains
from swiftspec.planner.under_load.loads import ArrayRun, Requests
from swiftspec.planner.under_load.measured_engine import MeasuredEngine
from swiftspec.profiler.served.measure import ProbeSizes, ServerTimes, profile_of
from swiftspec.profiler.served.probes import Drafting
from tests.builders import MODEL
from tests.profiler.served.steps import KNOWN, STEP

RATE = 0.65  # at which each draft token is accepted, if those before it were
PROMPT, OUTPUT = 120, 64


def served_profile() -> Profile:
    """A profile of a vLLM server, whose fit is 3 % off."""
    step = STEP.model_copy(update={"fitted_s": 1.03 * STEP.seconds})
    served = Served(
        engine="vllm@0.32.0",
        methods=(Method.MODEL, Method.PROMPT_LOOKUP),
        step_tokens=2048,
        requests=128,
        prefix_block=16,
        runs_ahead=False,
        cache_tokens=100_000,
        request_s=0.005,
        prompt_token_s=2e-6,
        measured=(step,),
        minutes=1.0,
    )
    times = ServerTimes(steps=KNOWN, request_s=0.005, prompt_token_s=2e-6, measured=(step,))
    policies = {Drafting.PLAIN: "autoregressive", Drafting.LOOKUP: "prompt_lookup", Drafting.DRAFT: "serial_chain"}
    sizes = ProbeSizes(sequences=8, longest=1024)
    return profile_of(times, sizes, device="cpu", target=MODEL, draft=MODEL, served=served, policies=policies)


@dataclass(frozen=True, kw_only=True)
class SimulatedServer:
    """A server whose steps take `factor` times those of the profile.

    length: draft tokens. clients: of a closed loop. count: requests. most: requests at once.
    """

    length: int
    clients: int = 6
    count: int = 400
    factor: float = 1.25
    most: int = 128
    seed: int = 3

    @property
    def survival(self) -> list[float]:
        return [RATE**place for place in range(1, self.length + 1)]

    def run(self) -> ArrayRun:
        """Its requests."""
        rng = np.random.default_rng(self.seed)
        engine = MeasuredEngine.of(served_profile())
        assert engine is not None
        chains: Chains | None = None
        if self.length:
            accepted = (rng.random((20_000, self.length)) < RATE).cumprod(axis=1).sum(axis=1)
            chains = engine.chains(forward_rows=[1] * self.length, rows=1 + self.length, tokens=1 + accepted)
            draft_s, factor = chains.draft_s, self.factor
            chains = replace(chains, draft_s=lambda requests, context: factor * draft_s(requests, context))
        there = engine.under_load(chains)
        step_s, factor = there.step_s, self.factor
        there = replace(there, step_s=lambda work: factor * step_s(work), max_requests=self.most)
        load = Requests(
            arrival_s=np.zeros(self.count),
            prompt_tokens=rng.integers(PROMPT - 40, PROMPT + 41, self.count),
            output_tokens=rng.integers(OUTPUT // 2, 3 * OUTPUT // 2 + 1, self.count),
            num_clients=self.clients,
        )
        return simulate(load, there, seed=self.seed)

    def readings(self) -> tuple[str, str, float]:
        """What /metrics answered before and after the load, and the seconds between."""
        run = self.run()
        tokens = int(run.output_tokens.sum())
        drafts = round((tokens - self.count) / (1 + sum(self.survival))) if self.length else 0
        counted = {
            "prompt_tokens_total": PROMPT * self.count,
            "generation_tokens_total": tokens,
            "prefix_cache_queries_total": PROMPT * self.count,
            "prefix_cache_hits_total": 0,
            "num_preemptions_total": 0,
            "spec_decode_num_drafts_total": drafts,
            "spec_decode_num_draft_tokens_total": drafts * self.length,
            "spec_decode_num_accepted_tokens_total": round(drafts * sum(self.survival)),
            **_histogram("request_prompt_tokens", PROMPT * self.count, self.count),
            **_histogram("request_generation_tokens", tokens, self.count),
            **_histogram("time_to_first_token_seconds", float(run.ttft_s.sum()), self.count),
            **_histogram("e2e_request_latency_seconds", float(run.e2e_s.sum()), self.count),
            **_histogram("request_queue_time_seconds", float(run.queued_s.sum()), self.count),
            **_histogram("request_time_per_output_token_seconds", float(run.tpot_s.sum()), self.count),
            **_histogram("iteration_tokens_total", tokens + PROMPT * self.count, run.num_steps),
        }
        return text({}, ()), text(counted, [drafts * share for share in self.survival]), run.end_s

    def parsed(self) -> tuple[Reading, Reading, float]:
        """The same, parsed."""
        before, after, seconds = self.readings()
        return Reading.parse(before, "before"), Reading.parse(after, "after"), seconds


def _histogram(name: str, total: float, number: int) -> dict[str, float]:
    return {f"{name}_sum": total, f"{name}_count": number}


def text(counted: dict[str, float], by_position: list[float] | tuple[()], *, prefix: str = "vllm") -> str:
    """Prometheus' text."""
    lines = [f'{prefix}:{name}{{engine="0",model_name="m"}} {value}' for name, value in counted.items()]
    positions = f"{prefix}:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{positions}{{engine="0",position="{place}"}} {value}' for place, value in enumerate(by_position)]
    lines.append(f"{prefix}:num_requests_running 6.0")
    return "\n".join(lines) + "\n"
