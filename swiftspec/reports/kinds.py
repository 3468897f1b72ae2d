"""Sections about kinds of drafts side by side on one target."""

from collections.abc import Iterator, Sequence

from swiftspec.artifacts.gain import Verdict
from swiftspec.artifacts.goal import cost_per_million
from swiftspec.artifacts.kinds import DeviceUse, DraftingKind, KindComparison, KindPoint
from swiftspec.artifacts.load_metrics import EVENTS
from swiftspec.reports.formatting import count, gigabytes, milliseconds, money, percent, speed
from swiftspec.reports.model import Doubt, Row, Section, Table, numbers, row, texts
from swiftspec.timing.latency import Provenance


def kind_sections(compared: KindComparison) -> Sequence[Section]:
    """Every kind at each load, draft tokens by load, the best, where acceptance comes from, and what is left out."""
    tables = [_load(compared, clients) for clients in compared.clients if compared.ranked(clients)]
    uses = Section(key="devices", title=f"How to use {compared.num_devices} devices", parts=(_uses(compared),))
    return (
        Section(key="kinds", title="Kinds of drafts", parts=(*_doubts(compared), *tables, _lengths(compared))),
        Section(key="best", title="The best for a user", parts=tuple(_best(compared))),
        *((uses,) if compared.uses else ()),
        Section(key="costs", title="What a draft takes, and when it pays", parts=tuple(_costs(compared))),
        Section(key="acceptance", title="Where acceptance comes from", parts=tuple(_bases(compared))),
        Section(key="to-know", title="To know", parts=[_to_know(compared)]),
    )


def _doubts(compared: KindComparison) -> Iterator[Doubt]:
    """What to doubt of acceptance, before any figure."""
    served = [kind for kind in compared.kinds if kind.points]
    for kind in served:
        if kind.is_bundled:
            yield Doubt(
                f"Warning: acceptance of {kind.name} is that of the bundled text, which repeats itself, so that it "
                "stands last, whatever its speed; --trace has your text."
            )
    assumed = [kind.name for kind in served if kind.provenance is Provenance.ASSUMED and not kind.is_bundled]
    if assumed:
        yield Doubt(f"Warning: acceptance of {', '.join(assumed)} is assumed.")
    for warning in dict.fromkeys(kind.warning for kind in served if kind.warning):
        yield Doubt(f"Warning: acceptance is {warning}.")


def _load(compared: KindComparison, clients: int) -> Table:
    """K draft tokens at most, the gain's 90 % interval, tokens of a round, shares of its time or cost."""
    where = f"{compared.num_devices} {compared.device}"
    last = "time" if compared.price_per_hour is None else "cost of a million output tokens"
    rows = [
        row(
            kind.name,
            f"{point.policy} {point.split}",
            str(point.num_draft_tokens or ""),
            speed(point.user_tokens_per_s),
            speed(point.device_tokens_per_s),
            f"{point.gain.low:.2f} to {point.gain.high:.2f}" if point.gain else "",
            f"{point.tokens_per_round:.2f}",
            *(_million(compared, 1, point.device_tokens_per_s) or (_shares(point),)),
            kind.provenance or "",
        )
        for kind, point in compared.ranked(clients)
    ]
    return Table(
        title=f"{count(clients, 'client')} at once on {where}: tokens/s of a user and of a device, times none (90 %), "
        f"tokens per round, {last}",
        columns=(
            *texts("kind", "policy"),
            *numbers("K", "a user", "a device", "over none", "per round"),
            *numbers(*(_if_priced(compared, "per million") or ("draft, verify",))),
            *texts("acceptance"),
        ),
        rows=rows,
    )


def _shares(point: KindPoint) -> str:
    return f"{f'{point.draft_share:.0%}, ' if point.draft_share else ''}{point.verify_share:.0%}"


def _if_priced(compared: KindComparison, *cells: str) -> tuple[str, ...]:
    return () if compared.price_per_hour is None else cells


def _million(compared: KindComparison, devices: int, tokens_per_s: float) -> tuple[str, ...]:
    """Cost of a million output tokens of all clients, if devices have a price."""
    price = compared.price_per_hour
    return () if price is None else (money(cost_per_million(price, devices, tokens_per_s)),)


def _lengths(compared: KindComparison) -> Table:
    kinds = [kind for kind in compared.kinds if kind.points and kind is not compared.plain]
    return Table(
        title="Draft tokens of the best shape by clients, and the load up to which each kind beats none",
        columns=(*texts("kind"), *numbers(*map(str, compared.clients), "pays up to")),
        rows=[_length_row(compared, kind) for kind in kinds],
    )


def _length_row(compared: KindComparison, kind: DraftingKind) -> Row:
    """Draft tokens at every load, 0 where none is faster, and clients."""
    lengths = []
    for load in compared.clients:
        point = kind.at(load)
        pays = point is not None and point.gain is not None and point.gain.ratio > 1
        lengths.append("-" if point is None else str(point.num_draft_tokens) if pays else "0")
    up_to = "never" if kind.pays_up_to is None else f"{kind.pays_up_to:.0f}{'+' * kind.is_open}"
    return row(kind.name, *lengths, up_to)


def _best(compared: KindComparison) -> Iterator[str]:
    """A sentence for every load: the fastest kind, and the fastest of which acceptance is published or measured."""
    for load in compared.clients:
        ranked = compared.ranked(load)
        if not ranked:
            yield f"{count(load, 'client')}: no kind has room for them."
            continue
        kind, point = ranked[0]
        named = _with_length(kind.name, point.num_draft_tokens)
        sentence = f"{count(load, 'client')}: {named}, {speed(point.user_tokens_per_s)} tokens/s{_gain(point)}"
        known = [pair for pair in ranked if pair[0].provenance not in (None, Provenance.ASSUMED)]
        if kind.provenance is Provenance.ASSUMED and known:
            other, its = known[0]
            sentence += (
                ", if acceptance is as assumed; of those with known acceptance "
                f"{_with_length(other.name, its.num_draft_tokens)}, {speed(its.user_tokens_per_s)}{_gain(its)}"
            )
        for other, its in ranked[1:]:
            if other.is_bundled and its.user_tokens_per_s > point.user_tokens_per_s:
                sentence += (
                    f"; {_with_length(other.name, its.num_draft_tokens)} would have {speed(its.user_tokens_per_s)}"
                    f"{_gain(its)}, if your text repeated itself as the bundled one does"
                )
        yield f"{sentence}."


def _with_length(kind: str, num_draft_tokens: int) -> str:
    return f"{kind} with K={num_draft_tokens}" if num_draft_tokens else kind


def _gain(point: KindPoint) -> str:
    if point.gain is None:
        return ""
    is_open = point.gain.verdict is Verdict.OPEN
    return f" ({point.gain.ratio:.2f} times none{f', which is open: {point.gain.closed_by}' if is_open else ''})"


def _uses(compared: KindComparison) -> Table:
    """All devices as one group, with the draft on devices of its own, as replicas, or one of these alone."""
    return Table(
        title="The best for a user when devices are one group, replicas among which clients are divided, or idle",
        columns=(
            *numbers("clients"),
            *texts("devices", "draft"),
            *numbers("a user", "all users", *_if_priced(compared, "per million")),
        ),
        rows=[
            row(
                str(use.clients),
                _divided(use, compared.num_devices),
                _with_length(use.kind, use.num_draft_tokens),
                speed(use.user_tokens_per_s),
                speed(use.tokens_per_s),
                *_million(compared, use.replicas * use.replica_devices, use.tokens_per_s),
            )
            for use in compared.uses
        ],
        footnote="Drafts from the text count if its acceptance is given or recorded. Idle devices cost nothing here.",
    )


def _divided(use: DeviceUse, num_devices: int) -> str:
    """`all 2 together`, `1+1, draft apart`, `2 replicas of 1`, `1 alone, 1 idle`."""
    if use.replica_devices < num_devices:
        several = f"{use.replicas} replicas of {use.replica_devices}"
        return several if use.replicas > 1 else f"{use.replica_devices} alone, {num_devices - use.replica_devices} idle"
    return f"all {num_devices} together" if use.split.isdigit() else f"{use.split}, draft apart"


def _costs(compared: KindComparison) -> Iterator[Table]:
    """Memory and prefix hits of every kind, and tokens per round above which its shapes pay."""
    plain = compared.plain.memory
    yield Table(
        title="Memory: a draft's weights on each of its devices, and tokens of all requests that there is cache for",
        columns=(*texts("kind"), *numbers("draft, GB", "tokens", "of none's", "read again of a prefix")),
        rows=[
            row(
                kind.name,
                gigabytes(memory.draft_bytes) if memory.draft_bytes else "-",
                f"{memory.cached_tokens:,}",
                percent(memory.cached_tokens / plain.cached_tokens) if plain and plain.cached_tokens else "",
                f"{memory.read_again} tokens" if memory.read_again else "-",
            )
            for kind in compared.kinds
            if (memory := kind.memory) is not None
        ],
    )
    points = [(kind.name, point) for kind in compared.kinds if kind.draft for point in kind.points]
    if points:
        lengths = sorted({1, 2, 3, 5} | {point.num_draft_tokens for _, point in points})
        yield Table(
            title="Tokens per round above which drafting is faster than none, by draft tokens K, whatever it accepts",
            columns=(*texts("kind"), *numbers("clients", *(f"K={tokens}" for tokens in lengths))),
            rows=[
                row(name, str(point.clients), *(_threshold(point, tokens) for tokens in lengths))
                for name, point in points
            ],
            footnote="- marks more than K + 1, which no draft reaches.",
        )


def _threshold(point: KindPoint, tokens: int) -> str:
    """What K draft tokens must bring at least; nothing where the shape was not tried."""
    if (least := point.pays_above.get(tokens)) is None:
        return ""
    return "-" if least > tokens + 1 else f"{least:.2f}"


def _bases(compared: KindComparison) -> Iterator[str]:
    """A sentence for every draft: where its acceptance comes from, or why there are loads without it."""
    seen = set[str]()
    for kind in compared.kinds:
        if kind.basis and (kind.draft or kind.name) not in seen:
            seen.add(kind.draft or kind.name)
            yield f"{kind.draft or kind.name} ({kind.provenance}): {kind.basis}."
        if kind.reason:
            yield f"{kind.name} is missing{' at some loads' if kind.points else ''}: {kind.reason}."


def _to_know(compared: KindComparison) -> str:
    """What the figures leave out."""
    by_events = any(point.method == EVENTS for kind in compared.kinds for point in kind.points)
    has_own = any(kind.own_devices for kind in compared.kinds)
    host_s, routing = compared.host_s, compared.routing
    sentences = (
        f"Speeds are those of users of {compared.engine}. Each client sends its next request when one ends, with a "
        f"prompt of {compared.context} tokens, which is read in the same steps.",
        f"The devices' times are composed of {compared.kernels}.",
        "Acceptance is of the texts named above, which differ from kind to kind and from yours: rates of your own "
        "(--acceptance) decide.",
        "(own): a draft on its own devices, which computes beside the target." if has_own else "",
        "Clients of (own) are simulated by events, all others by recorded rounds." if by_events else "",
        "K is the most tokens drafted for a verification.",
        "" if host_s is None else f"The host time of a step, {milliseconds(host_s)} ms, is given.",
        f"Of the target's layers, {routing}." if routing else "",
    )
    return " ".join(filter(None, sentences))
