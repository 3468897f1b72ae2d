"""Engine processes whose forwards take given times, so that more of them than cores can be measured.

Each forward is computed, and its answer kept until the time is over; so a process with 20 ms of pace and 2 ms of work
leaves its core to others, as one with an accelerator does. `PacedExecutor` starts them.

    python -m tools.paced_worker DESCRIPTOR TARGET_S DRAFT_S    (as the executor calls it)
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from swiftspec.devices.local import Device, num_devices_here
from swiftspec.engine.process.pipes import pipe
from swiftspec.engine.process.placement import LocalExecutor
from swiftspec.engine.process.protocol import Setup
from swiftspec.engine.process.worker_handle import LocalWorker, Worker
from swiftspec.policies.effects import Role

_MOST_DEVICES = 64
_SPINNING_S = 2e-4
_ROOT = Path(__file__).resolve().parents[1]


class PacedExecutor(LocalExecutor):
    """This machine with as many devices as wanted, which share its cores. folder: of sockets.

    pace_s: seconds of every forward, by role.
    """

    def __init__(self, folder: Path, pace_s: Mapping[Role, float]) -> None:
        self._folder, self._pace_s = folder, pace_s

    def num_devices(self, _device: Device) -> int:
        return _MOST_DEVICES

    def start(self, setup: Setup) -> Worker:
        cores = num_devices_here(setup.device)
        placed = tuple(device % cores for device in setup.devices)
        ours, theirs = pipe()
        with theirs:
            paces = [str(self._pace_s[role]) for role in Role]
            command = [sys.executable, "-m", "tools.paced_worker", str(theirs.fileno()), *paces]
            process: Any = _Started(subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=_ROOT))
        return LocalWorker(Setup(**{**_fields(setup), "devices": placed}), process, ours)


def _fields(setup: Setup) -> dict[str, Any]:
    return {name: getattr(setup, name) for name in Setup.__dataclass_fields__}


class _Started:
    """A process that was started at once, with the methods of a `ForkedProcess`."""

    refusal = ""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def attend(self) -> None:
        pass

    def exit_code(self, *, within_s: float) -> int | None:
        return self._process.returncode if self.await_end(within_s=within_s) else None

    def await_end(self, *, within_s: float) -> bool:
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        self._process.kill()


class _PacedModel:
    """A model whose forwards end no sooner than the pace says."""

    def __init__(self, model: Any, pace_s: float) -> None:
        self._model, self._pace_s = model, pace_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, batch: Any) -> Any:
        until_s = time.perf_counter() + self._pace_s
        answer = self._model.forward(batch)
        if (left_s := until_s - time.perf_counter() - _SPINNING_S) > 0:
            time.sleep(left_s)
        while time.perf_counter() < until_s:  # a sleep ends late, by as much as the system likes
            pass
        return answer


def main() -> None:
    """Serve one process of an engine."""
    from swiftspec.engine.model.models import load_models
    from swiftspec.engine.process import worker_main

    connection, *paces = sys.argv[1:]
    pace_s = dict(zip(Role, map(float, paces), strict=True))
    vars(worker_main)["load_models"] = partial(_paced, load_models, pace_s)
    worker_main.serve(Connection(int(connection)))


def _paced(load: Any, pace_s: Mapping[Role, float], *models: Any, **options: Any) -> Any:
    return {role: _PacedModel(model, pace_s[role]) for role, model in load(*models, **options).items()}


if __name__ == "__main__":
    main()
