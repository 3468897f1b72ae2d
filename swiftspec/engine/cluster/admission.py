"""Requests that a node accepts from node 0: processes for its own plan, within its own folder and address."""

import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from swiftspec.artifacts.document import ModelRef
from swiftspec.devices.local import TREE_SLOTS, Device
from swiftspec.engine.cluster.rendezvous import PORTS, NodeFacts
from swiftspec.engine.process.protocol import Setup
from swiftspec.engine.process.run_folder import PREFIX
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies.effects import Role

__all__ = ["Admission"]

_MOST_RANKS = 1024
_MOST_RUNNING = 1024
_MOST_ROWS, _MOST_GATHER_S = 65536, 10.0
_LONGEST_UNREPORTED_S = 1.0
_MOST_CHANNELS = 64
_CHANNEL_FILE = re.compile(r"channel-\d{1,4}")
_TP_GROUP = re.compile(r"tp-group-[a-z]{1,20}-\d{1,4}-\d{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Limits of one node.

    Parameters
    ----------
    own, first : NodeFacts
        This node and node 0.
    models : sequence of ModelRef
        Models of this node's own plan.
    device : "cpu" or "cuda"
        Kind of device in the plan.
    shares_machine : bool
        Other nodes are processes of this machine, as under torchrun: their folders are allowed, too.
    """

    own: NodeFacts
    first: NodeFacts
    models: Sequence[ModelRef]
    device: Device
    shares_machine: bool = False

    @property
    def most_workers(self) -> int:
        """Processes at a time: both roles on every device."""
        return 2 * self.own.num_devices

    def check(self, setup: Setup) -> None:
        """ValueError, naming the field, unless this node may start such a process."""
        for field, is_allowed, expected in self._rules(setup):
            if not is_allowed:
                value = repr(getattr(setup, field))
                shown = value if len(value) < 200 else f"{value[:200]}.."
                raise ValueError(f"node 0 asks for a process whose {field} is {shown}; expected {expected}")

    def _rules(self, setup: Setup) -> Iterator[tuple[str, bool, str]]:
        """Rules: a field's name, whether its value is allowed, and the allowed values."""
        devices, num_devices = setup.devices, self.own.num_devices
        most_context = self._most_context()
        yield "role", setup.role in setup.models, "one of the models' roles"
        yield "models", {*setup.models.values()} <= {*self.models}, f"of the plan, {', '.join(map(str, self.models))}"
        yield "device", setup.device == self.device, self.device
        yield "size", 1 <= setup.size <= _MOST_RANKS, f"1 to {_MOST_RANKS}"
        yield "rank", 0 <= setup.rank < setup.size, f"0 to {setup.size - 1}"
        yield "group", 0 <= setup.group < _MOST_RANKS, f"0 to {_MOST_RANKS - 1}"
        is_own = bool(devices) and len({*devices}) == len(devices) and {*devices} <= {*range(num_devices)}
        yield "devices", is_own, f"each once, of 0 to {num_devices - 1}"
        yield (
            "max_context",
            1 <= setup.max_context <= most_context,
            f"1 to {most_context}, which the plan's models know",
        )
        yield "max_running", 1 <= setup.max_running <= _MOST_RUNNING, f"1 to {_MOST_RUNNING}"
        batch = setup.batch
        most = max(batch.max_rows, batch.prefill_rows, batch.max_overtaken)
        is_bounded = most <= _MOST_ROWS and batch.gather_s <= _MOST_GATHER_S
        yield "batch", is_bounded, f"numbers up to {_MOST_ROWS}, and gather_s up to {_MOST_GATHER_S:g}"
        yield "tree_slots", 1 <= setup.tree_slots <= TREE_SLOTS[self.device], f"1 to {TREE_SLOTS[self.device]}"
        is_tp_group = self._is_tp_group(setup.tp_group) if setup.size > 1 else not setup.tp_group
        yield "tp_group", is_tp_group, f"a file of {self.own.folder}, or a port of node 0, for a TP group of several"
        reach = self._may_bind if setup.role is Role.TARGET else self._may_connect
        are_channels = len(setup.channels) <= _MOST_CHANNELS and all(map(reach, setup.channels))
        yield "channels", are_channels, f"sockets of {self.own.folder}, or ports that this node offered"
        yield "report_every_s", 0 <= setup.report_every_s <= _LONGEST_UNREPORTED_S, f"0 to {_LONGEST_UNREPORTED_S:g}"
        # Only a launcher of this machine asks for these, to measure.
        yield "silent", not setup.silent, "False"

    def _most_context(self) -> int:
        return max(ModelSpec.from_directory(model_directory(model.model)).max_position for model in self.models)

    def _is_tp_group(self, tp_group: str) -> bool:
        scheme, _, place = tp_group.partition("://")
        if scheme == "file":
            return self._is_file(place, _TP_GROUP)
        return _is_port(tp_group, self.first.address, PORTS) and bool(_TP_GROUP.fullmatch(urlsplit(tp_group).path[1:]))

    def _may_bind(self, channel: str) -> bool:
        return self._is_socket(channel) or _is_port(channel, self.own.address, self.own.ports, path="")

    def _may_connect(self, channel: str) -> bool:
        """Whether a channel may be connected; over a network to anywhere: a peer without the secret cannot answer."""
        return self._is_socket(channel) or _is_port(channel, None, PORTS, path="")

    def _is_socket(self, channel: str) -> bool:
        scheme, _, place = channel.partition("://")
        return scheme == "ipc" and self._is_file(place, _CHANNEL_FILE)

    def _is_file(self, place: str, name: re.Pattern[str]) -> bool:
        """Whether a path is that of a file with such a name, in a folder that this node may write to."""
        folder, _, file = place.rpartition("/")
        if not name.fullmatch(file):
            return False
        return folder == self.own.folder or (self.shares_machine and self._is_alike(folder))

    def _is_alike(self, folder: str) -> bool:
        """Whether a folder is like this node's own: next to it, of the same user, and closed to others."""
        own, other = Path(self.own.folder), Path(folder)
        if other.parent != own.parent or not other.name.startswith(PREFIX) or folder != str(other):
            return False
        try:
            found, mine = other.lstat(), own.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == mine.st_uid and not found.st_mode & 0o077


def _is_port(address: str, host: str | None, ports: Sequence[int], *, path: str | None = None) -> bool:
    """Whether it is `tcp://host:port`, of any host if None is given, and with that path if one is given."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return False
    is_plain = address == f"tcp://{parts.hostname}:{port}{parts.path}" and bool(parts.hostname)
    return is_plain and port in ports and host in (None, parts.hostname) and path in (None, parts.path)
