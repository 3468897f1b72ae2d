"""`swiftspec serve`: a plan behind OpenAI's API."""

import asyncio
import stat
from collections.abc import Sequence
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from swiftspec.artifacts.basis import candidate_of, searching
from swiftspec.artifacts.plan import Plan
from swiftspec.cli import console
from swiftspec.cli.nodes import on_ray
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.cli.serve_draft import serve_draft
from swiftspec.cli.served_plan import engine_of, serve_on_engine
from swiftspec.cli.settings import SERVER, own_settings
from swiftspec.cli.verbs.use import ServeFlags
from swiftspec.engine.checks import check_devices
from swiftspec.engine.requests import Tenant
from swiftspec.errors import check_extra
from swiftspec.files.reading import read_input
from swiftspec.models.generation_config import GenerationConfig
from swiftspec.models.spec import model_directory
from swiftspec.reports.formatting import count
from swiftspec.scheduler.routing import Replicas

__all__ = ["serve"]

_ENGINE = (
    *("max_context", "max_running", "max_waiting", "kv_blocks", "max_restarts"),
    *("control", "num_targets", "num_drafts", "earlier_outputs"),
)  # settings of the engine itself
_MOST_BYTES = 1 << 20
_LEAST_CHARACTERS = 8


def serve(asked: ServeFlags) -> None:
    """Serve until a signal. ValueError if anything is wrong before the first request."""
    if asked.role is not None:
        serve_draft(asked)
        return
    if asked.plan is None:
        raise ValueError("Missing option '--plan'.")
    if (engine := engine_of(asked.plan, asked.engine)) is not None:
        serve_on_engine(asked, engine)
        return
    settings = own_settings(asked.settings, SERVER)
    inputs = {"--plan": asked.plan, "--api-key-file": asked.api_key_file, "--chat-template": asked.chat_template}
    check_outputs(inputs=inputs, json=asked.json)
    made = Plan.load(asked.plan)
    candidate = searching(candidate_of(made, asked.policy), settings.get("earlier_outputs"))
    chosen: dict[str, Any] = {name: setting.usual for name, setting in SERVER.items()} | settings
    replicas = Replicas(num_targets=chosen["num_targets"], num_drafts=chosen["num_drafts"])
    check_devices(made, [] if asked.ray else [candidate], source=str(asked.plan), replicas=replicas)
    check_extra("serve", needed_by="serve")
    keys = _keys(asked.api_key_file)
    from swiftspec.server.app import HttpOptions
    from swiftspec.server.run import listen
    from swiftspec.server.run import serve as run
    from swiftspec.server.serving import ServingOptions

    listening = listen(asked.host, asked.port, send_timeout_s=chosen["send_timeout_s"])
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
    if chosen["generation_config"]:
        _note_defaults(GenerationConfig.read(model_directory(made.target.model)))
    shown = settings.get("control") or candidate.control
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
                serving=ServingOptions(
                    model=name,
                    request_timeout_s=chosen["request_timeout_s"],
                    chat_template=asked.chat_template,
                    generation_config=chosen["generation_config"],
                    keep_timelines=chosen["keep_timelines"],
                ),
                http=HttpOptions(
                    api_keys=keys, allowed_hosts=asked.allowed_host or (), send_timeout_s=chosen["send_timeout_s"]
                ),
                drain_s=chosen["drain_s"],
                ready=ready,
                policy=asked.policy,
                executor=executor,
                tenants=directories,
                **{name: chosen[name] for name in _ENGINE},
            )
        )
    console.say(f"The server is down; it answered {count(stats.requests, 'request')} with {stats.tokens} tokens")
    write_json(asked.json, {"model": name, "policy": candidate.policy, "url": url, **asdict(stats)})


def _note_defaults(config: GenerationConfig) -> None:
    """Say how the model's own file has requests sampled that do not say so."""
    if config.sampling:
        listed = ", ".join(f"{name}={value:g}" for name, value in config.sampling.items())
        console.note(
            f"requests that do not say otherwise have {listed}, from the model's generation_config.json; "
            "--set generation_config=false has OpenAI's defaults instead"
        )
    if config.left_out:
        listed = ", ".join(f"{name}={value:g}" for name, value in config.left_out.items())
        console.note(f"the model's generation_config.json has {listed}, which this server cannot apply")


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
    lines = read_input(file, most_bytes=_MOST_BYTES).decode(errors="replace").splitlines()
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise ValueError(f"--api-key-file {file}: no key in it; expected one a line")
    if short := next((number for number, key in enumerate(keys, start=1) if len(key) < _LEAST_CHARACTERS), None):
        raise ValueError(f"--api-key-file {file}: key {short} is shorter than {_LEAST_CHARACTERS} characters")
    return keys
