"""Selection of measured mixtures, latent and linear attention: what is implausible is left out, and by name.

Some entries of public tables are ten times as slow as the bytes of their weights explain, mostly for kernels that were
timed untuned. An entry is one kernel on one shape. It is left out if neither what a further expert costs nor what many
rows cost amounts to a fifth of the memory's bandwidth. Of the others the newest version's fastest one is kept.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np

from swiftspec.costmodel.expert_shapes import ExpertShape
from swiftspec.costmodel.routing import independent
from swiftspec.devices import named_device
from swiftspec.models import QUANTISATIONS

__all__ = ["Entry", "Selection", "release_key", "select_experts"]

_LEAST_SHARE = 0.2  # of the peak bandwidth
_DECODING_ROWS = 64
Record = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Kept rows, and a line for each kernel with entries that were left out."""

    rows: list[dict[str, str | int | float]]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Times of one kernel of one library's version on one shape, by rows."""

    framework: str
    version: str
    kernel: str
    shape: ExpertShape
    seconds: Mapping[int, float]

    @property
    def speed(self) -> float:
        """Geometric mean of the seconds of a decoding step's rows."""
        few = [log(seconds) for rows, seconds in self.seconds.items() if rows <= _DECODING_ROWS]
        return exp(sum(few) / len(few))

    def share(self, bandwidth_Bps: float) -> float:
        """Share of the bandwidth at which it reads a further expert, or the experts of many rows if that is more."""
        dtype, hidden, size, active, experts, parts, holders = self.shape
        expert_bytes = 3 * hidden * size / parts * QUANTISATIONS[dtype].bytes_per_weight
        few = sorted(rows for rows in self.seconds if rows <= _DECODING_ROWS)
        seconds = np.array([self.seconds[rows] for rows in few])
        touched = np.array([independent(rows, num_experts=experts, num_active=active) for rows in few])
        read_bytes = touched / holders * expert_bytes
        # Least squares of relative errors of t0 + bytes / speed.
        sides = np.stack([np.ones_like(seconds), read_bytes], axis=1) / seconds[:, None]
        slope = float(np.linalg.lstsq(sides, np.ones_like(seconds), rcond=None)[0][1])
        growing = 1 / slope / bandwidth_Bps if slope > 0 else 0.0
        return max(min(growing, 1.0), float(read_bytes[-1] / seconds[-1]) / bandwidth_Bps)


def select_experts(rows: Iterable[Record], *, device: str) -> Selection:
    """Rows of the fastest plausible kernel of every library and shape."""
    bandwidth_Bps = named_device(device).memory_bandwidth_Bps
    kept: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    implausible: dict[str, list[float]] = defaultdict(list)
    for entry in _entries(rows):
        share = entry.share(bandwidth_Bps)
        if share < _LEAST_SHARE:
            implausible[f"{entry.framework} {entry.version} {entry.kernel}, {entry.shape.dtype}"].append(share)
        else:
            kept[entry.framework, *entry.shape].append(entry)
    chosen = [
        min((entry for entry in entries if entry.version == _newest(entries)), key=lambda entry: entry.speed)
        for entries in kept.values()
    ]
    return Selection(
        rows=[row for entry in chosen for row in _rows(entry)],
        left_out=tuple(
            f"{kernel}: {len(shares)} shapes at {min(shares):.0%} to {max(shares):.0%} of the bandwidth"
            for kernel, shares in sorted(implausible.items())
        ),
    )


def _entries(rows: Iterable[Record]) -> Iterable[Entry]:
    groups: dict[tuple[str | int | float, ...], dict[int, float]] = defaultdict(dict)
    for row in rows:
        key = (row["framework"], row["version"], row["kernel"], *(row[name] for name in ExpertShape._fields))
        known = groups[key]
        count, seconds = int(row["rows"]), float(row["latency_us"]) * 1e-6
        known[count] = min(known.get(count, seconds), seconds)
    for (framework, version, kernel, *shape), times in groups.items():
        if sum(count <= _DECODING_ROWS for count in times) >= 4:
            yield Entry(
                framework=str(framework),
                version=str(version),
                kernel=str(kernel),
                shape=ExpertShape(*shape),  # type: ignore[arg-type]  # the reader checks each column's type
                seconds=dict(sorted(times.items())),
            )


def _newest(entries: Sequence[Entry]) -> str:
    return max((entry.version for entry in entries), key=release_key)


def release_key(version: str) -> list[int]:
    """A sort key: 1.3.0rc20 after 1.3.0rc10, 0.24.0 after 0.19.0."""
    return [int(part) for part in "".join(char if char.isdigit() else " " for char in version).split()]


def _rows(entry: Entry) -> Iterable[dict[str, str | int | float]]:
    about = entry.shape._asdict()
    for rows, seconds in entry.seconds.items():
        yield {
            "framework": entry.framework,
            "version": entry.version,
            "kernel": entry.kernel,
            **about,
            "rows": rows,
            "latency_us": seconds * 1e6,
        }
