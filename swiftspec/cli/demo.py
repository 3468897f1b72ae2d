"""`swiftspec demo`: every stage on the bundled pair, by the same functions as the verbs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from swiftspec.artifacts.prompts import read_prompts
from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.cli.plan import search
from swiftspec.cli.profile import profile
from swiftspec.cli.run import run
from swiftspec.cli.trace import trace
from swiftspec.cli.validate import validate_plan
from swiftspec.cli.verbs.data import ProfileFlags, TraceFlags, ValidateFlags
from swiftspec.cli.verbs.plans import DemoFlags, PlanFlags, RunFlags
from swiftspec.demo import DEMO_INFLATION
from swiftspec.devices.contention import Contention, watch_contention
from swiftspec.devices.local import num_devices_here
from swiftspec.errors import check_extra
from swiftspec.files.reading import read_json
from swiftspec.models.spec import model_directory
from swiftspec.profiler.pair import resolve
from swiftspec.progress import time_limit
from swiftspec.reports.formatting import percent

_SCREEN = 24  # lines of a stage; all of them are in its file
_NEW_TOKENS = 96
_PROFILE_SHARE = 0.4  # of the minutes; with slow forwards less is measured in them
_VALIDATED, _REPEATS = 18, 3  # prompts, and repetitions
_FILES = (
    *("profile.json", "trace.npz", "plan.json", "run.json", "run-result.json", "report.json"),
    *("profile.txt", "trace.txt", "plan.txt", "validate.txt"),
)
# Policies measured along with the choice: the textbook ones. `swiftspec validate` measures every policy.
_VALIDATED_POLICIES = ("autoregressive", "serial_chain", "serial_tree", "swiftspec")


def demo(
    asked: DemoFlags,
    *,
    inflate: str = DEMO_INFLATION,
    dtype: str = "auto",
    repeats: int = _REPEATS,
    target: str = "demo/target",
    draft: str = "demo/draft",
    prompts: Path | None = None,
    new_tokens: int = _NEW_TOKENS,
    num_prompts: int = _VALIDATED,
) -> None:
    """Profile, trace, plan, run, validate; the files stay in `directory`."""
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
        stages, has_ended = _Stages(), time_limit(asked.budget_minutes)
        pair = resolve(target=target, draft=draft, inflate=inflate, dtype=dtype)
        dtype = f"{pair.target.dtype},{pair.draft.dtype}"

        console.heading("1/5 Profile: what does a forward cost here?")
        console.paragraph(f"The bundled target is inflated to {inflate}: the same output at a realistic cost.")
        with stages("profile"), console.abridged(directory / "profile.txt", most_lines=_SCREEN):
            profile(
                ProfileFlags(
                    target=target,
                    draft=draft,
                    inflate=inflate,
                    dtype=dtype,
                    device="cpu",
                    devices=num_devices,
                    minutes=_PROFILE_SHARE * asked.budget_minutes,
                    out=directory / "profile.json",
                    plot=directory / "profile.png" if plot else None,
                )
            )

        console.heading("2/5 Trace: how well does the draft guess the target?")
        with stages("trace"), console.abridged(directory / "trace.txt", most_lines=_SCREEN):
            trace(
                TraceFlags(
                    target=target,
                    draft=draft,
                    prompts=traced,
                    inflate=None,
                    dtype=dtype,
                    max_new_tokens=new_tokens,
                    out=directory / "trace.npz",
                    plot=directory / "trace.png" if plot else None,
                )
            )

        console.heading("3/5 Plan: which policy, shape and split, and what to expect?")
        with stages("plan"), console.abridged(directory / "plan.txt", most_lines=_SCREEN):
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
        with stages("run"):
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

        console.heading("5/5 Validate: does the prediction hold on other prompts?")
        with stages("validate"), console.abridged(directory / "validate.txt", most_lines=_SCREEN):
            validate_plan(
                ValidateFlags(
                    plan=plan_path,
                    prompts=validated,
                    policies=",".join(name for name in _VALIDATED_POLICIES if name in made.candidates),
                    repeats=repeats,
                    num_prompts=min(num_prompts, len(read_prompts(validated))),
                    plot=directory / "report.png" if plot else None,
                    json=report_path,
                ),
                stop=has_ended,
            )
        stages.show()
        console.say(f"\nThe files are in {directory}. Next, try:")
        console.say(f'  swiftspec run --plan {plan_path} --prompt "def main():"')
        write_json(asked.json, {"directory": str(directory), "report": read_json(report_path)} | stages.content)


class _Stages:
    """Stages of the demo: how long each took, and the load of other processes meanwhile."""

    def __init__(self) -> None:
        self._took: dict[str, tuple[float, Contention]] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start_s = time.monotonic()
        with watch_contention() as found:
            yield
        self._took[name] = time.monotonic() - start_s, found

    def show(self) -> None:
        rows = [(name, f"{took_s:.0f}", percent(found.others_share)) for name, (took_s, found) in self._took.items()]
        rows.append(("all", f"{sum(took_s for took_s, _ in self._took.values()):.0f}", ""))
        columns = ("stage", "seconds", "other processes")
        console.table("Time, and the share of the cores that other processes took", columns, rows)
        busiest = max(self._took, key=lambda name: self._took[name][1].others_share)
        if (found := self._took[busiest][1]).is_busy:
            console.paragraph(
                f"The machine is busy: other processes took {percent(found.others_share)} of these cores' time during "
                f"the stage {busiest}. Everything took longer and is less accurate than on a quiet one."
            )

    @property
    def content(self) -> dict[str, object]:
        """Content of `--json`."""
        stages = [
            {"stage": name, "took_s": took_s, "others_share": found.others_share}
            for name, (took_s, found) in self._took.items()
        ]
        return {"stages": stages, "was_busy": any(found.is_busy for _, found in self._took.values())}


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
