"""An engine whose steps are those of a profile that was measured on its server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.served import Served
from swiftspec.costmodel.steps import StepWork
from swiftspec.engines.description import Engine, StepLimits
from swiftspec.engines.words import Method
from swiftspec.export.nearest import drafter_of, method_of
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.spec import is_model_directory
from swiftspec.planner.under_load.serving_engine import AboveEngine, DraftMethod, ServingEngine
from swiftspec.policies import make_policy
from swiftspec.policies.effects import Role
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase


@dataclass(frozen=True, kw_only=True)
class MeasuredEngine(ServingEngine):
    """The server of a profile, on the devices that it was measured on."""

    engine: Engine
    profile: Profile
    served: Served

    @classmethod
    def of(cls, profile: Profile) -> "MeasuredEngine | None":
        """The server that a profile was measured on; None if it was measured on none."""
        served = profile.served
        return None if served is None else cls(engine=served.description, profile=profile, served=served)

    @property
    def limits(self) -> StepLimits:
        return self.served.limits

    @cached_property
    def drafts(self) -> DraftMethod:
        model = self.profile.draft.model
        reads_target = is_model_directory(model) and draft_facts(model, runs=False).kind.reads_target
        return DraftMethod(method=drafter_of(model), reads_target=reads_target)

    @property
    def above(self) -> AboveEngine:
        """What lies above it; telling tokens is in the measured steps."""
        return AboveEngine(self.served.request_s, self.served.prompt_token_s, 0.0)

    def on(self, degree: int, *, context: int) -> "MeasuredEngine":
        """The same: a server has the devices that it was measured on."""
        del degree, context
        return self

    def step_s(self, work: StepWork) -> float:
        """Seconds of a step: of all its rows, and what its prompts attend to beyond that."""
        requests = work.sequences + len(work.chunks)
        context = work.cache_tokens // work.sequences if work.sequences else 0
        seconds = self._forward_s(Role.TARGET, Phase.VERIFY, work.rows, context, max(1, work.sequences))
        if work.sequences and requests > work.sequences:
            seconds += self._further_s(Role.TARGET, 0, 1 + requests - work.sequences)
        for tokens, before in work.chunks:
            alone_s = self._forward_s(Role.TARGET, Phase.VERIFY, tokens, 0, 1)
            seconds += self._forward_s(Role.TARGET, Phase.PREFILL, tokens, before, 1) - alone_s
        return seconds

    def round_s(self, method: Method | None) -> float:
        """Seconds that a verification adds to the step of as many rows."""
        if method is None:
            return 0.0
        if method is Method.DRAFT_SERVER:  # it is asked by the host, as texts are searched there
            method = Method.PROMPT_LOOKUP
        names = {point.policy for point in self.profile.host if point.phase is Phase.COMMIT}
        drafter = drafter_of(self.profile.draft.model)
        policy = next((name for name in sorted(names) if method_of(make_policy(name), drafter) is method), "")
        latency = self.profile.latencies.host_latency(Phase.COMMIT, policy=policy) if policy else None
        return latency.mean_s if latency else 0.0

    def draft_s(self, forward_rows: Sequence[int]) -> Callable[[int, float], float]:
        """Seconds of a round's draft forwards, each of a row for every request."""

        def seconds(requests: int, context: float) -> float:
            one_s = self._forward_s(Role.DRAFT, Phase.EXPAND, requests, int(context), requests)
            return len(forward_rows) * one_s

        return seconds

    def room(self, *, beside_draft: bool) -> int:
        served = self.served
        return (served.beside_draft if beside_draft else None) or served.cache_tokens

    def _forward_s(self, role: Role, phase: Phase, rows: int, context: int, sequences: int) -> float:
        one_s = self.profile.step(StepKey(role, phase, 1, rows, context)).mean_s
        return one_s + self._further_s(role, context, sequences)

    def _further_s(self, role: Role, context: int, sequences: int) -> float:
        """What all sequences but the first add."""
        phase = Phase.EXPAND if role is Role.DRAFT else Phase.VERIFY
        return self.profile.latencies.further_sequences(StepKey(role, phase, 1, 1, context, sequences))[0]
