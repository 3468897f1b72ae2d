"""The better of a suffix tree and a draft model, round by round (SuffixDecoding's hybrid, arXiv 2411.04975).

Where the suffix tree of the text expects many tokens to be accepted, its continuation is verified and the draft is not
run; elsewhere the draft writes a chain, as in `serial_chain`. The draft reads what it missed before its next chain.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from swiftspec.policies.base import ChainShape, Fields, Layout, check_positive, check_shape
from swiftspec.policies.chains.serial import SerialChain, serial_rounds
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.lookup.known_text import KnownText
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding
from swiftspec.policies.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixOrDraft(ChainShape):
    """Parameters of both, and of the choice between them.

    num_draft_tokens: tokens of the draft's chain.
    least_score: accepted tokens that the suffix tree has to expect for its continuation to be verified. A planner finds
        the number that the draft's chain, with the time it costs, is worth.
    verify_rows, max_tree_depth, max_spec_factor, min_token_prob, earlier_outputs: as in `suffix_decoding`, of chains.
    """

    name: ClassVar[str] = "suffix_or_draft"
    layout: ClassVar[Layout] = Layout.COLOCATED
    elastic: ClassVar[bool] = True
    drafts_from_text: ClassVar[bool] = True
    profiled: ClassVar[Fields] = {"num_draft_tokens": 4, "least_score": 3.0, "max_spec_factor": 4.0}

    num_draft_tokens: int = 4
    least_score: float = 2.0
    verify_rows: int = 8
    max_tree_depth: int = 24
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1
    earlier_outputs: int = 0

    def __post_init__(self) -> None:
        check_shape(self, num_draft_tokens=1)
        check_positive(self, "least_score")
        _ = self.suffix  # which checks the others

    @property
    def suffix(self) -> SuffixDecoding:
        """The part without the draft."""
        return SuffixDecoding(
            verify_rows=self.verify_rows,
            max_tree_depth=self.max_tree_depth,
            max_spec_factor=self.max_spec_factor,
            min_token_prob=self.min_token_prob,
            earlier_outputs=self.earlier_outputs,
        )

    @property
    def chain(self) -> SerialChain:
        """The part with the draft."""
        return SerialChain(num_draft_tokens=self.num_draft_tokens)

    @property
    def target_rows(self) -> int:
        return max(self.verify_rows, self.chain.target_rows)

    @property
    def draft_rows(self) -> int:
        return self.chain.draft_rows

    def programs(self, request: Request) -> dict[Role, Program]:
        text = KnownText(request, self.max_tree_depth, self.suffix.bounds, least_score=self.least_score)
        return {Role.TARGET: serial_rounds(request, self.chain.tree, text)}

    @classmethod
    def search_space(cls) -> Iterator["SuffixOrDraft"]:
        for num_draft_tokens, least_score in product((2, 3, 4, 6, 8), (1.0, 2.0, 3.0, 5.0)):
            for verify_rows, max_spec_factor in ((8, 1.0), (8, 4.0), (16, 4.0)):
                if least_score < verify_rows - 1:
                    yield cls(
                        num_draft_tokens=num_draft_tokens,
                        least_score=least_score,
                        verify_rows=verify_rows,
                        max_spec_factor=max_spec_factor,
                    )
