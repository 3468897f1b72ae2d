"""Two hosts on one machine: processes in network namespaces of their own, joined by a cable; or all on loopback."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host that runs commands as on a machine with one core; `namespace` is empty on loopback."""

    address: str
    core: int
    namespace: str = ""

    def start(self, *arguments: object, module: str = "swiftspec") -> subprocess.Popen[str]:
        """A command of ours, its output piped."""
        within = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        command = [*within, "taskset", "-c", str(self.core), sys.executable, "-m", module, *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def unplug(self) -> None:
        """Pull the cable."""
        assert self.namespace, "loopback has none"
        _ip("-n", self.namespace, "link", "set", "cable", "down")


def on_loopback() -> tuple[Host, Host]:
    cores = sorted(os.sched_getaffinity(0))
    return Host(address="127.0.0.1", core=cores[0]), Host(address="127.0.0.1", core=cores[-1])


@contextmanager
def in_namespaces() -> Iterator[tuple[Host, Host]]:
    """Skips the test where namespaces cannot be made."""
    names = [f"swiftspec-{os.getpid()}-{end}" for end in "ab"]
    if not shutil.which("ip") or os.geteuid():
        pytest.skip("network namespaces need root and iproute2")
    try:
        for name in names:
            _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
    try:
        _ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
        hosts = [
            Host(address=f"198.51.100.{number}", core=host.core, namespace=name)
            for number, (name, host) in enumerate(zip(names, on_loopback(), strict=True), start=1)
        ]
        for host in hosts:
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                _ip("-n", host.namespace, "link", "set", device, "up")
        yield hosts[0], hosts[1]
    finally:
        for name in names:
            _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
