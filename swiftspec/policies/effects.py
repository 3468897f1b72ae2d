"""The closed set of effects a role program may yield, and the words roles exchange.

A program is a generator: it yields an effect and is sent its answer. Two drivers interpret it, the simulator's
and the engine's. No torch, SimPy, socket, clock or randomness may enter this package.
"""

from collections.abc import Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "Candidates",
    "Commit",
    "DraftForward",
    "Effect",
    "KeepKV",
    "Message",
    "PeerError",
    "Poll",
    "Prefill",
    "Program",
    "Receive",
    "Role",
    "Row",
    "Send",
    "Stop",
    "Subtree",
    "TargetForward",
    "Verdict",
    "draft_forward",
    "poll",
    "prefill",
    "receive",
    "receive_subtree",
    "target_forward",
]


class Role(StrEnum):
    """Whose model, whose cache, whose devices."""

    TARGET = "target"
    DRAFT = "draft"


class Row(NamedTuple):
    """One token position in a forward.

    The rows of a forward take the next free tree slots of the cache, in order. A row sees the whole prefix, itself,
    and tree slot s where bit s of `ancestors` is set; those slots may be rows of the same forward.
    """

    token: int
    position: int
    ancestors: int


class Candidates(NamedTuple):
    """The draft's next tokens after one row, most probable first, with their log-probs (nats)."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


class Subtree(NamedTuple):
    """Draft to target: nodes to verify, root first, parents before children.

    `parents[i]` is the index of node i's parent in this message (-1 for the root); the root is the last verified
    token, at `position`.
    """

    position: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def rows(self) -> tuple[Row, ...]:
        """The nodes as rows of one forward on a cache whose tree is empty."""
        rows: list[Row] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            if parent < 0:
                rows.append(Row(token, self.position, 0))
            else:
                above = rows[parent]
                rows.append(Row(token, above.position + 1, above.ancestors | 1 << parent))
        return tuple(rows)


class Verdict(NamedTuple):
    """Target to draft: the accepted tokens, then the bonus token. Empty: the target has finished its prefill."""

    tokens: tuple[int, ...]


class Stop(NamedTuple):
    """Target to draft: the request is finished."""


Message = Subtree | Verdict | Stop


class PeerError(RuntimeError):
    """The peer broke the protocol."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Put a prompt's tokens into a role's prefix. Answer: the target's choice after the last one; None for a draft."""

    role: Role
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftForward:
    """One forward of the draft. Answer: a `Candidates` of `num_candidates` tokens per row."""

    rows: tuple[Row, ...]
    num_candidates: int


@dataclass(frozen=True, slots=True)
class TargetForward:
    """One forward of the target. Answer: the target's own next token per row (greedy, or drawn)."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class KeepKV:
    """Keep these tree slots of a role's cache, in this order; the first `num_verified` join the prefix. No answer."""

    role: Role
    slots: tuple[int, ...]
    num_verified: int


@dataclass(frozen=True, slots=True)
class Send:
    """Give the peer role a message. No answer."""

    message: Message


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the peer's next message. Answer: the message."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Look for the peer's next message without waiting. Answer: the message, or None."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Give tokens to the user. No answer."""

    tokens: tuple[int, ...]


Effect = Prefill | DraftForward | TargetForward | KeepKV | Send | Receive | Poll | Commit

_Answer = TypeVar("_Answer")
# What a program is sent depends on what it yielded, which a generator type cannot say: the wrappers below do.
Step = Generator[Effect, Any, _Answer]
Program = Step[None]


def prefill(role: Role, tokens: tuple[int, ...]) -> Step[int | None]:
    """Prefill, typed. An empty prompt is no work."""
    if not tokens:
        return None
    choice: int | None = yield Prefill(role, tokens)
    return choice


def draft_forward(rows: tuple[Row, ...], num_candidates: int) -> Step[tuple[Candidates, ...]]:
    """DraftForward, typed."""
    candidates: tuple[Candidates, ...] = yield DraftForward(rows, num_candidates)
    return candidates


def target_forward(rows: tuple[Row, ...]) -> Step[tuple[int, ...]]:
    """TargetForward, typed."""
    choices: tuple[int, ...] = yield TargetForward(rows)
    return choices


def receive() -> Step[Message]:
    """Receive, typed."""
    message: Message = yield Receive()
    return message


def poll() -> Step[Message | None]:
    """Poll, typed."""
    message: Message | None = yield Poll()
    return message


def receive_subtree(*, position: int) -> Step[Subtree]:
    """Receive what the draft wants verified. PeerError unless it is a subtree rooted at `position`."""
    message = yield from receive()
    if not isinstance(message, Subtree) or message.position != position or not message.tokens:
        raise PeerError(f"expected a subtree rooted at position {position}, got {message!r}")
    return message
