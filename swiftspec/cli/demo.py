"""`swiftspec demo`: the whole story on the bundled pair, by the same functions as the verbs."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from swiftspec.artifacts.prompts import read_prompts
from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.cli.plan import plan
from swiftspec.cli.profile import profile
from swiftspec.cli.run import run
from swiftspec.cli.trace import trace
from swiftspec.cli.validate import validate
from swiftspec.demo import DEMO_INFLATION
from swiftspec.devices.local import num_devices_here
from swiftspec.files.reading import read_json
from swiftspec.models.spec import model_directory

__all__ = ["demo"]

_NEW_TOKENS = 96
_FILES = ("profile.json", "trace.npz", "plan.json", "run.json", "run-result.json", "report.json")
# What is measured: the choice, whatever it is, and the textbook's. `swiftspec compare --run` measures every policy.
_VALIDATED_POLICIES = ("autoregressive", "serial_chain", "serial_tree", "swiftspec")
_VALIDATED_PROMPTS = 18  # of those bundled; the rest is for whoever has more time


def demo(
    *,
    directory: Path,
    inflate: str | None,
    dtype: str,
    devices: int | None,
    repeats: int,
    plot: bool,
    json_path: Path | None = None,
    target: str = "demo/target",
    draft: str = "demo/draft",
    prompts: Path | None = None,
    new_tokens: int = _NEW_TOKENS,
    num_prompts: int = _VALIDATED_PROMPTS,
) -> None:
    """Profile, trace, plan, run, validate; the files stay in `directory`."""
    inflate = DEMO_INFLATION if inflate is None else inflate
    available = num_devices_here("cpu")
    num_devices = min(2, available) if devices is None else devices
    if num_devices > available:
        raise ValueError(f"--devices is {num_devices}; this machine offers {available}")
    with _folder(directory):
        beside = {f"{name} in --dir": directory / name for name in _FILES}
        check_outputs(beside=beside, json=json_path)
        prompts = prompts or model_directory("demo/prompts")
        plan_path, report_path = directory / "plan.json", directory / "report.json"

        console.heading("1/5 Profile: what does a forward cost here?")
        console.say(f"The bundled target is inflated to {inflate}: the same output at a realistic cost.")
        profiled = profile(
            target=target,
            draft=draft,
            inflate=inflate,
            dtype=dtype,
            device="cpu",
            devices=num_devices,
            out=directory / "profile.json",
            plot=directory / "profile.png" if plot else None,
        )

        console.heading("2/5 Trace: how well does the draft guess the target?")
        trace(
            target=target,
            draft=draft,
            prompts=prompts / "trace.jsonl",
            inflate=None,
            dtype=profiled.target.dtype,
            max_new_tokens=new_tokens,
            out=directory / "trace.npz",
            plot=directory / "trace.png" if plot else None,
        )

        console.heading("3/5 Plan: which policy, shape and split, and what to expect?")
        made = plan(
            target=target,
            drafts=[draft],
            inflate=inflate,
            dtype=profiled.target.dtype,
            profile=directory / "profile.json",
            trace=directory / "trace.npz",
            devices=num_devices,
            out=plan_path,
        )

        console.heading("4/5 Run: the plan on this machine, text as it is committed")
        prompt = read_prompts(prompts / "validate.jsonl")[0].text
        console.stream(prompt)
        run(
            plan=plan_path,
            prompt=prompt,
            prompts=None,
            policy=None,
            max_new_tokens=new_tokens,
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            seed=0,
            timeline=directory / "run.json",
            plot=directory / "run.png" if plot else None,
            json_path=directory / "run-result.json",
        )

        console.heading("5/5 Validate: is that what comes out, on other prompts?")
        validate(
            plan=plan_path,
            prompts=prompts / "validate.jsonl",
            policies=",".join(name for name in _VALIDATED_POLICIES if name in made.candidates),
            repeats=repeats,
            max_new_tokens=None,
            limit=num_prompts,
            plot=directory / "report.png" if plot else None,
            json_path=report_path,
        )
        console.say(f"\nFiles are in {directory}. Go on with:")
        console.say(f'  swiftspec run --plan {plan_path} --prompt "def main():"')
        write_json(json_path, {"directory": str(directory), "report": read_json(report_path)})


@contextmanager
def _folder(directory: Path) -> Iterator[None]:
    """The demo's folder; gone again if nothing was written to it."""
    is_new = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--dir is {directory}, which cannot be made a directory ({error.strerror})") from error
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # not empty
                directory.rmdir()
