"""The house rules a user notices: a light import, a quick help, justified dependencies, recorded files that fit."""

import ast
import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import swiftspec
from swiftspec import errors
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.report import Report
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.files.document import file_sha256
from tests.lean import floors

ROOT = Path(__file__).resolve().parents[1]
HELP = "import sys; sys.argv = ['swiftspec', '--help']; from swiftspec.cli.app import main; main()"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {
    extra: [Requirement(line) for line in lines if not line.startswith("swiftspec-llm")]
    for extra, lines in PROJECT["optional-dependencies"].items()
}
EVERYTHING = [*REQUIREMENTS, *(requirement for extra in EXTRAS.values() for requirement in extra)]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def loaded_after(code: str) -> set[str]:
    """Top-level packages in `sys.modules` once the code has run or exited."""
    report = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = run_python(f"try:\n    exec({code!r})\nexcept SystemExit:\n    pass\nfinally:\n    {report}")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    exact = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name: Version(version) for name, version in exact}


def section(path: str, heading: str) -> str:
    """Text of one `## heading` section of a Markdown file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.split(r"^## ", text.split(f"\n## {heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_import_loads_neither_torch_nor_transformers() -> None:
    loaded = loaded_after("import swiftspec")
    assert "swiftspec" in loaded
    assert not loaded & {"torch", "transformers", "numpy"}


def test_help_loads_neither_torch_nor_transformers() -> None:
    loaded = loaded_after(HELP)
    assert "typer" in loaded
    assert not loaded & {"torch", "transformers", "triton", "simpy", "matplotlib", "scipy"}


def cpu_s(code: str) -> float:
    """Seconds of a core that a program takes: those do not depend on what else the machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run_python(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_takes_little_more_than_its_library() -> None:
    assert "validate" in run_python(HELP).stdout
    assert min(cpu_s(HELP) for _ in range(3)) < 3 * min(cpu_s("import typer") for _ in range(3))


def test_module_docstrings_begin_with_a_noun_or_an_imperative() -> None:
    modules = (ROOT / "swiftspec").rglob("*.py")
    first_lines = {path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in modules}
    assert [
        path for path, line in first_lines.items() if not line or re.match(r"(What|Which|How|Where|That)\b", line)
    ] == []


def test_modules_list_names_only_where_they_pass_on_those_of_others() -> None:
    """Whatever a module defines without an underscore is public already."""
    for path in (ROOT / "swiftspec").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if listed := re.search(r"^__all__ = \[(.*?)\]", text, re.MULTILINE | re.DOTALL):
            imports = ast.walk(ast.parse(text))
            passed_on = {
                name.asname or name.name for each in imports if isinstance(each, ast.ImportFrom) for name in each.names
            }
            assert passed_on & set(re.findall(r'"(\w+)"', listed[1])) or path.name == "__init__.py", path


def test_public_names_can_be_completed() -> None:
    assert set(swiftspec.__all__) <= set(dir(swiftspec))


def test_public_names_exist() -> None:
    assert len(swiftspec.__all__) <= 20
    assert [name for name in swiftspec.__all__ if not hasattr(swiftspec, name)] == []


def test_every_dependency_has_a_tested_version_above_its_lower_bound() -> None:
    pinned = pins()
    assert {requirement.name for requirement in EVERYTHING} == pinned.keys()
    assert [r.name for r in EVERYTHING if not r.specifier.contains(pinned[r.name])] == []


def test_heavy_pins_are_the_tested_pair() -> None:
    # torch's CUDA build requires exactly this triton; its CPU build requires none, so the pair is pinned by hand.
    assert (pins()["torch"], pins()["triton"]) == (Version("2.13.0"), Version("3.7.1"))


@pytest.mark.parametrize("name", sorted(pins()))
def test_installed_version_is_the_pinned_one(name: str) -> None:
    try:
        installed = Version(metadata.version(name))
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed here")
    assert installed.public == pins()[name].public  # a local suffix such as +cpu names a build, not a version


def test_every_dependency_is_justified() -> None:
    reasons = dict(re.findall(r"^- `([^`]+)`: (\S.{15,})$", section("docs/design.md", "Dependencies"), re.MULTILINE))
    assert reasons.keys() == {requirement.name for requirement in EVERYTHING}


def test_extras_are_what_errors_say_of_them() -> None:
    modules = {"pyzmq": "zmq", "prometheus-client": "prometheus_client"}
    brought = {extra: {modules.get(r.name, r.name) for r in EXTRAS[extra]} - {"triton"} for extra in errors.EXTRAS}
    assert brought == {extra: set(names) for extra, names in errors.EXTRAS.items()}
    assert EXTRAS.keys() == {*errors.EXTRAS, "demo", "dev"}


def test_development_has_every_extra() -> None:
    (ours,) = (line for line in PROJECT["optional-dependencies"]["dev"] if line.startswith("swiftspec-llm"))
    assert Requirement(ours).extras == errors.EXTRAS.keys()


def test_the_oldest_versions_are_those_of_the_requirements() -> None:
    assert [requirement.name for requirement in REQUIREMENTS] == list(floors())
    assert [r.name for r in REQUIREMENTS if not r.specifier.contains(floors()[r.name])] == []


def test_every_weight_file_is_in_the_package_of_weights_alone() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    assert "*.safetensors" in build["exclude"]
    weights = tomllib.loads((ROOT / "packages/demo/pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    included = weights["build"]["targets"]["wheel"]["force-include"]
    assert included == {
        f"../../{path.relative_to(ROOT)}": str(path.relative_to(ROOT))
        for path in sorted((ROOT / "swiftspec").rglob("*.safetensors"))
    }


def test_neither_tools_nor_tests_are_distributed() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"]["packages"] == ["swiftspec"]
    assert not {"tools", "tests"} & set(targets["sdist"]["only-include"])


OTHER_TEXT, SAME_TEXT = "demo-zen4-2-cores", "demo-zen4-2-cores-same-text"
MIXED = "demo-sapphire-rapids-2-cores"


@pytest.mark.parametrize("recorded", [OTHER_TEXT, SAME_TEXT, MIXED])
def test_recorded_plan_rests_on_the_recorded_files(recorded: str) -> None:
    folder = ROOT / "swiftspec/profiles" / recorded
    plan = Plan.load(folder / "plan.json")
    Profile.load(folder / plan.profile.path)
    AcceptanceTrace.load(folder / plan.trace.path)
    assert file_sha256(folder / plan.profile.path) == plan.profile.sha256
    assert file_sha256(folder / plan.trace.path) == plan.trace.sha256
    assert Report.load(folder / "report.json").plan_sha256 == file_sha256(folder / "plan.json")


@pytest.mark.parametrize("name", ["simulator", "kernels", "profiles"])
def test_link_at_the_root_is_relative_and_resolves_into_the_package(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert link.readlink() == Path("swiftspec", name)
    assert link.resolve(strict=True) == (ROOT / "swiftspec" / name)
