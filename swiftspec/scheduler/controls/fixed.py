"""The same draft length in every round, whatever the load."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.scheduler.controls.control import Contender
from swiftspec.scheduler.costs import RoundCosts
from swiftspec.scheduler.shares import equal_shares

__all__ = ["Fixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """At most `num_draft_rows` rows after the root; 0 is decoding without a draft."""

    learns: ClassVar[bool] = False

    num_draft_rows: int

    def __post_init__(self) -> None:
        if self.num_draft_rows < 0:
            raise ValueError(f"num_draft_rows is {self.num_draft_rows}; expected at least 0")

    def rows(
        self,
        contenders: Sequence[Contender],
        *,
        costs: RoundCosts,  # noqa: ARG002 - they change nothing
        max_rows: int,
    ) -> list[int]:
        """Rows of each contender."""
        wanted = [1 + min(self.num_draft_rows, len(contender.survival)) for contender in contenders]
        return equal_shares(wanted, max_rows)
