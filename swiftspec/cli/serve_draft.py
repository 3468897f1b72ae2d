"""`swiftspec serve --role draft`: a draft for targets of other engines."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from swiftspec.artifacts.pair import model_name, named_dtype
from swiftspec.cli import console
from swiftspec.cli.command import refuse
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.cli.settings import DRAFT_SERVER, parse_settings, typed
from swiftspec.cli.verbs.use import ServeFlags
from swiftspec.devices.local import Device
from swiftspec.engine.draft_service import DraftService
from swiftspec.engine.process.interrupts import interrupts_noted
from swiftspec.errors import FieldError, check_extra
from swiftspec.files.document import ModelRef
from swiftspec.machine import cores_here
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies import Policy
from swiftspec.policies.asynchronous.swiftspec_chain import SwiftSpecChain
from swiftspec.policies.conformance import field_types
from swiftspec.policies.registry import make_policy, policy_class
from swiftspec.reports.formatting import count, milliseconds, percent

__all__ = ["serve_draft"]

_USUAL_CONTEXT = 4096

_OF_A_PLAN = ("plan", "engine", "python", "server_args", "ray", "tenant", "model_name", "api_key_file", "chat_template")


def serve_draft(asked: ServeFlags) -> None:
    """Draft until a signal. ValueError if anything is wrong before."""
    refuse(asked, _OF_A_PLAN, "expected without --role draft, which has no part of it")
    if asked.draft is None or asked.address is None:
        raise ValueError(f"Missing option '--{'draft' if asked.draft is None else 'address'}'.")
    check_outputs(inputs={"--secret": asked.secret}, json=asked.json)
    found = parse_settings(asked.settings)
    settings: dict[str, Any] = {name: setting.usual for name, setting in DRAFT_SERVER.items()}
    settings |= typed(found, DRAFT_SERVER)
    policy = _policy(asked.policy or SwiftSpecChain.name, {k: v for k, v in found.items() if k not in DRAFT_SERVER})
    device: Device = settings["device"] or "cpu"
    dtype = settings["dtype"] or ("float32" if device == "cpu" else "bfloat16")
    draft = model_name(asked.draft)
    spec = ModelSpec.from_directory(model_directory(draft))
    service = DraftService(
        draft=ModelRef(model=draft, dtype=named_dtype(dtype, device=device)),
        policy=policy,
        address=asked.address,
        secret=asked.secret,
        device=device,
        devices=_devices(device, asked.devices),
        max_context=settings["max_context"] or min(_USUAL_CONTEXT, spec.max_position),
        num_requests=settings["max_running"],
    )
    service.check()
    check_extra("engine", needed_by="serve")
    console.say(f"Loading {service.draft} for {policy}")

    def ready() -> None:
        console.say(f"Drafting at {asked.address}, for {count(service.num_requests, 'request')} at once")

    with interrupts_noted() as interrupted:
        stats = service.run(ready=ready, is_over=interrupted.is_set)
    console.say(f"{count(stats.requests, 'request')}, {count(stats.rounds, 'verdict')} answered")
    if stats.rounds:
        hits, mean_s = stats.hits / stats.rounds, stats.answer_s / stats.rounds
        console.say(f"{percent(hits)} of them at once, {milliseconds(mean_s)} each in the mean")
    write_json(asked.json, {"draft": str(service.draft), "policy": policy.name, **asdict(stats)})


def _devices(device: Device, count_: int | None) -> tuple[int, ...]:
    """Cores, the last ones of those that this process may use, since an engine takes the first; or the first GPUs."""
    if device != "cpu":
        return (0,)
    cores = sorted(cores_here())
    asked = count_ or 1
    if asked > len(cores):
        raise FieldError("devices", asked, f"this process may use {count(len(cores), 'core')}")
    return tuple(cores[-asked:])


def _policy(name: str, texts: Mapping[str, str]) -> Policy:
    """A policy whose shape is given as texts. ValueError for what is no field of it."""
    kinds = field_types(policy_class(name))
    shape: dict[str, Any] = {}
    for field, text in texts.items():
        if field not in kinds:
            known = ", ".join((*DRAFT_SERVER, *kinds))
            raise ValueError(f"--set {field} is unknown; expected {known}")
        kind = kinds[field]
        try:
            shape[field] = kind(text) if kind in (int, float) else tuple(map(float, text.split(":")))
        except ValueError:
            raise ValueError(f"--set {field} is {text}; expected a number") from None
    return make_policy(name, **shape)
