import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import RemoteDisconnected
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import pytest

from swiftspec.external import RunningServer, ServerError
from tests.engine.processes import gone_within, is_running, until
from tests.external.fakes import PROGRAM, Fake, members


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    fake = Fake(tmp_path)
    yield fake
    if fake.pid_file.exists():
        assert members(int(fake.pid_file.read_text())) == []


def die(server: RunningServer) -> None:
    with pytest.raises(RemoteDisconnected):
        urlopen(f"{server.url}/die", timeout=30)
    until(lambda: not is_running(server.group.pid))


def test_a_server_is_there_once_it_is_ready_and_gone_afterwards(fake: Fake) -> None:
    reports: list[tuple[int, int, str]] = []
    command = fake.command(busy=2)
    with fake.started(command, progress=lambda *report: reports.append(report)) as server:
        assert urlopen(f"{server.url}/health", timeout=30).status == 200
        assert server.group.pid == int(fake.pid_file.read_text()) == os.getpgid(server.group.pid)
        server.check()
    assert "greeting: good morning" in server.log.read_text()
    assert (len(reports) >= 3, reports[0]) == (True, (0, 60, "seconds of fake's start"))
    with pytest.raises(ProcessLookupError):
        os.killpg(server.group.pid, 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(command.address)


def test_a_child_that_ignores_sigterm_is_killed(fake: Fake) -> None:
    with fake.started(fake.command(stubborn=True)) as server:
        assert len(members(server.group.pid)) == 2


def test_a_server_that_dies_says_why_and_its_child_does_not_stay(fake: Fake) -> None:
    with fake.started(fake.command(stubborn=True)) as server:
        die(server)
        for _ in range(2):
            with pytest.raises(ServerError) as error:
                server.check()
            assert str(error.value) == (
                f"fake has ended (exit code 3): RuntimeError: out of memory; its log is {fake.log}"
            )
        assert len(members(server.group.pid)) == 1


def test_a_server_that_is_killed_is_said_to_be(fake: Fake) -> None:
    with fake.started(fake.command()) as server:
        os.kill(server.group.pid, signal.SIGKILL)
        until(lambda: not is_running(server.group.pid))
        with pytest.raises(ServerError, match=r"^fake has ended \(SIGKILL\): "):
            server.check()


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo starting; echo 'ERROR: no GPU'; echo bye; echo; exit 4", "(exit code 4): ERROR: no GPU"),
        (
            "echo 'Value error: too long'; echo 'visit https://x.dev/value_error'; exit 1",
            "(exit code 1): Value error: too long",
        ),
        ("echo starting; echo '  no  GPU'; exit 4", "(exit code 4): no GPU"),
        ("exit 0", "(exit code 0): it printed nothing"),
        ("printf 'error %01000d' 0; exit 4", f"(exit code 4): error {'0' * 291}..."),
        ("kill -KILL $$", "(SIGKILL): it printed nothing"),
    ],
)
def test_a_server_that_ends_at_once_says_why(fake: Fake, script: str, complaint: str) -> None:
    said = fake.fails(fake.running("sh", "-c", script))
    assert said == f"fake ended before it was ready {complaint}; its log is {fake.log}"


def test_a_server_that_is_not_ready_in_time_is_ended(fake: Fake) -> None:
    said = fake.fails(fake.command(busy=10**9, stubborn=True), timeout_s=1.0)
    assert said == f"fake is not ready after 1 s; its log is {fake.log}"


def test_a_program_has_to_be_there(fake: Fake, tmp_path: Path) -> None:
    program = tmp_path / "serve"
    said = f"fake cannot be started: there is no program {program}"
    assert fake.fails(fake.running(str(program))) == said
    program.write_text("#!/nowhere/python\n")
    assert fake.fails(fake.running(str(program))) == said  # it is not executable
    program.chmod(0o700)
    assert f"error: {program} cannot be run (No such file or directory)" in fake.fails(fake.running(str(program)))


def test_a_port_has_to_be_free(fake: Fake) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        command = fake.running("true", port=other.getsockname()[1])
        assert fake.fails(command) == f"fake cannot be started at {command.url}: something else listens there"


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_interruption_ends_a_server(fake: Fake, stubborn: bool) -> None:
    with pytest.raises(KeyboardInterrupt), fake.started(fake.command(stubborn=stubborn)):
        raise KeyboardInterrupt


def test_an_interruption_ends_a_server_that_is_not_ready(fake: Fake) -> None:
    def interrupt(*_: object) -> None:
        if fake.pid_file.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), fake.started(fake.command(busy=10**9, stubborn=True), progress=interrupt):
        pass


def test_an_interruption_during_the_end_shortens_it_and_is_not_lost(fake: Fake) -> None:
    def interrupt(leader: int) -> None:
        until(lambda: not is_running(leader))  # it has been asked to end, and its child does not
        os.kill(os.getpid(), signal.SIGINT)

    with (
        pytest.raises(KeyboardInterrupt),
        fake.started(fake.command(stubborn=True), ends_within_s=600.0) as server,
    ):
        Thread(target=interrupt, args=[server.group.pid]).start()


@dataclass
class Program:
    """A program that has started a server."""

    process: subprocess.Popen[str]
    server: int

    def end(self) -> tuple[int, str]:
        """Exit code, and what it has printed last."""
        said, _ = self.process.communicate(timeout=60)
        return self.process.returncode, said.strip()


@pytest.fixture
def program(fake: Fake) -> Iterator[Callable[..., Program]]:
    running: list[subprocess.Popen[str]] = []

    def start(*, stubborn: bool) -> Program:
        command = fake.command(stubborn=stubborn)
        arguments = [sys.executable, "-c", PROGRAM, str(fake.log), command.url, *command.arguments]
        running.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
        assert running[-1].stdout is not None
        return Program(running[-1], int(running[-1].stdout.readline()))

    yield start
    for process in running:
        with process:
            process.kill()


def test_sigterm_to_a_command_ends_its_server(program: Callable[..., Program]) -> None:
    running = program(stubborn=False)
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == (143, "nothing is left")


def test_a_second_signal_kills_what_does_not_end(program: Callable[..., Program]) -> None:
    running = program(stubborn=True)
    running.process.send_signal(signal.SIGTERM)
    until(lambda: not is_running(running.server))  # it has been asked to end, and its child does not
    running.process.send_signal(signal.SIGINT)
    assert running.end() == (143, "nothing is left")


def test_the_server_of_a_killed_command_ends(program: Callable[..., Program]) -> None:
    running = program(stubborn=False)
    running.process.kill()
    assert gone_within([running.server], 30.0)
