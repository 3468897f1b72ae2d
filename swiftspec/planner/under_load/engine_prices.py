"""An engine's steps as a simulation of events asks for them: one forward over the rows of some sequences."""

from swiftspec.costmodel.steps import StepWork
from swiftspec.engines.words import Method
from swiftspec.planner.under_load.serving_engine import ServingEngine
from swiftspec.policies.effects import Role
from swiftspec.simulator.latency import LatencyDraw, LatencyTable, priced_context
from swiftspec.timing.latency import Provenance
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.steps import Latencies
from swiftspec.timing.timeline import Phase

_NOTHING = LatencyDraw((0.0,), ((Provenance.MEASURED, 1.0),))


class EnginePrices(LatencyTable):
    """Steps of an engine on its devices, and a draft server's forwards.

    latencies: of the same profile, for all but the engine's steps.
    """

    def __init__(self, serving: ServingEngine, latencies: Latencies) -> None:
        super().__init__(latencies)
        self._serving = serving
        self._round_s = serving.round_s(Method.DRAFT_SERVER)
        self._steps: dict[StepKey, LatencyDraw] = {}

    def forward(self, key: StepKey) -> LatencyDraw:
        """Seconds of a step, of verifications with prompts beside them or of prompts alone."""
        key = key._replace(context=priced_context(key.context), peer_busy=False, cold=False)
        if key not in self._steps:
            told_s = self._serving.above.token_s * key.sequences
            seconds = max(self._serving.step_s(_work(key)) + self._round_s, told_s)
            self._steps[key] = LatencyDraw((seconds,), ((self._provenance(key), 1.0),))
        return self._steps[key]

    def host(self, phase: Phase, rows: int, *, policy: str) -> LatencyDraw:
        """Nothing: it is in the steps."""
        del phase, rows, policy
        return _NOTHING

    def _provenance(self, key: StepKey) -> Provenance:
        return self.latencies.step(key._replace(sequences=1)).provenance


def _work(key: StepKey) -> StepWork:
    if key.role is Role.TARGET and key.phase is Phase.PREFILL:
        return StepWork(chunks=[(key.rows, key.context)], sampled=key.sequences)
    sequences = key.sequences
    return StepWork(
        sequences=sequences,
        rows_each=max(1, round(key.rows / sequences)),
        cache_tokens=sequences * key.context,
        sampled=key.rows,
    )
