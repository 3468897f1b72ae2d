"""`swiftspec run`: executes a plan; text goes to stdout as it is committed, figures to stderr."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from swiftspec.artifacts.metrics import Metrics, measure
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.planned import candidate_of
from swiftspec.artifacts.prompts import Prompt, read_prompts
from swiftspec.cli import console
from swiftspec.cli.nodes import executor_of, is_of_torchrun, serve_rank, write_new_secret
from swiftspec.cli.outputs import draw, read_plan, write_json
from swiftspec.cli.served import engine_of, run_on_engine
from swiftspec.cli.verbs.plans import RunFlags
from swiftspec.engine.api import Chunk, Engine
from swiftspec.engine.checks import check_devices
from swiftspec.engine.process.interrupts import interrupts_noted
from swiftspec.engine.requests import Task
from swiftspec.engine.tasks import make_tasks
from swiftspec.errors import EngineError
from swiftspec.reports.formatting import count, milliseconds, percent, speed
from swiftspec.timing.perfetto import save_timelines
from swiftspec.timing.timeline import Timeline

if TYPE_CHECKING:
    from swiftspec.engine.api import Generation
    from swiftspec.engine.process.protocol import ProcessInfo

_Generate = Callable[..., Generator[Chunk, None, "Generation"]]
_OF_PROCESSES = ("role", "group", "rank", "node", "pid", "cores")  # what --json has of each


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    task: Task
    tokens: tuple[int, ...]
    text: str
    timeline: Timeline
    losses: int


def run(asked: RunFlags) -> None:
    """Generate for every prompt. On Ctrl-C, or if the target dies, show and write the results so far, then raise.

    Of torchrun's processes only the first does so; the others compute for it until it ends.
    """
    if asked.new_secret is not None:
        write_new_secret(asked.new_secret)
        return
    if asked.plan is None:
        raise ValueError("Missing option '--plan'.")
    made = read_plan(asked, asked.plan)
    if (served_by := engine_of(asked.plan, asked.engine)) is not None:
        run_on_engine(asked, served_by, list(_prompts(asked)))
        return
    candidate = candidate_of(made, asked.policy)
    is_here = asked.ray is None and not is_of_torchrun(asked)
    check_devices(made, [candidate] if is_here else [], source=str(asked.plan))
    if serve_rank(asked, made, candidate):
        return
    tasks = make_tasks(made, [candidate], _prompts(asked), max_new_tokens=asked.max_new_tokens or made.max_new_tokens)
    from swiftspec.engine.model.sampling.sampler import Sampler

    sampling: dict[str, Any] = {"seed": asked.seed}
    for name in ("temperature", "top_p", "top_k"):
        given = getattr(asked, name)
        sampling[name] = getattr(made.sampling, name) if given is None else given
    sampler = Sampler(**sampling, acceptance=asked.acceptance_method)
    if sampler.needs_draft_probabilities and candidate.build().keeps_tree:
        console.note(f"{candidate.policy} grows its tree over rounds, so draft tokens are followed, not tested")
    if made.target.is_lossy:
        console.note(f"the output is that of {made.target}, not of the checkpoint's own weights")
    with ExitStack() as held:
        with ExitStack() as stack:
            executor = stack.enter_context(executor_of(asked, made, candidate))
            engine = stack.enter_context(
                Engine(
                    made,
                    policy=candidate.policy,
                    max_context=tasks.max_context,
                    tenants=None if asked.tenant is None else {asked.tenant: asked.tenant},
                    executor=executor,
                )
            )
            first = tasks[0].request
            engine.warm_up(first.prompt, max_new_tokens=first.max_new_tokens)
            processes = engine.processes
            # Until the last file is written, a signal is only noted, so that everything committed is saved.
            interrupted = held.enter_context(interrupts_noted())
            generate = partial(
                engine.generate, **sampling, acceptance_method=asked.acceptance_method, tenant=asked.tenant
            )
            outputs, ended_by = _generate(generate, tasks, interrupted)
        if outputs:
            _show(candidate, _metrics(outputs), processes)
            timelines = [output.timeline for output in outputs]
            with ExitStack() as each:  # if one file does not fit on the disk, the next one still may
                each.callback(write_json, asked.json, _result(candidate, outputs, processes))
                each.callback(draw, asked.plot if timelines[0].commits else None, "timeline_rounds", timelines[0])
                each.callback(_save_timelines, timelines, processes, asked.timeline)
    if ended_by is not None:
        raise ended_by


def _prompts(asked: RunFlags) -> Sequence[Prompt]:
    if (asked.prompt is None) == (asked.prompts is None):
        raise ValueError("expected either --prompt or --prompts")
    if asked.prompts is not None:
        return read_prompts(asked.prompts)
    if not asked.prompt:
        raise ValueError("--prompt is empty; expected some text")
    return (Prompt(prompt_id="prompt", text=asked.prompt),)


def _generate(
    generate: _Generate, tasks: Sequence[Task], interrupted: Event
) -> tuple[list[_Output], BaseException | None]:
    """Outputs so far, and what ended them early: a signal, during or between requests, or a process that died."""
    outputs: list[_Output] = []
    for task in tasks:
        if interrupted.is_set():
            return outputs, KeyboardInterrupt()
        if len(tasks) > 1:
            console.heading(task.prompt_id)
        output, error = _generate_one(generate, task, interrupted)
        if output.losses:
            console.note(f"{task.prompt_id}: the target continued without its draft {count(output.losses, 'time')}")
        if output.tokens:
            outputs.append(output)
        if error is not None:
            return outputs, error
    return outputs, KeyboardInterrupt() if interrupted.is_set() else None


def _generate_one(generate: _Generate, task: Task, interrupted: Event) -> tuple[_Output, BaseException | None]:
    """One prompt's output, streamed to stdout, and the error that ended it early, if any."""
    most = task.request.max_new_tokens
    chunks = generate(task.request.prompt, max_new_tokens=most, request_id=task.prompt_id, cancelled=interrupted)
    text: list[str] = []
    error: BaseException | None = None
    with closing(chunks):
        try:
            while True:
                text.append(next(chunks).text)
                console.stream(text[-1])
        except StopIteration as finished:
            generation = finished.value
            tokens, timeline, losses = generation.tokens, generation.timeline, generation.losses
            if generation.interrupted:
                error = KeyboardInterrupt()
        except EngineError as failure:
            tokens, timeline, losses = failure.tokens, Timeline(request=task.prompt_id, start_s=0.0, spans=()), 0
            error = failure
    console.stream("\n")
    return _Output(task=task, tokens=tokens, text="".join(text), timeline=timeline, losses=losses), error


def _metrics(outputs: Sequence[_Output]) -> Metrics | None:
    """Metrics of all outputs; None if Ctrl-C came before the engine returned any timeline."""
    timelines = [output.timeline for output in outputs if output.timeline.commits]
    return measure(timelines) if timelines else None


def _show(candidate: Candidate, metrics: Metrics | None, processes: Sequence["ProcessInfo"]) -> None:
    if metrics is not None:
        figures = metrics.figures
        console.note(
            f"\n{candidate.describe()}: {metrics.num_tokens} tokens at {speed(figures.tokens_per_s)} tokens/s; "
            f"{metrics.rounds} rounds of {milliseconds(figures.round_s.median)} ms and "
            f"{figures.tokens_per_round:.2f} tokens; TTFT {milliseconds(metrics.ttft_s)} ms, "
            f"TPOT {milliseconds(metrics.tpot_s)} ms; draft and target overlap {percent(metrics.overlap_fraction)}"
        )
    for process in processes:
        cores = ", ".join(map(str, process.cores))
        node = f" of {process.node}" if process.node else ""
        console.note(f"{process.role} process {process.pid} on core{'s' * (len(process.cores) > 1)} {cores}{node}")


def _save_timelines(timelines: Sequence[Timeline], processes: Sequence["ProcessInfo"], path: Path | None) -> None:
    if path is not None:
        names = {(process.role, process.group): f"{process.role} (pid {process.pid})" for process in processes}
        save_timelines(path, timelines, names=names)


def _result(candidate: Candidate, outputs: Sequence[_Output], processes: Sequence["ProcessInfo"]) -> dict[str, Any]:
    """Content of `--json`."""
    metrics = _metrics(outputs)
    return {
        "prompts": [_prompt_result(output) for output in outputs],
        "policy": candidate.policy,
        "tokens_per_s": metrics and metrics.figures.tokens_per_s,
        "acceptance_length": metrics and _acceptance_length(metrics),
        "tokens_per_round": metrics and metrics.figures.tokens_per_round,
        "overlap_fraction": metrics and metrics.overlap_fraction,
        "processes": [{name: getattr(process, name) for name in _OF_PROCESSES} for process in processes],
    }


def _prompt_result(output: _Output) -> dict[str, Any]:
    metrics = _metrics([output])
    return {
        "id": output.task.prompt_id,
        "prompt_token_count": len(output.task.request.prompt),
        "output_token_ids": list(output.tokens),
        "text": output.text,
        "ttft_s": metrics and metrics.ttft_s,
        "tpot_s": metrics and metrics.tpot_s,
        "tokens_per_s": metrics and metrics.figures.tokens_per_s,
        "rounds": metrics and metrics.rounds,
        "draft_losses": output.losses,
        "acceptance_length": metrics and _acceptance_length(metrics),
    }


def _acceptance_length(metrics: Metrics) -> float:
    """Acceptance length; 0 if the only token requested was the prefill's."""
    return metrics.acceptance_length if metrics.rounds else 0.0
