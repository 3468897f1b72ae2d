"""A co-located policy under a control, which may decline to draft: plain decoding until the control lets it draft.

A policy's own program asks its driver before every round whether it may draft. Where a control seldom allows it, what
is left is plain decoding with a tree that never grows: the host has more to do in each round, and the first token comes
from a verification of its own. So the request is decoded plainly here, first token from the prefill included, and asks
again after one round, two, four, then every eight. Once it may draft, the draft reads what it has missed, and the
policy's program begins on the whole text. When a round's drafting is declined, that program is closed.
"""

from collections.abc import Mapping
from typing import Any

from swiftspec.policies.base import Layout, Policy
from swiftspec.policies.effects import (
    Commit,
    DraftForward,
    KeepKV,
    Prefill,
    Program,
    Role,
    Row,
    Subprogram,
    TargetForward,
    read_unread,
)
from swiftspec.policies.request import Request

_LONGEST_PAUSE = 8  # rounds between two questions


def steered_programs(policy: Policy, request: Request) -> Mapping[Role, Program]:
    """The role programs of one request under a control.

    They are the policy's own if its draft has devices to itself, or if it drafts from the text: neither costs the
    target any time.
    """
    if policy.layout is Layout.COLOCATED and policy.elastic and not policy.drafts_from_text:
        return {Role.TARGET: _SteeredRequest(policy, request).run()}
    return policy.programs(request)


class _SteeredRequest:
    """One request: its text, and how much of it the draft's cache has. The target's has all but the last token."""

    def __init__(self, policy: Policy, request: Request) -> None:
        self._policy, self._request = policy, request
        self._text = list(request.prompt)
        self._num_read = 0  # tokens in the draft's prefix
        self._num_slots = 0  # of the draft's tree in use

    def run(self) -> Program:
        """Plain decoding and the policy's program in turn."""
        token: int = yield Prefill(Role.TARGET, self._request.prompt)
        is_done = yield from self._commit(token)
        pause = 1
        while not is_done:
            # Asks whether to draft: the draft reads what it lacks of the text, all but the last token.
            unread = self._text[self._num_read : -1]
            if (yield from read_unread(unread, len(self._text) - 1)):
                self._num_read = len(self._text) - 1
                is_done = yield from self._draft()
                pause = 1
            if not is_done:
                is_done = yield from self._decode(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _commit(self, token: int) -> Subprogram[bool]:
        """Commit a token of plain decoding; whether it was the last one."""
        tokens, is_done = self._request.clip((token,), num_generated=len(self._text) - len(self._request.prompt))
        yield Commit(tokens)
        self._text += tokens
        return is_done

    def _decode(self, num_rounds: int) -> Subprogram[bool]:
        """Some rounds of plain decoding; whether the output ended."""
        for _ in range(num_rounds):
            row = Row(self._text[-1], len(self._text) - 1, 0)
            (token,) = yield TargetForward((row,))
            yield KeepKV(Role.TARGET, (0,), 1)
            if (yield from self._commit(token)):
                return True
        return False

    def _draft(self) -> Subprogram[bool]:
        """The policy's program until it may not draft; whether the output ended.

        A round whose tree still has nodes of the one before is verified although nothing is added.
        """
        program = self._policy.programs(self._request.rest(self._text))[Role.TARGET]
        answer: Any = None
        while True:
            try:
                effect = program.send(answer)
            except StopIteration:
                return True
            if isinstance(effect, Prefill):
                answer = yield from self._prefill(effect)
                continue
            answer = yield effect
            if isinstance(effect, DraftForward):
                if answer == () and not self._num_slots:
                    program.close()
                    return False
                self._num_slots += len(answer)
            elif isinstance(effect, Commit):
                self._text += effect.tokens
            elif isinstance(effect, KeepKV) and effect.role is Role.DRAFT:
                self._num_read += effect.num_verified
                self._num_slots = len(effect.slots) - effect.num_verified

    def _prefill(self, effect: Prefill) -> Subprogram[Any]:
        """A prefill of the policy's program, as far as it is not in the cache already: never the target's."""
        if effect.role is Role.TARGET:
            return None
        known = self._num_read - effect.position
        assert known >= 0, "a draft reads a text from its beginning on"
        if known >= len(effect.tokens):
            return None
        answer = yield effect.part(known, len(effect.tokens) - known)
        if answer != ():
            self._num_read = effect.position + len(effect.tokens)
        return answer
