"""Choice of a device group's next step from what its programs ask for.

Requests on one group share steps: a forward of few rows takes about as long as one of a single row, so that whoever is
computed together is computed almost for free. The rules, in this order:

- Whoever is alone is computed at once and whole.
- What a target began with a first half, it finishes with the same requests.
- Drafts go first, and prompts of the draft if it has nothing else to do; then everything is verified together. Where
  both models share devices, a round of all requests forms out of this priority, without a barrier. A verification is
  overtaken by a limited number of drafts.
- Where the draft has devices of its own, verifications wait a moment for those of the other running requests: two
  convoys that alternate would each wait for the other's forward.
- Batches of requests may be verified in turn, so that the draft works for the others meanwhile: then a verification is
  of one batch, those that have waited longest, and waits for no more.
- Prompts are read in chunks, which share the steps of their model.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from swiftspec.policies.effects import ForwardKind, Role
from swiftspec.scheduler.asks import Ask, Grant, Step, equal_shares

_GrantedRows = tuple[Ask, int]  # and its rows
Share = Callable[[Sequence[Ask], int], Sequence[int]]  # elastic verifications and their room, to rows of each


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits of a step.

    max_rows: rows of a step, prompts excluded. Every verification gets one row at least, however many there are.
    prefill_rows: prompt tokens of a step, where others wait for it. A request that is alone has its prompt read at
        once.
    max_overtaken: steps of drafts, at most, while a verification waits.
    gather_s: longest wait of a verification for the others. 0 where the draft shares the devices: a round forms anyway.
    num_batches: equal parts of the running requests that are verified in turn.
    prompts_apart: read prompts before anything else, in steps of their own, as engines without chunked prompts do.
    """

    max_rows: int = 64
    prefill_rows: int = 128
    max_overtaken: int = 32
    gather_s: float = 0.0
    num_batches: int = 1
    prompts_apart: bool = False

    def __post_init__(self) -> None:
        for name in ("max_rows", "prefill_rows", "max_overtaken", "num_batches"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {value}; expected at least 1")
        if not self.gather_s >= 0:
            raise ValueError(f"gather_s is {self.gather_s}; expected at least 0")


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Compute nothing before `time_s`, unless something new is asked for."""

    time_s: float


def choose(
    asks: Sequence[Ask], *, limits: BatchLimits, num_running: int, now_s: float, share: Share | None = None
) -> Step | WaitUntil | None:
    """The next step of a device group; None if nothing is asked for.

    asks: one for each request that waits for a forward, in the order in which requests were admitted.
    num_running: requests on this group, also those that wait for a message.
    now_s: on the clock of `Ask.since_s`.
    share: rows of elastic verifications, as a control grants them. If not given, they are computed whole where there is
        room, and otherwise have equal shares.
    """
    if num_running == 1 and asks:
        return _step(_within(asks, limits.max_rows, share) if share else _whole(asks))
    halves, prefills, drafts, verifications = _sorted(asks)
    if halves:
        return _step(_whole(halves))
    if prefills and limits.prompts_apart:
        return _prompts(prefills, limits)
    unread = [ask for ask in prefills if ask.model is Role.DRAFT] if verifications else []
    if (drafts or unread) and not any(ask.num_overtaken >= limits.max_overtaken for ask in (*verifications, *prefills)):
        return (
            _with_prompts(_alike(drafts), prefills, limits, None)
            if drafts
            else _step(_chunks(unread, limits.prefill_rows))
        )
    if verifications:
        gathered_s = _waiting_since_s(verifications) + limits.gather_s
        batch = ceil(num_running / limits.num_batches)
        # Whoever reads its prompt will not verify soon.
        is_complete = len(verifications) + len(prefills) >= batch
        if not is_complete and now_s < gathered_s:
            return WaitUntil(gathered_s)
        alike = _alike(verifications)
        if limits.num_batches > 1:
            alike = sorted(alike, key=lambda ask: (-ask.num_overtaken, ask.since_s))[:batch]
        # Prompts do not share a first half; those that came before it are read first, or would wait for ever.
        is_mixed = alike[0].kind is ForwardKind.EXACT
        if prefills and not is_mixed and _waiting_since_s(prefills) <= _waiting_since_s(alike):
            return _prompts(prefills, limits)
        return _with_prompts(alike, prefills, limits, share)
    return _prompts(prefills, limits) if prefills else None


def _waiting_since_s(asks: Iterable[Ask]) -> float:
    return min(ask.since_s for ask in asks)


def _prompts(prefills: Sequence[Ask], limits: BatchLimits) -> Step:
    """Chunks of prompts, of the model that has waited longest."""
    first = min(prefills, key=lambda ask: ask.since_s)
    return _step(_chunks([ask for ask in prefills if ask.model is first.model], limits.prefill_rows))


def _sorted(asks: Sequence[Ask]) -> tuple[list[Ask], list[Ask], list[Ask], list[Ask]]:
    """Second halves, prompts, the draft's forwards and verifications, each in the order of `asks`."""
    halves, prefills, drafts, verifications = list[Ask](), list[Ask](), list[Ask](), list[Ask]()
    for ask in asks:
        if ask.kind is ForwardKind.SECOND_HALF:
            halves.append(ask)
        elif ask.is_prefill:
            prefills.append(ask)
        elif ask.model is Role.DRAFT:
            drafts.append(ask)
        else:
            verifications.append(ask)
    return halves, prefills, drafts, verifications


def _alike(asks: Sequence[Ask]) -> list[Ask]:
    """Those that can be computed with the one that has waited longest."""
    first = max(asks, key=lambda ask: (ask.num_overtaken, -ask.since_s))
    return [ask for ask in asks if ask.kind is first.kind]


def _with_prompts(asks: Sequence[Ask], prefills: Sequence[Ask], limits: BatchLimits, share: Share | None) -> Step:
    """A step of `asks` and, if it is an exact one, of chunks of its model's prompts."""
    granted = _within(asks, limits.max_rows, share)
    if asks[0].kind is ForwardKind.EXACT:
        granted += _chunks([ask for ask in prefills if ask.model is asks[0].model], limits.prefill_rows)
    return _step(granted)


def _chunks(prefills: Sequence[Ask], num_rows: int) -> list[_GrantedRows]:
    """Tokens of up to two prompts: half of the room is the shortest's, so that it never waits for a long one."""
    if not prefills:
        return []
    first, *others = prefills
    shortest = min(others, key=lambda ask: ask.num_rows, default=None)
    if shortest is None:
        return [(first, min(first.num_rows, num_rows))]
    of_shortest = min(shortest.num_rows, max(num_rows // 2, num_rows - first.num_rows))
    of_first = min(first.num_rows, num_rows - of_shortest)
    return [(ask, rows) for ask, rows in ((first, of_first), (shortest, of_shortest)) if rows]


def _within(asks: Sequence[Ask], max_rows: int, share: Share | None) -> list[_GrantedRows]:
    """What fits: elastic asks share what the others leave, at least a row each; the others wait for their turn.

    Who has waited longest goes first, and is granted whatever its size.
    """
    if share is None and sum([ask.num_rows for ask in asks]) <= max_rows:
        return _whole(asks)
    elastic = [ask for ask in asks if ask.is_elastic]
    rigid = sorted((ask for ask in asks if not ask.is_elastic), key=lambda ask: (-ask.num_overtaken, ask.since_s))
    left = max_rows - len(elastic)
    granted: list[_GrantedRows] = []
    for ask in rigid:
        if ask.num_rows <= left or not (granted or elastic):
            granted.append((ask, ask.num_rows))
            left -= ask.num_rows
    room = len(elastic) + max(0, left)
    if share is None or not elastic:
        return granted + list(zip(elastic, equal_shares([ask.num_rows for ask in elastic], room), strict=True))
    return granted + list(zip(elastic, share(elastic, room), strict=True))


def _whole(asks: Sequence[Ask]) -> list[_GrantedRows]:
    return [(ask, ask.num_rows) for ask in asks]


def _step(granted: Sequence[_GrantedRows]) -> Step:
    first, _ = granted[0]
    grants = tuple([Grant(ask.request, num_rows) for ask, num_rows in granted])
    return Step(model=first.model, kind=first.kind, grants=grants)
