"""Acceptance of heads and block drafters: what a plan assumes of a target or a length that nobody published.

- DSpark's table (EAGLE-3, DFlash and DSpark, chains of 7 tokens, four targets, nine data sets): every mean length from
  the table's other targets, with the same kind of drafter on the same data set: heads that were trained alike.
- InferenceX's lengths of chains of 7 tokens from those of 1, 2 and 3: beyond the last position its rate holds, as in a
  plan whose chains are longer than the record.
- Every record on a known class of text from those of other sources, as in a plan for a head without records.

Nothing is fitted.
"""

from collections.abc import Iterator
from contextlib import suppress

from swiftspec.acceptance.lengths import unconditional_rates
from swiftspec.acceptance.records import AcceptanceRecord, Form, published_records
from swiftspec.acceptance.texts import class_of
from swiftspec.acceptance.usual import family_of, published_rates, records_without, usual_rates
from swiftspec.studies.backtest.rows import BY_TEXT, Row

_QUANTITY = "tokens per round"
_HELD_OUT = "DSpark, arXiv 2607.05147"
_BY_LENGTH = "SemiAnalysisAI/InferenceX"
KNOWN_CHAIN, LONG_CHAIN = 3, 7  # tokens


def head_acceptance_rows() -> list[Row]:
    """All rows."""
    return [*_held_out_targets(), *_longer_chains()]


def by_text_rows() -> list[Row]:
    """Tokens per round of chains on a class of text, from the drafters of other sources."""
    rows = []
    for record in published_records():
        if record.top_k > 1 or class_of(record.dataset) is None:
            continue
        family, length = family_of(record.drafter, record.kind), record.num_draft_tokens
        with suppress(ValueError):  # a kind that one source alone has
            found = usual_rates(family, record.dataset, length, records=records_without(record.source))
            name = f"{record.key}, chain of {length}, from other sources ({record.source})"
            rows.append(Row.unfitted(name, BY_TEXT, record.length(length), _length(found.rates, length), record.source))
    return rows


def _held_out_targets() -> Iterator[Row]:
    records = published_records()
    for record in _of(_HELD_OUT, Form.LENGTH):
        others = [one for one in records if one.target != record.target and one.source == record.source]
        rates = published_rates(record.target, record.drafter, record.dataset, records=others).rates
        name = f"{record.target} + {record.drafter}, {record.dataset}, from other targets"
        predicted = _length(rates, record.num_draft_tokens)
        yield Row.unfitted(name, _QUANTITY, record.values[0], predicted, record.source)


def _longer_chains() -> Iterator[Row]:
    for record in _of(_BY_LENGTH, Form.LENGTHS):
        known = record.model_copy(update={"num_draft_tokens": KNOWN_CHAIN, "values": record.values[:KNOWN_CHAIN]})
        note = f" ({record.note})" if record.note else ""
        name = f"{record.key}{note}, chain of {LONG_CHAIN} from those of 1 to {KNOWN_CHAIN}"
        published = record.values[LONG_CHAIN - 1]
        yield Row.unfitted(name, _QUANTITY, published, _length(known.conditional, LONG_CHAIN), record.source)


def _of(source: str, quantity: Form) -> Iterator[AcceptanceRecord]:
    return (one for one in published_records() if one.source.startswith(source) and one.quantity is quantity)


def _length(conditional: tuple[float, ...], num_draft_tokens: int) -> float:
    """Mean tokens per round of chains of this length; beyond the last rate it holds."""
    rates = [*conditional, *[conditional[-1]] * num_draft_tokens][:num_draft_tokens]
    return 1 + sum(unconditional_rates(rates))
