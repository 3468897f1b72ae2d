"""Hops of messages beside which features go: timed over a channel of this process, as requests would use it."""

import time
from collections.abc import Iterator, Sequence
from itertools import count

from swiftspec.artifacts.profile import HostPoint
from swiftspec.engine.channel.zmq_channel import Channel
from swiftspec.engine.model.drafts.features import FeatureReceiver, FeatureSender, FeatureStore, most_payload_bytes
from swiftspec.engine.process.run_folder import run_folder
from swiftspec.policies.effects import Verdict
from swiftspec.timing.latency import Latency, Provenance
from swiftspec.timing.steps import hop_rows
from swiftspec.timing.timeline import Phase

__all__ = ["feature_hops"]

_NUM_TOKENS = (8, 64, 512)
_REPEATS = 24
_NUMBER_BYTES = 4
_WAIT_MS = 100


def feature_hops(host: Sequence[HostPoint], *, feature_bytes: int) -> Iterator[HostPoint]:
    """Hops with the features of some numbers of tokens: those of all policies together, and what these take longer.

    host: points without features. feature_bytes: of a token's features; 0 without a head.
    """
    plain = next((point for point in host if (point.policy, point.phase) == ("", Phase.WAIT)), None)
    if plain is None or not feature_bytes:
        return
    without, *with_features = _medians_s((0, *_NUM_TOKENS), width=feature_bytes // _NUMBER_BYTES)
    for num_tokens, seconds in zip(_NUM_TOKENS, with_features, strict=True):
        longer_s = max(0.0, seconds - without)
        yield HostPoint(
            phase=Phase.WAIT,
            rows=hop_rows(num_tokens),
            quantiles_s=tuple(quantile_s + longer_s for quantile_s in plain.quantiles_s),
            num_samples=_REPEATS,
            provenance=Provenance.MEASURED,
        )


def _medians_s(sizes: Sequence[int], *, width: int) -> list[float]:
    """Median seconds from a verdict's send until its features are stored, for some numbers of tokens."""
    source, store = (FeatureStore(capacity=max(sizes), width=width) for _ in range(2))
    most, numbers = most_payload_bytes(store), count()
    medians = []
    with run_folder() as folder:
        address = f"ipc://{folder}/features"
        with (
            Channel(address, bind=True, leads=True, vocab_size=1, most_payload_bytes=most) as target,
            Channel(address, bind=False, leads=False, vocab_size=1, most_payload_bytes=most) as draft,
        ):
            for num_tokens in sizes:
                source.prefix_length = num_tokens
                seconds = []
                for number in (next(numbers) for _ in range(_REPEATS)):
                    sender = target.open(number, FeatureSender(source))
                    receiver = draft.open(number, FeatureReceiver(store, num_prompt_tokens=num_tokens))
                    start_s = time.perf_counter()
                    sender.send(Verdict(()))
                    while receiver.poll() is None:
                        draft.socket.poll(_WAIT_MS)
                    seconds.append(time.perf_counter() - start_s)
                    target.close(number)
                    draft.close(number)
                medians.append(Latency.of_samples(seconds, Provenance.MEASURED).median_s)
    return medians
