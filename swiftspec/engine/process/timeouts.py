"""Silence of another process, and what is done for one that died. Tests pass a clock."""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swiftspec.policies import Policy
from swiftspec.policies.lookup.prompt_lookup import PromptLookup

_HOUR_S = 3600.0
_LONGEST_LOOK_S = 0.25
# Of the targets' silence: of a process that is stopped, of one that is idle, and of one that computes.
_STOPPED_AFTER_S, _SILENT_AFTER_S, _BUSY_AFTER_S = 3.0, 30.0, 300.0
_LEAST_BUSY = 0.1  # share of the time for which a process computes that does not hang
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_log = logging.getLogger("swiftspec")


class Silence:
    """Time since the last message, counted only while this process was awake and looking.

    Between two looks at most a quarter of a second counts. So a process that was itself suspended (Ctrl-Z, a laptop's
    lid), or had no reason to look, does not blame another for that time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_s = clock()
        self._seconds = 0.0

    def look(self) -> float:
        """Look again; returns the seconds so far."""
        now_s = self._clock()
        self._seconds += min(now_s - self._looked_s, _LONGEST_LOOK_S)
        self._looked_s = now_s
        return self._seconds

    def broken(self) -> None:
        """Record that something was heard."""
        self._looked_s, self._seconds = self._clock(), 0.0


class TargetSilence:
    """Time since the targets were heard, while requests run; logs, once, that it is long.

    A process that uses processor time may compute for minutes before it has a token: a long prompt, a slow model.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._silence = Silence(clock)
        self._used_s: float | None = None  # of the processes, when the silence was first found to be long
        self._has_warned = False

    def broken(self) -> None:
        self._silence.broken()

    def look(self, pids: Sequence[int]) -> None:
        """Look again. pids: processes of the targets on this machine."""
        seconds = self._silence.look()
        if seconds < _STOPPED_AFTER_S:
            self._has_warned, self._used_s = False, None
            return
        if self._has_warned:
            return
        if self._used_s is None:
            self._used_s = sum(map(_processor_s, pids))
        if (why := self._reason(pids, seconds)) is not None:
            self._has_warned = True
            _log.warning("no token from the target for %.0f s: %s; waiting for it", seconds, why)

    def _reason(self, pids: Sequence[int], seconds: float) -> str | None:
        if stopped := next(filter(is_stopped, pids), None):
            return f"process {stopped} is stopped (kill -CONT {stopped} lets it go on)"
        if seconds <= _SILENT_AFTER_S:
            return None
        if not pids:
            return "on another machine, it computes or hangs"
        used_s = sum(map(_processor_s, pids)) - (self._used_s or 0.0)
        if used_s < _LEAST_BUSY * (seconds - _STOPPED_AFTER_S):
            return "it uses hardly any processor time, as a process that hangs"
        return "it computes" if seconds > _BUSY_AFTER_S else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRecovery:
    """Limits and policy for a target that has lost its draft.

    patience_s: longest that a target waits for its draft before it decodes alone, by the `fallback`. max_restarts: how
    often within an hour a draft that died is restarted.
    """

    patience_s: float = 0.5
    fallback: Policy = field(default_factory=PromptLookup)
    max_restarts: int = 3

    def __post_init__(self) -> None:
        if self.patience_s <= 0:
            raise ValueError(f"patience_s is {self.patience_s}; expected a positive time")


class RestartBudget:
    """Limit of restarts: at most `most` within any hour, with doubling pauses after failures."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._starts_s: deque[float] = deque()
        self._num_failures = 0  # in a row
        self._last_s = 0.0  # time of the last one

    @property
    def is_spent(self) -> bool:
        """Whether no restart is left until the earliest is an hour ago."""
        while self._starts_s and self._clock() - self._starts_s[0] >= _HOUR_S:
            self._starts_s.popleft()
        return len(self._starts_s) >= self.most

    @property
    def allows_now(self) -> bool:
        """Whether a restart is left, and the pause after the last failure is over."""
        if self._num_failures == 0:
            return not self.is_spent
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(self._num_failures - 1, 16), _LONGEST_PAUSE_S)
        return not self.is_spent and self._clock() - self._last_s >= pause_s

    def take(self) -> None:
        """Count a restart; it counts as failed until `succeeded` is called."""
        self._last_s = self._clock()
        self._starts_s.append(self._last_s)
        self._num_failures += 1

    def succeeded(self) -> None:
        self._num_failures = 0


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine is suspended, by a signal or a debugger."""
    return _state(pid)[:1] in ("T", "t")


def _processor_s(pid: int) -> float:
    """Processor time of a process of this machine; 0 if it has ended."""
    fields = _state(pid).split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _state(pid: int) -> str:
    """What the kernel says of a process from its state on; empty if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].strip()
