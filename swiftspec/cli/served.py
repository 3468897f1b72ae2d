"""Servers of other engines in the command line: their profiles, and plans in use on them.

Such a server is started for clients, or for a few prompts.
"""

import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import read_profile
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.prompts import Prompt
from swiftspec.artifacts.served import Served
from swiftspec.cli import console
from swiftspec.cli.command import refuse
from swiftspec.cli.load_test import read_api_key
from swiftspec.cli.outputs import check_files, saved, write_json
from swiftspec.cli.verbs.data import ProfileFlags
from swiftspec.cli.verbs.plans import RunFlags, ServeFlags
from swiftspec.engines import engine_named
from swiftspec.errors import FieldError
from swiftspec.export import Export, export_plan
from swiftspec.export.nearest import model_argument
from swiftspec.external import RunningServer
from swiftspec.external.engine import EngineHere
from swiftspec.loadtest.client import ServerClient
from swiftspec.policies.effects import Role
from swiftspec.profiler.served.engine_profile import profile_engine, profile_url
from swiftspec.reports.formatting import milliseconds, percent, speed
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase

_DEVICES = ("cpu", "cuda")
_SEQUENCES = 8  # requests at once, if the user does not say
_MINUTES = {"cpu": 15.0, "cuda": 6.0}
_ROWS = (1, 2, 4, 8, 16, 32)
_LOOK_EVERY_S = 1.0
# Options of `serve` and `run` that are of this package's own engine.
_SERVE = ("tenant", "api_key_file", "allowed_host", "chat_template", "settings", "ray", "json")
_RUN = ("top_k", "tenant", "ray", "secret", "timeline", "plot")
_TOLD = "{engine} is told it by --server-args"


def engine_here(engine: str, *, device: str, python: str | None, options: Sequence[str]) -> EngineHere:
    """An engine as the flags start it. FieldError for one that is not known, or needs no start."""
    found = engine_named(engine)
    if found.command is None:
        raise FieldError("--engine", engine, "it is this package's own, which is measured without the option")
    if device not in _DEVICES:
        raise FieldError("--device", device, "expected cpu or cuda")
    found.limits_here(device, options)
    return EngineHere(engine=found, device=device, python=python, options=tuple(options))


def profile_served(asked: ProfileFlags) -> Profile:
    refuse(asked, ("inflate", "ops", "plot"), "a server is measured as it is, from outside")
    check_files(asked)
    measured = _measured(asked)
    measured.save(asked.out)
    served = measured.served
    assert served is not None, "it was measured on servers"
    _show(measured, served)
    console.say(f"\n{saved(asked.out)}")
    write_json(asked.json, {"profile": str(asked.out), "served": served.model_dump(mode="json")})
    return measured


def _measured(asked: ProfileFlags) -> Profile:
    measured: dict[str, Any] = {
        "dtype": asked.dtype,
        "max_sequences": asked.max_sequences if asked.max_sequences > 1 else _SEQUENCES,
        "minutes": asked.minutes or _MINUTES.get(asked.device),
        "stages": console.progress,
    }
    if asked.url is not None:
        refuse(asked, ("engine", "python", "server_args"), "--url measures a server that runs")
        key = read_api_key(asked.api_key_file)
        return profile_url(asked.url, asked.target, asked.draft, device=asked.device, api_key=key, **measured)
    options = shlex.split(asked.server_args or "")
    here = engine_here(asked.engine or "", device=asked.device, python=asked.python, options=options)
    logs = asked.out.with_name(f"{asked.out.name}.logs")
    logs.mkdir(parents=True, exist_ok=True)
    return profile_engine(asked.target, asked.draft, here=here, starts=asked.starts, logs=logs, **measured)


def _show(measured: Profile, served: Served) -> None:
    console.fields(target=measured.target, draft=measured.draft, engine=served.engine, device=measured.origin.device)
    context = max(step.context for step in measured.steps)
    shown = [(Role.TARGET, Phase.VERIFY, 0), (Role.TARGET, Phase.VERIFY, context), (Role.DRAFT, Phase.EXPAND, 0)]
    rows = [
        (
            str(rows),
            *(milliseconds(measured.step(StepKey(role, phase, 1, rows, at)).mean_s) for role, phase, at in shown),
        )
        for rows in _ROWS
    ]
    columns = ("rows", "step, ms", f"behind {context} tokens", "draft forward, ms")
    console.table(f"Steps of {served.engine}, of one request", columns, rows)
    worst = max(served.measured, key=lambda step: abs(step.error))
    described = (
        f"of {worst.read} tokens of a prompt"
        if worst.read
        else f"{worst.drafting} with {worst.sequences} requests of {worst.rows / worst.sequences:.1f} rows"
    )
    console.paragraph(
        f"Fitted to {len(served.measured)} kinds of steps in {served.minutes:.1f} minutes, "
        f"{percent(served.median_error)} off in the median; the worst, {described}, takes "
        f"{milliseconds(worst.seconds)} ms and {milliseconds(worst.fitted_s)} by the fit. Above the engine, a "
        f"request takes {milliseconds(served.request_s)} ms and each token of its prompt "
        f"{1e6 * served.prompt_token_s:.0f} us"
    )


def engine_of(plan: Path, engine: str | None) -> str | None:
    """The engine that a plan is used on: the one named, else that of a plan on a server's profile; None for ours."""
    if engine is not None:
        return None if engine == "swiftspec" else engine
    made = Plan.load(plan)
    if made.engine is None or made.device not in _DEVICES:
        return None
    served = read_profile(made, plan).served
    return served.engine if served else None


def serve_on_engine(asked: ServeFlags, engine: str) -> None:
    """Start the engine's server of a plan, and end it at a signal."""
    refuse(asked, _SERVE, _TOLD.format(engine=engine))
    log = Path(f"{asked.plan}.log")
    with _server(asked, engine, log=log, port=asked.port or None) as (server, exported, _):
        console.say(f"Serving {exported.candidate} at {server.url}: {exported.full_name}; its log is {log}")
        try:
            while True:
                server.check()
                time.sleep(_LOOK_EVERY_S)
        except KeyboardInterrupt:
            console.say("The server is ending")


def run_on_engine(asked: RunFlags, engine: str, prompts: list[Prompt]) -> None:
    """Continue prompts on the engine's server of a plan."""
    asked = replace(asked, top_k=asked.top_k or None)  # 0 is all tokens, as engines have it untold
    refuse(asked, _RUN, _TOLD.format(engine=engine))
    outputs = []
    with tempfile.TemporaryDirectory() as folder, _server(asked, engine, log=Path(folder) / "log") as (server, _, made):
        client = ServerClient(server.url)
        model, most = client.model(), asked.max_new_tokens or made.max_new_tokens
        for prompt in prompts:
            began_s = time.perf_counter()
            found = client.write(
                prompt.text, model=model, num_tokens=most, temperature=asked.temperature or 0.0, seed=asked.seed
            )
            seconds = time.perf_counter() - began_s
            console.say(found.text)
            console.note(f"{prompt.prompt_id}: {found.num_tokens} tokens, {speed(found.num_tokens / seconds)} tokens/s")
            outputs.append({"prompt_id": prompt.prompt_id, "seconds": seconds, **found._asdict()})
    write_json(asked.json, {"engine": engine, "outputs": outputs})


@contextmanager
def _server(
    asked: RunFlags | ServeFlags, engine: str, *, log: Path, port: int | None = None
) -> Iterator[tuple[RunningServer, Export, Plan]]:
    """The server of a plan, its command, and the plan."""
    plan = asked.plan
    assert plan is not None, "checked before"
    made = Plan.load(plan)
    # The engine as its profile was measured, unless the flags say otherwise.
    is_here = made.device in _DEVICES
    served = read_profile(made, plan).served if is_here else None
    options = served.options if served and asked.server_args is None else shlex.split(asked.server_args or "")
    here = engine_here(engine, device=made.device if is_here else "cuda", python=asked.python, options=options)
    exported = export_plan(made, here.engine, policy=asked.policy)
    if exported.is_other_plan:
        console.note(exported.basis)
    target, stage = model_argument(made.target.model, here.engine), f"start {exported.full_name}"
    with here.server(exported, target=target, log=log, stage=stage, stages=console.progress, port=port) as server:
        yield server, exported, made
