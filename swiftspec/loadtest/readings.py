"""Readings of a server's metrics; the difference of two of them is a load, an acceptance and a service time."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from swiftspec.files.prometheus import samples

# Engines that have their names before those of their metrics.
_ENGINES: Final = ("vllm", "sglang", "swiftspec", "llamacpp")
_POSITIONS: Final = "spec_decode_num_accepted_tokens_per_pos"
_CACHE: Final = "cache_config_info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a server had counted at some time.

    engine: as of `--engine`.
    values: counters, and sums and counts of histograms, by their names without the engine's, over all engines of the
        server.
    by_position: accepted draft tokens by place in the round.
    cache: facts of the KV cache, as the server writes them; empty if it has none.
    """

    engine: str
    values: Mapping[str, float]
    by_position: tuple[float, ...] = ()
    cache: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """A reading of the answer of /metrics. ValueError if it is of no server that is known here."""
        values: dict[str, float] = defaultdict(float)
        positions: dict[int, float] = defaultdict(float)
        cache: dict[str, str] = {}
        engine = ""
        for name, labels, value in samples(text, source):
            prefix, colon, rest = name.partition(":")
            if not colon or prefix not in _ENGINES:
                continue
            engine = engine or prefix
            rest = rest.removesuffix("_total")
            if rest == _POSITIONS:
                positions[int(labels["position"])] += value
            elif rest == _CACHE:
                cache = labels
            elif not rest.endswith(("_bucket", "_created")):
                values[rest] += value
        if not engine:
            known = ", ".join(f"{prefix}:" for prefix in _ENGINES)
            raise ValueError(f"{source}: no metric of a server that is known here; expected names with {known}")
        by_position = tuple(positions[place] for place in range(max(positions, default=-1) + 1))
        return cls(engine=engine, values=dict(values), by_position=by_position, cache=cache)

    def since(self, earlier: Self) -> Self:
        """What was counted since an earlier reading."""
        before = (*earlier.by_position, *[0.0] * len(self.by_position))
        return replace(
            self,
            values={name: value - earlier.values.get(name, 0.0) for name, value in self.values.items()},
            by_position=tuple(now - then for now, then in zip(self.by_position, before, strict=False)),
        )

    def count(self, name: str) -> float:
        """A counter; 0 if the server has none of this name."""
        return self.values.get(name, 0.0)

    def mean(self, histogram: str) -> float | None:
        """Mean of a histogram; None if nothing was counted."""
        number = self.count(f"{histogram}_count")
        return self.count(f"{histogram}_sum") / number if number else None

    @property
    def cache_tokens(self) -> int | None:
        """Tokens that the KV cache has room for, if the server says it."""
        if tokens := self.cache.get("kv_cache_size_tokens", ""):
            return int(tokens) if tokens.isdigit() else None
        blocks, size = self.cache.get("num_gpu_blocks", ""), self.cache.get("block_size", "")
        return int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else None

    @property
    def block_tokens(self) -> int | None:
        """Tokens of a block of the prefix cache, 0 without one; None if the server does not say it."""
        size = self.cache.get("block_size", "")
        if not size.isdigit():
            return None
        return int(size) if self.cache.get("enable_prefix_caching", "True") == "True" else 0
