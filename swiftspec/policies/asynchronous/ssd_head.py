"""SSD with a head: drafts for every likely outcome, by a head with devices of its own.

Features of verified tokens come with each verdict, those of the prompt with the first one, after which the head reads
it. What the head computed on its own hidden states is an approximation. So after a verdict it forwards the accepted
tokens and the bonus token on the target's features; only these join its prefix.

As in SSD a prepared chain is sent at once. Its tokens were drafted on the hidden states of the rows before them, so
their rows stay in the tree: one forward reads the verified tokens, and the last token of the chain behind those rows.
Then follow the forwards over all branches. The candidates at each accepted length are those that the chain's own rows
gave. An outcome that was not prepared costs the forwards of a new chain while the target waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.asynchronous.branches import Branch, receive_outcome, roll_out
from swiftspec.policies.asynchronous.ssd import Ssd, likeliest
from swiftspec.policies.base import DraftKind
from swiftspec.policies.effects import (
    DraftForward,
    KeepKV,
    PeerError,
    Program,
    Receive,
    Role,
    Send,
    Stop,
    Subprogram,
    as_verdict,
    prefill,
)
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Candidates, Row, Subtree
from swiftspec.policies.verification import verify_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class SsdHead(Ssd):
    """Prepare outcomes with a head on the target's features. Parameters: those of `Ssd`."""

    name: ClassVar[str] = "ssd_head"
    drafts: ClassVar[frozenset[DraftKind]] = frozenset({DraftKind.HEAD})

    @property
    def draft_rows(self) -> int:
        return self.num_draft_tokens * (1 + self.branches) + self._most_read

    @property
    def expand_rows(self) -> int:
        return max(self.branches, self._most_read)

    @property
    def _most_read(self) -> int:
        """Rows of the forward after a whole chain was accepted: it, the bonus token, and the next chain's last one."""
        return self.num_draft_tokens + 2

    def programs(self, request: Request) -> dict[Role, Program]:
        target = verify_rounds(request, max_rows=self.target_rows, keep_first=True)
        return {Role.TARGET: target, Role.DRAFT: _draft(request, self)}


def _draft(request: Request, shape: SsdHead) -> Program:
    num_draft_tokens = shape.num_draft_tokens
    after_miss = min(shape.miss_draft_tokens, num_draft_tokens)
    num_candidates = 1 + max(*shape.fan_out(num_draft_tokens), *shape.fan_out(after_miss))
    verdict = as_verdict((yield from Receive()))  # with the prompt's features
    if isinstance(verdict, Stop):
        return
    if verdict.tokens:
        raise PeerError(f"expected the verdict of a prompt, got {verdict!r}")
    yield from prefill(Role.DRAFT, request.prompt[:-1])
    fresh, position, num_slots = request.prompt[-1:], request.root_position, 0
    branch: Branch | None = None
    while True:
        if branch:
            window = Subtree.chain(position, (fresh[-1], *branch.tokens))
            yield Send(window)
            answers = yield from _read_on(window, fresh, branch, num_slots, num_candidates)
        else:
            window, answers = yield from _just_in_time(position, fresh, num_slots, after_miss, num_candidates)
        chain = window.tokens[1:]
        outcomes = likeliest(answers, chain, shape.fan_out(len(chain)))
        prepared = yield from roll_out(
            window, outcomes, num_draft_tokens, root_has_slot=False, num_candidates=num_candidates
        )
        num_slots = len(chain) + num_draft_tokens * len(prepared)
        fresh = yield from receive_outcome(chain)
        if not fresh:
            return
        position += len(fresh)
        branch = prepared.get((len(fresh) - 1, fresh[-1]))


def _read_on(
    window: Subtree, fresh: Sequence[int], branch: Branch, num_slots: int, num_candidates: int
) -> Subprogram[list[Candidates]]:
    """Read verified tokens, and a prepared chain's last one; the candidates after each token of the window."""
    behind = sum(1 << slot for slot in (*range(len(fresh) - 1), *branch.slots))
    last = Row(window.tokens[-1], window.position + len(window.tokens) - 1, behind)
    rows = (*_verified_rows(fresh, window.position, num_slots), last)
    answers = yield from DraftForward(rows, num_candidates)
    read = range(num_slots, num_slots + len(rows))
    yield KeepKV(Role.DRAFT, (*read[:-1], *branch.slots[1:], read[-1]), len(fresh))
    return [answers[-2], *branch.candidates[1:], answers[-1]]


def _just_in_time(
    position: int, fresh: Sequence[int], num_slots: int, num_draft_tokens: int, num_candidates: int
) -> Subprogram[tuple[Subtree, list[Candidates]]]:
    """Read verified tokens, draft a chain and send it; the window, and the candidates after each token of it."""
    rows = _verified_rows(fresh, position, num_slots)
    *_, candidates = yield from DraftForward(rows, num_candidates)
    yield KeepKV(Role.DRAFT, tuple(range(num_slots, num_slots + len(rows))), len(rows))
    answers, chain = [candidates], [candidates.tokens[0]][:num_draft_tokens]
    while len(chain) < num_draft_tokens:
        answers += yield from DraftForward((_last_row(chain, position),), num_candidates)
        chain.append(answers[-1].tokens[0])
    window = Subtree.chain(position, (fresh[-1], *chain))
    yield Send(window)
    if chain:
        answers += yield from DraftForward((_last_row(chain, position),), num_candidates)
    return window, answers


def _verified_rows(fresh: Sequence[int], position: int, num_slots: int) -> tuple[Row, ...]:
    """Rows of verified tokens behind the prefix, the root last. num_slots: of the tree. position: of the root."""
    first = position - len(fresh) + 1
    return tuple(Row(token, first + i, ((1 << i) - 1) << num_slots) for i, token in enumerate(fresh))


def _last_row(chain: Sequence[int], position: int) -> Row:
    """The row of a chain's last token, behind those of the others. position: of the root, which is in the prefix."""
    return Row(chain[-1], position + len(chain), (1 << len(chain) - 1) - 1)
