"""`swiftspec demo`: every stage on the bundled pair, by the same functions as the verbs."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from swiftspec.artifacts.prompts import read_prompts
from swiftspec.cli import console
from swiftspec.cli.demo_course import Course
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.cli.plan import search
from swiftspec.cli.profile import profile
from swiftspec.cli.run import run
from swiftspec.cli.trace import trace
from swiftspec.cli.validate import validate_plan
from swiftspec.cli.verbs.check import ValidateFlags
from swiftspec.cli.verbs.decide import PlanFlags
from swiftspec.cli.verbs.measure import ProfileFlags, TraceFlags
from swiftspec.cli.verbs.use import DemoFlags, RunFlags
from swiftspec.demo import DEMO_INFLATION
from swiftspec.demo.budget import LADDER, Scope, restricted
from swiftspec.devices.local import num_devices_here
from swiftspec.errors import check_extra
from swiftspec.files.reading import read_json
from swiftspec.models.spec import model_directory
from swiftspec.profiler.pair import resolve

__all__ = ["demo"]

_SCREEN = 24  # lines of a stage; all of them are in its file
_NEW_TOKENS = 96
_FILES = (
    *("profile.json", "trace.npz", "plan.json", "run.json", "run-result.json", "report.json"),
    *("profile.txt", "trace.txt", "plan.txt", "validate.txt"),
)
# Policies measured along with the choice: the textbook ones. `swiftspec validate` measures every policy.
_VALIDATED_POLICIES = ("autoregressive", "serial_chain", "serial_tree", "swiftspec")


def demo(
    asked: DemoFlags,
    *,
    inflate: str | None = None,
    dtype: str = "auto",
    repeats: int | None = None,
    target: str = "demo/target",
    draft: str = "demo/draft",
    prompts: Path | None = None,
    new_tokens: int = _NEW_TOKENS,
    num_prompts: int | None = None,
) -> None:
    """Profile, trace, plan, run, validate; the files stay in `directory`.

    If `inflate` or `repeats` is not given, it is chosen, like the number of prompts, to fit `budget_minutes`.
    """
    check_extra("engine", needed_by="demo")
    if asked.plot:
        check_extra("plots", needed_by="--plot")
    directory, plot = asked.directory, asked.plot
    available = num_devices_here("cpu")
    num_devices = min(2, available) if asked.devices is None else asked.devices
    if num_devices > available:
        raise ValueError(f"--devices is {num_devices}; this machine offers {available}")
    with _folder(directory):
        beside = {f"{name} in --dir": directory / name for name in _FILES}
        check_outputs(beside=beside, json=asked.json)
        prompts = prompts or model_directory("demo/prompts")
        traced, validated = prompts / "trace.jsonl", prompts / "validate.jsonl"
        plan_path, report_path = directory / "plan.json", directory / "report.json"

        console.heading(f"Look: what fits {asked.budget_minutes:g} minutes on this machine?")
        ladder = restricted(
            LADDER,
            repeats=repeats,
            most_traced=len(read_prompts(traced)),
            most_validated=min(len(read_prompts(validated)), num_prompts or LADDER[0].validated),
        )
        scope = Scope(new_tokens=new_tokens, num_policies=len(_VALIDATED_POLICIES))
        course = Course(budget_s=asked.budget_minutes * 60, scope=scope, ladder=ladder)
        pair = resolve(target=target, draft=draft, inflate=inflate or DEMO_INFLATION, dtype=dtype)
        course.look(pair.target, pair.draft, num_devices=num_devices, inflate=inflate)
        inflate, dtype = inflate or f"layers={course.choice.layers}", f"{pair.target.dtype},{pair.draft.dtype}"
        course.show_choice()

        console.heading("1/5 Profile: what does a forward cost here?")
        console.paragraph(f"The bundled target is inflated to {inflate}: the same output at a realistic cost.")
        with course.stage("profile"), console.abridged(directory / "profile.txt", most_lines=_SCREEN):
            profile(
                ProfileFlags(
                    target=target,
                    draft=draft,
                    inflate=inflate,
                    dtype=dtype,
                    device="cpu",
                    devices=num_devices,
                    out=directory / "profile.json",
                    plot=directory / "profile.png" if plot else None,
                ),
                effort=course.choice.effort,
                stop=course.no_more_passes(),
            )
        course.refit()

        console.heading("2/5 Trace: how well does the draft guess the target?")
        with course.stage("trace"), console.abridged(directory / "trace.txt", most_lines=_SCREEN):
            trace(
                TraceFlags(
                    target=target,
                    draft=draft,
                    prompts=traced,
                    inflate=None,
                    dtype=dtype,
                    max_new_tokens=new_tokens,
                    out=directory / "trace.npz",
                    num_prompts=course.choice.traced,
                    plot=directory / "trace.png" if plot else None,
                )
            )

        console.heading("3/5 Plan: which policy, shape and split, and what to expect?")
        with course.stage("plan"), console.abridged(directory / "plan.txt", most_lines=_SCREEN):
            made = search(
                PlanFlags(
                    draft=[draft],
                    inflate=inflate,
                    dtype=dtype,
                    profile=directory / "profile.json",
                    trace=directory / "trace.npz",
                    devices=num_devices,
                    out=plan_path,
                ),
                target,
            )

        console.heading("4/5 Run: the plan on this machine, printing text as it is committed")
        prompt = read_prompts(validated)[0].text
        console.stream(prompt)
        with course.stage("run"):
            run(
                RunFlags(
                    plan=plan_path,
                    prompt=prompt,
                    max_new_tokens=new_tokens,
                    timeline=directory / "run.json",
                    plot=directory / "run.png" if plot else None,
                    json=directory / "run-result.json",
                )
            )
        course.refit()

        console.heading("5/5 Validate: does the prediction hold on other prompts?")
        with course.stage("validate"), console.abridged(directory / "validate.txt", most_lines=_SCREEN):
            report = validate_plan(
                ValidateFlags(
                    plan=plan_path,
                    prompts=validated,
                    policies=",".join(name for name in _VALIDATED_POLICIES if name in made.candidates),
                    repeats=course.choice.repeats,
                    num_prompts=course.choice.validated,
                    plot=directory / "report.png" if plot else None,
                    json=report_path,
                ),
                stop=course.no_more_prompts if repeats is None else None,
            )
        course.was_validated(prompts=report.num_prompts, repeats=len(report.policies[0].repeats))
        course.show_end()
        console.say(f"\nThe files are in {directory}. Next, try:")
        console.say(f'  swiftspec run --plan {plan_path} --prompt "def main():"')
        content = {"directory": str(directory), "report": read_json(report_path)}
        write_json(asked.json, content | course.content)


@contextmanager
def _folder(directory: Path) -> Iterator[None]:
    """The demo's folder, removed again if nothing was written to it."""
    is_new = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--dir is {directory}, which cannot be created as a directory ({error.strerror})") from error
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # not empty
                directory.rmdir()
