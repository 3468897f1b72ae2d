"""`swiftspec workload`: writes a workload that is drawn from distributions, or replayed from a load trace."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths
from swiftspec.artifacts.workload import RequestClass, Workload
from swiftspec.cli import console
from swiftspec.cli.command import refuse, refuse_settings
from swiftspec.cli.outputs import check_files, saved, write_json
from swiftspec.cli.settings import DRAWN, REPLAYED, own_settings
from swiftspec.cli.verbs.data import WorkloadFlags
from swiftspec.files.reading import shown
from swiftspec.models.spec import model_directory
from swiftspec.models.tokenizer import Tokenizer
from swiftspec.reports.formatting import count, milliseconds, percent
from swiftspec.workload import Prefixes, PromptLengths, lengths_in_prompts, lengths_in_trace, make_workload, replay
from swiftspec.workload.generate import DEFAULT_CLASSES

_CLASS_SYNTAX = "NAME, or NAME:ttft=MS,tpot=MS,share=SHARE with any of these"
_CLASS_FIELDS = {"ttft": ("ttft_s", 1e3), "tpot": ("tpot_s", 1e3), "share": ("share", 1.0)}
_OF_DRAWN = ("arrivals", "prompt_tokens", "output_tokens", "prompts", "tokenizer", "trace")  # not of replayed ones


def workload(asked: WorkloadFlags) -> Workload:
    check_files(asked, inputs={"--from": asked.source[1] if asked.source else None})
    known = tuple(parse_class(text) for text in asked.classes or ())
    settings = own_settings(asked.settings, {**DRAWN, **REPLAYED})
    if asked.source is None:
        others = {name: value for name, value in settings.items() if name in REPLAYED}
        refuse_settings(others, "it needs --from, which names a load trace")
        made = _drawn(asked, settings, known or DEFAULT_CLASSES)
    else:
        why = "arrivals and lengths are those of the file that --from names"
        refuse(asked, _OF_DRAWN, why)
        refuse_settings({name: value for name, value in settings.items() if name in DRAWN}, why)
        name, path = asked.source
        made = replay(name, path, num_requests=asked.requests, classes=known, seed=asked.seed, **settings)
    made.save(asked.out)
    show_workload(made)
    console.say(f"\n{saved(asked.out)}")
    write_json(asked.json, {"workload": str(asked.out), **_summary(made)})
    return made


def _drawn(asked: WorkloadFlags, settings: Mapping[str, Any], classes: Sequence[RequestClass]) -> Workload:
    if asked.arrivals is None:
        raise ValueError(f"--arrivals is missing; expected {Arrivals.syntax}, or --from")
    arrivals = Arrivals.parse(asked.arrivals, field="--arrivals")
    if asked.requests is None and not arrivals.stages:
        raise ValueError("--requests is missing; expected the number of requests")
    prefixes = _prefixes(asked, settings)  # refused before a file is read
    return make_workload(
        arrivals,
        num_requests=asked.requests,
        prompt_tokens=_lengths(asked.prompt_tokens, "--prompt-tokens"),
        output_tokens=_lengths(asked.output_tokens, "--output-tokens"),
        prompts=_prompts(asked.prompts, asked.tokenizer, asked.trace),
        prefixes=prefixes,
        classes=classes,
        seed=asked.seed,
    )


def parse_class(text: str) -> RequestClass:
    """Class from `NAME:ttft=MS,tpot=MS,share=SHARE`. ValueError naming the flag."""
    name, colon, options = text.partition(":")
    fields: dict[str, str | float] = {"name": name}
    for option in options.split(",") if colon else ():
        key, _, value = option.partition("=")
        field, per_unit = _CLASS_FIELDS.get(key, ("", 1.0))
        if not field or field in fields:
            raise ValueError(f"--class is {shown(text)}; expected {_CLASS_SYNTAX}")
        try:
            fields[field] = float(value) / per_unit
        except ValueError:
            raise ValueError(f"--class is {shown(text)}, where {key} is {shown(value)}; expected a number") from None
    if not name:
        raise ValueError(f"--class is {shown(text)}, without a name; expected {_CLASS_SYNTAX}")
    return RequestClass.checked(fields, source=f"--class is {shown(text)}")


def _lengths(text: str | None, flag: str) -> Lengths | None:
    return None if text is None else Lengths.parse(text, field=flag)


def _prefixes(asked: WorkloadFlags, given: Mapping[str, Any]) -> Prefixes:
    """What prompts share. ValueError if they are those of a file, or a number is of nothing."""
    file = asked.prompts or asked.trace
    for field, needed in (("system_prompts", "system_prompt_tokens"), ("think_time_s", "turns")):
        if field in given and needed not in given:
            raise ValueError(f"--set {field} is {given[field]}; it needs {needed}, too")
    for field, value in given.items():
        if file is not None:
            raise ValueError(f"--set {field} is {value}, but prompts are those of {file}")
    return Prefixes(**given)


def _prompts(prompts: Path | None, tokenizer: str | None, trace: Path | None) -> PromptLengths | None:
    if prompts is not None and trace is not None:
        raise ValueError(f"--trace is {trace}, but prompts are those of --prompts; expected one of both")
    if prompts is None and tokenizer is not None:
        raise ValueError(f"--tokenizer is {tokenizer}; it needs --prompts, whose tokens it counts")
    if trace is not None:
        return lengths_in_trace(trace)
    if prompts is None:
        return None
    if tokenizer is None:
        raise ValueError("--tokenizer is missing; --prompts needs a model that counts tokens")
    encoder = Tokenizer(model_directory(tokenizer))
    return lengths_in_prompts(prompts, count_tokens=lambda text: len(encoder.encode(text)))


def show_workload(made: Workload) -> None:
    rate = "set by the ends of requests" if made.is_closed else "all at once"
    if made.rate is not None:
        rate = f"{made.rate:.4g} requests/s over {made.duration_s:.4g} s"
    trace, prompts = made.trace, made.prompts
    repeated = {}
    if made.repeated_share:
        turns = f"; {count(len(made.starts), 'conversation')}, whose turns wait for answers" if made.has_turns else ""
        share = percent(made.repeated_share)
        repeated["repeated"] = f"{share} of the prompts' tokens are those of earlier requests{turns}"
    console.fields(
        arrivals=f"replayed from {trace.file} ({trace.format})" if trace else made.arrivals,
        rate=rate,
        gaps="-" if made.gap_cv is None else f"coefficient of variation {made.gap_cv:.2f}",
        prompts=f"those of {prompts.file}" if prompts else _described(made.prompt_tokens),
        outputs=_described(made.output_tokens),
        **repeated,
    )
    names = [each.name for each in made.classes]
    rows = [_cells(made, [each.name], each) for each in made.classes]
    if len(names) > 1:
        rows.append(_cells(made, names, None))
    columns = ("class", "requests", "share", "TTFT ms", "TPOT ms")
    lengths = ("prompt mean", "prompt median", "output mean", "output median")
    console.table(f"{count(len(made.requests), 'request')}, lengths in tokens", (*columns, *lengths), rows)
    if trace:
        for reason, number in trace.left_out.items():
            console.paragraph(f"Left out: {count(number, 'row')} {reason}")
        console.paragraph(f"Licence: {trace.licence}")


def _described(lengths: Lengths) -> str:
    from_files = {Distribution.REPLAY: "as recorded", Distribution.PROMPTS: "those of the prompts"}
    return from_files.get(lengths.distribution, str(lengths))


def _cells(made: Workload, names: Sequence[str], only: RequestClass | None) -> tuple[str, ...]:
    """Cells of one class, or of several together."""
    number = sum(made.num_by_class[name] for name in names)
    limits = (only.ttft_s, only.tpot_s) if only else (None, None)
    return (
        only.name if only else "all",
        str(number),
        percent(number / len(made.requests)),
        *("-" if limit_s is None else milliseconds(limit_s) for limit_s in limits),
        *(f"{length:.0f}" if number else "-" for of in _lengths_of(made, names).values() for length in of.values()),
    )


def _lengths_of(made: Workload, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Mean and median lengths of the requests of these classes; 0 if there are none."""
    found = {}
    for field in ("prompt_tokens", "output_tokens"):
        lengths = [getattr(request, field) for request in made.requests if request.class_name in names] or [0]
        found[field] = {"mean": fmean(lengths), "median": float(median(lengths))}
    return found


def _summary(made: Workload) -> dict[str, Any]:
    """What is printed, for machines: seconds, and None for what there is not."""
    return {
        "arrivals": str(made.arrivals),
        "num_requests": len(made.requests),
        "rate": made.rate,
        "duration_s": made.duration_s,
        "gap_cv": made.gap_cv,
        "repeated_share": made.repeated_share,
        **_lengths_of(made, [each.name for each in made.classes]),
        "classes": [
            {
                **each.model_dump(exclude={"share"}),
                "num_requests": made.num_by_class[each.name],
                **_lengths_of(made, [each.name]),
            }
            for each in made.classes
        ],
        "trace": None if made.trace is None else made.trace.model_dump(),
    }
