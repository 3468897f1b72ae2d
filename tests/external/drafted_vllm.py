"""vLLM and a draft server on one machine, as the checks of both start them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from swiftspec.cli import console
from swiftspec.export.command import Command
from swiftspec.external.engine import EngineHere
from swiftspec.external.server import RunningServer

ROOT = Path(__file__).parents[2]
NUM_DRAFT_TOKENS = 5


@dataclass(frozen=True, kw_only=True)
class Setting:
    """vLLM and a draft server on one machine.

    plain: vLLM's command without a draft. port, secrets: of an address that others could reach, and the files of the
    draft server and of vLLM.
    """

    here: EngineHere
    plain: Command
    target: Path
    draft: Path
    folder: Path
    port: int = 0
    secrets: tuple[Path, Path] | None = None

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}" if self.port else f"ipc://{self.folder / 'draft.socket'}"

    @contextmanager
    def vllm(
        self, name: str, *, limit_ms: float | None = None, drafter: str = "swiftspec.drafter.Drafter"
    ) -> Iterator[RunningServer]:
        """vLLM that drafts with whoever is at the address."""
        ours: dict[str, object] = {"address": self.address} | ({} if limit_ms is None else {"limit_ms": limit_ms})
        if self.secrets is not None:
            ours["secret_file"] = str(self.secrets[1])
        method = {
            "method": "custom_class",
            "model": drafter,
            "num_speculative_tokens": NUM_DRAFT_TOKENS,
        }
        words = ("--speculative-config", json.dumps(method), "--additional-config", json.dumps({"swiftspec": ours}))
        written = replace(self.plain, arguments=(*self.plain.arguments, *words))
        with self._started(written, name) as server:
            yield server

    def vllm_law(self) -> AbstractContextManager[RunningServer]:
        """The same, for samples: with vLLM's sampler mended."""
        return self.vllm("law", drafter="tests.external.mended_vllm.Drafter")

    @contextmanager
    def vllm_alone(self, command: Command | None = None, *, cores: str = "0") -> Iterator[RunningServer]:
        """vLLM by itself, plain or by a command of its own."""
        with self._started(command or self.plain, "alone", cores=cores) as server:
            yield server

    @contextmanager
    def _started(self, written: Command, name: str, *, cores: str = "0") -> Iterator[RunningServer]:
        environment = {"VLLM_CPU_OMP_THREADS_BIND": cores, "PYTHONPATH": str(ROOT)}
        written = replace(written, environment={**written.environment, **environment})
        log = self.folder / f"drafter-{name}.log"
        target, stage = str(self.target), f"vLLM, {name}"
        with self.here.server(written, target=target, log=log, stage=stage, stages=console.progress) as server:
            yield server

    @contextmanager
    def draft_server(self, policy: str = "swiftspec_chain", *, shape: str = "") -> Iterator[subprocess.Popen[bytes]]:
        """A draft server that is ready; its figures are written when it ends."""
        words = [sys.executable, "-m", "swiftspec", "serve", "--role", "draft", "--draft", str(self.draft)]
        usual = "lookahead=1,verify_rows=6" if policy == "amusd" else f"num_draft_tokens={NUM_DRAFT_TOKENS}"
        shape = shape or usual
        words += ["--policy", policy, "--address", self.address, "--set", f"{shape},max_context=1024"]
        words += ["--json", str(self.folder / f"draft-{policy}.json")]
        if self.secrets is not None:
            words += ["--secret", str(self.secrets[0])]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
            assert server.stdout is not None
            for line in server.stdout:
                if line.startswith(b"Drafting at"):
                    break
            threading.Thread(target=server.stdout.read, daemon=True).start()
            try:
                yield server
            finally:
                server.send_signal(signal.SIGCONT)
                server.terminate()
                with suppress(subprocess.TimeoutExpired):
                    server.wait(20)
                server.kill()
