"""Asynchronous test-time scaling, as `swiftspec study atts` runs or simulates it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.api.inputs import Prompts, read_plan, read_priced, read_texts
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.prompts import Prompt
from swiftspec.errors import FieldError
from swiftspec.files.document import Origin
from swiftspec.models.spec import is_model_directory
from swiftspec.policies.effects import Role
from swiftspec.progress import Stages, silent
from swiftspec.studies.atts.document import AttsFigures, AttsOptions, AttsQuestion, AttsRun

if TYPE_CHECKING:
    from swiftspec.simulator.serving import Serving
    from swiftspec.studies.atts.driver import Driver
    from swiftspec.studies.atts.scripts import Drawing, Scripts
    from swiftspec.studies.atts.selection import Selections
    from swiftspec.studies.atts.servers import TextServer

_USUAL = AttsOptions()
_TOKEN_CHARACTERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AttsServer:
    """A model's server: one that runs, or an engine to be started here.

    Parameters
    ----------
    plan : Plan or path, optional
        Plan of the engine, whose target is the model.
    url : str, optional
        Address of the server.
    api_key : str
        If that wants one.
    """

    plan: Plan | Path | str | None = None
    url: str | None = None
    api_key: str = ""

    def __post_init__(self) -> None:
        if (self.plan is None) == (self.url is None):
            raise ValueError("plan is missing; expected either a plan or a url for each server")

    def __str__(self) -> str:
        return str(self.url or (self.plan.target if isinstance(self.plan, Plan) else self.plan))

    async def open(self, stack: AsyncExitStack, *, num_calls: int) -> TextServer:
        """The server, ready for so many requests at once."""
        from swiftspec.studies.atts.servers import EngineServer, HttpServer

        if self.url is not None:
            from swiftspec.loadtest import ServerClient

            return HttpServer(ServerClient(self.url, api_key=self.api_key), num_calls=num_calls)
        from swiftspec.engine.async_api import AsyncEngine

        assert self.plan is not None
        return EngineServer(await stack.enter_async_context(AsyncEngine(self.plan, max_running=num_calls)))


def atts(
    questions: Prompts,
    *,
    target: AttsServer,
    draft: AttsServer,
    options: AttsOptions = _USUAL,
    calibration: AttsRun | None = None,
    limit: int | None = None,
    stages: Stages = silent,
) -> AttsRun:
    """Sample questions by asynchronous test-time scaling: the draft writes, the target scores, and takes over some.

    Lossy: a sample is neither model's own. Every single segment is.

    Parameters
    ----------
    questions : sequence of str, or path
        Texts to continue, as both models are to see them.
    target, draft : AttsServer
    options : AttsOptions
    calibration : AttsRun, optional
        A run whose calibration scores are used. If not given, as many segments of every question as it has samples are
        written and scored first; a barrier needs none.
    limit : int, optional
        Use at most this many questions.
    stages : Stages
        Receives progress reports.

    Raises
    ------
    ValueError
        If a server does not answer or cannot score prompts, or calibration scores are missing.
    swiftspec.errors.EngineError
        If an engine's target dies.
    """
    texts = read_texts(questions, limit)
    if not texts:
        raise ValueError("questions are empty; expected at least one")
    found, selections = asyncio.run(_run(texts, target, draft, options, calibration, stages))
    return _made(found, target, draft, selections, is_simulated=False)


async def _run(
    questions: Sequence[Prompt],
    target: AttsServer,
    draft: AttsServer,
    options: AttsOptions,
    calibration: AttsRun | None,
    stages: Stages,
) -> tuple[list[AttsQuestion], Selections]:
    from swiftspec.studies.atts.driver import Driver
    from swiftspec.studies.atts.selection import Selections

    async with AsyncExitStack() as stack:
        servers = {
            role: await server.open(stack, num_calls=options.calls(role))
            for role, server in ((Role.TARGET, target), (Role.DRAFT, draft))
        }
        driver = Driver(servers, options)
        await driver.warm_up(questions[0])
        scores = await _calibrated(driver, questions, calibration, stages)
        selections = Selections(options, scores)
        found = []
        with stages("atts") as progress:
            for number, question in enumerate(questions):
                progress(number, len(questions), question.prompt_id)
                samples = await driver.run(question, selections.of(question.prompt_id))
                found.append(
                    AttsQuestion(
                        question_id=question.prompt_id,
                        prompt_tokens=await servers[Role.TARGET].count(question.text),
                        samples=samples,
                    )
                )
    return found, selections


async def _calibrated(
    driver: Driver, questions: Sequence[Prompt], calibration: AttsRun | None, stages: Stages
) -> Mapping[str, Sequence[float]]:
    """Calibration scores by question."""
    if driver.options.is_barrier:
        return {}
    if calibration is not None:
        return calibration.calibration
    scores = {}
    with stages("calibrate") as progress:
        for number, question in enumerate(questions):
            progress(number, len(questions), question.prompt_id)
            scores[question.prompt_id] = await driver.calibrate(question)
    return scores


def simulate_atts(
    scripts: Scripts,
    *,
    target: Planned | Path | str,
    draft: Planned | Path | str,
    options: AttsOptions = _USUAL,
    calibration: AttsRun | None = None,
    stages: Stages = silent,
) -> AttsRun:
    """Asynchronous test-time scaling on two plans in simulated time.

    Each server runs its plan by its scheduler, with as many requests at once as calls are allowed. Time between servers
    and clients is not counted.

    Parameters
    ----------
    scripts : Scripts
        What is written and scored: replayed from a run, or drawn; see `swiftspec.studies.atts.scripts`.
    target, draft : Planned, or path
        Plans of the two servers.
    options : AttsOptions
    calibration : AttsRun, optional
        A run whose calibration scores are used instead of those of the scripts.
    stages : Stages
        Receives progress reports.

    Raises
    ------
    ValueError
        If scripts have fewer samples than the options, or calibration scores are missing.
    """
    from swiftspec.studies.atts.selection import Selections
    from swiftspec.studies.atts.simulated_servers import PlanServers
    from swiftspec.studies.atts.simulation import simulate

    plans = {Role.TARGET: read_priced(target), Role.DRAFT: read_priced(draft)}
    servers = partial(
        PlanServers,
        servings={role: _serving(planned, options.calls(role)) for role, planned in plans.items()},
        num_prompts={role: len(planned.trace.prompts) for role, planned in plans.items()},
    )
    selections = Selections(options, (calibration or scripts).calibration)
    found = []
    with stages("simulate") as progress:
        for number, script in enumerate(scripts.questions):
            progress(number, len(scripts.questions), script.question_id)
            if len(script.samples) < options.num_samples:
                raise FieldError(
                    "num_samples",
                    options.num_samples,
                    f"question {script.question_id} has {len(script.samples)}",
                )
            selection = selections.of(script.question_id)
            found.append(simulate(script, selection, options, servers(seed=options.seed + number)))
    served = {role: f"{planned.plan.target}, {planned.plan.chosen.describe()}" for role, planned in plans.items()}
    return _made(found, served[Role.TARGET], served[Role.DRAFT], selections, is_simulated=True)


def _serving(planned: Planned, num_calls: int) -> Serving:
    """The simulated server of a plan's choice."""
    from swiftspec.artifacts.load_options import LoadOptions
    from swiftspec.simulator.setup import Setup

    limits = LoadOptions(max_running=num_calls).on(planned.profile.device)
    return Setup.of(planned.plan.chosen).serving(planned.profile.latencies, planned.trace, limits)


def drawn_scripts(
    questions: Prompts,
    target: Planned | Path | str,
    *,
    options: AttsOptions = _USUAL,
    drawing: Drawing,
    limit: int | None = None,
) -> Scripts:
    """Scripts for `simulate_atts`: questions whose turns, lengths and scores are drawn.

    Tokens of a question are counted by the target's tokenizer, where it is at hand; else a token has four characters.
    """
    from swiftspec.engine.tasks import encoded_prompts
    from swiftspec.studies.atts.scripts import drawn_scripts as drawn

    texts, model = read_texts(questions, limit), read_plan(target).plan.target.model
    if is_model_directory(model):
        counted = [(name, len(tokens)) for name, tokens in encoded_prompts(texts, model=model)]
    else:
        counted = [(text.prompt_id, max(1, len(text.text) // _TOKEN_CHARACTERS)) for text in texts]
    return drawn(counted, options, drawing)


def _made(
    questions: Sequence[AttsQuestion],
    target: object,
    draft: object,
    selections: Selections,
    *,
    is_simulated: bool,
) -> AttsRun:
    threshold = selections.threshold
    return AttsRun(
        origin=Origin.here(),
        is_simulated=is_simulated,
        target=str(target),
        draft=str(draft),
        options=selections.options,
        calibration={question: tuple(scores) for question, scores in selections.calibration.items()},
        threshold=threshold if threshold is not None and math.isfinite(threshold) else None,
        figures=AttsFigures.of(questions),
        questions=tuple(questions),
    )
