"""An engine's own words for what a plan says: its command's options, its methods of drafting and what goes with them.

Words are options or keys, each with a constant, a `Value` that the plan fills in, or further words. A word whose value
is None, or that has no further words left, is left out, and `True` is a flag without a value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple


class Method(StrEnum):
    """A method of drafting; the values are words for sentences."""

    MODEL = "a separate draft model"
    PARD = "a parallel draft model (PARD)"
    EAGLE = "an EAGLE head"
    EAGLE3 = "an EAGLE-3 head"
    MTP = "multi-token prediction (MTP)"
    P_EAGLE = "a P-EAGLE head"
    DFLASH = "a DFlash block drafter"
    DSPARK = "a DSpark block drafter"
    DOMINO = "a Domino block drafter"
    PROMPT_LOOKUP = "prompt lookup"
    SUFFIX = "suffix decoding"
    DRAFT_SERVER = "a draft server"


# Methods by the names of drafts that are no models of their own, and of drafters that a config.json describes.
METHODS_BY_DRAFT: Final[Mapping[str, Method]] = {
    "eagle": Method.EAGLE,
    "pard": Method.PARD,
    "domino": Method.DOMINO,
    "eagle3": Method.EAGLE3,
    "mtp": Method.MTP,
    "p-eagle": Method.P_EAGLE,
    "dflash": Method.DFLASH,
    "dspark": Method.DSPARK,
}


class Value(StrEnum):
    """A value that a plan fills in, as `swiftspec.export.command` has it."""

    TARGET = "target"
    DRAFT = "draft"
    DEGREE = "layout.num_devices"
    RANK_DEGREE = "layout.tp"
    RANKS = "ranks"
    HAS_RANKS = "has_ranks"
    WHOLE_EXPERTS = "whole_experts"
    EXPERT_DEGREE = "expert_degree"
    EQUAL_PARTS = "equal_parts"
    DRAFT_DEGREE = "draft_degree"
    DTYPE = "dtype"
    TARGET_FP8 = "target_fp8"
    DRAFT_FP8 = "draft_fp8"
    OTHER_DRAFT_FORMAT = "other_draft_format"
    MAX_RUNNING = "max_running"
    MAX_RUNNING_OF_RANK = "max_running_of_rank"
    STEP_TOKENS = "step_tokens"
    MAX_CONTEXT = "max_context"
    KV_DTYPE = "kv_dtype"
    MEMORY_SHARE = "memory_share"
    STATIC_SHARE = "static_share"
    FREE_SHARE = "free_share"
    PREFIX_CACHE = "prefix_cache"
    NO_PREFIX_CACHE = "no_prefix_cache"
    REUSES_BLOCKS = "reuses_blocks"
    BLOCK = "changed.prefix_block"
    CAPTURED = "changed.captured_tokens"
    PROMPT_WAIT = "changed.prompt_wait"
    WAITS = "waits"
    STEP_BY_STEP = "step_by_step"
    DRAFT_TOKENS = "num_draft_tokens"
    VERIFIED_ROWS = "policy.target_rows"
    LEVELS = "levels"
    WIDTH = "width"
    LONGEST_MATCH = "policy.longest_match"
    MATCH_AND_DRAFT = "match_and_draft"
    SUFFIX_DEPTH = "policy.max_tree_depth"
    SUFFIX_FACTOR = "policy.max_spec_factor"
    SUFFIX_PROBABILITY = "policy.min_token_prob"
    SCHEDULE = "written_schedule"
    FILE = "file"
    RATES = "rounded_rates"
    ROUND_TOKENS = "round_tokens"
    ACCEPTED_TOKENS = "accepted_tokens"
    DRAFTER_SETTINGS = "drafter_settings"


Words = Mapping[str, object]  # each value is a constant, or a `Value`


class LengthRange(NamedTuple):
    """Draft tokens of a round while `first` to `last` requests share it."""

    first: int
    last: int
    num_draft_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodWords:
    """A method of drafting."""

    words: Words  # of the speculation
    # options, settings: what else the server is told, on its command line and in its file of settings
    options: Words = field(default_factory=dict)
    settings: Words = field(default_factory=dict)
    remark: str = ""  # a sentence
    # First release that forms a step while one runs with this method, too; () for all that do so without a draft, None
    # for none
    ahead_since: tuple[int, ...] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleWords:
    """Draft tokens by batch size."""

    words: Words  # of the speculation
    # From the ranges to the value of `Value.SCHEDULE`, or to the text of `file`, whose name is then the value
    write: Callable[[Sequence[LengthRange]], object]
    file: str = ""
    methods: frozenset[Method] = frozenset(Method)  # those that have a schedule
    only_others: str = ""  # a sentence about the others
    falls: bool = False  # whether more requests never have more draft tokens
    remark: str = ""  # a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationWords:
    """Imitated acceptance."""

    words: Words = field(default_factory=dict)  # of the speculation
    # Further ones if the draft is a checkpoint, whose weights are not read then
    draft_words: Words = field(default_factory=dict)
    environment: Words = field(default_factory=dict)  # variables
    lost: str = ""  # a sentence about acceptance by position, if it is imitated by its mean only


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWords:
    """The command that starts a server."""

    release: str  # that these words are of, `1.4.0rc1`
    program: tuple[object, ...]  # words before the options
    module: tuple[object, ...] = ()  # the same after a Python of the user's own; empty if it is no Python program
    # cpu_options, cpu_environment: words, and variables unless they are set, that a start on CPUs takes, too
    cpu_options: tuple[str, ...] = ()
    cpu_environment: Mapping[str, str] = field(default_factory=dict)
    options: Words
    # file, settings: name of a YAML file that the options name, and its content
    file: str = ""
    settings: Words = field(default_factory=dict)
    # Option whose value is the speculation as JSON, or its key in the file; its words are options if empty
    speculation: str = ""
    reads: str = ""  # how the names of its files of weights end, if it reads no checkpoints
    quantises: bool = True  # whether it converts weights to fp8; otherwise they are as in the checkpoint
    fp8_cache: str = "fp8"  # its word for keys and values in fp8
    remark: str = ""  # a sentence
