"""Acceptance given by a user, as rates or as tokens per round, as in servers' logs, and the model that matches it.

A server that drafts chains of k tokens counts drafted and accepted tokens. vLLM logs the share of all drafted tokens
that were accepted (`Avg Draft acceptance rate`), and for every position the share of chains that were accepted up to it
(`Per-position acceptance rate`). Both are figures of serial chains, not of single positions: a chain that is cut short
counts in full, and rounds begin where the last one ended. So the rate alone does not tell how often the draft's first
choice is right; that is solved for, such that serial chains of that length have the rate.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftspec.acceptance.fitting import fit_fields
from swiftspec.acceptance.lengths import Drafted, unconditional_rates
from swiftspec.acceptance.model import PRIOR, AcceptanceModel, tree_acceptance
from swiftspec.acceptance.numerics import root
from swiftspec.acceptance.records import LONGEST, AcceptanceRecords, Form, smooth_rates
from swiftspec.errors import FieldError

_NEAR = 1e-3  # to 0 and 1, which no acceptance model reaches
_FARTHEST = 60.0  # nats: logits at which the longest chain still reaches the lowest and the highest rate
_MOST_MISSED = 0.1  # root mean square over positions
_NOISE = 0.02  # by which a rate may rise
_EXAMPLES = (
    "a share as 0.75 or 75%, one of chains of 5 tokens as 0.44@5, shares by position as 0.8,0.7,0.6, tokens per round "
    "of chains of 5 as 2.9@5, of trees of 3 steps, top-k 4 and 8 rows as 3.4@3-4-8, or a file that `swiftspec import` "
    "made of metrics or a log, ending in .json"
)
_FORM = re.compile(r"(?P<values>[^@]+)(@(?P<tokens>\d{1,3})(-(?P<top_k>\d{1,3})-(?P<rows>\d{1,4}))?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAcceptance:
    """Acceptance of serial chains, as measured elsewhere."""

    # By position, the share of chains accepted up to it; or a single one, the share of all drafted tokens
    rates: tuple[float, ...]
    num_draft_tokens: int  # tokens of a chain
    # Pair, conditions and origin of what was read from a file, or the tokens per round that were given; otherwise empty
    source: str = ""

    @classmethod
    def parse(cls, text: str, *, field: str = "acceptance") -> "GivenAcceptance":
        """From `0.75`, `0.44@5`, `0.8,0.7,0.6`, `2.9@5`, `3.4@3-4-8` or a file. ValueError naming field or file."""
        if text.endswith(".json"):
            return cls.load(Path(text))
        match = _FORM.fullmatch(text.strip())
        try:
            rates = tuple(map(_share, match["values"].split(","))) if match else ()
        except ValueError:
            rates = ()
        if match is None or not rates or (len(rates) > 1 and match["tokens"]):
            raise FieldError(field, repr(text), f"expected {_EXAMPLES}")
        length = int(match["tokens"]) if match["tokens"] else len(rates)
        if not 1 <= length <= LONGEST:
            raise FieldError(field, f"{text!r}, of chains of {length} tokens", f"expected 1 to {LONGEST}")
        if match["tokens"] and (rates[0] > 1 or match["top_k"]):
            return cls._of_length(rates[0], _drafted(match, length, field=field), field=field)
        for rate in rates:
            if not 0 <= rate <= 1:
                raise FieldError(field, f"{rate:g}", "expected shares from 0 to 1, or tokens per round as 2.9@5")
        return cls(rates=_never_rising(rates, f"{field} is {text!r}"), num_draft_tokens=length)

    @classmethod
    def _of_length(cls, tokens_per_round: float, drafted: Drafted, *, field: str) -> "GivenAcceptance":
        """The share in chains that have the rate of these chains or trees."""
        if not 1 <= tokens_per_round <= drafted.steps + 1:
            most = drafted.steps + 1
            raise FieldError(field, f"{tokens_per_round:g}", f"expected 1 to {most} tokens per round of {drafted}")
        accepted = sum(unconditional_rates([drafted.rate(tokens_per_round)] * drafted.steps))
        return cls(
            rates=(accepted / drafted.steps,),
            num_draft_tokens=drafted.steps,
            source=f"{tokens_per_round:g} tokens per round of {drafted}",
        )

    @classmethod
    def load(cls, path: Path) -> "GivenAcceptance":
        """From a file that `swiftspec import` wrote. ValueError naming it, unless it holds one record."""
        records = AcceptanceRecords.load(path).records
        if len(records) != 1:
            raise ValueError(f"{path}: records has {len(records)} items; expected one")
        (record,) = records
        rates: tuple[float, ...] = (sum(record.rates) / len(record.rates),)
        if record.quantity is not Form.LENGTH:
            rates = _never_rising(
                record.raw_rates, f"{path}: values is {','.join(f'{one:g}' for one in record.values)}"
            )
        source = f"{path.name}, of {record.key}, from {record.basis}"
        return cls(rates=rates, num_draft_tokens=record.num_draft_tokens, source=source)

    @property
    def survival(self) -> tuple[float, ...]:
        """Share of chains accepted up to each position; of a mean share, at the same conditional rate everywhere."""
        if len(self.rates) > 1:
            return self.rates
        return Drafted(steps=self.num_draft_tokens).even_survival(1 + self.rates[0] * self.num_draft_tokens)

    def acceptance_model(self, *, field: str = "acceptance") -> AcceptanceModel:
        """The prior, but with these rates in serial chains. ValueError if no draft model has such rates by position."""
        mean = sum(self.rates) / len(self.rates)
        if len(self.rates) == 1 or not any(self.rates):
            return _at_rate(mean, self.num_draft_tokens)
        chain = (1,) * len(self.rates)

        def errors(acceptance_model: AcceptanceModel) -> list[float]:
            predicted = tree_acceptance(acceptance_model, chain)
            return [mine - theirs for mine, theirs in zip(predicted, self.rates, strict=True)]

        fit = fit_fields(errors, ("mean_logit", "persistence"))
        if fit.residual > _MOST_MISSED:
            if {0.0, 1.0} & {*self.rates}:  # counts of few rounds, or of a draft that fails: their mean is data, too
                return _at_rate(mean, self.num_draft_tokens)
            nearest = ", ".join(f"{rate:.2f}" for rate in tree_acceptance(fit.acceptance_model, chain))
            raise FieldError(
                field,
                self,
                f"no draft model has such rates, the nearest are {nearest}: give the mean alone, as "
                f"{mean:.2f}@{len(self.rates)}",
            )
        return fit.acceptance_model

    def describe(self) -> str:
        """A sentence without its full stop, for a plan."""
        if self.source:
            return self.source
        if len(self.rates) > 1:
            return f"serial chains of {self.num_draft_tokens} tokens are accepted up to each with {self}"
        what = (
            "single draft tokens" if self.num_draft_tokens == 1 else f"tokens of {self.num_draft_tokens}-token chains"
        )
        return f"{100 * self.rates[0]:g} % of {what} are accepted"

    def __str__(self) -> str:
        return ",".join(f"{rate:g}" for rate in self.rates)


def _share(text: str) -> float:
    """A number, or a percentage as a number."""
    number = text.strip().removesuffix("%")
    return float(number) / (100 if number != text.strip() else 1)


def _never_rising(rates: Sequence[float], where: str) -> tuple[float, ...]:
    """The nearest rates that never rise; `where` begins the ValueError if that is more than noise."""
    smooth = smooth_rates(rates)
    if max(abs(one - other) for one, other in zip(smooth, rates, strict=True)) > _NOISE:
        raise ValueError(
            f"{where}, which rises; expected for every position the share of all chains that were accepted up to "
            "there, as vLLM logs it"
        )
    return smooth


def _drafted(match: re.Match[str], steps: int, *, field: str) -> Drafted:
    """Chains of so many steps, or trees."""
    if not match["top_k"]:
        return Drafted(steps=steps)
    top_k, rows = int(match["top_k"]), int(match["rows"])
    if top_k < 1 or rows < 2:
        raise FieldError(field, repr(match[0]), "expected a tree of at least top-k 1 and 2 rows")
    return Drafted(steps=steps, top_k=top_k, rows=rows)


def _at_rate(rate: float, num_draft_tokens: int) -> AcceptanceModel:
    """The model that gives this share of accepted tokens in chains of this length, or nearly, for none and all."""
    within = min(max(rate, _NEAR), 1 - _NEAR)

    def missed(mean_logit: float) -> float:
        acceptance_model = PRIOR.model_copy(update={"mean_logit": mean_logit})
        return sum(tree_acceptance(acceptance_model, (1,) * num_draft_tokens)) / num_draft_tokens - within

    mean_logit = root(missed, -_FARTHEST, _FARTHEST, within=1e-4)
    return PRIOR.model_copy(update={"mean_logit": float(mean_logit)})
