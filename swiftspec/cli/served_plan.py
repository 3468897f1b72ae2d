"""Plans in use on another engine: its server started, for clients or for a few prompts."""

import shlex
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from swiftspec.artifacts.basis import read_profile
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.prompts import Prompt
from swiftspec.cli import console
from swiftspec.cli.command import refuse
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.cli.served import engine_here
from swiftspec.cli.verbs.use import RunFlags, ServeFlags
from swiftspec.export import Export, export_plan
from swiftspec.export.nearest import model_argument
from swiftspec.external import RunningServer
from swiftspec.external.engine import EngineHere
from swiftspec.loadtest.client import ServerClient
from swiftspec.reports.formatting import speed

__all__ = ["engine_of", "run_on_engine", "serve_on_engine"]

_LOOK_EVERY_S = 1.0
_SERVE = ("tenant", "api_key_file", "allowed_host", "chat_template", "settings", "ray", "json")
_TOLD = "{engine} is told it by --server-args"
_RUN = ("top_k", "tenant", "ray", "secret", "timeline", "plot")


def engine_of(plan: Path, engine: str | None) -> str | None:
    """The engine that a plan is used on: the one named, else that of a plan on a server's profile; None for ours."""
    if engine is not None:
        return None if engine == "swiftspec" else engine
    made = Plan.load(plan)
    if made.engine is None or made.device not in ("cpu", "cuda"):
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
    refuse(asked, _RUN, _TOLD.format(engine=engine))
    check_outputs(inputs={"--plan": asked.plan, "--prompts": asked.prompts}, json=asked.json)
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
    here = _here(made, plan, engine, asked)
    exported = export_plan(made, here.engine, policy=asked.policy)
    if exported.is_other_plan:
        console.note(exported.basis)
    with ExitStack() as stack:
        with console.progress(f"start {exported.full_name}") as progress:
            target = model_argument(made.target.model, here.engine)
            started = here.server(exported, target=target, log=log, progress=progress, port=port)
            server = stack.enter_context(started)
        yield server, exported, made


def _here(made: Plan, plan: Path, engine: str, asked: RunFlags | ServeFlags) -> EngineHere:
    """The engine as its profile was measured, unless the flags say otherwise."""
    served = read_profile(made, plan).served if made.device in ("cpu", "cuda") else None
    options = served.options if served and asked.server_args is None else shlex.split(asked.server_args or "")
    device = made.device if made.device in ("cpu", "cuda") else "cuda"
    return engine_here(engine, device=device, python=asked.python, options=options)
