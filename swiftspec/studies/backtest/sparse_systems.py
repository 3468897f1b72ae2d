"""Published speeds of sparse targets with and without a draft, predicted from shapes, devices and tokens per round.

A round is a verification and the draft's forwards, as its policy has them, composed from op tables with the engine's
fitted host time. Autoregressive speeds are predicted outright. They are then an input to speeds with a draft, since
none of these engines and devices is in the tables: a fork of SGLang, B300, GB300. As in `systems`, they give the
slowdown of forwards against the composed ones. Where the tokens per round of a head are not published for its target,
those of a head like it stand in; the file says which.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from swiftspec.costmodel.forward import Host, forward_parts
from swiftspec.costmodel.shipped import kernels_of
from swiftspec.models.heads import HEADS
from swiftspec.models.published import known_model
from swiftspec.models.quantisation import draft_format
from swiftspec.studies.backtest.published import read_facts
from swiftspec.studies.backtest.rows import SPARSE_RATIO, SPARSE_TOKENS, Row

_SPEED, _RATIO = SPARSE_TOKENS, SPARSE_RATIO
_row = Row.unfitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Forwards of a target and its head on a group of devices."""

    target: str
    draft: str | None
    device: str
    engine: str
    quant: str
    degree: int
    context: int

    @classmethod
    def of(cls, target: str, facts: Mapping[str, Any]) -> "Rounds":
        """From the figures of a system."""
        names = ("device", "quant", "degree", "context")
        return cls(
            target=target,
            draft=facts.get("draft"),
            engine=facts.get("engine", "vllm"),
            **{name: facts[name] for name in names},
        )

    def slowdown(self, facts: Mapping[str, Any]) -> float:
        """Slowdown of this system's forwards, from its autoregressive speed."""
        return 1 / float(facts["autoregressive"]) / self.verify_s()

    def verify_s(self, rows: int = 1, *, sequences: int = 1) -> float:
        """Seconds of a target forward of `rows` rows in each sequence."""
        parts = forward_parts(
            known_model(self.target).spec,
            kernels=kernels_of(self.device, framework=self.engine),
            quant=self.quant,
            degree=self.degree,
            rows=rows * sequences,
            sequences=sequences,
            context=self.context,
            host=Host.of(self.engine),
        )
        return sum(part.seconds for part in parts)

    def draft_s(self, rows: int = 1, *, sequences: int = 1) -> float:
        """Seconds of a head's forward; its host time is within the step's."""
        assert self.draft is not None, "a system with a draft"
        spec, head = known_model(self.target).spec, HEADS[self.draft]
        parts = forward_parts(
            head.spec(spec),
            kernels=kernels_of(self.device, framework=self.engine),
            quant=draft_format(self.quant),
            degree=self.degree,
            rows=rows * sequences,
            sequences=sequences,
            context=self.context,
            products=tuple(head.products(spec)),
        )
        return sum(part.seconds for part in parts)


def sparse_system_rows() -> list[Row]:
    """All rows. Nothing is fitted here, so a row's error is also its leave-one-out error."""
    facts = read_facts("sparse_systems")
    return [
        *_minimax(facts["minimax-m2.5"]),
        *_deepseek(facts["deepseek-v3.2"]),
        *_kimi(facts["kimi-k3"]),
        _cohere(facts["cohere"]),
    ]


def _minimax(facts: Mapping[str, Any]) -> Iterator[Row]:
    """A tree for one request; and the gain of a chain with many, which is none."""
    rounds = Rounds.of("minimax-m2.5", facts)
    name, source = "minimax-m2.5 fp8, 4 h200", facts["source"]
    yield _row(f"{name}, autoregressive", _SPEED, facts["autoregressive"], 1 / rounds.verify_s(), source)
    tree = facts["tree"]
    round_s = rounds.verify_s(tree["rows"]) + tree["draft_steps"] * rounds.draft_s(tree["draft_rows"])
    round_s *= rounds.slowdown(facts)
    for dataset, speed in facts["speeds"].items():
        predicted = facts["tokens_per_round"][dataset] / round_s
        yield _row(f"{name}, eagle3 tree of 8, {dataset}", _SPEED, speed, predicted, f"{source}; {facts['acceptance']}")
    batch = facts["batch"]
    sequences = batch["sequences"]
    alone_s = rounds.verify_s(sequences=sequences)
    drafted_s = rounds.verify_s(batch["rows"], sequences=sequences)
    drafted_s += batch["draft_steps"] * rounds.draft_s(sequences=sequences)
    gain = batch["tokens_per_round"] * alone_s / drafted_s
    yield _row(f"{name}, eagle3 chain of 5, 32 requests: gain", _RATIO, batch["speedup"], gain, source)


def _deepseek(facts: Mapping[str, Any]) -> Iterator[Row]:
    rounds = Rounds.of("deepseek-v3.2", facts)
    name, source = "deepseek-v3.2 fp8, 8 b300", facts["source"]
    yield _row(f"{name}, autoregressive", _SPEED, facts["autoregressive"], 1 / rounds.verify_s(), source)
    for length, chain in facts["chains"].items():
        drafted = replace(rounds, degree=chain.get("degree", rounds.degree))
        round_s = drafted.verify_s(int(length) + 1) + int(length) * drafted.draft_s()
        speed = chain["tokens_per_round"] / round_s / rounds.slowdown(facts)
        yield _row(f"{name}, mtp chain of {length}", _SPEED, chain["speed"], speed, f"{source}; {facts['acceptance']}")


def _kimi(facts: Mapping[str, Any]) -> Iterator[Row]:
    rounds = Rounds.of("kimi-k3", facts)
    name, source, block = "kimi-k3 mxfp4, 8 gb300", facts["source"], facts["block"]
    yield _row(f"{name}, autoregressive", _SPEED, facts["autoregressive"], 1 / rounds.verify_s(), source)
    drafted = replace(rounds, context=block["context"])
    round_s = drafted.verify_s(block["rows"]) + drafted.draft_s(block["rows"] - 1)
    speed = block["tokens_per_round"] / round_s / rounds.slowdown(facts)
    yield _row(f"{name}, dspark block of 7", _SPEED, block["speed"], speed, f"{source}; {facts['acceptance']}")


def _cohere(facts: Mapping[str, Any]) -> Row:
    """Cost of four rows against one: the median of known mixtures stands in for an unpublished one."""
    ratios = []
    for model in facts["models"]:
        rounds = Rounds.of(model, facts)
        ratios.append(rounds.verify_s(facts["rows"]) / rounds.verify_s())
    name = f"a mixture, median of {len(ratios)} on 8 h100: 4 rows against 1"
    return _row(name, _RATIO, facts["ratio"], median(ratios), facts["source"])
