"""`swiftspec advise` on files and on a server."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from swiftspec.artifacts.advice import Advice, Outcome
from swiftspec.cli.app import main
from tests.advise.servers import SimulatedServer, served_profile, text
from tests.builders import constant_profile
from tests.loadtest.hostile import answer, hostile, says

Fails = Callable[..., str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Options for two readings of a server with a bad length, and their folder."""
    folder = tmp_path_factory.mktemp("server")
    before, after, seconds = SimulatedServer(length=8, count=100).readings()
    (folder / "before.txt").write_text(before)
    (folder / "after.txt").write_text(after)
    served_profile().save(folder / "profile.json")
    options = ["--before", str(folder / "before.txt"), "--after", str(folder / "after.txt"), "--seconds", str(seconds)]
    return options, folder


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    def run(*arguments: str) -> str:
        assert main(["advise", *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    return run


def test_advice_is_printed_saved_and_drawn(
    files: tuple[list[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, folder = files
    page, saved = tmp_path / "advice.html", tmp_path / "advice.json"
    written = ["--profile", str(folder / "profile.json"), "--report", str(page), "--json", str(saved)]
    assert main(["advise", *options, *written]) == 0
    said = capsys.readouterr().out
    found = Advice.load(saved)
    assert found.outcome is Outcome.CHANGE
    assert found.best is not None
    assert said.startswith(f"Draft {found.best.value} token")
    assert found.best.setting in said
    assert "Drafts accepted up to each token" in said
    root = ElementTree.fromstring(page.read_text().removeprefix("<!DOCTYPE html>\n"))
    heading = root.find("body/main/header/h1")
    assert heading is not None
    title = "".join(heading.itertext())
    assert title.startswith(f"Draft {found.best.value} token")
    assert len(root.findall(".//circle")) == len(found.lengths)


@pytest.mark.parametrize("length", [0, 4])
def test_a_device_by_name_stands_for_a_profile(length: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after, seconds = SimulatedServer(length=length, count=60).readings()
    (tmp_path / "before.txt").write_text(before)
    (tmp_path / "after.txt").write_text(after)
    files = ["--before", str(tmp_path / "before.txt"), "--after", str(tmp_path / "after.txt")]
    device = ["--device", "h100", "--target", "llama-3.1-8b", "--dtype", "fp8", "--engine", "vllm@0.15"]
    draft = ["--draft", "eagle3"] if length else []
    saved = tmp_path / "advice.json"
    assert main(["advise", *files, "--seconds", str(seconds), *device, *draft, "--json", str(saved)]) == 0
    assert "of this server?" in capsys.readouterr().out, "an H100 is no CPU"
    found = json.loads(saved.read_text())
    assert found["fit"]["source"].startswith("composed")
    assert len(found["lengths"]) == (9 if length else 1)


def test_flags_that_do_not_go_together_are_refused(files: tuple[list[str], Path], fails: Fails) -> None:
    options, folder = files
    profile = ["--profile", str(folder / "profile.json")]
    assert "--profile is missing" in fails(*options)
    assert "--url is missing" in fails(*profile)
    assert "--seconds is missing" in fails(*options[:4], *profile)
    assert "--device is h100; --profile says" in fails(*options, *profile, "--device", "h100")
    assert "--target is x; it needs --device" in fails(*options, *profile, "--target", "x")
    assert "--url is http://x; expected either" in fails(*options, *profile, "--url", "http://x")
    assert "--set x is unknown" in fails(*options, *profile, "--set", "x=1")


def test_files_of_something_else_are_refused(files: tuple[list[str], Path], fails: Fails, tmp_path: Path) -> None:
    (before, first, after, second, *rest), folder = files
    profile = ["--profile", str(folder / "profile.json")]
    assert "fewer than --before has" in fails(before, second, after, first, *rest, *profile)
    assert "no request has ended" in fails(before, first, after, first, *rest, *profile)
    other = tmp_path / "sglang.txt"
    counted = {"e2e_request_latency_seconds_count": 90, "e2e_request_latency_seconds_sum": 90.0}
    other.write_text(text({**counted, "generation_tokens_total": 900, "num_requests_total": 90}, (), prefix="sglang"))
    zero = tmp_path / "zero.txt"
    zero.write_text(text({}, (), prefix="sglang"))
    said = fails(before, str(zero), after, str(other), *rest, *profile)
    assert "--profile is of vLLM; the metrics are those of sglang" in said
    constant_profile(expand_s=0.01, verify_s=0.1).save(tmp_path / "local.json")
    said = fails(before, first, after, second, *rest, "--profile", str(tmp_path / "local.json"))
    assert "it is of no server" in said


def test_a_server_without_metrics_is_refused(files: tuple[list[str], Path], fails: Fails) -> None:
    profile = ["--profile", str(files[1] / "profile.json")]
    with hostile({"/metrics": says(answer(b"process_open_fds 34.0\n"))}) as server:
        assert "no metric of a server that is known here" in fails("--url", server.url, "--seconds", "0.1", *profile)
    with hostile({"/metrics": says(answer(b"", status="404 Not Found"))}) as server:
        assert "/metrics answers 404" in fails("--url", server.url, "--seconds", "0.1", *profile)


def test_a_server_that_does_nothing_is_told_from_one_under_load(files: tuple[list[str], Path], fails: Fails) -> None:
    idle = text({"generation_tokens_total": 5.0}, ()).encode()
    with hostile({"/metrics": says(answer(idle))}) as server:
        said = fails("--url", server.url, "--seconds", "0.1", "--profile", str(files[1] / "profile.json"))
    assert "no request has ended meanwhile" in said
