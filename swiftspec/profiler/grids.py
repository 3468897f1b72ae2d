"""Grid of a CPU profile: row counts, contexts, repetitions, and the policies that are run for host costs."""

from swiftspec.policies import DraftKind, Layout, Policy
from swiftspec.policies.amusd import Amusd
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.eagle2 import Eagle2Tree
from swiftspec.policies.easyspec import EasySpec
from swiftspec.policies.heads import HeadChain, HeadTree
from swiftspec.policies.mirror import Mirror
from swiftspec.policies.parallel_chain import ParallelChain
from swiftspec.policies.parallel_tree import ParallelTree
from swiftspec.policies.pearl import Pearl
from swiftspec.policies.prompt_lookup import PromptLookup
from swiftspec.policies.sequoia import SequoiaTree
from swiftspec.policies.serial import SerialChain, SerialTree
from swiftspec.policies.specbranch import SpecBranch
from swiftspec.policies.ssd import Ssd
from swiftspec.policies.ssd_head import SsdHead
from swiftspec.policies.suffix_decoding import SuffixDecoding
from swiftspec.policies.suffix_or_draft import SuffixOrDraft
from swiftspec.policies.swiftspec import SwiftSpec
from swiftspec.policies.swiftspec_parallel import SwiftSpecParallel

__all__ = [
    "CONTEXTS",
    "DRAFT_ROWS",
    "HALVES_ROWS",
    "HOST_SHAPES",
    "HOST_TOKENS",
    "LONGEST_SHARED",
    "PASSES",
    "REPEATS",
    "SWEEP_REPEATS",
    "TARGET_ROWS",
    "host_shapes",
]

TARGET_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32)
DRAFT_ROWS = (1, 2, 4, 8, 12, 24)
HALVES_ROWS = (2, 4, 6, 8, 12)
CONTEXTS = (16, 64, 256, 640)
LONGEST_SHARED = 256  # context of steps of several sequences: all of them have to be prefilled
# Shared machines have slow spells of seconds: every bench is measured in several passes, each on new processes.
PASSES = 3
REPEATS = 3
SWEEP_REPEATS = 6  # forwards of each size, one after another, per pass and context
# One of every policy, since programs differ in what they do between forwards; of those that plans choose most, several
# sizes. With the draft temperature of a plan: applying it to every candidate costs the host time.
_FITTED = 0.5
_RANKS = (0.6, 0.15, 0.08, 0.04)
HOST_SHAPES: dict[Layout, tuple[Policy, ...]] = {
    Layout.DISAGGREGATED: (
        SwiftSpec(verify_rows=4, expand_rows=1, draft_temperature=_FITTED),
        SwiftSpec(verify_rows=8, expand_rows=4, draft_temperature=_FITTED),
        SwiftSpec(verify_rows=16, expand_rows=8, num_candidates=15, draft_temperature=_FITTED),
        SwiftSpecParallel(verify_rows=8, draft_temperature=_FITTED),
        Mirror(num_draft_tokens=4, guesses=1),
        Amusd(lookahead=2, verify_rows=8),
        Pearl(num_draft_tokens=4),
        SpecBranch(num_draft_tokens=4, branches=4),
        Ssd(num_draft_tokens=4, branches=8),
        SsdHead(num_draft_tokens=4, branches=8),
    ),
    Layout.COLOCATED: (
        SerialTree(verify_rows=4, expand_rows=1, expansions=4, draft_temperature=_FITTED),
        SerialTree(verify_rows=8, expand_rows=4, expansions=4, draft_temperature=_FITTED),
        SerialTree(verify_rows=16, expand_rows=8, expansions=4, draft_temperature=_FITTED),
        EasySpec(verify_rows=8, top_k=4, depth=4, draft_temperature=_FITTED),
        Eagle2Tree(verify_rows=8, top_k=4, depth=4, draft_temperature=_FITTED),
        ParallelTree(verify_rows=8, num_masks=4, draft_temperature=_FITTED),
        ParallelChain(num_draft_tokens=4),
        SequoiaTree(verify_rows=6, depth=4, rank_acceptance=_RANKS),
        SerialChain(num_draft_tokens=4),
        HeadChain(num_draft_tokens=4),
        HeadTree(verify_rows=8, top_k=4, depth=4, draft_temperature=_FITTED),
        SuffixOrDraft(num_draft_tokens=4, least_score=3.0, max_spec_factor=4.0),
        PromptLookup(num_draft_tokens=4),
        SuffixDecoding(verify_rows=8, max_spec_factor=4.0),
        Autoregressive(),
    ),
}
HOST_TOKENS = 48


def host_shapes(layout: Layout, kind: DraftKind = DraftKind.SERIAL) -> list[Policy]:
    """Shapes of a layout that work with a kind of draft."""
    return [shape for shape in HOST_SHAPES[layout] if kind in shape.drafts]
