"""CPU contention: the CPU time that other processes took on the cores that this process may use."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from swiftspec.machine import cores_here

BUSY_SHARE = 0.05  # of the cores' time; an idle machine's own services take less than 1 %
# Fields of a core in /proc/stat (man 5 proc_stat) that count as work: user, nice, system, irq, softirq; then steal,
# which the hypervisor gave to other guests. Idle and waiting for a disk do not count.
_WORK, _STEAL = (0, 1, 2, 5, 6), 7
_PARENT, _TIMES = 1, slice(11, 15)  # of /proc/PID/stat after the name: parent; utime, stime, cutime, cstime


@dataclass(slots=True)
class Contention:
    """Result of `watch_contention`; complete once its block has ended."""

    others_share: float = 0.0  # of the cores' time; 0 where the system does not report it

    @property
    def is_busy(self) -> bool:
        """Whether other processes took too much for timings to be trusted."""
        return self.others_share > BUSY_SHARE


@contextmanager
def watch_contention() -> Iterator[Contention]:
    """Measure the time that other processes take on this process's cores while the block runs."""
    found, cores = Contention(), cores_here()
    began_s, before_s = time.monotonic(), others_s(cores)
    try:
        yield found
    finally:
        after_s, available_s = others_s(cores), (time.monotonic() - began_s) * len(cores)
        if before_s is not None and after_s is not None and available_s > 0:
            found.others_share = min(1.0, max(0.0, (after_s - before_s) / available_s))


def others_s(cores: Set[int], proc: Path = Path("/proc")) -> float | None:
    """CPU seconds on these cores, from any origin, but for those of this process and its descendants.

    Those of other guests of the same host count. None if there is no such `/proc`.
    """
    try:
        used = sum(_used_ticks(line, cores) for line in (proc / "stat").read_text().splitlines())
        return (used - _own_ticks(proc)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _used_ticks(line: str, cores: Set[int]) -> int:
    name, *fields = line.split()
    if not name.startswith("cpu") or not name[3:].isdecimal() or int(name[3:]) not in cores:
        return 0
    return sum(int(fields[index]) for index in (*_WORK, _STEAL))


def _own_ticks(proc: Path) -> int:
    """CPU ticks of this process and its descendants. An ended process counts with the parent that waited for it."""
    children: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        children[int(fields[_PARENT])].append(int(folder.name))
        ticks[int(folder.name)] = sum(map(int, fields[_TIMES]))
    total, family = 0, [os.getpid()]
    while family:
        process = family.pop()
        total += ticks.get(process, 0)
        family += children[process]
    return total
