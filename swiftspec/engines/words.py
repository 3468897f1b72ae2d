"""An engine's own words for what a plan says: its command's options, its methods of drafting and what goes with them.

Words are options or keys, each with a constant or a `Value` that the plan fills in. A word whose value is None is left
out, and `True` is a flag without a value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "CommandWords",
    "ImitationWords",
    "LengthRange",
    "Method",
    "MethodWords",
    "ScheduleWords",
    "SettingsFile",
    "Value",
    "Words",
]


class Method(StrEnum):
    """A method of drafting; the values are words for sentences."""

    MODEL = "a separate draft model"
    PARD = "a parallel draft model (PARD)"
    EAGLE3 = "an EAGLE-3 head"
    MTP = "multi-token prediction (MTP)"
    P_EAGLE = "a P-EAGLE head"
    DFLASH = "a DFlash block drafter"
    DSPARK = "a DSpark block drafter"
    PROMPT_LOOKUP = "prompt lookup"
    SUFFIX = "suffix decoding"


class Value(StrEnum):
    """A value that a plan fills in: an attribute of the served plan, or of its policy."""

    TARGET = "target"
    DRAFT = "draft"
    DEGREE = "degree"
    EQUAL_PARTS = "equal_parts"
    DRAFT_DEGREE = "draft_degree"
    DTYPE = "dtype"
    TARGET_FP8 = "target_fp8"
    DRAFT_FP8 = "draft_fp8"
    OTHER_DRAFT_FORMAT = "other_draft_format"
    MAX_RUNNING = "max_running"
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
    RATES = "rounded_rates"
    ROUND_TOKENS = "round_tokens"
    ACCEPTED_TOKENS = "accepted_tokens"


Words = Mapping[str, object]  # each value is a constant, or a `Value`


class LengthRange(NamedTuple):
    """Draft tokens of a round while `first` to `last` requests share it."""

    first: int
    last: int
    num_draft_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodWords:
    """A method of drafting.

    Parameters
    ----------
    words : mapping
        Of the speculation.
    settings : mapping
        What else the server is told with this method.
    remark : str
        What to know of it, a sentence.
    """

    words: Words
    settings: Words = field(default_factory=dict)
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleWords:
    """Draft tokens by batch size.

    Parameters
    ----------
    words : mapping
        Of the speculation.
    write : callable
        From the ranges to the value of `Value.SCHEDULE`, or to the text of the file that it names.
    file : str
        Name of that file; empty if there is none.
    methods : frozenset of Method, optional
        Methods that have one; all if not given.
    only_others : str
        Sentence about other methods.
    falls : bool
        Whether more requests at once never have more draft tokens.
    remark : str
    """

    words: Words
    write: Callable[[Sequence[LengthRange]], object]
    file: str = ""
    methods: frozenset[Method] = frozenset(Method)
    only_others: str = ""
    falls: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationWords:
    """Imitated acceptance.

    Parameters
    ----------
    words, draft_words : mapping
        Of the speculation; and further ones if the draft is a checkpoint, whose weights are not read then.
    environment : mapping
        Variables.
    lost : str
        Sentence about acceptance by position, if it is imitated by its mean only.
    """

    words: Words = field(default_factory=dict)
    draft_words: Words = field(default_factory=dict)
    environment: Words = field(default_factory=dict)
    lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """A YAML file of settings that the command names.

    Parameters
    ----------
    name, flag : str
        Of the file, and before its name in the command.
    words : mapping
        Settings in it.
    speculation_key : str
        Key of the speculation's words in it.
    """

    name: str
    flag: str
    words: Words
    speculation_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWords:
    """The command that starts a server.

    Parameters
    ----------
    release : str
        Release of these words, `1.4.0rc1`.
    program : tuple
        Words before the options.
    options : mapping
    speculation_flag : str
        Option whose value is the speculation as JSON. Without this and without a file its words are options.
    file : SettingsFile, optional
    quantises : bool
        Whether an option has weights converted to fp8; otherwise the checkpoint's format is what it is.
    remark : str
        What to know of every command, a sentence.
    """

    release: str
    program: tuple[object, ...]
    options: Words
    speculation_flag: str = ""
    file: SettingsFile | None = None
    quantises: bool = True
    remark: str = ""
