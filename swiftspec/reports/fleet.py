"""Sections about the fleet that a plan was made for: its size, break-even loads, the front, and draft lengths."""

from collections.abc import Iterator

from swiftspec.artifacts.fleet import Drafting, Fleet, LoadPoint, ReplicaKind
from swiftspec.artifacts.plan import Plan
from swiftspec.reports.formatting import count, milliseconds, money, percent, speed
from swiftspec.reports.model import SIMULATED, Curve, Curves, Point, Row, Section, Table, numbers, row, texts


def fleet(plan: Plan) -> list[Section]:
    """The sections; none of a plan without a fleet."""
    if (found := plan.fleet) is None:
        return []
    lengths = [_lengths(found)] if found.draft_lengths else []
    return [_size(plan, found), _front(found), _classes(found), *lengths]


def _size(plan: Plan, found: Fleet) -> Section:
    kinds = Table(
        title="Kinds of replicas: how many serve the load within its limits, and the load at which each stops paying",
        columns=(
            *texts("replica", "control"),
            *numbers("devices", "replicas", "in total", "capacity", "alone", "pays up to", "best for"),
        ),
        rows=[_kind(kind, chosen=kind is found.kinds[0]) for kind in found.kinds],
        footnote=f"Capacity and loads in {found.unit} per device; ~ marks what longer simulations did not check; + the "
        "highest load that both could serve",
    )
    speeds = Curves(
        curves=list(_speeds(found)),
        x_title=f"{found.unit} per device",
        y_title="Tokens/s that a user sees",
        label="Tokens/s per user over load, of the best kind of replica of every place to draft",
    )
    sentences = (_choice(plan, found), _attainment(found), _others(found))
    return Section(key="fleet", title="Fleet", parts=(*sentences, kinds, speeds), sources=SIMULATED)


def _front(found: Fleet) -> Section:
    points = Curves(
        curves=list(_fronts(found)),
        x_title="tokens/s that a user sees",
        y_title="Tokens/s per device",
        label="Tokens/s per device over tokens/s per user, of every kind of replica within the limits",
    )
    table = Table(
        title="Pareto front within the limits: nobody serves users faster at more tokens/s per device",
        columns=(
            *texts("replica"),
            *numbers("load", "user tokens/s", "tokens/s per device", "per million", "in limits", "TTFT", "p95"),
        ),
        rows=[
            row(
                kind.name + _controlled(kind),
                _load(kind, point),
                speed(point.user_tokens_per_s),
                speed(_per_device(kind, point)),
                "" if (cost := found.cost(kind.num_devices, point.tokens_per_s)) is None else money(cost),
                percent(point.attained),
                milliseconds(point.ttft_s),
                milliseconds(point.ttft_p95_s),
            )
            for kind, point in found.front
        ],
        footnote=f"{count(found.num_simulations, 'simulation')} of replicas under load",
    )
    title = "Users' speed against tokens per device"
    return Section(key="front", title=title, parts=(points, table), sources=SIMULATED)


def _classes(found: Fleet) -> Section:
    """Attainment by class and kind, at the highest load per device that the kind serves within the limits."""
    names = list(found.point.attainment)
    table = Table(
        title="Attainment by class at each kind's highest load within the limits",
        columns=(*texts("replica"), *numbers("load", *names)),
        rows=[
            row(kind.name, _load(kind, point), *(percent(point.attainment.get(name, 0)) for name in names))
            for kind in found.kinds
            for point in kind.within[-1:]
        ],
    )
    return Section(key="classes", title="Attainment by class", parts=[table], sources=SIMULATED)


def _lengths(found: Fleet) -> Section:
    table = Table(
        title="Best draft length of a serial chain on these devices, by batch",
        columns=numbers("batch", "draft tokens", "tokens/s", "without a draft", "gain"),
        rows=[
            row(
                str(best.batch),
                str(best.num_draft_tokens),
                speed(best.tokens_per_s),
                speed(best.plain_tokens_per_s),
                f"{best.tokens_per_s / best.plain_tokens_per_s:.2f}x",
            )
            for best in found.draft_lengths
        ],
    )
    return Section(key="lengths", title="Draft length by batch", parts=[table], sources=SIMULATED)


def _choice(plan: Plan, fleet: Fleet) -> str:
    """Sentence: the replicas that serve the load, what users see, and what it costs."""
    chosen, point, cost = fleet.chosen, fleet.point, fleet.cost(fleet.num_devices, fleet.tokens_per_s)
    load = f"{fleet.rate:g} {fleet.unit}"
    whose = (
        f"Fleet for {load}:"
        if fleet.is_enough
        else f"No fleet of {fleet.most_devices} {plan.device} keeps the limits at {load}. The highest goodput has"
    )
    price = "" if cost is None else f"; a million tokens cost {money(cost)}"
    return (
        f"{whose} {count(fleet.num_replicas, 'replica')} of {chosen.name}{_controlled(chosen)}, on {fleet.num_devices} "
        f"of {fleet.most_devices} {plan.device}: {percent(point.attained)} of the requests keep their limits, "
        f"{speed(point.user_tokens_per_s)} tokens/s per user, {speed(_per_device(chosen, point))} per device{price}."
    )


def _attainment(fleet: Fleet) -> str:
    """Sentence: attainment by class, and latencies of a replica at its share of the load."""
    point = fleet.point
    classes = ", ".join(f"{name} {percent(share)}" for name, share in point.attainment.items())
    return (
        f"Each serves {point.rate:.3g} {fleet.unit}, given out {fleet.router}: {classes} within limits; TTFT "
        f"{milliseconds(point.ttft_s)} ms (p95 {milliseconds(point.ttft_p95_s)}), TPOT {milliseconds(point.tpot_s)} ms "
        f"(p95 {milliseconds(point.tpot_p95_s)}), {point.mean_batch:.1f} requests in a step, busy "
        f"{percent(point.busy_fraction)} of the time."
    )


def _others(fleet: Fleet) -> str:
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


def _kind(kind: ReplicaKind, *, chosen: bool) -> Row:
    even, about = kind.break_even, "" if kind.is_fewest else "~"
    return row(
        kind.name,
        kind.control,
        str(kind.num_devices),
        "none" if kind.num_replicas is None else f"{about}{kind.num_replicas}",
        "" if kind.total_devices is None else f"{about}{kind.total_devices}",
        f"{kind.capacity / kind.num_devices:.2f}",
        speed(kind.tokens_per_s),
        "" if even.plain_up_to is None else f"{even.plain_up_to:.2f}{'+' * even.is_open}",
        "" if even.best_from is None or even.best_to is None else f"{even.best_from:.2f} to {even.best_to:.2f}",
        chosen=chosen,
    )


def _load(kind: ReplicaKind, point: LoadPoint) -> str:
    """Of a device."""
    return f"{point.rate / kind.num_devices:.2f}"


def _per_device(kind: ReplicaKind, point: LoadPoint) -> float:
    return point.tokens_per_s / kind.num_devices


def _controlled(kind: ReplicaKind) -> str:
    return f" under {kind.control}" if kind.control else ""


def _fronts(found: Fleet) -> Iterator[Curve]:
    """The front, then the points of every place to draft."""
    yield Curve("front", [_on_front(kind, point) for kind, point in found.front])
    for drafting in Drafting:
        kinds = [kind for kind in found.kinds if kind.drafting is drafting]
        points = [_on_front(kind, point) for kind in kinds for point in kind.within]
        if points:
            yield Curve(drafting, sorted(points), joined=False)


def _on_front(kind: ReplicaKind, point: LoadPoint) -> Point:
    per_device = _per_device(kind, point)
    title = f"{kind.name}: {speed(point.user_tokens_per_s)} tokens/s per user, {speed(per_device)} per device"
    return Point(point.user_tokens_per_s, per_device, title)


def _speeds(found: Fleet) -> Iterator[Curve]:
    """The kind of every place to draft that serves most, by load."""
    for drafting in Drafting:
        kinds = [kind for kind in found.kinds if kind.drafting is drafting and kind.within]
        if kinds:
            best = max(kinds, key=lambda kind: kind.capacity / kind.num_devices)
            points = [
                Point(
                    point.rate / best.num_devices,
                    point.user_tokens_per_s,
                    f"{best.name}: {speed(point.user_tokens_per_s)} tokens/s, {percent(point.attained)} in limits",
                )
                for point in best.within
            ]
            yield Curve(f"{drafting}: {best.name}", points)
