"""Published speeds of whole systems, predicted from published shapes, devices and acceptance.

SSD's and NVIDIA's systems, and vLLM's steps with a draft. Forwards are composed from op tables with the lowest host
times of any engine. If a system's autoregressive speed is published but its engine or device is not in the tables, that
speed is an input, not a row: it gives the slowdown of its target forwards against the composed ones.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from scipy.optimize import brentq

from swiftspec.acceptance.model import AcceptanceModel
from swiftspec.acceptance.proxy_pairs import acceptance_for
from swiftspec.policies import Policy, make_policy
from swiftspec.policies.effects import Role
from swiftspec.studies.backtest.published import read_facts
from swiftspec.studies.backtest.rows import Row
from swiftspec.studies.backtest.speeds import Deployment, decoding
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase

_SPEED, _STEP = "tokens/s", "step, ms"
_row = Row.unfitted
_CONTEXT = 500  # tokens of context at which steps are timed


def published_systems() -> Mapping[str, Any]:
    """The shipped figures."""
    return read_facts("systems")


def system_rows() -> list[Row]:
    """All rows. Nothing is fitted here, so a row's error is also its leave-one-out error."""
    return [*ssd_rows(), *_nvidia_rows(), *_vllm_steps(), *_vllm_speeds()]


def ssd_rows() -> Iterator[Row]:
    """Autoregressive decoding as composed; then, with its speed as an input, the serial chain and SSD.

    Last SSD on each data set, with the acceptance that gives the serial chain its published speed there.
    """
    facts = published_systems()["ssd"]
    deployment = Deployment.of(facts)
    target, name = facts["target_devices"], f"{facts['target']} + {facts['draft']}, 4+1 H100"
    groups = {Role.TARGET: target}
    acceptance_model = acceptance_for(facts["target"], facts["draft"]).acceptance_model
    alone = decoding(deployment, acceptance_model, make_policy("autoregressive"), groups).decoding_tokens_per_s
    yield _row(f"{name}, autoregressive", _SPEED, facts["autoregressive"], alone, facts["source"])
    slower = deployment.with_host(1 / facts["autoregressive"] - 1 / alone)
    chain = make_policy("serial_chain", num_draft_tokens=facts["serial"]["num_draft_tokens"])
    branches = {key: facts["ssd"][key] for key in ("num_draft_tokens", "branches")}
    arms: list[tuple[str, Policy, dict[Role, int]]] = [
        ("serial", chain, groups),
        ("ssd", make_policy("ssd", **branches), groups | {Role.DRAFT: facts["num_devices"] - target}),
    ]
    for arm, policy, degrees in arms:
        speed = decoding(slower, acceptance_model, policy, degrees).decoding_tokens_per_s
        yield _row(f"{name}, {policy.name}", _SPEED, facts[arm]["tokens_per_s"], speed, facts["source"])
    (_, _, alone_on), (_, ssd, disaggregated) = arms
    for dataset, speeds in facts["datasets"].items():
        model = _accepting(slower, acceptance_model, chain, alone_on, tokens_per_s=speeds["serial"])
        speed = decoding(slower, model, ssd, disaggregated).decoding_tokens_per_s
        yield _row(f"{name}, {dataset}, {ssd.name}", _SPEED, speeds["ssd"], speed, facts["source"])


def _accepting(
    deployment: Deployment, prior: AcceptanceModel, policy: Policy, degrees: Mapping[Role, int], *, tokens_per_s: float
) -> AcceptanceModel:
    """The acceptance model, of those that differ from `prior` in the mean logit, with which a policy has this speed."""

    def of(mean_logit: float) -> AcceptanceModel:
        return prior.model_copy(update={"mean_logit": mean_logit})

    def away(mean_logit: float) -> float:
        return decoding(deployment, of(mean_logit), policy, degrees).decoding_tokens_per_s - tokens_per_s

    return of(brentq(away, prior.mean_logit - 3, prior.mean_logit + 3, xtol=0.01))


def _nvidia_rows() -> Iterator[Row]:
    """Rows of NVIDIA's draft-target speeds; the chain's length is not published, so the best one is taken."""
    facts = published_systems()["nvidia"]
    deployment = Deployment.of(facts)
    acceptance_model = acceptance_for(facts["target"], facts["draft"]).acceptance_model

    def speed(policy: Policy) -> float:
        return decoding(deployment, acceptance_model, policy, {Role.TARGET: 1}).decoding_tokens_per_s

    name = f"{facts['target']} {facts['quant']}, one H200"
    alone = speed(make_policy("autoregressive"))
    yield _row(f"{name}, autoregressive", _SPEED, facts["autoregressive"], alone, facts["source"])
    best = max(speed(make_policy("serial_chain", num_draft_tokens=length)) for length in facts["num_draft_tokens"])
    yield _row(f"{name}, {facts['draft']} drafts", _SPEED, facts["serial"], best, facts["source"])


def _vllm_steps() -> Iterator[Row]:
    """Rows of vLLM's steps with a chain of k: its verification and k draft forwards."""
    facts = published_systems()["vllm"]
    for machine in facts["machines"]:
        where = f"{machine['target']}, {machine['name']}"
        if not machine["as_input"]:
            (first, *_) = machine["drafts"]
            alone_ms = _step_s(_on(machine, first["draft"]), Phase.VERIFY, 1) * 1e3
            yield _row(f"{where}, autoregressive", _STEP, machine["autoregressive_ms"], alone_ms, facts["source"])
        for drafted in machine["drafts"]:
            deployment, slowdown = _on(machine, drafted["draft"]), _slowdown(machine, drafted["draft"])
            expand_s = slowdown * _step_s(deployment, Phase.EXPAND, 1)
            if "alone_ms" in drafted:
                name = f"{drafted['draft']}, {machine['name']}, autoregressive"
                yield _row(name, _STEP, drafted["alone_ms"], expand_s * 1e3, facts["source"])
            for length, published in drafted["step_ms"].items():
                verify_s = slowdown * _step_s(deployment, Phase.VERIFY, int(length) + 1)
                step_ms = (verify_s + int(length) * expand_s) * 1e3
                yield _row(f"{where}, {drafted['draft']} drafts {length}", _STEP, published, step_ms, facts["source"])


def _vllm_speeds() -> Iterator[Row]:
    """Rows of vLLM's speeds: tokens per round from the published vectors, divided by the predicted step."""
    facts = published_systems()["vllm"]
    for speed in facts["speeds"]:
        machine, draft, length = facts["machines"][speed["machine"]], speed["draft"], speed["num_draft_tokens"]
        deployment = _on(machine, draft)
        acceptance_model = acceptance_for(machine["target"], draft, speed["dataset"]).acceptance_model
        metrics = decoding(
            deployment,
            acceptance_model,
            make_policy("serial_chain", num_draft_tokens=length),
            {Role.TARGET: machine["degree"]},
        )
        name = f"{machine['target']}, {machine['name']}, {draft} drafts {length} on {speed['dataset']}"
        predicted = metrics.decoding_tokens_per_s / _slowdown(machine, draft)
        yield _row(name, _SPEED, speed["tokens_per_s"], predicted, facts["source"])


def _on(machine: Mapping[str, Any], draft: str) -> Deployment:
    return Deployment(
        device=machine["device"],
        target=machine["target"],
        draft=draft,
        quant=published_systems()["vllm"]["quant"],
        num_devices=machine["degree"],
    )


def _slowdown(machine: Mapping[str, Any], draft: str) -> float:
    """Slowdown of forwards on this machine, from its own autoregressive step, if that is an input."""
    if not machine["as_input"]:
        return 1.0
    return float(machine["autoregressive_ms"]) * 1e-3 / _step_s(_on(machine, draft), Phase.VERIFY, 1)


def _step_s(deployment: Deployment, phase: Phase, rows: int) -> float:
    role = Role.DRAFT if phase is Phase.EXPAND else Role.TARGET
    return deployment.profile.step(StepKey(role, phase, deployment.num_devices, rows, _CONTEXT)).mean_s
