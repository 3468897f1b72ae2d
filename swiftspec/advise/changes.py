"""Changes of a server that runs: which there are, what each would bring under the same load, and how sure that is."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from swiftspec.advise.model import LoadMeans, ServerModel, Variant
from swiftspec.advise.observed import effective
from swiftspec.artifacts.advice import Advice, Change, ChangeKind, LengthAtLoad, Outcome
from swiftspec.artifacts.gain import Gain
from swiftspec.engines import Engine
from swiftspec.engines.words import LengthRange, Method, Value
from swiftspec.files.document import Origin
from swiftspec.planner.under_load.composed_engine import ComposedEngine
from swiftspec.progress import Progress

_MOST_LENGTH: Final = 8
_LOADS: Final = (0.5, 1.0, 2.0)
_LONG_PROMPT: Final = 0.5  # of a step's tokens, new ones of a prompt: from there on steps' tokens count
_SMALL_BLOCK: Final = 16  # tokens
_BEYOND: Final = "Acceptance beyond the counted positions is taken to go on as at the last one."
_REPLICAS: Final = "It takes as many devices again; each server has half of the requests."
_ENOUGH_REQUESTS: Final = 50  # fewer say nothing
_LEAST_GAIN: Final = 1.02  # what the lower end of a gain has to be above
_DRAWS: Final = 4000
_SEED: Final = 0
_MANY: Final = 10**9
_LEVELS: Final = (0.05, 0.95)
_LEAST_FACTOR: Final = 0.1  # of a step's seconds
_GROWTH: Final = 1.25  # of the numbers of requests that are tried
_MOST_REQUESTS: Final = 20_000


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    """Evidence of a number of requests about changes of a server.

    now: as predicted for the server as it is. requests: those counted, or more.

    A gain is off by what is not known of the acceptance; of the step times, as far as those of both servers differ;
    and of the load, whose means are those of so many requests: of that, by 1 / sqrt(requests) of the gain.
    """

    model: ServerModel
    now: LoadMeans
    lengths: tuple[int, ...]
    requests: int

    def gain(self, variant: Variant, then: LoadMeans) -> Gain:
        """Gain of a variant with its 90 % interval.

        The counted TPOT stays as it is: if more tokens were accepted, then steps took longer.
        """
        length, tokens = self.model.now.length, self._tokens
        slower = tokens[length] / self.model.acceptance.tokens(length)
        fewer = self.model.acceptance.tokens(variant.length) / tokens[variant.length]
        decode_s = (then.e2e_s - then.ttft_s) * self._step_errors(variant, then)
        e2e_s = slower * (then.ttft_s + decode_s * fewer)
        ratios = (slower * self.now.ttft_s + self.now.e2e_s - self.now.ttft_s) / e2e_s
        ratios = ratios * (1 + np.abs(ratios - 1) * self._normal[1] / self.requests**0.5)
        ratio = self.now.e2e_s / then.e2e_s
        low, high = np.quantile(ratios, _LEVELS).tolist()
        return Gain(ratio=ratio, low=min(max(low, 1e-3), ratio), high=max(high, ratio))

    def needed_requests(self, variant: Variant, then: LoadMeans) -> int | None:
        """Requests with which the gain would be sure, if it is as predicted; None if no number would do."""
        if replace(self, requests=_MANY).gain(variant, then).low <= _LEAST_GAIN:
            return None
        needed = float(max(_ENOUGH_REQUESTS, self.requests))
        while needed < _MOST_REQUESTS and replace(self, requests=round(needed)).gain(variant, then).low <= _LEAST_GAIN:
            needed *= _GROWTH
        return round(needed)

    def _step_errors(self, variant: Variant, then: LoadMeans) -> npt.NDArray[np.float64]:
        """Factors of the seconds of a step: the part in which both servers' differ may be wrong."""
        accepted = self.model.acceptance
        now_s = self.now.tpot_s * accepted.tokens(self.model.now.length)
        then_s = then.tpot_s * accepted.tokens(variant.length)
        spread = (then_s - now_s) / then_s * self.model.step_error
        factors: npt.NDArray[np.float64] = (1 + spread * self._normal[0]).clip(_LEAST_FACTOR)
        return factors

    @cached_property
    def _normal(self) -> npt.NDArray[np.float64]:
        return np.random.default_rng(_SEED).standard_normal((2, _DRAWS))

    @cached_property
    def _tokens(self) -> dict[int, npt.NDArray[np.float64]]:
        observed, accepted = self.model.observed, self.model.acceptance
        drafts = effective(observed.drafts * self.requests / observed.requests, self.requests)
        return replace(accepted, drafts=drafts).drawn_tokens(self.lengths, draws=_DRAWS, seed=_SEED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """A change with its variant, and what is predicted for it."""

    change: Change
    variant: Variant
    served: LoadMeans


def advice_on(model: ServerModel, *, server: str, progress: Progress) -> Advice:
    """Try all changes of a calibrated model. ValueError if the models do not fit the device."""
    lengths = _lengths(model)
    evidence = _Evidence(
        model=model, now=model.serve(model.now), lengths=tuple(lengths), requests=model.observed.requests
    )
    tried: list[_Tried] = []
    wanted = [(ChangeKind.DRAFT_LENGTH, length, replace(model.now, length=length)) for length in lengths]
    wanted += _other_variants(model)
    for done, (kind, value, variant) in enumerate(wanted):
        progress(done, len(wanted), f"{kind} {value}")
        tried.append(_tried(evidence, kind, value, variant))
    outcome, best, needed = _judged(evidence, tried)
    of_lengths, others = tried[: len(lengths)], tried[len(lengths) :]
    by_load = _by_load(model, lengths, of_lengths)
    return Advice(
        origin=Origin.here(),
        server=server,
        outcome=outcome,
        observed=model.observed,
        fit=model.fit(),
        lengths=tuple(each.change for each in of_lengths),
        changes=tuple(each.change for each in others),
        best=best,
        needed_requests=needed,
        by_load=by_load,
        schedule=_schedule_setting(model.serving.engine, model.method, _ranges(by_load)),
    )


def _lengths(model: ServerModel) -> list[int]:
    """Draft lengths to try: none but that in use where acceptance is not known."""
    now = model.now
    if not now.length:
        return [0]
    fits = model.serving.limits.step_tokens // now.requests - 1
    return sorted({0, *range(1, min(_MOST_LENGTH, fits) + 1), now.length})


def _other_variants(model: ServerModel) -> Iterator[tuple[ChangeKind, int, Variant]]:
    now, limits, observed = model.now, model.serving.limits, model.observed
    if model.is_full:
        most = 2 * model.most_requests
        yield ChangeKind.REQUESTS, most, replace(now, most_requests=most)
    new_tokens = observed.prompt_tokens * (1 - (observed.cached_share or 0.0))
    if model.is_full or new_tokens > _LONG_PROMPT * limits.step_tokens:
        for tokens in (limits.step_tokens // 2, 2 * limits.step_tokens):
            yield ChangeKind.STEP_TOKENS, tokens, replace(now, step_tokens=tokens)
    rows = min(now.requests, model.most_requests) * (1 + now.length)
    word = _limit_setting(model.serving.engine, "captured_tokens")
    if isinstance(model.serving, ComposedEngine) and word and 0 < limits.captured_tokens < rows:
        size = 1 << (rows - 1).bit_length()
        larger = replace(model.serving, settings={**model.serving.settings, word: str(size)})
        yield ChangeKind.GRAPHS, size, replace(now, serving=larger)
    if model.read_again > _SMALL_BLOCK and isinstance(model.serving, ComposedEngine):
        yield ChangeKind.PREFIX_BLOCK, _SMALL_BLOCK, replace(now, block=_SMALL_BLOCK)
    if now.requests > 1:
        yield ChangeKind.REPLICAS, 2, replace(now, requests=-(-now.requests // 2))


def _tried(evidence: _Evidence, kind: ChangeKind, value: int, variant: Variant) -> _Tried:
    model = evidence.model
    is_now = variant == model.now
    served = evidence.now if is_now else model.serve(variant)
    engine, is_more = model.serving.engine, kind is ChangeKind.REPLICAS
    if kind is ChangeKind.DRAFT_LENGTH:
        setting = _length_setting(engine, model.method, value, levels=model.levels(value))
    else:
        word = _limit_setting(engine, _FIELDS.get(kind, ""))
        setting = f"{word}={value}" if word else ""
    change = Change(
        kind=kind,
        value=value,
        setting=setting,
        gain=evidence.gain(variant, served),
        ttft_s=served.ttft_s,
        tpot_s=served.tpot_s,
        tokens_per_s=served.tokens_per_s * (value if is_more else 1),
        is_free=not is_more,
        remark=_REPLICAS if is_more else _BEYOND if variant.length > model.now.length else "",
    )
    return _Tried(change=change, variant=variant, served=served)


_FIELDS: Final = {
    ChangeKind.REQUESTS: "requests",
    ChangeKind.STEP_TOKENS: "step_tokens",
    ChangeKind.GRAPHS: "captured_tokens",
    ChangeKind.PREFIX_BLOCK: "prefix_block",
}


def _judged(evidence: _Evidence, tried: Sequence[_Tried]) -> tuple[Outcome, Change | None, int | None]:
    """What to do, the best change, and the requests that would be enough where they are not."""
    free = [each for each in tried if each.change.is_free and each.variant != evidence.model.now]
    sure = [each for each in free if each.change.gain.low > _LEAST_GAIN]
    best = max(sure or free, key=lambda each: each.change.gain.ratio, default=None)
    few = evidence.requests < _ENOUGH_REQUESTS
    if best is None or best.change.gain.ratio <= _LEAST_GAIN:
        return (Outcome.NOT_ENOUGH, None, _ENOUGH_REQUESTS) if few else (Outcome.LEAVE, None, None)
    needed = evidence.needed_requests(best.variant, best.served)
    if few:
        return Outcome.NOT_ENOUGH, best.change, needed or _ENOUGH_REQUESTS
    if sure:
        return Outcome.CHANGE, best.change, None
    return (Outcome.LEAVE, None, None) if needed is None else (Outcome.NOT_ENOUGH, best.change, needed)


def _by_load(model: ServerModel, lengths: Sequence[int], tried: Sequence[_Tried]) -> tuple[LengthAtLoad, ...]:
    """The fastest length at half, the same and twice the load; nothing where lengths cannot be compared."""
    if len(lengths) < 2:
        return ()
    now, found = model.now, {}
    for share in _LOADS:
        requests = max(1, round(share * now.requests))
        known = {each.variant.length: each.served for each in tried} if requests == now.requests else {}
        fit = [each for each in lengths if requests * (1 + each) <= model.serving.limits.step_tokens]
        served = {each: known.get(each) or model.serve(replace(now, length=each, requests=requests)) for each in fit}
        if now.length not in served:
            continue
        best = min(served, key=lambda each: served[each].e2e_s)
        gain = served[now.length].e2e_s / served[best].e2e_s
        if gain <= _LEAST_GAIN:  # as good as the one in use
            best, gain = now.length, 1.0
        found[requests] = LengthAtLoad(requests=requests, draft_tokens=best, gain=gain)
    return tuple(found.values())


def _ranges(by_load: Sequence[LengthAtLoad]) -> list[LengthRange]:
    """Lengths by requests at once: each from half-way after the load before it; none where all are the same."""
    if len({each.draft_tokens for each in by_load}) < 2:
        return []
    firsts = [1, *((left.requests + right.requests) // 2 + 1 for left, right in pairwise(by_load))]
    lasts = [*(first - 1 for first in firsts[1:]), 2 * by_load[-1].requests]
    ranges = [
        LengthRange(first, last, each.draft_tokens) for first, last, each in zip(firsts, lasts, by_load, strict=True)
    ]
    alike = [list(group) for _, group in groupby(ranges, key=lambda each: each.num_draft_tokens)]
    return [LengthRange(group[0].first, group[-1].last, group[0].num_draft_tokens) for group in alike]


# Changes in an engine's own words.


def _length_setting(engine: Engine, method: Method, length: int, *, levels: int) -> str:
    """Words that set a draft length: `num_speculative_tokens=2`; without drafts, the option that is left out."""
    words = engine.methods[method].words if method in engine.methods else {}
    if not length:
        option = engine.command.speculation if engine.command else ""
        option = option or next((word for word in words if word.startswith("--")), "")
        return f"without {option}" if option else "without drafts"
    values = {Value.DRAFT_TOKENS: length, Value.VERIFIED_ROWS: length + 1, Value.LEVELS: levels}
    filled = ((word, values[value]) for word, value in words.items() if isinstance(value, Value) and value in values)
    return " ".join(f"{word} {value}" if word.startswith("--") else f"{word}={value}" for word, value in filled)


def _limit_setting(engine: Engine, field: str) -> str:
    """The engine's word for a field of its limits; empty if it has none."""
    return next((word for word, of in engine.words.items() if of == field), "")


def _schedule_setting(engine: Engine, method: Method, schedule: Sequence[LengthRange]) -> str:
    """Words that set draft lengths by requests at once; empty without any, or if the engine has no such words."""
    words = engine.schedule
    if not schedule or words is None or method not in words.methods:
        return ""
    written = words.write(schedule)
    text = written if isinstance(written, str) else json.dumps(written)
    named = next((word for word, value in words.words.items() if value is Value.SCHEDULE), "")
    return f"{words.file or named}: {' '.join(text.split())}"
