"""Published speeds of heads, block drafters and parallel drafts with published acceptance.

A published autoregressive speed is an input everywhere: a prediction is that speed times the predicted gain, so that
what an engine adds to forwards slows the draft as much as the target. Acceptance is an input, too; where only a mean is
published, every position has the same rate.

PARD's README has no acceptance. That of its drafts on GSM8K and MT-Bench is solved from their speeds with an 8B target,
which therefore are no rows, and carried over to a 70B target: PARD drafts without knowing its target.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from scipy.optimize import brentq

from swiftspec.acceptance.lengths import Drafted, conditional_rates
from swiftspec.artifacts.metrics import Metrics
from swiftspec.models.heads import HEADS
from swiftspec.policies import DraftKind, Policy, make_policy
from swiftspec.policies.effects import Role
from swiftspec.studies.backtest.published import read_facts
from swiftspec.studies.backtest.rows import Constant, Row
from swiftspec.studies.backtest.speeds import Deployment, decoding_by_position
from swiftspec.studies.backtest.standard_kernels import StandardInt4Kernels

_FACTS = read_facts("head_speeds")
_SPEED = "tokens/s"
_row = Row.unfitted


def head_speed_rows() -> tuple[list[Row], list[Constant]]:
    """All rows, and the acceptance that was solved for."""
    pard, constants = _pard()
    return [*_eagle3_chains(), _eagle3_tree(), *_tuned_trees(), _dspark(), *pard], constants


def _eagle3_chains() -> Iterator[Row]:
    facts = _FACTS["eagle3_chains"]
    alone = 1e3 / facts["autoregressive_ms"]
    for count, length, tpot_ms in zip(
        facts["num_draft_tokens"], facts["tokens_per_round"], facts["tpot_ms"], strict=True
    ):
        gain = _gain(facts, _mean_rates(length, count), _chain("head_chain", count))
        yield _row(f"{_name(facts)}, chain of {count}, vllm", _SPEED, 1e3 / tpot_ms, alone * gain, facts["source"])


def _eagle3_tree() -> Row:
    """SGLang's tree of the best 64 nodes. One rate at all positions gives it the published acceptance length."""
    facts = _FACTS["eagle3_tree"]
    policy, rate = _tree(facts), _rate_of_tree(facts, facts)
    predicted = facts["autoregressive"] * _gain(facts, (rate,), policy)
    name = f"{_name(facts)}, tree of {facts['verify_rows']} rows, 8 h100, sglang"
    return _row(name, _SPEED, facts["tokens_per_s"], predicted, facts["source"])


def _tuned_trees() -> Iterator[Row]:
    """SGLang as SwiftSpec's authors ran it, in whichever shape is the fastest, as they say."""
    facts = _FACTS["tuned_trees"]
    for head in facts["heads"]:
        machine = facts | head
        rate, kind = _rate_of_tree(machine, head["accepted"]), HEADS[head["draft"]].kind
        deployment = replace(Deployment.of(machine), int4_forwards=StandardInt4Kernels)
        speeds = [
            decoding_by_position(
                deployment,
                (rate,),
                kind,
                make_policy("head_tree", verify_rows=rows, top_k=facts["top_k"], depth=depth),
                {Role.TARGET: facts["num_devices"]},
            ).decoding_tokens_per_s
            for rows in facts["verify_rows"]
            for depth in facts["depths"]
        ]
        name = f"{head['target']} + {head['name']}, {facts['dataset']}, best tree, int4, 8 h800, sglang"
        yield _row(name, _SPEED, head["tokens_per_s"], max(speeds), f"{facts['source']}; {head['where']}")


def _tree(shape: Mapping[str, Any]) -> Policy:
    return make_policy("head_tree", verify_rows=shape["verify_rows"], top_k=shape["top_k"], depth=shape["steps"] - 1)


def _rate_of_tree(machine: Mapping[str, Any], accepted: Mapping[str, Any]) -> float:
    """Rate at all positions with which a tree has the acceptance length that is published of it."""
    policy = _tree(accepted)

    def length(rate: float) -> float:
        return _metrics(machine, (rate,), policy).figures.tokens_per_round

    return float(brentq(lambda rate: length(rate) - accepted["tokens_per_round"], 0.5, 0.85, xtol=0.005))


def _dspark() -> Row:
    facts = _FACTS["dspark"]
    gain = _gain(facts, conditional_rates(facts["rates"]), _chain("parallel_chain", len(facts["rates"])))
    name = f"{_name(facts)}, block of {len(facts['rates'])}, vllm"
    return _row(name, _SPEED, 1e3 / facts["tpot_ms"], 1e3 / facts["autoregressive_ms"] * gain, facts["source"])


def _pard() -> tuple[list[Row], list[Constant]]:
    facts = _FACTS["pard"]
    small, large, count = facts["small"], facts["large"], facts["num_draft_tokens"]
    policy, rows, constants = _chain("parallel_chain", count), [], []
    for dataset, speed in small["pard"].items():
        known = facts["tokens_per_round"].get(dataset)
        length = known or _tokens_per_round(small, dataset, policy)
        if known:
            predicted = small["autoregressive"][dataset] * _gain(small, _mean_rates(length, count), policy)
            rows.append(_row(_pard_name(small, dataset), _SPEED, speed, predicted, facts["source"]))
        else:
            name = f"pard:{small['draft']}, {dataset}, tokens per round"
            constants.append(
                Constant(name=name, value=length, unit="tokens", fitted_on="PARD's speed with an 8B target")
            )
        predicted = large["autoregressive"][dataset] * _gain(large, _mean_rates(length, count), policy)
        rows.append(_row(_pard_name(large, dataset), _SPEED, large["pard"][dataset], predicted, facts["source"]))
    return [*rows, _eagle3_beside_pard()], constants


def _eagle3_beside_pard() -> Row:
    """EAGLE-3 in PARD's README, whose draft length is the best one, with the acceptance of vLLM's chains."""
    facts, small, dataset = _FACTS["pard"], _FACTS["pard"]["small"], "MT-Bench"
    chains = _FACTS["eagle3_chains"]
    machine = {**small, "draft": chains["draft"]}
    gains = [
        _gain(machine, _mean_rates(length, count), _chain("head_chain", count))
        for count, length in zip(chains["num_draft_tokens"], chains["tokens_per_round"], strict=True)
    ]
    name = f"{small['target']} + eagle3, {dataset}, best chain, {small['name']}, vllm"
    predicted = small["autoregressive"][dataset] * max(gains)
    return _row(name, _SPEED, small["eagle3"][dataset], predicted, facts["source"])


def _tokens_per_round(machine: Mapping[str, Any], dataset: str, policy: Policy) -> float:
    """Tokens per round with which the published speed comes out: a round lasts equally long whatever is accepted."""
    metrics = _metrics(machine, (0.8,), policy)
    slowdown = _alone(machine) / float(machine["autoregressive"][dataset])
    return float(machine["pard"][dataset] * metrics.mean_round_s * slowdown)


def _pard_name(machine: Mapping[str, Any], dataset: str) -> str:
    return f"{machine['target']} + pard:{machine['draft']}, {dataset}, {machine['name']}, vllm"


def _gain(machine: Mapping[str, Any], rates: tuple[float, ...], policy: Policy) -> float:
    """Predicted speed over predicted autoregressive speed."""
    return _metrics(machine, rates, policy).decoding_tokens_per_s / _alone(machine)


def _alone(machine: Mapping[str, Any]) -> float:
    return _metrics(machine, (0.5,), make_policy("autoregressive")).decoding_tokens_per_s


def _metrics(machine: Mapping[str, Any], rates: tuple[float, ...], policy: Policy) -> Metrics:
    head = HEADS.get(machine["draft"])
    kind = head.kind if head else DraftKind.PARALLEL
    return decoding_by_position(Deployment.of(machine), rates, kind, policy, {Role.TARGET: machine["num_devices"]})


def _mean_rates(length: float, num_draft_tokens: int) -> tuple[float, ...]:
    """The same conditional rate at every position, with which chains have this mean length."""
    return (Drafted(steps=num_draft_tokens).rate(length),) * num_draft_tokens


def _chain(name: str, num_draft_tokens: int) -> Policy:
    return make_policy(name, num_draft_tokens=num_draft_tokens)


def _name(facts: Mapping[str, Any]) -> str:
    return f"{facts['target']} + {facts['draft']}, {facts['dataset']}"
