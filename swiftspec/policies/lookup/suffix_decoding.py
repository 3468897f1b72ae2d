"""SuffixDecoding (arXiv 2411.04975; vLLM's method `suffix`, Arctic Inference): drafting from a suffix tree of the text.

As `prompt_lookup`, without a draft model. Instead of one earlier occurrence all of them count: a suffix tree of prompt
and output says how often each token followed each match. The continuations likeliest by products of these frequencies
are verified, as a chain or a tree, and more of them after longer matches; none if nothing matches. Outputs of earlier
requests are in a second tree, if they are wanted: that of the better score proposes.
"""

from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import Fields, Grid, TargetOnly, check_positive, check_shape
from swiftspec.policies.colocated import text_rounds
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.lookup.known_text import KnownText
from swiftspec.policies.lookup.speculation import Bounds
from swiftspec.policies.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixDecoding(TargetOnly):
    """Parameters of the suffix tree and of its use; the names and defaults of the three before the last are vLLM's.

    verify_rows: most rows of a verification, the root included.
    branches: most continuations followed after each token; 1 verifies a chain.
    max_tree_depth: most tokens of a match and its continuation together.
    max_spec_factor: most tokens verified for each token of the match.
    min_token_prob: least product of frequencies at which a token is verified.
    earlier_outputs: most outputs of earlier requests that are searched, too, where a server keeps them; 0: none.
    """

    name: ClassVar[str] = "suffix_decoding"
    elastic: ClassVar[bool] = True
    drafts_from_text: ClassVar[bool] = True
    grid: ClassVar[Grid] = {"verify_rows": (4, 6, 8, 12, 16), "max_spec_factor": (1.0, 2.0, 4.0), "branches": (1, 3)}
    profiled: ClassVar[Fields] = {"verify_rows": 8, "max_spec_factor": 4.0}

    verify_rows: int = 8
    branches: int = 1
    max_tree_depth: int = 24
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1
    earlier_outputs: int = 0

    def __post_init__(self) -> None:
        check_shape(self, verify_rows=2, branches=1, max_tree_depth=2, earlier_outputs=0)
        check_positive(self, "max_spec_factor")
        if not 0 < self.min_token_prob <= 1:
            raise ValueError(f"min_token_prob is {self.min_token_prob}; expected above 0 and at most 1")

    @property
    def target_rows(self) -> int:
        return self.verify_rows

    @property
    def bounds(self) -> Bounds:
        """Bounds of what is verified."""
        return Bounds(
            self.verify_rows - 1,
            max_spec_factor=self.max_spec_factor,
            min_token_prob=self.min_token_prob,
            branches=self.branches,
        )

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: text_rounds(request, KnownText(request, self.max_tree_depth, self.bounds))}

    @property
    def verifies_trees(self) -> bool:
        return self.branches > 1
