"""Log of a sample: its turns, made from the effects of its program and their times. Pure."""

from typing import Any

from swiftspec.policies.effects import Role
from swiftspec.studies.atts.document import AttsSample, AttsTurn, Ending
from swiftspec.studies.atts.samples import Effect, NextTurn, Score, Select, Write, Written


class SampleLog:
    """What a sample has done so far."""

    def __init__(self) -> None:
        self._turns: list[AttsTurn] = []
        self._turn: dict[str, Any] = {}  # until it is decided who writes on

    def note(self, effect: Effect, answer: Any, start_s: float, end_s: float) -> None:
        """Add an effect that was performed, waits included."""
        match effect:
            case Write(Role.DRAFT):
                assert isinstance(answer, Written)
                self._turn = {"draft_tokens": answer.num_tokens, "began_s": start_s, "drafted_s": end_s}
            case Score():
                self._turn |= {"score": answer, "scored_s": end_s}
            case Select():
                self._turns.append(AttsTurn(**self._turn, is_taken_over=answer, selected_s=end_s, ended_s=end_s))
            case Write():
                assert isinstance(answer, Written)
                written = {"target_tokens": answer.num_tokens, "ended_s": end_s}
                self._turns[-1] = self._turns[-1].model_copy(update=written)
            case NextTurn():
                pass

    def sample(self, ending: Ending, ended_s: float, answer: str = "") -> AttsSample:
        """The whole sample; a turn without a decision is left out."""
        return AttsSample(turns=tuple(self._turns), ending=ending, ended_s=ended_s, answer=answer)
