"""Admission of requests: who runs, who waits, and who gives way when the cache is full.

Requests are admitted in the order in which they came. A request needs cache blocks for its text so far and for the rows
of a verification; when a text outgrows the free blocks, the request that was admitted last gives its own back, and
waits at the head of the queue to start again on its whole text.
"""

from collections import deque
from dataclasses import dataclass

__all__ = ["BLOCK_TOKENS", "AdmissionLimits", "AdmissionQueue", "num_blocks"]

BLOCK_TOKENS = 16


def num_blocks(num_tokens: int) -> int:
    """Cache blocks that hold so many tokens."""
    return -(-num_tokens // BLOCK_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits of what runs and waits.

    Parameters
    ----------
    max_running : int
        Requests at once.
    max_waiting : int or None
        Requests in the queue; more are refused. Unlimited if None.
    num_blocks : int or None
        Blocks of the target's cache. Unlimited if None.
    tree_rows : int
        Rows after a request's text that its next verification needs.
    """

    max_running: int
    max_waiting: int | None = None
    num_blocks: int | None = None
    tree_rows: int = 0

    def __post_init__(self) -> None:
        if self.max_running < 1:
            raise ValueError(f"max_running is {self.max_running}; expected at least 1")
        if self.max_waiting is not None and self.max_waiting < 0:
            raise ValueError(f"max_waiting is {self.max_waiting}; expected at least 0")
        if self.num_blocks is not None and self.num_blocks < 1:
            raise ValueError(f"num_blocks is {self.num_blocks}; expected at least 1")


class AdmissionQueue:
    """Requests by number: those that wait, and those that run with the blocks they hold.

    Attributes
    ----------
    num_preemptions : int
    num_refused : int
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._waiting: deque[int] = deque()
        self._tokens: dict[int, int] = {}  # of each one's text
        self._held: dict[int, int] = {}  # blocks of each that runs, in the order of admission
        self._has_preempted = False
        self.num_preemptions = self.num_refused = 0

    @property
    def num_running(self) -> int:
        """Requests that run."""
        return len(self._held)

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def num_free_blocks(self) -> int | None:
        """Free blocks; None if unlimited."""
        limit = self._limits.num_blocks
        return None if limit is None else limit - sum(self._held.values())

    def submit(self, request: int, *, num_tokens: int, max_tokens: int) -> bool:
        """Queue a request; whether there was room.

        num_tokens: of its prompt. max_tokens: of its text at its longest. ValueError if that could never fit.
        """
        limit = self._limits.num_blocks
        if limit is not None and (needed := self._needed(max_tokens)) > limit:
            raise ValueError(
                f"a request of {max_tokens} tokens needs {needed} blocks of {BLOCK_TOKENS}; the cache has {limit}"
            )
        if self._limits.max_waiting is not None and self._num_surplus() >= self._limits.max_waiting:
            self.num_refused += 1
            return False
        self._tokens[request] = num_tokens
        self._waiting.append(request)
        return True

    def _num_surplus(self) -> int:
        """Requests that would wait even if all places were taken."""
        return len(self._waiting) - (self._limits.max_running - len(self._held))

    def admit(self) -> list[int]:
        """Requests that begin now. None directly after a preemption: they would push the others out in turn."""
        admitted: list[int] = []
        if self._has_preempted:
            self._has_preempted = False
            return admitted
        while self._waiting and len(self._held) < self._limits.max_running:
            request = self._waiting[0]
            needed = self._needed(self._tokens[request])
            if (free := self.num_free_blocks) is not None and needed > free:
                break
            self._waiting.popleft()
            self._held[request] = needed
            admitted.append(request)
        return admitted

    def grow(self, request: int, num_tokens: int) -> list[int]:
        """Note that a running request's text has `num_tokens` by now; the requests that give way, maybe itself.

        They wait again, with their texts as last noted, before those that never ran.
        """
        self._tokens[request] = num_tokens
        needed = self._needed(num_tokens)
        preempted: list[int] = []
        while (free := self.num_free_blocks) is not None and needed - self._held[request] > free:
            youngest = next(reversed(self._held))
            preempted.append(youngest)
            self._preempt(youngest)
            if youngest == request:
                return preempted
        self._held[request] = max(needed, self._held[request])
        return preempted

    def release(self, request: int) -> None:
        """Forget a request that has ended, or was cancelled, wherever it is."""
        self._held.pop(request, None)
        self._tokens.pop(request, None)
        self._waiting = deque(each for each in self._waiting if each != request)

    def _preempt(self, request: int) -> None:
        del self._held[request]
        self._waiting.appendleft(request)
        self._has_preempted = True
        self.num_preemptions += 1

    def _needed(self, num_tokens: int) -> int:
        return num_blocks(num_tokens + self._limits.tree_rows)
