"""`swiftspec advise`: what to change in a server that runs."""

from swiftspec.api.advising import ServerReadings, read_server
from swiftspec.api.advising import advise as advice_for
from swiftspec.artifacts.advice import Advice
from swiftspec.cli import console
from swiftspec.cli.command import refuse
from swiftspec.cli.load_test import read_api_key
from swiftspec.cli.outputs import check_files, saved
from swiftspec.cli.plan_flags import formats_of
from swiftspec.cli.sections import show
from swiftspec.cli.settings import parse_settings
from swiftspec.cli.verbs.data import AdviseFlags
from swiftspec.errors import FieldError
from swiftspec.files.writing import write_output
from swiftspec.planner.deployment import Deployment
from swiftspec.reports.advice import advice_sections

_SECONDS = 60.0


def advise(asked: AdviseFlags) -> Advice:
    check_files(asked)
    _check(asked)
    readings = _readings(asked)
    settings, deployment = parse_settings(asked.settings), None
    if asked.device is not None:
        engine, formats = asked.engine or readings.after.engine, formats_of(asked.dtype)
        deployment = Deployment(
            device=asked.device, num_devices=asked.devices, engine=engine, settings=settings, **formats
        )
    advice = advice_for(
        readings,
        profile=asked.profile,
        deployment=deployment,
        target=asked.target or "",
        draft=asked.draft or "",
        settings=settings,
        stages=console.progress,
    )
    answer, *sections = advice_sections(advice)
    console.paragraph(f"{answer.title}.")
    show([answer, *sections])
    if asked.report is not None:
        from swiftspec.reports.html import render_advice

        write_output(asked.report, render_advice(advice).encode())
        console.say(f"\n{saved(asked.report)}")
    if asked.json is not None:
        advice.save(asked.json)
    return advice


def _check(asked: AdviseFlags) -> None:
    """FieldError for flags that do not go together, before a server is watched."""
    if asked.profile is None and asked.device is None:
        raise ValueError("--profile is missing; expected a profile of such a server, or --device with --target")
    if asked.profile is not None and asked.device is not None:
        raise FieldError("--device", asked.device, "--profile says what steps take")
    if asked.device is None:
        refuse(asked, ("target", "dtype", "engine"), "it needs --device; a profile has its own")


def _readings(asked: AdviseFlags) -> ServerReadings:
    files = asked.before, asked.after
    if asked.url is not None:
        if any(files):
            raise FieldError("--url", asked.url, "expected either that, or --before and --after")
        key = read_api_key(asked.api_key_file)
        seconds = _SECONDS if asked.seconds is None else asked.seconds
        return read_server(asked.url, seconds=seconds, api_key=key, stages=console.progress)
    if asked.before is None or asked.after is None:
        raise ValueError("--url is missing; expected the address of a server, or --before and --after")
    if asked.seconds is None:
        raise ValueError("--seconds is missing; expected the time between --before and --after")
    return ServerReadings.of(asked.before, asked.after, seconds=asked.seconds)
