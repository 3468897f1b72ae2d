"""`swiftspec serve`: a plan behind OpenAI's API, or a draft for targets of other engines."""

import asyncio
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from swiftspec.artifacts.pair import model_name, named_dtype
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import candidate_of, searching
from swiftspec.cli import console
from swiftspec.cli.command import refuse
from swiftspec.cli.load_test import read_api_keys
from swiftspec.cli.nodes import on_ray
from swiftspec.cli.outputs import check_files, write_json
from swiftspec.cli.served import engine_of, serve_on_engine
from swiftspec.cli.settings import DRAFT_SERVER, SERVER, own_settings, parse_settings, typed, usual
from swiftspec.cli.verbs.plans import ServeFlags
from swiftspec.devices.local import Device
from swiftspec.engine.checks import check_devices
from swiftspec.engine.draft_service import DraftService
from swiftspec.engine.process.interrupts import interrupts_noted
from swiftspec.engine.requests import Tenant
from swiftspec.errors import FieldError, check_extra
from swiftspec.files.document import ModelRef
from swiftspec.machine import cores_here
from swiftspec.models.config_json import GenerationConfig
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies import Policy
from swiftspec.policies.asynchronous.swiftspec_chain import SwiftSpecChain
from swiftspec.policies.registry import field_types, make_policy, policy_class
from swiftspec.reports.formatting import count, milliseconds, percent
from swiftspec.scheduler.routing import Replicas

_OF_CLIENTS = ("request_timeout_s", "generation_config", "keep_timelines", "send_timeout_s", "drain_s")  # settings
_LEAST_CHARACTERS = 8  # of a key
_USUAL_CONTEXT = 4096  # of a draft
_OF_A_PLAN = ("plan", "engine", "python", "server_args", "ray", "tenant", "model_name", "api_key_file", "chat_template")


def serve(asked: ServeFlags) -> None:
    """Serve until a signal. ValueError if anything is wrong before the first request."""
    if asked.role is not None:
        _serve_draft(asked)
        return
    if asked.plan is None:
        raise ValueError("Missing option '--plan'.")
    if (engine := engine_of(asked.plan, asked.engine)) is not None:
        serve_on_engine(asked, engine)
        return
    settings = usual(SERVER) | own_settings(asked.settings, SERVER)
    check_files(asked)
    made = Plan.load(asked.plan)
    candidate = searching(candidate_of(made, asked.policy), settings["earlier_outputs"])
    replicas = Replicas(num_targets=settings["num_targets"], num_drafts=settings["num_drafts"])
    check_devices(made, [] if asked.ray else [candidate], source=str(asked.plan), replicas=replicas)
    check_extra("serve", needed_by="serve")
    keys = _keys(asked.api_key_file)
    from swiftspec.server.run import listen
    from swiftspec.server.run import serve as run
    from swiftspec.server.serving import ServingOptions

    listening = listen(asked.host, asked.port, send_timeout_s=settings["send_timeout_s"])
    address, bound_port = listening.getsockname()[:2]
    url = f"http://{f'[{address}]' if ':' in address else address}:{bound_port}"
    if not keys and not ip_address(address).is_loopback:
        console.note(f"anyone who can reach {address} can use this server; --api-key-file limits it to your clients")
    name = asked.model_name or made.target.model
    directories = _tenants(asked.tenant or (), model=name)
    if most := candidate.build().earlier_outputs:
        console.note(
            f"the last {most} outputs are proposed to every client; by its own speed each can tell what was among them"
        )
    if settings["generation_config"]:
        _note_defaults(GenerationConfig.read(model_directory(made.target.model)))
    shown = settings["control"] or candidate.control
    console.say(f"Loading {made.target} for {candidate.describe()}{f', control {shown}' if shown else ''}")

    def ready(served: Sequence[Tenant]) -> None:
        for tenant in served[1:]:
            console.say(f"Tenant {tenant.name}: its own weights take {tenant.weight_bytes / 1e6:,.1f} MB")
        console.say(f"Serving {name} at {url} (OpenAI's API at {url}/v1, what runs at {url}, metrics at {url}/metrics)")

    with on_ray(asked.ray, made, candidate) as executor:
        stats = asyncio.run(
            run(
                made,
                listening,
                options=ServingOptions(
                    model=name,
                    chat_template=asked.chat_template,
                    api_keys=keys,
                    allowed_hosts=asked.allowed_host or (),
                    **{name: settings[name] for name in _OF_CLIENTS},
                ),
                ready=ready,
                policy=asked.policy,
                executor=executor,
                tenants=directories,
                **{name: value for name, value in settings.items() if name not in _OF_CLIENTS},
            )
        )
    console.say(f"The server is down; it answered {count(stats.requests, 'request')} with {stats.tokens} tokens")
    write_json(asked.json, {"model": name, "policy": candidate.policy, "url": url, **asdict(stats)})


def _note_defaults(config: GenerationConfig) -> None:
    """Say how the model's own file has requests sampled that do not say so."""
    sampling, left_out = (
        ", ".join(f"{name}={value:g}" for name, value in settings.items())
        for settings in (config.sampling, config.left_out)
    )
    if sampling:
        console.note(
            f"requests that do not say otherwise have {sampling}, from the model's generation_config.json; "
            "--set generation_config=false has OpenAI's defaults instead"
        )
    if left_out:
        console.note(f"the model's generation_config.json has {left_out}, which this server cannot apply")


def _tenants(named: Sequence[str], *, model: str) -> dict[str, str]:
    """Directories by name. ValueError if one is not NAME=DIR, or a name is taken."""
    directories: dict[str, str] = {}
    for value in named:
        name, sign, directory = value.partition("=")
        if not (name and sign and directory):
            raise ValueError(f"--tenant is {value!r}; expected NAME=DIR")
        if name == model or name in directories:
            raise ValueError(f"--tenant {name}: the name is taken; expected a name for each")
        directories[name] = directory
    return directories


def _keys(file: Path | None) -> tuple[str, ...]:
    """API keys of a file. ValueError if it has none, or one that could be guessed."""
    if file is None:
        return ()
    if file.is_file() and file.stat().st_mode & stat.S_IROTH:
        console.note(f"every user of this machine can read the keys in {file}")
    keys = read_api_keys(file)
    if short := next((number for number, key in enumerate(keys, start=1) if len(key) < _LEAST_CHARACTERS), None):
        raise ValueError(f"--api-key-file {file}: key {short} is shorter than {_LEAST_CHARACTERS} characters")
    return keys


def _serve_draft(asked: ServeFlags) -> None:
    """Draft until a signal. ValueError if anything is wrong before."""
    refuse(asked, _OF_A_PLAN, "expected without --role draft, which has no part of it")
    if asked.draft is None or asked.address is None:
        raise ValueError(f"Missing option '--{'draft' if asked.draft is None else 'address'}'.")
    check_files(asked)
    found = parse_settings(asked.settings)
    settings = usual(DRAFT_SERVER) | typed(found, DRAFT_SERVER)
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
