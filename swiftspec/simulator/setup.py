"""A policy on its devices with the scheduler's limits: what serves a load, simulated or on the engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from swiftspec.artifacts.candidate import policy_costs, usual_gather_s
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.controller import Steering
from swiftspec.scheduler.controls.named import control_under
from swiftspec.simulator.latency import LatencyTable
from swiftspec.simulator.serving import Serving
from swiftspec.timing.step_costs import StepCosts
from swiftspec.timing.steps import Latencies


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A policy on its devices, as it serves requests.

    degrees, ranks: devices of each role's group, and the processes that divide them.
    gather_s: longest wait of verifications for those of other requests.
    control: that it was planned to run under.
    costs: of its steps, for controls; those of the latencies if not given.
    """

    policy: Policy
    degrees: Mapping[Role, int]
    ranks: Mapping[Role, int] = field(default_factory=dict)
    gather_s: float = 0.0
    control: str | None = None
    costs: StepCosts | None = None

    @classmethod
    def of(cls, candidate: Candidate) -> Self:
        return cls(
            policy=candidate.build(),
            degrees={role: len(group) for role, group in candidate.groups.items()},
            ranks=candidate.ranks,
            gather_s=usual_gather_s(candidate),
            control=candidate.control,
            costs=candidate.costs,
        )

    def limits(self, options: LoadOptions) -> tuple[AdmissionLimits, BatchLimits]:
        """The scheduler's limits, simulated or on the engine."""
        admission = AdmissionLimits(
            max_running=options.max_running,
            max_waiting=options.max_waiting,
            num_blocks=options.num_blocks,
            tree_rows=self.policy.target_rows,
        )
        batch = BatchLimits(
            prefill_rows=options.prefill_rows or BatchLimits().prefill_rows,
            gather_s=self.gather_s if options.gather_s is None else options.gather_s,
            num_batches=self.policy.num_batches,
        )
        return admission, batch

    def serving(self, latencies: Latencies | LatencyTable, trace: AcceptanceTrace, options: LoadOptions) -> Serving:
        admission, batch = self.limits(options)
        table = latencies if isinstance(latencies, LatencyTable) else LatencyTable(latencies)
        steering = None
        if (control := control_under(options.control, self.control)) is not None:
            costs = self.costs or policy_costs(self.policy, self.degrees, self.ranks, table.latencies, trace)
            steering = Steering.of(self.policy, control, costs)
        return Serving(
            table,
            trace,
            self.policy,
            degrees=self.degrees,
            ranks=self.ranks,
            admission=admission,
            batch=batch,
            steering=steering,
        )
