"""`swiftspec run`: executes a plan; text goes to stdout as it is committed, figures to stderr."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swiftspec import console
from swiftspec.commands.basis import candidate_of
from swiftspec.commands.execution import Task, check_devices, encode, make_tasks, open_engines, warm_up
from swiftspec.commands.files import check_outputs, save_figure, write_json
from swiftspec.commands.models import target_tokenizer
from swiftspec.commands.wording import milliseconds, percent, speed
from swiftspec.perfetto import save_timelines
from swiftspec.plan import Candidate, Plan
from swiftspec.policies.effects import Role
from swiftspec.prompts import Prompt, read_prompts
from swiftspec.timeline import Metrics, Timeline, measure
from swiftspec.tokenizer import Tokenizer

if TYPE_CHECKING:
    from swiftspec.engine.launcher import Engine, ProcessInfo
    from swiftspec.engine.sampling import Sampler

__all__ = ["run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """What one prompt brought."""

    task: Task
    tokens: tuple[int, ...]
    timeline: Timeline


def run(
    *,
    plan: Path,
    prompt: str | None,
    prompts: Path | None,
    policy: str | None,
    max_new_tokens: int | None,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int,
    timeline: Path | None = None,
    plot: Path | None = None,
    json_path: Path | None = None,
) -> None:
    """Generate for every prompt. On Ctrl-C, show and write what there is, then raise KeyboardInterrupt."""
    check_outputs(timeline=timeline, plot=plot, json=json_path)
    made = Plan.load(plan)
    candidate = candidate_of(made, policy)
    check_devices([candidate], source=plan)
    tokenizer = target_tokenizer(made)
    encoded = encode(tokenizer, _prompts(prompt, prompts))
    tasks = make_tasks(made, [candidate], encoded, max_new_tokens=max_new_tokens or made.max_new_tokens)
    from swiftspec.engine.sampling import Sampler

    sampler = Sampler(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    with ExitStack() as stack:
        engine = open_engines(made, [candidate], tasks, stack)[candidate.policy]
        warm_up(engine, candidate, tasks[0])
        outputs, interrupted = _generate(engine, candidate, tasks, tokenizer, sampler)
    if outputs:
        _show(candidate, outputs, engine.processes)
        _write(candidate, outputs, engine.processes, tokenizer, timeline=timeline, plot=plot, json_path=json_path)
    if interrupted:
        raise KeyboardInterrupt


def _prompts(prompt: str | None, prompts: Path | None) -> Sequence[Prompt]:
    if (prompt is None) == (prompts is None):
        raise ValueError("expected either --prompt or --prompts")
    if prompts is not None:
        return read_prompts(prompts)
    if not prompt:
        raise ValueError("--prompt is empty; expected some text")
    return (Prompt(prompt_id="prompt", text=prompt),)


def _generate(
    engine: "Engine", candidate: Candidate, tasks: Sequence[Task], tokenizer: Tokenizer, sampler: "Sampler"
) -> tuple[list[_Output], bool]:
    """Outputs so far, and whether Ctrl-C cut them short."""
    policy = candidate.build()
    outputs: list[_Output] = []
    for task in tasks:
        if len(tasks) > 1:
            console.heading(task.prompt_id)
        text = tokenizer.stream()
        generation = engine.generate(
            policy,
            task.request,
            request_id=task.prompt_id,
            sampler=sampler,
            on_commit=lambda tokens, text=text: console.stream(text.push(tokens)),  # type: ignore[misc]
        )
        console.stream(text.flush() + "\n")
        if generation.tokens:
            outputs.append(_Output(task=task, tokens=generation.tokens, timeline=generation.timeline))
        if generation.interrupted:
            return outputs, True
    return outputs, False


def _show(candidate: Candidate, outputs: Sequence[_Output], processes: Sequence["ProcessInfo"]) -> None:
    metrics = measure([output.timeline for output in outputs])
    figures = metrics.figures
    console.note(
        f"\n{candidate.describe()}: {metrics.num_tokens} tokens at {speed(figures.tokens_per_s)} tokens/s; "
        f"{metrics.rounds} rounds of {milliseconds(figures.round_s.median)} ms and "
        f"{figures.tokens_per_round:.2f} tokens; TTFT {milliseconds(metrics.ttft_s)} ms, "
        f"TPOT {milliseconds(metrics.tpot_s)} ms; draft and target overlap {percent(metrics.overlap_fraction)}"
    )
    for process in processes:
        cores = ", ".join(map(str, process.cores))
        console.note(f"{process.role} process {process.pid} on core{'s' * (len(process.cores) > 1)} {cores}")


def _write(
    candidate: Candidate,
    outputs: Sequence[_Output],
    processes: Sequence["ProcessInfo"],
    tokenizer: Tokenizer,
    *,
    timeline: Path | None,
    plot: Path | None,
    json_path: Path | None,
) -> None:
    timelines = [output.timeline for output in outputs]
    if timeline is not None:
        names = {Role(process.role): f"{process.role} (pid {process.pid})" for process in processes}
        save_timelines(timeline, timelines, names=names)
    if plot is not None:
        from swiftspec.plotting import timeline_rounds

        save_figure(plot, timeline_rounds(timelines[0]))
    metrics = measure(timelines)
    content = {
        "prompts": [_prompt_record(output, tokenizer) for output in outputs],
        "policy": candidate.policy,
        "tokens_per_s": metrics.figures.tokens_per_s,
        "acceptance_length": _acceptance_length(metrics),
        "tokens_per_round": metrics.figures.tokens_per_round,
        "overlap_fraction": metrics.overlap_fraction,
        "processes": [
            {"role": process.role.value, "rank": process.rank, "pid": process.pid, "cores": list(process.cores)}
            for process in processes
        ],
    }
    write_json(json_path, content)


def _prompt_record(output: _Output, tokenizer: Tokenizer) -> dict[str, Any]:
    metrics = measure([output.timeline])
    return {
        "id": output.task.prompt_id,
        "prompt_token_count": len(output.task.request.prompt),
        "output_token_ids": list(output.tokens),
        "text": tokenizer.decode(output.tokens),
        "ttft_s": output.timeline.ttft_s,
        "tpot_s": output.timeline.tpot_s,
        "tokens_per_s": metrics.figures.tokens_per_s,
        "rounds": metrics.rounds,
        "acceptance_length": _acceptance_length(metrics),
    }


def _acceptance_length(metrics: Metrics) -> float:
    """0 where the prefill's own token was all that was asked for."""
    return metrics.acceptance_length if metrics.rounds else 0.0
