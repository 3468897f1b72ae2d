"""The pytest plugin, as a user's pytest runs it: found by its entry point, on a plan of a tiny pair."""

import json
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree

import pytest

from swiftspec.artifacts.report import Report
from tests.pytest_plugin.conftest import ROOT, TEXTS

POLICIES = ("swiftspec", "serial_chain", "autoregressive")
REPEATS = 2
OPTIONS = ("plan", "prompts", "profile", "trace", "policies", "repeats", "limit", "max-new-tokens", "json")


def options(files: Path, *more: object) -> list[str]:
    given = ["--swiftspec-plan", files / "plan.json", "--swiftspec-prompts", files / "prompts.jsonl", *more]
    return [str(argument) for argument in given]


def quick(files: Path, *more: object) -> list[str]:
    """Options for a measurement of a second or two."""
    return options(files, "--swiftspec-repeats", REPEATS, "--swiftspec-max-new-tokens", 8, *more)


def example() -> str:
    """The suite that the page shows."""
    page = (ROOT / "docs/validation.md").read_text(encoding="utf-8")
    code: list[str] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(code) == 1
    return code[0]


def verdicts(junit: Path) -> dict[str, bool]:
    """Test -> whether it passed; a bound failed where it did not, and nothing else."""
    failures = {case.get("name", ""): case.find("failure") for case in ElementTree.parse(junit).iter("testcase")}
    messages = [failure.get("message", "") for failure in failures.values() if failure is not None]
    assert [message for message in messages if not message.startswith(("AssertionError: assert", "assert"))] == []
    return {name: failure is None for name, failure in failures.items()}


def stored(pytester: pytest.Pytester) -> list[dict[str, Any]]:
    """Runs that pytest-benchmark has stored, the first one first."""
    return [json.loads(path.read_text()) for path in sorted(pytester.path.glob(".benchmarks/*/*.json"))]


def test_the_pages_example_bounds_what_is_stored_and_compared(suite: pytest.Pytester, files: Path) -> None:
    """One test, since each measurement takes seconds: a first run is stored, a second one compared with it."""
    suite.makepyfile(test_plan=example())
    report_path, junit = suite.path / "report.json", suite.path / "junit.xml"
    kept = ["--benchmark-autosave", "--benchmark-save-data", f"--junitxml={junit}"]
    first = suite.runpytest_inprocess(*quick(files, "--swiftspec-json", report_path, *kept))
    report = Report.load(report_path)
    (saved,) = stored(suite)
    rows = {row["extra_info"]["policy"]: row for row in saved["benchmarks"]}

    # Bounds are ordinary assertions: each verdict is what the measured figures say, and rows of failed tests are kept.
    assert {policy.policy for policy in report.policies} == set(POLICIES) == set(rows)
    expected = {"test_choice_is_right": report.regret <= 0.10}
    for policy in report.policies:
        expected[f"test_prediction_holds[{policy.policy}]"] = abs(policy.error.tokens_per_s) <= 0.15
        expected[f"test_output_is_that_of_the_target[{policy.policy}]"] = policy.identical_output
    assert verdicts(junit) == expected
    assert not expected["test_prediction_holds[swiftspec]"]
    assert expected["test_output_is_that_of_the_target[swiftspec]"]

    # A row holds the measured requests themselves.
    for policy in report.policies:
        row = rows[policy.policy]
        measured = [seconds for repeat in policy.seconds_per_token for seconds in repeat]
        assert len(measured) == REPEATS * len(TEXTS)
        assert row["stats"]["data"] == measured
        assert row["options"]["timer"] == "validation_clock"
        assert row["group"] == "seconds per token"
        info = row["extra_info"]
        assert info["predicted_tokens_per_s"] == policy.predicted.tokens_per_s
        assert info["measured_tokens_per_s"] == policy.measured.tokens_per_s
        assert (info["error"], info["retimed_error"]) == (policy.error.tokens_per_s, policy.retimed_error)
        assert info["retimed_error"] is not None
        assert (info["regret"], info["rank_correlation"]) == (report.regret, report.rank_correlation)
        assert info["provenance"] == {"measured": 0.93, "interpolated": 0.07}
        assert (info["device"], info["versions"]) == (report.origin.device, report.origin.versions)
    first.stdout.fnmatch_lines(["swiftspec: validate, * steps", "*predicted and measured tokens/s*", "*Regret*"])

    compared = ["--benchmark-autosave", "--benchmark-compare=0001", "--benchmark-sort=fullname"]
    second = suite.runpytest_inprocess(*quick(files, "--swiftspec-policies", "swiftspec", *compared))
    assert second.ret == pytest.ExitCode.TESTS_FAILED
    shown = [line for line in second.outlines if line.startswith("test_prediction_holds[swiftspec] (")]
    assert {line.split("(")[1][:3] for line in shown} == {"NOW", "000"}
    assert [row["extra_info"]["policy"] for row in stored(suite)[1]["benchmarks"]] == ["swiftspec"]


def test_without_rows_a_suite_passes_on_a_plan_that_was_torn_apart(
    suite: pytest.Pytester, files: Path, tmp_path: Path
) -> None:
    for name in ("plan.json", "prompts.jsonl", "trace.npz"):
        shutil.copy(files / name, tmp_path)
    profile = shutil.copy(files / "profile.json", tmp_path / "moved.json")
    suite.makepyfile(
        """
        def test_bound(swiftspec_policy, swiftspec_plan, swiftspec_report):
            assert swiftspec_policy.error.tokens_per_s < 1e9
            assert swiftspec_policy in swiftspec_report.policies
            assert swiftspec_plan.plan.chosen.policy == swiftspec_report.chosen == "swiftspec"
            assert swiftspec_report.num_prompts == 1
        """
    )
    moved = ("--swiftspec-profile", profile, "--swiftspec-policies", "serial_chain", "--swiftspec-limit", 1)
    result = suite.runpytest_inprocess("-p", "no:benchmark", *quick(tmp_path, *moved, "--swiftspec-repeats", 1))
    result.assert_outcomes(passed=2)


def test_a_row_needs_pytest_benchmark(suite: pytest.Pytester, files: Path) -> None:
    suite.makepyfile("def test_row(swiftspec_policy, benchmark): ...")
    result = suite.runpytest_inprocess("-p", "no:benchmark", *options(files))
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["the benchmark fixture is missing; it comes with pytest-benchmark"])


def test_fixtures_without_a_plan_fail_and_other_tests_do_not(suite: pytest.Pytester) -> None:
    asked = ("swiftspec_plan", "swiftspec_policy", "swiftspec_report", "swiftspec_policy, benchmark")
    tests = [f"def test_{number}({fixtures}): ..." for number, fixtures in enumerate(asked)]
    suite.makepyfile("\n".join([*tests, "def test_other(): ..."]))
    result = suite.runpytest_inprocess()
    result.assert_outcomes(errors=len(asked), passed=1)
    sentence = "--swiftspec-plan is missing; the swiftspec fixtures need it, and --swiftspec-prompts"
    assert result.outlines.count(sentence) == len(asked)


MISTAKES = {
    "no plan": (["--swiftspec-prompts", "{prompts}"], "--swiftspec-prompts is given without --swiftspec-plan; *"),
    "no prompts": (["--swiftspec-plan", "{plan}"], "--swiftspec-plan is given without --swiftspec-prompts; *"),
    "plan gone": (
        ["--swiftspec-plan", "gone.json", "--swiftspec-prompts", "{prompts}"],
        "--swiftspec-plan: gone.json: *",
    ),
    "not a plan": (
        ["--swiftspec-plan", "{profile}", "--swiftspec-prompts", "{prompts}"],
        "--swiftspec-plan: *profile.json: schema is 'swiftspec.profile'; expected 'swiftspec.plan'",
    ),
    "prompts gone": (
        ["--swiftspec-plan", "{plan}", "--swiftspec-prompts", "gone.jsonl"],
        "--swiftspec-prompts: gone.jsonl: *",
    ),
    "another trace": (
        ["--swiftspec-trace", "{prompts}"],
        "--swiftspec-plan: *prompts.jsonl: SHA-256 is *; *plan.json was computed from a file with *",
    ),
    "unknown policy": (
        ["--swiftspec-policies", "medusa"],
        "--swiftspec-policies: policies is 'medusa'; the plan has swiftspec, serial_chain, autoregressive",
    ),
    "no repetition": (["--swiftspec-repeats", "0"], "*--swiftspec-repeats: '0'; expected a whole number from 1 on"),
    "report over the plan": (["--swiftspec-json", "{plan}"], "--swiftspec-json: *plan.json is read as an input; *"),
    "report nowhere": (
        ["--swiftspec-json", "no/x.json"],
        "--swiftspec-json: no/x.json cannot be written *",
    ),
    "beside each other": (["-n", "2"], "--swiftspec-plan measures latencies, * expected pytest without -n"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_options_is_one_sentence(suite: pytest.Pytester, files: Path, mistake: str) -> None:
    suite.makepyfile("def test_nothing(): ...")
    arguments, sentence = MISTAKES[mistake]
    paths = {path.stem: str(path) for path in files.iterdir() if path.is_file()}
    given = [argument.format(**paths) for argument in arguments]
    is_whole = {"--swiftspec-plan", "--swiftspec-prompts"} & set(given)
    result = suite.runpytest_inprocess(*(given if is_whole else options(files, *given)))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = [line for line in result.errlines if "--swiftspec" in line and not line.startswith(("usage", " "))]
    (line,) = said
    assert fnmatch(line.removeprefix("ERROR: "), sentence), line
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


def test_what_cannot_be_measured_here_fails_in_one_sentence(
    suite: pytest.Pytester, files: Path, tmp_path: Path
) -> None:
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "x" * 400}))
    suite.makepyfile("def test_suite(swiftspec_report): ...")
    result = suite.runpytest_inprocess(*options(files, "--swiftspec-prompts", tmp_path / "long.jsonl"))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["--swiftspec-plan is *plan.json, which could not be measured: prompt 1 has *"])


def test_options_stand_in_one_group_of_the_help(suite: pytest.Pytester) -> None:
    text = suite.runpytest_inprocess("--help").stdout.str()
    group = text.partition("swiftspec: check the predictions of a plan on this machine:")[2].partition("\n\n")[0]
    named = re.findall(r"--swiftspec-[a-z-]+", group)
    assert {f"--swiftspec-{name}" for name in OPTIONS} <= set(named) == set(re.findall(r"--swiftspec-[a-z-]+", text))


def test_the_plugin_loads_nothing_until_it_is_used() -> None:
    code = """
        import sys, pytest
        before = set(sys.modules)
        import swiftspec.pytest_plugin.plugin
        loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names
        assert loaded == {"swiftspec"}, loaded
        assert "swiftspec.api" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", dedent(code)], check=True)
