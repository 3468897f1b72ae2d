"""Sections of advice for a server that runs, as the terminal prints them and the page shows them."""

from collections.abc import Iterator

from swiftspec.artifacts.advice import Advice, Change, ChangeKind, Outcome
from swiftspec.engines import engine_named
from swiftspec.reports.formatting import count, milliseconds, percent, signed_percent, speed
from swiftspec.reports.model import DASH, Curve, Curves, Doubt, Facts, Part, Point, Row, Section, Table, numbers, texts


def advice_sections(advice: Advice) -> tuple[Section, ...]:
    """What to do, what was counted, the model, and all that was tried."""
    made = (_answer(advice), _tried(advice), _loads(advice), _observed(advice), _model(advice))
    return tuple(section for section in made if section is not None)


def answer_in_words(advice: Advice) -> str:
    """What to do, a sentence without its full stop."""
    requests = count(advice.observed.requests, "request")
    match advice.outcome:
        case Outcome.CHANGE if advice.best is not None:
            return f"{_in_words(advice.best, advice)}: {_gain(advice.best)}"
        case Outcome.NOT_ENOUGH:
            about = f"; about {advice.needed_requests} would do" if advice.needed_requests else ""
            return f"Not enough evidence: {requests}{about}"
        case _:
            return "Leave it as it is: nothing that was tried is surely faster"


def _in_words(change: Change, advice: Advice) -> str:
    if change.kind is ChangeKind.DRAFT_LENGTH:
        return (
            f"Draft {count(change.value, 'token')} instead of {advice.observed.draft_tokens}"
            if change.value
            else "Draft nothing"
        )
    return _named(change)


def _named(change: Change) -> str:
    is_one_token = change.kind is ChangeKind.DRAFT_LENGTH and change.value == 1
    return "1 draft token" if is_one_token else f"{change.value} {change.kind}"


def _gain(change: Change) -> str:
    gain = change.gain
    return f"{gain.ratio:.2f} times the tokens/s (90 % interval {gain.low:.2f} to {gain.high:.2f})"


def _answer(advice: Advice) -> Section:
    best, fit, parts = advice.best, advice.fit, list[Part]()
    if best is not None and advice.outcome is Outcome.CHANGE:
        parts.append(f"In {engine_named(advice.observed.engine).full_name}'s words: {best.setting}.")
    if best is not None and advice.outcome is Outcome.NOT_ENOUGH:
        parts.append(f"What the counts point to so far: {_in_words(best, advice).lower()}, {_gain(best)}.")
    if fit.is_far:
        doubt = f"Steps take {fit.time_factor:.2f} times what the model has: is it of this server?"
        parts.append(Doubt(doubt, "model"))
    observed = advice.observed
    facts = {
        "evidence": count(observed.requests, "request"),
        "in": f"{observed.seconds:.0f} s",
        "requests at once": f"{observed.present:.1f}",
        "per output token": f"{milliseconds(observed.tpot_s)} ms",
    }
    if best is not None:
        facts["predicted"] = f"{milliseconds(best.tpot_s)} ms"
    return Section(key="answer", title=answer_in_words(advice), parts=(*parts, Facts(facts)))


def _tried(advice: Advice) -> Section:
    """A figure of the draft lengths, and all that was tried."""
    parts: list[Part] = []
    if len(advice.lengths) > 1:
        best = advice.best
        chosen = best.value if best and best.kind is ChangeKind.DRAFT_LENGTH else advice.observed.draft_tokens
        points = [
            Point(
                each.value,
                each.tokens_per_s,
                f"{each.value} draft tokens: {speed(each.tokens_per_s)} tokens/s, {_gain(each)}",
                each.value == chosen,
            )
            for each in advice.lengths
        ]
        drawn = Curves(
            curves=[Curve("predicted, at the counted load", points)],
            x_title="draft tokens of a round",
            y_title="tokens/s of all requests",
            label="Predicted tokens/s of all requests by the draft tokens of a round",
        )
        parts.append(drawn)
    rows = [_row(each, advice) for each in (*advice.lengths, *advice.changes)]
    columns = (*texts("change", "setting"), *numbers("times as fast", "90 % interval", "TTFT, ms", "TPOT, ms"))
    parts.append(Table(title="What each change would bring", columns=columns, rows=rows))
    return Section(key="tried", title="What was tried", parts=parts)


def _row(change: Change, advice: Advice) -> Row:
    is_now = change.kind is ChangeKind.DRAFT_LENGTH and change.value == advice.observed.draft_tokens
    name = f"{_named(change)}{' (now)' if is_now else ''}"
    interval = DASH if is_now else f"{change.gain.low:.2f} to {change.gain.high:.2f}"
    times = milliseconds(change.ttft_s), milliseconds(change.tpot_s)
    cells = (name, change.setting or DASH, f"{change.gain.ratio:.2f}", interval, *times)
    remark = "" if change.is_free else change.remark
    return Row(cells, remark=remark, tip=change.remark, chosen=change == advice.best)


def _loads(advice: Advice) -> Section | None:
    """Draft lengths at other loads; None if they were not compared."""
    if not advice.by_load:
        return None
    rows = [Row((str(each.requests), str(each.draft_tokens), f"{each.gain:.2f}")) for each in advice.by_load]
    parts: list[Part] = [
        Table(
            title="The fastest draft length by load",
            columns=numbers("requests at once", "draft tokens", "times as fast as now"),
            rows=rows,
        )
    ]
    if advice.schedule:
        parts.append(f"The best length changes with the load. As a schedule: {advice.schedule}.")
    return Section(key="loads", title="Other loads", parts=parts)


def _observed(advice: Advice) -> Section:
    observed = advice.observed
    rows = [Row(pair) for pair in _counted(advice)]
    parts: list[Part] = [Table(title="What was counted", columns=(*texts("figure"), *numbers("value")), rows=rows)]
    if observed.survival:
        accepted = [
            Row((str(place), percent(share), percent(error)))
            for place, (share, error) in enumerate(zip(observed.survival, observed.survival_errors, strict=True), 1)
        ]
        parts.append(
            Table(
                title="Drafts accepted up to each token",
                columns=numbers("draft token", "share", "standard error"),
                rows=accepted,
                footnote=f"{observed.drafts:.0f} drafts; those of one request are alike, so they tell as much as "
                f"{observed.effective_drafts:.0f} of different ones (an assumption).",
            )
        )
    return Section(key="observed", title="The load", parts=(*parts, *observed.unknown))


def _counted(advice: Advice) -> Iterator[tuple[str, str]]:
    observed = advice.observed
    yield "server", f"{advice.server}, {engine_named(observed.engine).full_name}"
    yield "requests", f"{observed.requests} in {observed.seconds:.0f} s, {observed.requests / observed.seconds:.2f}/s"
    yield "requests at once", f"{observed.present:.1f}"
    if observed.waiting is not None:
        yield "of which wait", f"{observed.waiting:.1f}"
    yield "prompt, output tokens", f"{observed.prompt_tokens:.0f}, {observed.output_tokens:.0f}"
    if observed.cached_share is not None:
        yield "of prompts, cached", percent(observed.cached_share)
    if observed.tokens_per_step is not None:
        yield "tokens of a step", f"{observed.tokens_per_step:.1f}"
    if observed.draft_tokens:
        yield "draft tokens, tokens per round", f"{observed.draft_tokens}, {observed.tokens_per_round:.2f}"
    if observed.preemptions:
        yield "requests that gave way", f"{observed.preemptions:.0f}"


def _model(advice: Advice) -> Section:
    fit, observed = advice.fit, advice.observed
    pairs = {
        "TPOT (fitted)": (observed.tpot_s, fit.tpot_s),
        "TTFT": (observed.ttft_s, fit.ttft_s),
        "E2E": (observed.e2e_s, fit.e2e_s),
        "between chunks": (observed.itl_s, fit.tpot_s * observed.tokens_per_round),
    }
    rows = [
        Row((name, milliseconds(counted), milliseconds(predicted), signed_percent(predicted / counted - 1)))
        for name, (counted, predicted) in pairs.items()
        if counted
    ]
    table = Table(
        title="The model against the counts, ms",
        columns=(*texts("figure"), *numbers("counted", "predicted", "error")),
        rows=rows,
    )
    again = [f"Of each matched prefix {fit.read_again} tokens are read again for the draft."] if fit.read_again else []
    basis = (
        f"Steps are {fit.source}, times {fit.time_factor:.2f}, with which the predicted TPOT is the counted one. "
        f"{fit.engine}. The load is {count(fit.requests, 'client')} that each send the next request when one ends."
    )
    return Section(key="model", title="The model", parts=(basis, *again, table))
