"""Host costs: time between forwards, sends, hops with and without features, messages that reach a busy receiver."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from swiftspec.artifacts.profile import HostPoint
from swiftspec.engine.channel.zmq_channel import Channel, Payload
from swiftspec.engine.model.drafts.features import FeatureReceiver, FeatureSender, FeatureStore, most_payload_bytes
from swiftspec.engine.process.run_folder import run_folder
from swiftspec.policies import POLICIES
from swiftspec.policies.base import sends_features
from swiftspec.policies.effects import Role, Verdict
from swiftspec.timing.latency import Latency, Provenance
from swiftspec.timing.steps import hop_rows
from swiftspec.timing.timeline import COMPUTING, Phase, Timeline

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
                quantiles_s = Latency.of_samples(seconds, Provenance.MEASURED).quantiles_s
                yield _point(phase, rows, quantiles_s, len(seconds), policy)


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
    quantiles_s = Latency.of_samples([median(differences)], Provenance.MEASURED).quantiles_s
    return _point(Phase.ARRIVE, 1, quantiles_s, len(differences))


def _point(phase: Phase, rows: int, quantiles_s: tuple[float, ...], num_samples: int, policy: str = "") -> HostPoint:
    return HostPoint(
        phase=phase,
        rows=rows,
        policy=policy,
        quantiles_s=quantiles_s,
        num_samples=num_samples,
        provenance=Provenance.MEASURED,
    )


_NUM_TOKENS = (8, 64, 512)
_REPEATS = 24
_NUMBER_BYTES = 4
_WAIT_MS = 100


def feature_hops(host: Sequence[HostPoint], *, feature_bytes: int) -> Iterator[HostPoint]:
    """Hops with the features of some numbers of tokens: those of all policies together, and what these take longer.

    That is timed over a channel of this process, as requests would use it.

    host: points without features. feature_bytes: of a token's features; 0 without a head.
    """
    plain = next((point for point in host if (point.policy, point.phase) == ("", Phase.WAIT)), None)
    if plain is None or not feature_bytes:
        return
    without, *with_features = _medians_s((0, *_NUM_TOKENS), width=feature_bytes // _NUMBER_BYTES)
    for num_tokens, seconds in zip(_NUM_TOKENS, with_features, strict=True):
        longer_s = max(0.0, seconds - without)
        quantiles_s = tuple(quantile_s + longer_s for quantile_s in plain.quantiles_s)
        yield _point(Phase.WAIT, hop_rows(num_tokens), quantiles_s, _REPEATS)


def _medians_s(sizes: Sequence[int], *, width: int) -> list[float]:
    """Median seconds from a verdict's send until its features are stored, for some numbers of tokens."""
    source, store = (FeatureStore(capacity=max(sizes), width=width) for _ in range(2))
    most = most_payload_bytes(store)
    seconds: dict[int, list[float]] = {num_tokens: [] for num_tokens in sizes}
    with run_folder() as folder:
        address = f"ipc://{folder}/features"
        with (
            Channel(address, bind=True, leads=True, vocab_size=1, most_payload_bytes=most) as target,
            Channel(address, bind=False, leads=False, vocab_size=1, most_payload_bytes=most) as draft,
        ):
            # In turn, so that a slow spell of the machine meets all of them.
            for number, num_tokens in enumerate(tuple(sizes) * _REPEATS):
                source.prefix_length = num_tokens
                sender = target.open(number, Payload(outgoing=FeatureSender(source).outgoing))
                receives = FeatureReceiver(store, num_prompt_tokens=num_tokens)
                receiver = draft.open(number, Payload(takes=receives.takes))
                start_s = time.perf_counter()
                sender.send(Verdict(()))
                while receiver.poll() is None:
                    draft.socket.poll(_WAIT_MS)
                seconds[num_tokens].append(time.perf_counter() - start_s)
                target.close(number)
                draft.close(number)
    return [Latency.of_samples(samples_s, Provenance.MEASURED).median_s for samples_s in seconds.values()]
