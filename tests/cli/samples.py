"""Documents and timelines with figures that are easy to check."""

from pathlib import Path

import numpy as np

from swiftspec.artifacts.metrics import Figures, Metrics
from swiftspec.artifacts.plan import Basis, Candidate, Plan, Prediction
from swiftspec.artifacts.trace import AcceptanceTrace, Guesser, Guesses, TracedPrompt
from swiftspec.files.document import ModelRef, Origin, Spread, file_sha256
from swiftspec.policies.base import Value
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.timeline import Phase, Span, Timeline

TARGET, DRAFT = ModelRef(model="synthetic", dtype="float32"), ModelRef(model="synthetic", dtype="float32")
ORIGIN = Origin(command="test", created_utc="2026-01-01T00:00:00+00:00", versions={}, device="test, 2 cores")


def serial_timeline(request: str = "a", *, start_s: float = 0.0, num_rounds: int = 4, round_s: float = 0.1) -> Timeline:
    """Prefill of a round's length, then rounds of one expansion (half) and one verification (half) of two tokens."""
    spans = [Span(Role.TARGET, Phase.PREFILL, Role.TARGET, 5, 0, start_s, start_s + round_s)]
    for number in range(1, num_rounds + 1):
        begin_s, end_s = start_s + number * round_s, start_s + (number + 1) * round_s
        middle_s = (begin_s + end_s) / 2
        spans += [
            Span(Role.TARGET, Phase.EXPAND, Role.DRAFT, 1, 0, begin_s, middle_s),
            Span(Role.TARGET, Phase.VERIFY, Role.TARGET, 2, 0, middle_s, end_s),
            Span(Role.TARGET, Phase.COMMIT, Role.TARGET, 0, 2, end_s, end_s),
        ]
    return Timeline(request=request, start_s=start_s, spans=tuple(spans))


def parallel_timeline(request: str = "a", *, start_s: float = 0.0, num_rounds: int = 4) -> Timeline:
    """Verifications of 0.09 s and three tokens, 0.01 s apart, with draft expansions of 0.03 s meanwhile."""
    target, draft = [], []
    for number in range(num_rounds):
        at_s = start_s + 0.1 * number
        target += [
            Span(Role.TARGET, Phase.VERIFY, Role.TARGET, 8, 0, at_s, at_s + 0.09),
            Span(Role.TARGET, Phase.SEND, Role.TARGET, 0, 0, at_s + 0.09, at_s + 0.095),
            Span(Role.TARGET, Phase.COMMIT, Role.TARGET, 0, 3, at_s + 0.095, at_s + 0.095),
        ]
        draft += [
            Span(Role.DRAFT, Phase.EXPAND, Role.DRAFT, 4, 0, at_s + 0.03 * i, at_s + 0.03 * (i + 1)) for i in range(3)
        ]
        draft += [
            Span(Role.DRAFT, Phase.WAIT, Role.DRAFT, 0, 0, at_s + 0.09, at_s + 0.096),
            Span(Role.DRAFT, Phase.SEND, Role.DRAFT, 0, 0, at_s + 0.096, at_s + 0.099),
        ]
    return Timeline(request=request, start_s=start_s, spans=(*target, *draft))


def candidate(policy: str, *, tokens_per_s: float, shape: dict[str, Value] | None = None) -> Candidate:
    metrics = Metrics(
        figures=Figures(tokens_per_s=tokens_per_s, round_s=Spread(median=0.02, p95=0.03), tokens_per_round=2.5),
        num_tokens=100,
        rounds=40,
        ttft_s=0.03,
        tpot_s=1 / tokens_per_s,
        overlap_fraction=0.5,
        verify_s=0.018,
        tail_s=None,
        hit_fraction=None,
        mean_round_s=0.02,
        target_busy=0.9,
        draft_busy=0.7,
        wasted_draft=0.4,
    )
    groups: dict[Role, tuple[int, ...]] = {Role.TARGET: (0,)}
    if policy == "swiftspec":
        groups[Role.DRAFT] = (1,)
    prediction = Prediction(
        metrics=metrics,
        tokens_per_s_low=0.9 * tokens_per_s,
        tokens_per_s_high=1.1 * tokens_per_s,
        provenance={Provenance.MEASURED: 0.93, Provenance.INTERPOLATED: 0.07},
    )
    return Candidate(policy=policy, shape=shape or {}, groups=groups, prediction=prediction)


def plan(*, target: ModelRef = TARGET, draft: ModelRef = DRAFT, folder: Path | None = None) -> Plan:
    """swiftspec before serial_chain before autoregressive; its basis is what lies in `folder`, if anything."""

    def basis(name: str) -> Basis:
        path = (folder or Path()) / name
        return Basis(path=name, sha256=file_sha256(path) if folder and path.exists() else "0" * 64)

    return Plan(
        origin=ORIGIN,
        device="cpu",
        num_devices=2,
        target=target,
        draft=draft,
        profile=basis("profile.json"),
        trace=basis("trace.npz"),
        max_new_tokens=24,
        chosen=candidate("swiftspec", tokens_per_s=120.0, shape={"verify_rows": 4, "expand_rows": 2}),
        alternatives=(
            candidate("serial_chain", tokens_per_s=100.0, shape={"num_draft_tokens": 2}),
            candidate("autoregressive", tokens_per_s=50.0),
        ),
        num_simulated=3,
        rejected={"tree rows over the cache": 2},
    )


def trace(
    *, target: ModelRef = TARGET, draft: ModelRef = DRAFT, ranks: tuple[int, ...] = (0, 0, 1, 0)
) -> AcceptanceTrace:
    """One prompt of four tokens: the draft's first choice three times, its second once."""
    num_tokens = len(ranks)
    prompt = TracedPrompt(
        prompt_id="a",
        prompt_tokens=np.arange(5, dtype=np.int32),
        target_tokens=np.arange(10, 10 + num_tokens, dtype=np.int32),
        guesses={
            Guesser.DRAFT: Guesses(
                np.array([[10 + i - rank, 11 + i - rank] for i, rank in enumerate(ranks)], dtype=np.int32),
                np.log(np.tile(np.array([[0.7, 0.2]], dtype=np.float32), (num_tokens, 1))),
            )
        },
        ranks=np.array(ranks, dtype=np.int32),
        ended=False,
    )
    return AcceptanceTrace(origin=ORIGIN, source="recorded", target=target, draft=draft, prompts=(prompt,))
