"""Sentences and table rows about a plan's fleet, for the terminal and the report."""

from swiftspec.artifacts.fleet import Drafting, DraftLength, Fleet, LoadPoint, ReplicaKind
from swiftspec.artifacts.plan import Plan
from swiftspec.reports.formatting import count, milliseconds, money, percent, speed

__all__ = [
    "FRONT_COLUMNS",
    "FRONT_TITLE",
    "KIND_COLUMNS",
    "KIND_TITLE",
    "LENGTH_COLUMNS",
    "LENGTH_TITLE",
    "attainment",
    "choice",
    "front_row",
    "kind_row",
    "length_row",
    "others",
]

KIND_TITLE = "Kinds of replicas: how many serve the load within its limits, and the load at which each stops paying"
KIND_COLUMNS = ("replica", "control", "devices", "replicas", "in total", "capacity", "alone", "pays up to", "best for")
FRONT_TITLE = "Pareto front within the limits: nobody serves users faster at more tokens/s per device"
FRONT_COLUMNS = ("replica", "load", "user tokens/s", "tokens/s per device", "per million", "in limits", "TTFT", "p95")
LENGTH_TITLE = "Best draft length of a serial chain on these devices, by batch"
LENGTH_COLUMNS = ("batch", "draft tokens", "tokens/s", "without a draft", "gain")


def choice(plan: Plan, fleet: Fleet) -> str:
    """Sentence: the replicas that serve the load, what users see, and what it costs."""
    chosen, point = fleet.chosen, fleet.point
    used = f"{count(fleet.num_replicas, 'replica')} of {chosen.name}{_controlled(chosen)}"
    where = f"on {fleet.num_devices} of {fleet.most_devices} {plan.device}"
    kept = f"{percent(point.attained)} of the requests keep their limits"
    served = f"{speed(point.user_tokens_per_s)} tokens/s per user, {speed(_per_device(chosen, point))} per device"
    cost = fleet.cost_per_million_tokens
    price = "" if cost is None else f"; a million tokens cost {money(cost)}"
    if fleet.is_enough:
        return f"Fleet for {fleet.rate:g} requests/s: {used}, {where}: {kept}, {served}{price}."
    return (
        f"No fleet of {fleet.most_devices} {plan.device} keeps the limits at {fleet.rate:g} requests/s. The highest "
        f"goodput has {used}, {where}: {kept}, {served}{price}."
    )


def attainment(fleet: Fleet) -> str:
    """Sentence: attainment by class, and latencies of a replica at its share of the load."""
    point = fleet.point
    classes = ", ".join(f"{name} {percent(share)}" for name, share in point.attainment.items())
    return (
        f"Each serves {point.rate:.3g} requests/s, given out {fleet.router}: {classes} within limits; TTFT "
        f"{milliseconds(point.ttft_s)} ms (p95 {milliseconds(point.ttft_p95_s)}), TPOT {milliseconds(point.tpot_s)} ms "
        f"(p95 {milliseconds(point.tpot_p95_s)}), {point.mean_batch:.1f} requests in a step, busy "
        f"{percent(point.busy_fraction)} of the time."
    )


def others(fleet: Fleet) -> str:
    """Sentence: the fewest devices of every other place to draft."""
    parts = []
    for drafting in Drafting:
        kinds = [kind for kind in fleet.kinds if kind.drafting is drafting and kind.is_fewest]
        if kinds and drafting is not fleet.chosen.drafting:
            best = min(kinds, key=lambda kind: kind.total_devices or 0)
            parts.append(f"{drafting}: {best.total_devices} ({best.name}{_controlled(best)})")
    if not parts:
        return "No other place to draft serves the load within its limits."
    return f"Devices needed otherwise: {'; '.join(parts)}."


def kind_row(kind: ReplicaKind) -> tuple[str, ...]:
    """Cells for KIND_COLUMNS: loads in requests/s and device, `alone` in tokens/s."""
    even = kind.break_even
    replicas = "none" if kind.num_replicas is None else f"{'' if kind.is_fewest else '~'}{kind.num_replicas}"
    total = "" if kind.total_devices is None else f"{'' if kind.is_fewest else '~'}{kind.total_devices}"
    best = "" if even.best_from is None or even.best_to is None else f"{even.best_from:.2f} to {even.best_to:.2f}"
    pays = "" if even.plain_up_to is None else f"{even.plain_up_to:.2f}{'+' * even.is_open}"
    return (
        kind.name,
        kind.control,
        str(kind.num_devices),
        replicas,
        total,
        f"{kind.capacity / kind.num_devices:.2f}",
        speed(kind.tokens_per_s),
        pays,
        best,
    )


def front_row(fleet: Fleet, kind: ReplicaKind, point: LoadPoint) -> tuple[str, ...]:
    """Cells for FRONT_COLUMNS: load in requests/s and device, times in ms."""
    cost = fleet.cost(kind, point)
    return (
        kind.name + _controlled(kind),
        f"{point.rate / kind.num_devices:.2f}",
        speed(point.user_tokens_per_s),
        speed(_per_device(kind, point)),
        "" if cost is None else money(cost),
        percent(point.attained),
        milliseconds(point.ttft_s),
        milliseconds(point.ttft_p95_s),
    )


def length_row(best: DraftLength) -> tuple[str, ...]:
    """Cells for LENGTH_COLUMNS."""
    gain = best.tokens_per_s / best.plain_tokens_per_s
    return (
        str(best.batch),
        str(best.num_draft_tokens),
        speed(best.tokens_per_s),
        speed(best.plain_tokens_per_s),
        f"{gain:.2f}x",
    )


def _per_device(kind: ReplicaKind, point: LoadPoint) -> float:
    return point.tokens_per_s / kind.num_devices


def _controlled(kind: ReplicaKind) -> str:
    return f" under {kind.control}" if kind.control else ""
