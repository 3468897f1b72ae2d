"""`swiftspec serve --role draft`: a process that drafts for another engine's requests until it is ended."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from swiftspec.cli.app import main
from tests.cli.conftest import write_models

pytestmark = pytest.mark.extra("engine")

PROMPTS = {"a": (5, 6, 7, 8), "b": (9, 4, 2), "c": tuple(range(3, 60))}
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))[1]


@contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The verb, once it drafts."""
    command = [sys.executable, "-m", "swiftspec", "serve", "--role", "draft", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        said = []
        for line in server.stdout:
            said.append(line)
            if line.startswith("Drafting at"):
                break
        else:
            raise AssertionError("".join(said))
        try:
            yield server
        finally:
            server.kill()


def own_text(directory: Path, prompt: Sequence[int]) -> tuple[int, ...]:
    """What a model itself says after a prompt, with the prompt."""
    from swiftspec.engine.model.runner import ModelRunner
    from swiftspec.engine.model.sampling.sampler import Sampler
    from swiftspec.files.document import ModelRef
    from swiftspec.policies import Request
    from swiftspec.policies.autoregressive import Autoregressive
    from swiftspec.policies.effects import Role
    from tools.run_alone import run_alone

    model = ModelRunner.load(ModelRef(model=str(directory), dtype="float32"), max_context=128, tree_slots=8)
    text = list(prompt)
    request = Request(prompt=tuple(prompt), max_new_tokens=NUM_TOKENS + 8)  # a draft may go on
    program = Autoregressive().programs(request)[Role.TARGET]
    run_alone(program, models={Role.TARGET: model}, sampler=Sampler(), commit=text.extend)
    return tuple(text)


def test_it_drafts_for_several_requests_until_it_is_asked_to_end(draft: Path, tmp_path: Path) -> None:
    from swiftspec.models.spec import ModelSpec
    from tests.drafter.stepped_engine import SteppedEngine, meet, session

    address, figures = f"ipc://{tmp_path / 'draft'}", tmp_path / "figures.json"
    texts = {name: own_text(draft, prompt) for name, prompt in PROMPTS.items()}
    vocab_size = ModelSpec.from_directory(draft).vocab_size

    def target(text: Sequence[int]) -> int:
        return next(whole[len(text)] for whole in texts.values() if whole[: len(text)] == tuple(text))

    words = ["--draft", str(draft), "--address", address, "--set", "num_draft_tokens=4,max_context=128"]
    with serving(*words, "--json", str(figures)) as server, session(address, vocab_size=vocab_size) as drafts:
        meet(drafts)
        engine = SteppedEngine(drafts, target=target)
        for name, prompt in PROMPTS.items():
            engine.join(name, prompt, NUM_TOKENS)
        engine.run()
        drafts.propose([])
        assert engine.outputs == {name: texts[name][: len(prompt) + NUM_TOKENS] for name, prompt in PROMPTS.items()}
        assert engine.accepted > 0.3 * len(PROMPTS) * NUM_TOKENS, "the draft is right about its own text"
        server.send_signal(signal.SIGTERM)
        assert server.stdout is not None
        said = server.stdout.read()
        server.wait(20)
    found = json.loads(figures.read_text())
    assert found["policy"] == "swiftspec_chain"
    assert found["requests"] == len(PROMPTS)
    assert found["rounds"] > 10
    assert "3 requests" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Missing option '--draft'"),
        (["--draft", "demo/draft"], "Missing option '--address'"),
        (["--policy", "swiftspec"], "--policy is swiftspec; expected one that sends chains to a target: pearl, "),
        (["--policy", "magic"], "--policy is 'magic'"),
        (["--set", "depth=3"], "--set depth is unknown; expected max_running, max_context, device, dtype, num_draft"),
        (["--set", "num_draft_tokens=two"], "--set num_draft_tokens is two; expected a number"),
        (["--set", "max_context=1000000"], "--set max_context is 1000000; the draft has"),
        (["--devices", "4000"], "--devices is 4000; this process may use"),
        (["--address", "tcp://0.0.0.0:9"], "--address is tcp://0.0.0.0:9; expected a --secret"),
        (["--address", "nowhere"], "nowhere: cannot be bound"),
        (["--plan", "plan.json"], "--plan is plan.json; expected without --role draft"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = {"--draft": "demo/draft", "--address": f"ipc://{tmp_path / 'draft'}"}
    if arguments and arguments[0] != "--draft":
        arguments = [word for option in (usual | {arguments[0]: arguments[1]}).items() for word in option]
    assert main(["serve", "--role", "draft", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error.replace("\n", " ")
    assert "Traceback" not in error
