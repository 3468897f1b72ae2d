"""Admission of requests: who runs, who waits, and who gives way when the cache is full.

Requests are admitted in the order in which they came. If there are several clients, the one that has had the least
service is next, and while it runs fewer requests than another one, the other's youngest give way. A request needs cache
blocks for its text so far and for the rows of a verification; when a text outgrows the free blocks, the request that
was admitted last gives its own back, and waits at the head of the queue to start again on its whole text.
"""

from collections import Counter
from dataclasses import dataclass

from swiftspec.scheduler.fair_queue import OUTPUT_WEIGHT, FairQueue

BLOCK_TOKENS = 16


def num_blocks(num_tokens: int) -> int:
    """Cache blocks that hold so many tokens."""
    return -(-num_tokens // BLOCK_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits of what runs and waits.

    max_running: requests at once.
    max_waiting: requests in the queue; more are refused. Unlimited if None.
    num_blocks: blocks of the target's cache. Unlimited if None.
    tree_rows: rows after a request's text that its next verification needs.
    """

    max_running: int
    max_waiting: int | None = None
    num_blocks: int | None = None
    tree_rows: int = 0

    def __post_init__(self) -> None:
        for name, least in (("max_running", 1), ("max_waiting", 0), ("num_blocks", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; expected at least {least}")


class AdmissionQueue:
    """Requests by number: those that wait, and those that run with the blocks they hold."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._waiting = FairQueue()
        self._clients: dict[int, str] = {}
        self._tokens: dict[int, int] = {}  # of each one's text
        self._charged: set[int] = set()  # requests whose prompts their clients have been charged for
        self._held: dict[int, int] = {}  # blocks of each that runs, in the order of admission
        self._was_full = False
        self.num_preemptions = self.num_refused = 0

    @property
    def num_running(self) -> int:
        return len(self._held)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_free_blocks(self) -> int | None:
        """Free blocks; None if unlimited."""
        limit = self._limits.num_blocks
        return None if limit is None else limit - sum(self._held.values())

    @property
    def usage(self) -> float:
        """Share of the blocks that are held; of the places, if blocks are unlimited."""
        limit = self._limits.num_blocks
        return len(self._held) / self._limits.max_running if limit is None else sum(self._held.values()) / limit

    def submit(self, request: int, *, num_tokens: int, max_tokens: int, client: str = "") -> bool:
        """Queue a request; whether there was room.

        num_tokens: of its prompt. max_tokens: of its text at its longest. client: whose it is. ValueError if it could
        never fit.
        """
        limit = self._limits.num_blocks
        if limit is not None and (needed := self._needed(max_tokens)) > limit:
            raise ValueError(
                f"a request of {max_tokens} tokens needs {needed} blocks of {BLOCK_TOKENS}; the cache has {limit}"
            )
        # Those that would wait even if all places were taken.
        num_surplus = len(self._waiting) - (self._limits.max_running - len(self._held))
        if self._limits.max_waiting is not None and num_surplus >= self._limits.max_waiting:
            self.num_refused += 1
            return False
        self._tokens[request], self._clients[request] = num_tokens, client
        self._waiting.append(request, client)
        return True

    def make_way(self) -> list[int]:
        """Requests that give way so that a client with fewer of them begins now: the youngest of whoever runs most.

        To be called before `admit`; like it, it does nothing directly after the cache was full.
        """
        preempted: list[int] = []
        while self._waiting and not self._was_full and not self._fits(self._waiting.head):
            running = Counter(self._clients[request] for request in self._held)
            (busiest, most), *_ = running.most_common(1) or [("", 0)]
            if running[self._clients[self._waiting.head]] + 1 >= most:
                break
            preempted.append(next(request for request in reversed(self._held) if self._clients[request] == busiest))
            self._preempt(preempted[-1])
        return preempted

    def admit(self) -> list[int]:
        """Requests that begin now. None directly after the cache was full: they would push out those that run."""
        admitted: list[int] = []
        was_full, self._was_full = self._was_full, False
        if was_full and self._held:
            return admitted
        while self._waiting and self._fits(self._waiting.head):
            request = self._waiting.popleft()
            self._held[request] = self._needed(self._tokens[request])
            admitted.append(request)
            if request not in self._charged:  # once: that a request gave way is not its client's doing
                self._charged.add(request)
                self._waiting.charge(self._clients[request], self._tokens[request])
        return admitted

    def grow(self, request: int, num_tokens: int) -> list[int]:
        """Note that a running request's text has `num_tokens` by now; the requests that give way, maybe itself.

        They wait again, with their texts as last noted, before those of their clients that never ran.
        """
        self._waiting.charge(self._clients[request], OUTPUT_WEIGHT * (num_tokens - self._tokens[request]))
        self._tokens[request] = num_tokens
        needed = self._needed(num_tokens)
        preempted: list[int] = []
        while (free := self.num_free_blocks) is not None and needed - self._held[request] > free:
            youngest = next(reversed(self._held))
            preempted.append(youngest)
            self._preempt(youngest)
            self._was_full = True
            if youngest == request:
                return preempted
        self._held[request] = max(needed, self._held[request])
        return preempted

    def release(self, request: int) -> None:
        """Forget a request that has ended, or was cancelled, wherever it is."""
        self._held.pop(request, None)
        self._tokens.pop(request, None)
        self._clients.pop(request, None)
        self._charged.discard(request)
        self._waiting.remove(request)

    def _preempt(self, request: int) -> None:
        del self._held[request]
        self._waiting.appendleft(request, self._clients[request])
        self.num_preemptions += 1

    def _fits(self, request: int) -> bool:
        free = self.num_free_blocks
        has_blocks = free is None or self._needed(self._tokens[request]) <= free
        return len(self._held) < self._limits.max_running and has_blocks

    def _needed(self, num_tokens: int) -> int:
        return num_blocks(num_tokens + self._limits.tree_rows)
