"""Advice for a server that runs, as `swiftspec advise` gives it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from swiftspec.advise.observed import observed_load
from swiftspec.artifacts.advice import Advice, ObservedLoad
from swiftspec.artifacts.profile import Profile
from swiftspec.errors import FieldError
from swiftspec.files.reading import read_input
from swiftspec.loadtest import ServerClient
from swiftspec.loadtest.readings import Reading
from swiftspec.policies.effects import Role
from swiftspec.progress import Stages, silent

if TYPE_CHECKING:
    from swiftspec.planner.deployment import Deployment
    from swiftspec.planner.under_load.serving_engine import ServingEngine

LOOKED_UP: Final = "ngram"  # as a draft: proposals are looked up in the text
_MOST_BYTES: Final = 16 << 20
# Relative standard deviation of composed steps: predictions of measured loads are off by about as much.
_COMPOSED_ERROR: Final = 0.15
_WAIT_S: Final = 1.0


class ServerReadings(NamedTuple):
    """Two readings of a server's metrics, the seconds between them, and whose they are."""

    before: Reading
    after: Reading
    seconds: float
    server: str

    @classmethod
    def of(cls, before: Path, after: Path, *, seconds: float) -> ServerReadings:
        """Readings in files, as /metrics answers them. ValueError if they are none."""
        first, second = (
            Reading.parse(read_input(file, most_bytes=_MOST_BYTES).decode(errors="replace"), str(file))
            for file in (before, after)
        )
        return cls(first, second, seconds, str(after))


def read_server(url: str, *, seconds: float, api_key: str = "", stages: Stages = silent) -> ServerReadings:
    """Read a server's metrics twice. ValueError if it has none, or none that are known here."""
    if not 0 < seconds < math.inf:
        raise FieldError("seconds", f"{seconds:g}", "expected more than 0")
    client = ServerClient(url, api_key=api_key)
    before, began_s = client.reading(), time.perf_counter()
    with stages("watch") as progress:
        while (spent_s := time.perf_counter() - began_s) < seconds:
            progress(round(spent_s), math.ceil(seconds), "seconds")
            time.sleep(min(_WAIT_S, seconds - spent_s))
    after = client.reading()
    return ServerReadings(before, after, time.perf_counter() - began_s, url)


def advise(
    readings: ServerReadings,
    *,
    profile: Profile | Path | str | None = None,
    deployment: Deployment | None = None,
    target: str = "",
    draft: str = "",
    settings: Mapping[str, str] | None = None,
    stages: Stages = silent,
) -> Advice:
    """Say what to change in a server that runs, and what that brings.

    profile: as `swiftspec profile --engine` measured it, on a server of the same models on the same device.
    deployment: instead, the device, whose steps are composed, with the engine. target, draft: models beside it;
    `ngram` is a draft that is looked up in the text, beside a profile, too.
    settings: limits of the server, by its engine's words, where they are not the profile's or the engine's own.

    ValueError: if the readings are no two of one server under load, or the model is of another engine.
    """
    from swiftspec.advise.changes import advice_on
    from swiftspec.advise.model import ServerModel

    observed = observed_load(readings.before, readings.after, seconds=readings.seconds)
    looks_up = draft == LOOKED_UP
    if profile is not None:
        measured = profile if isinstance(profile, Profile) else Profile.load(profile)
        name = "--profile" if isinstance(profile, Profile) else str(profile)
        serving, source, error = _of_profile(measured, name, settings or {})
    else:
        serving, source, error = _composed(deployment, observed, target, "" if looks_up else draft)
        looks_up = looks_up or not draft
    if serving.engine.name != observed.engine:
        field = "profile" if profile is not None else "engine"
        raise FieldError(field, f"of {serving.engine.full_name}", f"the metrics are those of {observed.engine}")
    model = ServerModel(
        serving=serving, observed=observed, source=source, step_error=error, looks_up=looks_up
    ).calibrated()
    with stages("advise") as progress:
        return advice_on(model, server=readings.server, progress=progress)


def _of_profile(profile: Profile, name: str, settings: Mapping[str, str]) -> tuple[ServingEngine, str, float]:
    """The server of a profile, where its steps are from, and their error."""
    from swiftspec.planner.under_load.measured_engine import MeasuredEngine

    served = MeasuredEngine.of(profile)
    if served is None:
        raise FieldError("profile", name, "it is of no server; expected one of `swiftspec profile --engine`")
    known = served.served
    options = [*known.options, *(f"--{word}={value}" for word, value in settings.items())]
    for word in settings:
        if word not in served.engine.words:
            raise FieldError(f"set {word}", "unknown", f"expected one of {', '.join(served.engine.words)}")
    if settings:
        limits = served.engine.limits_here(profile.device, options)
        changed = {"step_tokens": limits.step_tokens, "requests": limits.requests, "runs_ahead": limits.runs_ahead}
        served = replace(served, served=known.model_copy(update=changed))
    source = f"measured on a server of {known.engine}, off by {100 * known.median_error:.1f} % in the median"
    return served, source, known.step_error


def _composed(
    deployment: Deployment | None, observed: ObservedLoad, target: str, draft: str
) -> tuple[ServingEngine, str, float]:
    """The server on a device whose op tables are known."""
    from swiftspec.planner.planned_model import PlannedModel
    from swiftspec.planner.under_load.composed_engine import ComposedEngine

    if deployment is None:
        raise FieldError("profile", "missing", "expected a profile of a server, or --device with --target")
    if not target:
        raise FieldError("target", "missing", "expected the model that is served, beside --device")
    alone = PlannedModel.of(Role.TARGET, target)
    found = deployment.serving(*(deployment.pair(target, draft) if draft else (alone, alone)))
    if not isinstance(found, ComposedEngine):
        raise FieldError("engine", deployment.engine, "it is none whose steps are composed; expected vllm or sglang")
    context = math.ceil(observed.prompt_tokens + 2 * observed.output_tokens)
    there = found.on(deployment.num_devices, context=context)
    source = f"composed of the op tables of {deployment.device}"
    return there if draft else replace(there, drafts=None), source, _COMPOSED_ERROR
