"""Interface of a policy: the programs that drivers run, and the shapes that the planner searches."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from enum import StrEnum
from itertools import product
from typing import Any, ClassVar, TypeVar, cast

from swiftspec.errors import FieldError
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.request import Request

Value = int | float | tuple[float, ...]  # type of a shape's field
Fields = Mapping[str, Value]
Grid = Mapping[str, Iterable[Value]]


class Layout(StrEnum):
    """Models a policy needs, and their placement."""

    TARGET_ONLY = "target-only"
    COLOCATED = "co-located"  # one program; both models on the same devices, in turn
    DISAGGREGATED = "disaggregated"  # a program for each role; each model on its own devices; see also target_groups


class DraftKind(StrEnum):
    """Kind of a draft: what it needs from the target, and how many tokens one forward proposes."""

    SERIAL = "serial"  # token ids; one token per forward
    PARALLEL = "parallel"  # token ids; several tokens per forward, at mask tokens (PARD)
    HEAD = "head"  # hidden states of the target; one token per forward (EAGLE-3, MTP)
    BLOCK = "block"  # hidden states of the target; a block of tokens per forward (DFlash)

    @property
    def reads_target(self) -> bool:
        """Whether it needs the target's hidden states, in the target's process or beside its verdicts."""
        return self in (DraftKind.HEAD, DraftKind.BLOCK)


class Policy(ABC):
    """A frozen dataclass whose fields are the shape (rows, expansions, capacities); stateless between requests.

    Defaults are those of a policy that drafts while the target verifies. Policies override what differs.
    """

    __slots__ = ()
    name: ClassVar[str]
    layout: ClassVar[Layout]
    # Kinds of draft that its programs work with; any without a draft model. A parallel draft guesses the next token as
    # a serial one does.
    drafts: ClassVar[frozenset[DraftKind]] = frozenset({DraftKind.SERIAL, DraftKind.PARALLEL})
    fuzzy: ClassVar[bool] = False  # drafts by fuzzy forwards
    exits: ClassVar[bool] = False  # verifies in two halves
    drafts_from_text: ClassVar[bool] = False  # of the request, or of earlier outputs: some rounds need no draft model
    # A verification may be answered for its first rows only. If co-located: the draft first reads the prompt, by
    # `read_unread`, so that a control may begin the program on a text that the draft has read (see `steered`).
    elastic: ClassVar[bool] = False
    plain: ClassVar[bool] = False  # drafts nothing: what speculation is compared with
    # Batches of the running requests that are verified in turn: while one is, the draft works for the others.
    num_batches: ClassVar[int] = 1
    # The draft grows a tree over several rounds. What is verified depends on all that was drawn, so sampled output
    # follows the target's draws, whatever the acceptance method.
    keeps_tree: ClassVar[bool] = False
    # By a plan that names no policy; not if it was never near the best, see docs/policies.md.
    searched: ClassVar[bool] = True
    # Values of fields: a planner tries all combinations, see `shapes`.
    grid: ClassVar[Grid] = {}
    profiled: ClassVar[Fields] = {}  # fields of the only one of `host_shapes` that are not the default

    @property
    @abstractmethod
    def target_rows(self) -> int:
        """Most rows of one verification: the tree slots that the target's cache needs."""

    @property
    @abstractmethod
    def draft_rows(self) -> int:
        """Most draft tree slots in use at once; 0 without a draft."""

    @property
    def target_groups(self) -> int:
        """Equal device groups that run the target's program, each with a copy of the target; 1, except for DSI."""
        return 1

    @property
    @abstractmethod
    def verifies_trees(self) -> bool:
        """Whether a row of a verification may have several children. Layers that keep a state compute chains only."""

    @property
    def chain_tokens(self) -> int:
        """Draft tokens of the chain that a round verifies; 0 for a tree, and where their number is not of the shape."""
        return 0

    @property
    def expand_rows(self) -> int:
        """Most rows of one draft forward in normal operation; 0 without a draft."""
        return 2  # a hit after the whole chain: its last token and the bonus token

    @property
    def num_candidates(self) -> int:
        """Most children of a node."""
        return 1

    @property
    def serial_forwards(self) -> int:
        """Draft forwards that every round waits for; 0 where drafting overlaps verification."""
        return 0

    @property
    def draft_levels(self) -> int:
        """Levels below the root that a round's serial forwards reach, where it waits for any; at least 1."""
        return max(1, self.serial_forwards, self.chain_tokens)

    @property
    def earlier_outputs(self) -> int:
        """Most outputs of earlier requests that it searches; 0 if none."""
        return 0

    @property
    def max_tree_depth(self) -> int:
        """Most tokens of a match and its continuation in these outputs; 0 if it searches none."""
        return 0

    @abstractmethod
    def programs(self, request: Request) -> Mapping[Role, Program]:
        """The role programs of one request; a co-located policy's single program runs as the target."""

    @classmethod
    def search_space(cls) -> Iterator[Any]:
        """The shapes a planner tries; none if it has no `grid`."""
        return shapes(cls, **cls.grid) if cls.grid else iter(())

    def load_variants(self) -> Iterator["Policy"]:
        """This shape with what only pays where requests wait for each other."""
        yield from ()

    @classmethod
    def host_shapes(cls) -> Iterator[Any]:
        """The shapes that a profile runs for what programs take between forwards, by the policy and its size."""
        yield from shapes(cls, **{field: (value,) for field, value in cls.profiled.items()})


Shape = Policy  # as policies of other packages call it


class ChainShape(Policy):
    """Defaults for a policy whose rounds verify a chain of `num_draft_tokens` tokens, a field of its shape."""

    __slots__ = ()
    verifies_trees: ClassVar[bool] = False
    num_draft_tokens: int

    def __post_init__(self) -> None:
        check_shape(self, num_draft_tokens=1)

    @property
    def chain_tokens(self) -> int:
        return self.num_draft_tokens

    @property
    def target_rows(self) -> int:
        return self.num_draft_tokens + 1

    @property
    def serial_forwards(self) -> int:
        return self.num_draft_tokens if self.layout is Layout.COLOCATED else 0  # one for each token


class TreeShape(Policy):
    """Defaults for a policy whose rounds verify a tree of at most `verify_rows` nodes, a field of its shape."""

    __slots__ = ()
    verifies_trees: ClassVar[bool] = True
    verify_rows: int

    @property
    def target_rows(self) -> int:
        return self.verify_rows


class TargetOnly(Policy):
    """Defaults for a policy without a draft model."""

    __slots__ = ()
    layout: ClassVar[Layout] = Layout.TARGET_ONLY
    drafts: ClassVar[frozenset[DraftKind]] = frozenset(DraftKind)
    draft_rows: ClassVar[int] = 0
    expand_rows: ClassVar[int] = 0

    @property
    def verifies_trees(self) -> bool:
        return False


_AnyPolicy = TypeVar("_AnyPolicy", bound=Policy)


def shapes(cls: type[_AnyPolicy], **values: Iterable[Value]) -> Iterator[_AnyPolicy]:
    """All shapes that have one of the values in each of these fields, which change the faster the later they come."""
    for chosen in product(*values.values()):
        yield cls(**dict(zip(values, chosen, strict=True)))


def shape_of(policy: Policy) -> dict[str, Value]:
    """A policy's fields."""
    values: dict[str, Value] = asdict(cast(Any, policy))  # every policy is a dataclass of such values
    return values


def sends_features(policy: Policy) -> bool:
    """Whether the target's features of verified tokens travel to the draft, beside the verdicts.

    A verdict carries all that were not sent yet, so the target keeps the KV before it sends one. A lost message leaves
    a gap that nothing fills, so the draft is then of no use for the rest of the request.
    """
    return policy.layout is Layout.DISAGGREGATED and all(kind.reads_target for kind in policy.drafts)


def drafts_chain(policy: Policy) -> bool:
    """Whether a draft model writes a chain that the target then verifies, on the same devices: all engines do that."""
    has_more = policy.drafts_from_text or policy.fuzzy or policy.exits or policy.verifies_trees
    return policy.layout is Layout.COLOCATED and policy.chain_tokens > 0 and not has_more


def drafts_elsewhere(policy: Policy) -> bool:
    """Whether its draft program can draft for a target of another engine: one that verifies chains, by whole forwards.

    That engine sends verdicts and nothing beside them, and verifies whatever has been drafted in every step.
    """
    is_plain = not (policy.verifies_trees or policy.exits or sends_features(policy) or policy.num_batches > 1)
    return policy.layout is Layout.DISAGGREGATED and policy.target_groups == 1 and is_plain


def check_draft(policy: Policy, kind: DraftKind) -> None:
    """ValueError unless the policy's programs work with a draft of this kind."""
    if kind not in policy.drafts:
        known = " or ".join(each for each in DraftKind if each in policy.drafts)
        raise FieldError(
            "policy",
            f"{policy.name}, which needs a {known} draft",
            f"this one is {kind}{lacks_mask(policy, kind)}",
        )


def lacks_mask(policy: Policy, kind: DraftKind) -> str:
    """What a draft model lacks for a policy of parallel drafts, a clause; empty for other pairs."""
    if kind is DraftKind.SERIAL and DraftKind.PARALLEL in policy.drafts:
        return ", without a mask token (pard_token in config.json)"
    return ""


def check_shape(policy: Policy, **least: int) -> None:
    """ValueError, naming field and value, if a field is below its `least`."""
    for field, bound in least.items():
        value = getattr(policy, field)
        if value < bound:
            raise ValueError(f"{field} is {value}; expected at least {bound}")


def check_positive(policy: Policy, field: str) -> None:
    """ValueError, naming field and value, if a field is not positive."""
    value = getattr(policy, field)
    if not value > 0:
        raise ValueError(f"{field} is {value}; expected a positive number")
