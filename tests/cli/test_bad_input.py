"""Mistakes of the user: one sentence that names each, exit code 2, no file, no process left behind."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.cli.app import main
from swiftspec.files.document import ModelRef
from tests.builders import machine_profile
from tests.cli import samples
from tests.cli.tokenizer_files import write_byte_tokenizer
from tests.engine.pairs import references
from tests.engine.processes import gone_within, workers

pytestmark = pytest.mark.extra("engine")

Fails = Callable[..., str]
Models = tuple[Path, Path]


@pytest.fixture
def copies(models: Models, tmp_path: Path) -> Models:
    """Models that a test may damage."""
    target, draft = (shutil.copytree(directory, tmp_path / directory.name) for directory in models)
    return target, draft


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n')
    return path


@pytest.fixture
def plan_file(models: Models, tmp_path: Path) -> Path:
    """A plan for the pair, next to its profile and trace."""
    target, draft = references(models)
    machine_profile().model_copy(update={"device": "cpu", "target": target, "draft": draft}).save(
        tmp_path / "profile.json"
    )
    samples.trace(target=target, draft=draft).save(tmp_path / "trace.npz")
    samples.plan(target=target, draft=draft, folder=tmp_path).save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def pair(models: Models) -> list[object]:
    return ["--target", models[0], "--draft", models[1]]


def edit(path: Path, **fields: object) -> None:
    """Change fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("role", ["target", "draft"])
def test_missing_model_directory(fails: Fails, models: Models, tmp_path: Path, role: str) -> None:
    named = dict(zip(("target", "draft"), models, strict=True)) | {role: tmp_path / "none"}
    sentence = fails("profile", *pair((named["target"], named["draft"])), "--out", tmp_path / "profile.json")
    assert str(tmp_path / "none") in sentence
    assert files_in(tmp_path) == []


def test_missing_model_directory_of_a_plan(fails: Fails, plan_file: Path, tmp_path: Path) -> None:
    edit(plan_file, target={"model": str(tmp_path / "gone"), "dtype": "float32"})
    assert "gone" in fails("run", "--plan", plan_file, "--prompt", "x", "--json", tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b"{}"),
        ("tokenizer.json", b"{"),
        ("model.safetensors", b"\x00" * 100),
    ],
)
@pytest.mark.parametrize("verb", ["profile", "trace"])
def test_corrupt_model_directory(
    fails: Fails, copies: Models, prompt_file: Path, tmp_path: Path, name: str, content: bytes, verb: str
) -> None:
    (copies[0] / name).write_bytes(content)
    before, running = files_in(tmp_path), workers(os.getpid())
    more = ["--prompts", prompt_file] if verb == "trace" else []
    sentence = fails(verb, *pair(copies), "--dtype", "fp32", *more, "--out", tmp_path / "out")
    assert str(copies[0]) in sentence
    assert files_in(tmp_path) == before
    assert gone_within(sorted(set(workers(os.getpid())) - set(running)), 5.0)


def test_corrupt_weights_at_run_leave_no_process(fails: Fails, copies: Models, plan_file: Path, tmp_path: Path) -> None:
    (copies[1] / "model.safetensors").write_bytes(b"not weights")
    target, draft = ({"model": str(directory), "dtype": "float32"} for directory in copies)
    edit(plan_file, target=target, draft=draft)
    running = workers(os.getpid())
    sentence = fails("run", "--plan", plan_file, "--policy", "serial_chain", "--prompt", "x")
    assert str(copies[1] / "model.safetensors") in sentence
    assert gone_within(sorted(set(workers(os.getpid())) - set(running)), 5.0)


def test_unsupported_architecture(fails: Fails, copies: Models, tmp_path: Path) -> None:
    edit(copies[0] / "config.json", model_type="gpt2")
    assert "model_type is 'gpt2'" in fails("profile", *pair(copies), "--out", tmp_path / "profile.json")


@pytest.mark.parametrize("verb", ["profile", "trace", "plan"])
def test_different_vocabularies(fails: Fails, copies: Models, plan_file: Path, prompt_file: Path, verb: str) -> None:
    write_byte_tokenizer(copies[1])
    folder = plan_file.parent
    more: dict[str, list[object]] = {
        "profile": [],
        "trace": ["--prompts", prompt_file],
        "plan": ["--profile", folder / "profile.json", "--trace", folder / "trace.npz", "--devices", 2],
    }
    sentence = fails(verb, *pair(copies), *more[verb], "--out", folder / "out")
    assert "have different vocabularies" in sentence
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no prompts"),
        ('{"prompt": "a"}\n{"prompt": ""}', "line 2: prompt is empty"),
        ('{"prompt": "a"}\n{"prompt": "b"}\n{oops}', "line 3: not a JSON document"),
    ],
)
@pytest.mark.parametrize("verb", ["trace", "run", "validate"])
def test_bad_prompts_file(
    fails: Fails, models: Models, plan_file: Path, prompt_file: Path, verb: str, content: str, complaint: str
) -> None:
    prompt_file.write_text(content)
    out = plan_file.parent / "out"
    arguments = [*pair(models), "--out", out] if verb == "trace" else ["--plan", plan_file, "--json", out]
    sentence = fails(verb, *arguments, "--prompts", prompt_file)
    assert sentence.startswith(str(prompt_file))
    assert complaint in sentence
    assert not out.exists()


def test_empty_prompt(fails: Fails, plan_file: Path) -> None:
    assert fails("run", "--plan", plan_file, "--prompt", "") == "--prompt is empty; expected some text"


@pytest.mark.parametrize("given", [[], ["--prompt", "a", "--prompts", "f"]])
def test_run_wants_one_source_of_prompts(fails: Fails, plan_file: Path, given: list[str]) -> None:
    assert fails("run", "--plan", plan_file, *given) == "expected either --prompt or --prompts"


@pytest.mark.parametrize("verb", ["run", "validate"])
def test_prompt_longer_than_the_context_names_both_numbers(
    fails: Fails, plan_file: Path, prompt_file: Path, verb: str
) -> None:
    prompt_file.write_text(json.dumps({"id": "long", "prompt": "x" * 300}))
    sentence = fails(verb, "--plan", plan_file, "--prompts", prompt_file)
    assert sentence.startswith("prompt long has 300 tokens; with 24 output tokens and ")
    assert "more than the 256 positions of" in sentence


def test_traced_prompt_longer_than_the_context(fails: Fails, models: Models, prompt_file: Path, tmp_path: Path) -> None:
    prompt_file.write_text(json.dumps({"prompt": "x" * 300}))
    sentence = fails("trace", *pair(models), "--prompts", prompt_file, "--dtype", "fp32", "--out", tmp_path / "t.npz")
    assert "300" in sentence
    assert "256" in sentence
    assert not (tmp_path / "t.npz").exists()


@pytest.mark.parametrize("verb", ["run", "validate", "simulate"])
def test_plan_of_another_schema_version(fails: Fails, plan_file: Path, prompt_file: Path, verb: str) -> None:
    edit(plan_file, version=99)
    more = [] if verb == "simulate" else ["--prompts", prompt_file]
    sentence = fails(verb, "--plan", plan_file, *more)
    assert sentence == f"{plan_file}: version of swiftspec.plan is 99; this swiftspec reads version 1"


def test_profile_is_not_a_plan(fails: Fails, plan_file: Path) -> None:
    sentence = fails("simulate", "--plan", plan_file.parent / "profile.json")
    assert "schema is 'swiftspec.profile'; expected 'swiftspec.plan'" in sentence


@pytest.mark.parametrize("verb", ["run", "validate"])
def test_plan_for_more_devices_than_there_are(fails: Fails, plan_file: Path, prompt_file: Path, verb: str) -> None:
    chosen = json.loads(plan_file.read_text())["chosen"]
    edit(plan_file, num_devices=4096, chosen=chosen | {"groups": {"target": [0], "draft": [4095]}})
    sentence = fails(verb, "--plan", plan_file, "--prompts", prompt_file)
    available = len(os.sched_getaffinity(0))
    assert sentence.startswith(f"{plan_file}: swiftspec 1+1 (verify_rows=4, expand_rows=2) needs 4096 devices in 2 ")
    assert sentence.endswith(f"this machine offers {available}")


def test_disaggregated_plan_on_one_core(fails: Fails, plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    sentence = fails("run", "--plan", plan_file, "--prompt", "x")
    assert sentence.endswith("needs 2 devices in 2 disjoint groups; this machine offers 1")


def test_disaggregated_policy_for_one_device(fails: Fails, models: Models, plan_file: Path) -> None:
    folder = plan_file.parent
    files = ["--profile", folder / "profile.json", "--trace", folder / "trace.npz", "--out", folder / "out.json"]
    sentence = fails("plan", *pair(models), *files, "--devices", 1, "--policy", "swiftspec")
    assert "--policy is swiftspec, which is disaggregated" in sentence
    assert "its roles need 2 devices, not 1" in sentence


def test_nan_in_a_profile(fails: Fails, models: Models, plan_file: Path) -> None:
    path = plan_file.parent / "profile.json"
    content = json.loads(path.read_text())
    content["steps"][3]["quantiles_s"][0] = float("nan")
    path.write_text(json.dumps(content))
    files = ["--profile", path, "--trace", path.parent / "trace.npz", "--out", path.parent / "out.json"]
    sentence = fails("plan", *pair(models), *files, "--devices", 2)
    assert sentence.startswith(f"{path}: steps[3].quantiles_s[0] is nan; ")


def test_broken_trace(fails: Fails, models: Models, plan_file: Path) -> None:
    path = plan_file.parent / "trace.npz"
    path.write_bytes(path.read_bytes()[:100])
    files = ["--profile", path.parent / "profile.json", "--trace", path, "--out", path.parent / "out.json"]
    assert fails("plan", *pair(models), *files, "--devices", 2).startswith(f"{path}: not an acceptance trace")


@pytest.mark.parametrize(
    ("verb", "option"),
    [
        ("profile", "--out"),
        ("profile", "--json"),
        ("trace", "--out"),
        ("trace", "--json"),
        ("plan", "--out"),
        ("plan", "--json"),
        ("simulate", "--timeline"),
        ("simulate", "--json"),
        ("run", "--timeline"),
        ("run", "--json"),
        ("validate", "--json"),
        ("demo", "--json"),
    ],
)
@pytest.mark.parametrize("kind", ["missing folder", "directory", "below a file"])
def test_unwritable_output_path(fails: Fails, tmp_path: Path, verb: str, option: str, kind: str) -> None:
    """Found before anything else is looked at: every other path here is wrong, too."""
    (tmp_path / "file").write_text("kept")
    paths = {"missing folder": "none/out.png", "directory": ".", "below a file": "file/out.png"}
    unwritable = tmp_path / paths[kind]
    wrong = {"--target": "/nowhere", "--draft": "/nowhere", "--plan": "/nowhere"}
    wanted: dict[str, dict[str, object]] = {
        "profile": {"--target": "t", "--draft": "t", "--out": tmp_path / "out"},
        "trace": {"--target": "t", "--draft": "t", "--prompts": "f", "--out": tmp_path / "out"},
        "plan": {"--target": "t", "--draft": "t", "--profile": "p", "--trace": "t", "--devices": 2,
                 "--out": tmp_path / "out"},
        "simulate": {"--plan": "p"},
        "run": {"--plan": "p", "--prompt": "x"},
        "validate": {"--plan": "p", "--prompts": "f"},
        "demo": {"--dir": tmp_path / "demo"},
    }  # fmt: skip  # a verb and its options, a line each
    options = {name: wrong.get(name, value) for name, value in wanted[verb].items()} | {option: unwritable}
    sentence = fails(verb, *[part for item in options.items() for part in item])
    assert sentence.startswith(f"{option} is {unwritable}")
    assert files_in(tmp_path) in (["file"], ["demo", "file"])
    assert (tmp_path / "file").read_text() == "kept"


def test_demo_folder_that_is_a_file(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    assert fails("demo", "--dir", tmp_path / "file").startswith(f"--dir is {tmp_path / 'file'}")


def test_figure_of_an_unknown_kind(fails: Fails, plan_file: Path) -> None:
    sentence = fails("simulate", "--plan", plan_file, "--plot", plan_file.parent / "figure.txt")
    assert sentence.endswith("figure.txt; expected a name ending in .png, .svg, .pdf")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "cuda"], "--device is 'cuda', but torch finds no GPU here"),
        (["--device", "tpu"], "--device is 'tpu'; expected cpu or cuda"),
        (["--devices", "4096"], "--devices is 4096; this machine offers "),
        (["--dtype", "int4"], "--dtype is 'int4'; expected auto or one of float32, fp32, bfloat16, bf16, int8, on cpu"),
        (["--dtype", "fp32,int3"], "--dtype is 'int3'; expected auto or one of float32, fp32, bfloat16, bf16, int8"),
        (["--inflate", "depth=3"], "inflation: 'depth=3' is not KEY=NUMBER"),
        (["--inflate", "layers=1"], "inflation: layers is 1; expected at least the model's own 2"),
    ],
)
def test_profile_option_that_cannot_be(
    fails: Fails, models: Models, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    assert fails("profile", *pair(models), *arguments, "--out", tmp_path / "out").startswith(sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--temperature", "-1"], "temperature is -1.0; "),
        (["--top-p", "2"], "top_p is 2.0; "),
        (["--top-k", "-1"], "top_k is -1; "),
        (["--policy", "serial_tree"], "--policy is 'serial_tree'; the plan has swiftspec, serial_chain, "),
    ],
)
def test_run_option_that_cannot_be(fails: Fails, plan_file: Path, arguments: list[str], sentence: str) -> None:
    assert fails("run", "--plan", plan_file, "--prompt", "x", *arguments).startswith(sentence)


def test_unknown_policy_to_validate(fails: Fails, plan_file: Path, prompt_file: Path) -> None:
    sentence = fails("validate", "--plan", plan_file, "--prompts", prompt_file, "--policies", "swiftspec,none")
    assert sentence.startswith("--policies is 'none'; the plan has swiftspec, serial_chain, ")


def test_a_composed_profile_says_that_it_is_of_another_machine(fails: Fails, models: Models, plan_file: Path) -> None:
    """And not that --dtype, which was not given, is wrong."""
    profile = plan_file.parent / "profile.json"
    edit(profile, device="h100-sxm")
    files = ["--profile", profile, "--trace", plan_file.parent / "trace.npz", "--out", plan_file.parent / "new.json"]
    sentence = fails("plan", *pair(models), *files, "--devices", 2)
    assert sentence == (
        f"{profile}: a profile of h100-sxm, which this machine is not; plan for it with --device h100-sxm, "
        "without --profile"
    )


def test_a_plan_for_this_machine_has_one_draft_or_that_of_its_profile(
    fails: Fails, models: Models, plan_file: Path
) -> None:
    folder = plan_file.parent
    files = ["--profile", folder / "profile.json", "--trace", folder / "trace.npz", "--devices", 2]
    target = ["--target", models[0], *files, "--out", folder / "new.json"]
    twice = fails("plan", *target, "--draft", models[1], "--draft", models[1])
    assert twice == "--draft is given 2 times; several need --device, since a profile holds one pair"
    assert fails("plan", *target).startswith("--draft is missing; only --policy autoregressive, --policy ")
    assert fails("plan", *target, "--policy", "serial_chain").startswith("--draft is missing; ")
    given = fails("plan", *target, "--draft", models[1], "--acceptance", "0.7")
    assert given == "--acceptance is 0.7; it needs --device; without that, acceptance comes from --trace"
    assert main(["plan", *map(str, target), "--policy", "autoregressive", "--jobs", "1"]) == 0
    assert Plan.load(folder / "new.json").draft.model == str(models[1])


def test_unknown_policy_to_plan(fails: Fails, models: Models, plan_file: Path) -> None:
    folder = plan_file.parent
    files = ["--profile", folder / "profile.json", "--trace", folder / "trace.npz", "--out", folder / "out.json"]
    sentence = fails("plan", *pair(models), *files, "--devices", 2, "--policy", "none")
    assert sentence.startswith("--policy is 'none'; expected one of auto, all, autoregressive, ")


def test_profile_of_another_inflation(fails: Fails, models: Models, plan_file: Path) -> None:
    folder = plan_file.parent
    files = ["--profile", folder / "profile.json", "--trace", folder / "trace.npz", "--out", folder / "out.json"]
    sentence = fails("plan", *pair(models), "--inflate", "layers=4", *files, "--devices", 2)
    assert sentence.startswith(f"{folder / 'profile.json'}: target is {models[0]} in float32; expected {models[0]} ")


def test_trace_of_another_draft(fails: Fails, models: Models, plan_file: Path) -> None:
    folder = plan_file.parent
    files = ["--profile", folder / "profile.json", "--trace", folder / "trace.npz", "--out", folder / "out.json"]
    target, other = (ModelRef(model=name, dtype="float32") for name in (str(models[0]), "other"))
    samples.trace(target=target, draft=other).save(folder / "trace.npz")
    sentence = fails("plan", *pair(models), *files, "--devices", 2)
    assert sentence == f"{folder / 'trace.npz'}: draft is other; --draft is {models[1]}"


@pytest.mark.parametrize("name", ["profile.json", "trace.npz"])
def test_basis_that_changed_or_is_gone(fails: Fails, plan_file: Path, name: str) -> None:
    basis = plan_file.parent / name
    basis.write_bytes(basis.read_bytes() + b" ")
    assert fails("simulate", "--plan", plan_file).startswith(f"{basis}: SHA-256 is ")
    basis.unlink()
    assert fails("simulate", "--plan", plan_file).startswith(f"{basis}: cannot be read (No such file or directory)")


def test_inflated_model_never_replaces_a_directory(fails: Fails, models: Models, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    expanded = ["--inflate", "layers=4", "--save-inflated", tmp_path]
    sentence = fails("profile", *pair(models), *expanded, "--out", tmp_path / "p.json")
    assert sentence.startswith(str(tmp_path))
    assert files_in(tmp_path) == ["kept"]
