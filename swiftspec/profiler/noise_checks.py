"""Plausibility checks of measurements: times that fall as work grows, scatter, or are impossibly short."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.policies.effects import Role
from swiftspec.profiler.op_benchmark import LIMITS, OpRow, peak_bytes_per_s
from swiftspec.timing.timeline import Phase

MOST_FALL = 0.05  # of a median, while rows grow
MOST_SPREAD = 0.25  # of a median, between 20 % and 80 % of the samples
# Pure reading is a little faster than the copy that defines the peak, which alternates reads and writes.
MOST_OVER_PEAK = 0.1
_WHOLE = (Phase.VERIFY, Phase.EXPAND)  # forwards that read every weight


@dataclass(frozen=True, slots=True, order=True)
class Complaint:
    """Excess over the tolerance, as a factor, and a sentence."""

    severity: float
    sentence: str


@dataclass(frozen=True, slots=True)
class _Point:
    """Seconds at one number of rows; rows is 0 for operations without rows."""

    rows: int
    median_s: float
    spread: float

    @property
    def said(self) -> str:
        return f"{_rows(self.rows)} in {_us(self.median_s)}" if self.rows else _us(self.median_s)


def step_complaints(profile: Profile, *, least_s: Mapping[Role, float] | None = None) -> list[Complaint]:
    """Complaints about a profile's steps, worst first. Cold ones are few and scatter anyway, so they are not checked.

    least_s: seconds in which one device can read a role's weights from memory. Without it, times are not checked for
    being too short.
    """
    curves: dict[str, list[_Point]] = defaultdict(list)
    complaints: list[Complaint] = []
    for step in profile.steps:
        if not step.cold:
            curves[_table(step)].append(_Point(step.rows, step.latency.median_s, _spread(step.quantiles_s)))
            complaints += _too_short(step, (least_s or {}).get(step.role, 0.0) / step.degree)
    return sorted([*complaints, *_about(curves)], reverse=True)


def op_complaints(rows: Iterable[OpRow]) -> list[Complaint]:
    """Complaints about operations, worst first; launches are not checked, since their time depends on the host."""
    rows = [row for row in rows if not row.op.startswith("launch")]
    curves: dict[str, list[_Point]] = defaultdict(list)
    complaints: list[Complaint] = []
    peak = peak_bytes_per_s(rows)
    for row in rows:
        others = " ".join(f"{name}={size}" for name, size in row.sizes.items() if name != "rows")
        group = f"on {row.devices} devices" if row.devices > 1 else ""
        what = " ".join(part for part in (row.op, others, row.dtype, group) if part)
        point = _Point(row.sizes.get("rows", 0), row.timing.median_s, row.timing.spread)
        curves[what].append(point)
        if row.op not in LIMITS and row.bytes_per_s is not None and row.bytes_per_s > peak * (1 + MOST_OVER_PEAK):
            excess = row.bytes_per_s / peak - 1
            sentence = (
                f"{what}: {point.said}, {row.bytes_per_s / 1e9:.0f} GB/s where a copy or a sum "
                f"reaches {peak / 1e9:.0f}; its data came from a cache, or was not read"
            )
            complaints.append(Complaint(excess / MOST_OVER_PEAK, sentence))
    return sorted([*complaints, *_about(curves)], reverse=True)


def _about(curves: Mapping[str, Sequence[_Point]]) -> Iterator[Complaint]:
    for what, points in curves.items():
        points = sorted(points, key=lambda point: point.rows)
        for fewer, more in pairwise(points):
            fall = 1 - more.median_s / fewer.median_s
            if fall > MOST_FALL:
                yield Complaint(
                    fall / MOST_FALL,
                    f"{what}: {more.said}, {100 * fall:.0f} % less than {_rows(fewer.rows)}; "
                    f"expected no less, give or take {100 * MOST_FALL:.0f} %",
                )
        for point in points:
            if point.spread > MOST_SPREAD:
                yield Complaint(
                    point.spread / MOST_SPREAD,
                    f"{what}: {point.said}, and {100 * point.spread:.0f} % of that lies between 20 % and 80 % of the "
                    f"samples; expected at most {100 * MOST_SPREAD:.0f} %",
                )


def _table(step: StepPoint) -> str:
    devices = "1 device" if step.degree == 1 else f"{step.degree} devices"
    ranks = f" of {step.ranks} ranks" if step.ranks > 1 else ""
    peer = ", its peer busy" if step.peer_busy else ""
    return f"{step.role} {step.phase} on {devices}{ranks}{peer}, context {step.context}"


def _spread(quantiles_s: Sequence[float]) -> float:
    """Distance from 20 % to 80 % relative to the median; both lie between two of a profile's 20 quantiles."""
    count = len(quantiles_s)
    low_s, median_s, high_s = (
        (quantiles_s[index - 1] + quantiles_s[index]) / 2 for index in (count // 5, count // 2, count - count // 5)
    )
    return (high_s - low_s) / median_s


def _too_short(step: StepPoint, least_s: float) -> Iterator[Complaint]:
    shortest_s = least_s / (1 + MOST_OVER_PEAK)
    median_s = step.latency.median_s
    if step.phase in _WHOLE and median_s < shortest_s:
        yield Complaint(
            (least_s / median_s - 1) / MOST_OVER_PEAK,
            f"{_table(step)}: {_rows(step.rows)} in {_us(median_s)}, but reading the weights alone takes "
            f"{_us(least_s)} at the bandwidth of a copy",
        )


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
