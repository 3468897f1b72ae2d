"""Host costs from timelines: time between forwards, sends, hops, and messages that reach a busy receiver."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from swiftspec.artifacts.profile import HostPoint
from swiftspec.policies import POLICIES
from swiftspec.policies.base import sends_features
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Latency, Provenance
from swiftspec.timing.timeline import COMPUTING, Phase, Timeline

__all__ = ["arrival_point", "host_points"]

LEAST_SAMPLES = 8

_Samples = defaultdict[tuple[Phase, int], list[float]]


def host_points(rounds: Sequence[tuple[str, Timeline]]) -> Iterator[HostPoint]:
    """Host time around effects: the gap before a span, and the span itself if it is not a forward.

    For `wait` it is the hop: from the peer's send to the message's arrival, if the receiver was already waiting.
    rounds: names of policies and their timelines. Points are of each policy, and of all together for those that are
    not among them. Hops are of all together where features go with messages: there they depend on their number.
    """
    samples: dict[str, _Samples] = {}
    for policy, timeline in rounds:
        found = _samples(timeline)
        for name in (policy, ""):
            of_policy = samples.setdefault(name, defaultdict(list))
            for key, seconds in found.items():
                of_policy[key] += seconds
    for policy, of_policy in samples.items():
        counts_features = policy in POLICIES and sends_features(POLICIES[policy]())
        for (phase, rows), seconds in of_policy.items():
            if len(seconds) >= LEAST_SAMPLES and not (counts_features and phase is Phase.WAIT):
                latency = Latency.of_samples(seconds, Provenance.MEASURED)
                yield HostPoint(
                    phase=phase,
                    rows=rows,
                    policy=policy,
                    quantiles_s=latency.quantiles_s,
                    num_samples=len(seconds),
                    provenance=Provenance.MEASURED,
                )


def _samples(timeline: Timeline) -> _Samples:
    """Seconds by phase and rows."""
    samples: _Samples = defaultdict(list)
    for role in Role:
        for before, span in pairwise(timeline.of(role)):
            if span.phase in COMPUTING and span.phase is not Phase.PREFILL:
                samples[span.phase, span.rows].append(span.start_s - before.end_s)
            elif span.phase in (Phase.SEND, Phase.COMPACT, Phase.COMMIT):
                samples[span.phase, 1].append(span.end_s - before.end_s)
    if hops := list(_hops(timeline)):
        samples[Phase.WAIT, 1] += hops
    return samples


def _hops(timeline: Timeline) -> Iterator[float]:
    for receiver, sender in ((Role.TARGET, Role.DRAFT), (Role.DRAFT, Role.TARGET)):
        sends = [span for span in timeline.of(sender) if span.phase is Phase.SEND]
        waits = [span for span in timeline.of(receiver) if span.phase is Phase.WAIT]
        for send, wait in zip(sends, waits, strict=False):
            if wait.start_s < send.start_s:
                yield max(wait.end_s - send.end_s, 1e-9)


def arrival_point(timelines: Sequence[Timeline]) -> HostPoint | None:
    """Cost of a message that arrives while the target computes, from timelines of `Interruptions`.

    The median difference per message over pairs of verifications, one with few messages and one with many; None if
    there is none. On a CPU a thread on the same cores receives messages.
    """
    differences = []
    for timeline in timelines:
        sends = [span.end_s for span in timeline.of(Role.DRAFT) if span.phase is Phase.SEND]
        verified = [
            (span.end_s - span.start_s, sum(span.start_s <= sent_s < span.end_s for sent_s in sends))
            for span in timeline.phase(Phase.VERIFY)
        ]
        for (quiet_s, few), (disturbed_s, many) in zip(verified[::2], verified[1::2], strict=False):
            if many > few:
                differences.append((disturbed_s - quiet_s) / (many - few))
    if len(differences) < LEAST_SAMPLES or median(differences) <= 0:
        return None
    return HostPoint(
        phase=Phase.ARRIVE,
        rows=1,
        quantiles_s=Latency.of_samples([median(differences)], Provenance.MEASURED).quantiles_s,
        num_samples=len(differences),
        provenance=Provenance.MEASURED,
    )
