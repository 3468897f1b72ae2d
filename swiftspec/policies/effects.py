"""The closed set of effects that a role program may yield, and the messages between roles.

A program is a generator: it yields an effect and is sent its answer. Two drivers interpret it, the simulator's and the
engine's. No torch, SimPy, socket, clock or randomness may enter this package.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from swiftspec.policies.tree import Candidates as Candidates
from swiftspec.policies.tree import Row as Row
from swiftspec.policies.tree import Subtree as Subtree


class Role(StrEnum):
    """Role that a model, cache or device group belongs to."""

    TARGET = "target"
    DRAFT = "draft"


class Verdict(NamedTuple):
    """Target to draft: the accepted tokens, then the bonus token. Empty: the target has finished its prefill."""

    tokens: tuple[int, ...]


class Stop(NamedTuple):
    """Target to draft: the request is finished."""


class Probe(NamedTuple):
    """Target to draft: abandon this exchange and report how many tokens of the request you have. (See `recovery`.)"""


class ProbeReply(NamedTuple):
    """Draft to target: the number of tokens of the request's text that the draft has, the prompt included."""

    num_known: int


class CatchUp(NamedTuple):
    """Target to draft: tokens of the text from `position` on. `start`: it is complete; both continue from its end."""

    position: int
    tokens: tuple[int, ...]
    start: bool


Message = Subtree | Verdict | Stop | Probe | ProbeReply | CatchUp


class PeerError(RuntimeError):
    """The peer broke the protocol."""


_Answer = TypeVar("_Answer")


class _Asks(Generic[_Answer]):
    """An effect whose answer has a type: `answer = yield from effect`."""

    __slots__ = ()

    def __iter__(self) -> Generator[Any, Any, _Answer]:
        answer: _Answer = yield self
        return answer


@dataclass(frozen=True, slots=True)
class Prefill:
    """Put tokens into a role's prefix. Answer: the target's choice after the last one; None for a draft.

    `position`: of the first one; everything before it is already in the prefix. `level`: as of a `DraftForward`.
    `scored`: the token that follows each of them, if the user is to be given their log-probs and the `num_candidates`
    likeliest; the answer is then None.
    """

    role: Role
    tokens: tuple[int, ...]
    position: int = 0
    level: int = 0
    scored: tuple[int, ...] = ()
    num_candidates: int = 0

    def part(self, first: int, num_tokens: int) -> "Prefill":
        """The prefill of `num_tokens` tokens from the `first` on."""
        some = slice(first, first + num_tokens)
        return replace(self, tokens=self.tokens[some], position=self.position + first, scored=self.scored[some])


@dataclass(frozen=True, slots=True)
class DraftForward(_Asks[tuple[Candidates, ...]]):
    """One forward of the draft. Answer: a `Candidates` of `num_candidates` tokens per row.

    `fuzzy`: layers in groups that share an input (see `eagle2`); answer and KV are approximate. `level`: which of its
    round's draft forwards this is, from 1, if the round can do without; the answer may then be `()`: it was not
    computed, and nothing more is to be drafted in this round. 0 if it has to be computed. `is_guess`: the candidates
    only tell what the target may choose; none of them is drafted here.
    """

    rows: tuple[Row, ...]
    num_candidates: int
    fuzzy: bool = False
    level: int = 0
    is_guess: bool = False


@dataclass(frozen=True, slots=True)
class TargetForward(_Asks[tuple[int, ...]]):
    """One forward of the target. Answer: the target's own next token per row (greedy, or drawn).

    `log_probs`: of the paths to the rows after the first one, as the draft sees them, if it is known.
    """

    rows: tuple[Row, ...]
    log_probs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetExit(_Asks[tuple[Candidates, ...]]):
    """The first half of the target's layers. Answer: a `Candidates` of `num_candidates` per row, from that half.

    Only its `TargetFinish` may use the target next.
    """

    rows: tuple[Row, ...]
    num_candidates: int


@dataclass(frozen=True, slots=True)
class TargetFinish(_Asks[tuple[int, ...]]):
    """The second half, for the rows of the preceding `TargetExit`. Answer: as for a `TargetForward`."""


@dataclass(frozen=True, slots=True)
class Choose(_Asks[tuple[int, ...]]):
    """The target's choices after the rows of the preceding `TargetForward` again: what was drafted after them is known.

    Only for a request that is `ratio_tested`. `drafted`: tokens after each row. Answer: as of the forward, whose own
    answer does not count then.
    """

    drafted: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class KeepKV:
    """Keep these tree slots of a role's cache, in this order; the first `num_verified` join the prefix. No answer."""

    role: Role
    slots: tuple[int, ...]
    num_verified: int


@dataclass(frozen=True, slots=True)
class Send:
    """Give a peer a message. No answer. `peer`: its number, if there are several target groups."""

    message: Message
    peer: int = 0


@dataclass(frozen=True, slots=True)
class Receive(_Asks[Message]):
    """Wait for a peer's next message. Answer: the message; None if none comes within `within_s` seconds."""

    peer: int = 0
    within_s: float | None = None


@dataclass(frozen=True, slots=True)
class Poll(_Asks[Message | None]):
    """Look for a peer's next message without waiting. Answer: the message, or None."""

    peer: int = 0


@dataclass(frozen=True, slots=True)
class Clock(_Asks[float]):
    """Read the driver's clock. Answer: seconds; only differences are meaningful."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Give tokens to the user. No answer."""

    tokens: tuple[int, ...]


class ForwardKind(StrEnum):
    """Layers that a forward runs, and the input that they read. Rows of one kind and model can be computed together."""

    EXACT = "exact"  # all layers, one after another; a prompt's tokens, too
    LAYER_PARALLEL = "layer-parallel"  # layers in groups that share an input (EasySpec): logits and KV are approximate
    FIRST_HALF = "first-half"  # an early exit, whose rows are no tree nodes yet; only its second half may follow
    SECOND_HALF = "second-half"  # the rest of that forward, for the same rows


Forward = Prefill | DraftForward | TargetForward | TargetExit | TargetFinish
Effect = Forward | Choose | KeepKV | Send | Receive | Poll | Clock | Commit

# A program is sent values whose type depends on the effect yielded, which generator types cannot express.
Subprogram = Generator[Effect, Any, _Answer]
Program = Subprogram[None]


def prefill(role: Role, tokens: tuple[int, ...]) -> Subprogram[None]:
    """Put tokens into a role's empty prefix, if there are any."""
    if tokens:
        yield Prefill(role, tokens)


def read_unread(unread: list[int], position: int) -> Subprogram[bool]:
    """Let the draft read verified tokens that it lacks, for a round that may do without; whether it has all by now.

    position: of the token after them.
    """
    if unread:
        answer = yield Prefill(Role.DRAFT, tuple(unread), position - len(unread), level=1)
        if answer == ():
            return False
        unread.clear()
    return True


def as_verdict(message: Message) -> Verdict | Stop:
    """The message, if a target may send it to a draft. PeerError for anything else."""
    if not isinstance(message, Verdict | Stop):
        raise PeerError(f"expected a verdict, got {message!r}")
    return message


def receive_verdict() -> Subprogram[Verdict | Stop]:
    """Receive a verdict that is not empty: an empty one only says that the target has finished its prefill."""
    while True:
        verdict = as_verdict((yield from Receive()))
        if isinstance(verdict, Stop) or verdict.tokens:
            return verdict


def receive_subtree(root: int, position: int, *, max_rows: int) -> Subprogram[Subtree]:
    """Receive the subtree that the draft wants verified.

    PeerError unless it is a connected subtree, parents first, of 1 to `max_rows` nodes under the last verified token.
    """
    message = yield from Receive()
    if not isinstance(message, Subtree) or not _is_rooted(message, root, position) or len(message.tokens) > max_rows:
        raise PeerError(f"expected up to {max_rows} nodes under token {root} at position {position}, got {message!r}")
    return message


def _is_rooted(subtree: Subtree, root: int, position: int) -> bool:
    parents = subtree.parents
    return (
        subtree.position == position
        and subtree.tokens[:1] == (root,)
        and len(parents) == len(subtree.tokens)
        and parents[0] == -1
        and all(0 <= parent < index for index, parent in enumerate(parents[1:], start=1))
    )
