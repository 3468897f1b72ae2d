"""Description of an engine that serves: everything about it that a prediction, a plan or an export reads."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from swiftspec.devices import DeviceSpec
from swiftspec.engines.constants import Constants, constants_of
from swiftspec.engines.words import CommandWords, ImitationWords, Method, MethodWords, ScheduleWords
from swiftspec.errors import FieldError
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.layer_parts import LatentAttention
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.models.spec import ModelSpec
from swiftspec.scheduler.step_rules import StepRule

Release = tuple[int, ...]
_GIB: Final = 2**30
# vLLM's default (gpu_memory_utilization; 0.9 before it counted captured graphs, as is done here). The rest is for the
# driver's context, collectives' buffers and fragments, none of which is measured here.
USABLE_SHARE: Final = 0.92
_LEAST: Final = {"step_tokens": 1, "requests": 1, "prefix_block": 0, "captured_tokens": 0, "prompt_wait": 0}
_KV_DTYPES: Final[Mapping[Literal["", "bf16", "fp8"], tuple[str, ...]]] = {
    "": ("auto",),
    "bf16": ("bf16", "bfloat16"),
    "fp8": ("fp8", "fp8_e4m3", "fp8_e5m2"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """Limits under which an engine forms its steps."""

    step_tokens: int  # tokens of a step: prompts and decoded ones have one budget
    requests: int  # requests that run at once
    prefix_block: int = 16  # tokens of a block of the prefix cache; 0 without one
    # Whether the next step is formed while one runs. A request that arrives meanwhile joins the one after.
    runs_ahead: bool = True
    captured_tokens: int = 512  # largest step that runs as a recorded graph; larger ones are launched kernel by kernel
    # Steps that prompts wait, at most, until there is one for every rank of attention in data parallel
    prompt_wait: int = 0
    # Format of keys and values, bf16 or fp8; the engine's own choice if empty
    kv_dtype: Literal["", "bf16", "fp8"] = ""
    memory_share: float = USABLE_SHARE  # share of a device's memory that weights, cache and workspace may take

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name} is {value}; expected at least {least}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine at one release."""

    # name, full_name: as in `--engine`, and in sentences
    name: str
    full_name: str
    release: Release  # the release that is meant; the one described here if the user names none
    # Day on which releases came out, `YYYY-MM-DD`, oldest first: enough of them to tell which one a date means
    published: Mapping[str, str] = field(default_factory=dict)
    rule: StepRule
    op_tables: str | None  # library of the op tables that its forwards are composed of; None for the usual one
    large_limits: StepLimits  # on devices of at least `large_bytes` of memory other than those of `never_large`
    small_limits: StepLimits | None = None  # on all others; the same if None
    cpu_limits: StepLimits | None = None  # on CPUs, if it runs there
    large_bytes: int = 70 * _GIB
    never_large: frozenset[str] = frozenset({"a100-sxm", "a100-pcie-80gb"})
    # The engine's own names of the limits that a user can set, and the fields of `StepLimits`; or `prefix_cache`,
    # `no_prefix_cache` and `runs_step_by_step` of flags that switch one
    words: Mapping[str, str] = field(default_factory=dict)
    # Blocks of a matched prefix that are read again for a draft that needs the target's hidden states of its text
    blocks_given_up: int = 0
    covers_requests: bool = False  # whether it refuses more requests at once than tokens in a step
    ahead_since: Release | None = None  # first release that forms the next step while one runs; never if None
    # Seconds that a step takes longer if it is formed after the one before: scheduling, sampling and launches, which
    # run beside the device otherwise. 0 where that is not known.
    late_s: float = 0.0
    late_round_s: float = 0.0  # the same of a step that drafts and verifies
    graphs_prompts: bool = False  # whether steps with prompts are recorded graphs, too, up to the same size
    # Weight formats with which keys and values are in fp8; `DEVICE:FORMAT` of one device
    fp8_cache: frozenset[str] = frozenset()
    collective: str | None = None  # its all-reduce in the op tables
    kernels: str = ""  # words for kernels and host time of its forwards, where these are not its own
    # Library whose kernels it has for routed experts, by `DEVICE:FORMAT`, where it is another one
    own_experts: Mapping[str, str] = field(default_factory=dict)
    fitted_as: str = ""  # engine whose fitted constants it has; its own if empty
    host_s: float | None = None  # the user's own host time of a step in seconds, in place of what was fitted for layers
    # Host seconds around the effects of a round, by phase; empty where they run beside the device
    effects_s: Mapping[str, float] = field(default_factory=dict)
    # Share of one request's host time that each further request of a step adds, where it was not measured
    host_share: float = 0.0
    divides_heads: bool = True  # whether it divides a model only by a number that divides its heads and neurons
    # Whether it can divide the target and not the draft, which is divided alike otherwise
    leaves_draft_whole: bool = False
    # `whole` if it has attention in data parallel, whole on each device; `divided` if a rank may have several devices,
    # too; empty if it has none
    attention_dp: Literal["", "whole", "divided"] = ""
    whole_experts: bool = True  # whether it can put whole experts on each device
    # Whether its limits are those of all ranks of attention in data parallel together; else they are of each
    limits_of_all_ranks: bool = False
    eagle2_trees: bool = False  # whether it verifies trees of EAGLE-2's shapes; it verifies chains only otherwise
    tree_remark: str = ""  # what to know of its trees, a sentence
    methods: Mapping[Method, MethodWords] = field(default_factory=dict)  # its methods of drafting
    schedule: ScheduleWords | None = None  # draft tokens by batch size; it drafts always as many if None
    imitation: ImitationWords | None = None  # imitated acceptance, if it has that
    command: CommandWords | None = None  # the command that starts it; None where a plan itself does
    source: str = ""  # where these facts are from

    @property
    def release_name(self) -> str:
        """`0.15.1`."""
        return ".".join(map(str, self.release))

    def described(self) -> str:
        """`vLLM 0.15.1`, with the host time that the user has given."""
        name = f"{self.full_name} {self.release_name}" if self.release else self.full_name
        return name if self.host_s is None else f"{name} (host time of {1e3 * self.host_s:g} ms a step, given)"

    def at(self, release: str) -> "Engine":
        """The same at another release, as `0.15.1` or `v0.15.1rc2`. ValueError if it is none."""
        numbers = re.match(r"v?(\d+(?:\.\d+)*)", release.strip())
        if numbers is None:
            raise ValueError(f"engine {self.name}@{release} names no release; expected one such as {self.name}@0.15")
        return replace(self, release=tuple(map(int, numbers[1].split("."))))

    def as_of(self, day: str) -> "Engine":
        """The same at the release of a day, `YYYY-MM-DD`, or month; at its oldest one before all that are known."""
        known = [release for release, since in self.published.items() if since[: len(day)] <= day]
        return self.at(known[-1] if known else next(iter(self.published), self.release_name))

    def limits(self, device: DeviceSpec, settings: Mapping[str, str] | None = None) -> StepLimits:
        """The engine's own limits on a device, with the user's.

        settings: values by the engine's words. ValueError, one sentence, for a word or a value that it does not have.
        """
        large = device.memory_bytes >= self.large_bytes and device.name not in self.never_large
        limits = self.small_limits if self.small_limits and not large else self.large_limits
        return self._changed(replace(limits, runs_ahead=self._is_ahead), settings or {})

    def limits_here(self, device: str, options: Sequence[str]) -> StepLimits:
        """Limits on this machine's `cpu` or `cuda`, with its command's options. FieldError where it does not run."""
        if device != "cpu":
            limits = replace(self.large_limits, runs_ahead=self._is_ahead)
        elif self.cpu_limits is None:
            raise FieldError("device", device, f"{self.full_name} is not known to run on CPUs")
        else:
            limits = self.cpu_limits
        return self._changed(limits, self._settings_in(options))

    @property
    def _is_ahead(self) -> bool:
        """Whether this release forms the next step while one runs."""
        return self.ahead_since is not None and self.release >= self.ahead_since

    def _settings_in(self, options: Sequence[str]) -> dict[str, str]:
        """Limits that options set, by the engine's words."""
        found = {}
        for place, option in enumerate(options):
            word, equals, value = option.removeprefix("--").partition("=")
            following = options[place + 1] if place + 1 < len(options) else "--"
            if option.startswith("--") and (word := word.replace("-", "_")) in self.words:
                found[word] = value if equals else "true" if following.startswith("--") else following
        return found

    def _changed(self, found: StepLimits, settings: Mapping[str, str]) -> StepLimits:
        """Limits with those of settings."""
        for word, value in settings.items():
            found = self._with(found, word, value)
        if self.covers_requests and found.requests > found.step_tokens:
            stated = next((word for word in settings if self.words[word] == "requests"), None)
            if stated is not None:
                raise ValueError(
                    f"set {stated} is {found.requests}; {self.full_name} refuses more than a step's tokens, "
                    f"{found.step_tokens}"
                )
            return replace(found, requests=found.step_tokens)
        return found

    def objection(self, layout: DeviceLayout) -> str | None:
        """Reason why it cannot run a layout; None if it can."""
        if layout.ep > 1 and not self.whole_experts:
            return f"{self.full_name} divides every expert"
        if layout.dp > 1 and not self.attention_dp:
            return f"{self.full_name} has no attention in data parallel"
        if layout.dp > 1 and layout.tp > 1 and self.attention_dp == "whole":
            return f"{self.full_name} has each rank of attention in data parallel on one device"
        return None

    def kv_dtype(self, device: DeviceSpec, quant: str, settings: Mapping[str, str] | None = None) -> str:
        """Format of keys and values beside weights in a format: the user's, or what the engine takes by itself."""
        own = "fp8" if {quant, f"{device.name}:{quant}"} & self.fp8_cache else "bf16"
        return self.limits(device, settings).kv_dtype or own

    def read_dtype(
        self, device: DeviceSpec, quant: str, spec: ModelSpec, settings: Mapping[str, str] | None = None
    ) -> str:
        """Format of keys and values as attention kernels are timed.

        The constants were fitted to engines that chose the format of latents themselves with times in bf16.
        """
        is_latent = isinstance(spec, SparseSpec) and any(isinstance(part, LatentAttention) for part in spec.attentions)
        own = "bf16" if is_latent else self.kv_dtype(device, quant)
        return self.limits(device, settings).kv_dtype or own

    def drafts_ahead(self, method: Method) -> bool:
        """Whether steps of a drafting method are formed while one runs, if those without a draft are."""
        since = self.methods[method].ahead_since if method in self.methods else ()
        return since is not None and self.release >= since

    def late_by(self, method: Method | None, limits: StepLimits) -> float:
        """Seconds that a step takes longer if it is formed after the one before: a method's round, or a plain step."""
        if method is None:
            return 0.0 if limits.runs_ahead else self.late_s
        return 0.0 if limits.runs_ahead and self.drafts_ahead(method) else self.late_round_s

    def constants(self, *, left_out: str | None = None) -> Constants:
        """Fitted constants of this release. left_out: `model:NAME` or `source:NAME` they were fitted without."""
        fitted = constants_of(self.fitted_as or self.name, self.release, left_out=left_out)
        return fitted if self.host_s is None else fitted.with_host(self.host_s)

    def divides(self, spec: ModelSpec, degree: int) -> bool:
        """Whether it loads a model in so many parts."""
        if not self.divides_heads:
            return True
        if isinstance(spec, SparseSpec):
            return spec.objection(degree) is None
        whole_kv_heads = spec.num_kv_heads % degree == 0 or degree % spec.num_kv_heads == 0
        return whole_kv_heads and not spec.num_heads % degree and not spec.intermediate_size % degree

    def _with(self, limits: StepLimits, word: str, value: str) -> StepLimits:
        if word not in self.words:
            raise FieldError(
                f"set {word}",
                f"no limit of {self.full_name} that is known here",
                f"expected one of {', '.join(self.words)}",
            )
        name = self.words[word]
        if name == "kv_dtype":
            return replace(limits, kv_dtype=_kv_dtype(word, value))
        if name == "memory_share":
            return replace(limits, memory_share=_share(word, value))
        number = _number(word, value)
        flags: dict[str, dict[str, Any]] = {
            "no_prefix_cache": {"prefix_block": 0} if number else {},
            "prefix_cache": {} if number else {"prefix_block": 0},
            "runs_ahead": {"runs_ahead": bool(number)},
            "runs_step_by_step": {"runs_ahead": not number},
        }
        try:
            return replace(limits, **flags.get(name, {name: number}))
        except ValueError:
            raise ValueError(f"set {word} is {number}; expected at least 1") from None


def _kv_dtype(word: str, value: str) -> Literal["", "bf16", "fp8"]:
    for name, spellings in _KV_DTYPES.items():
        if value.strip().lower() in spellings:
            return name
    raise FieldError(f"set {word}", value, "expected auto, bfloat16 or fp8")


def _share(word: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise FieldError(f"set {word}", value, "expected more than 0 and at most 1")
    return share


def _number(word: str, value: str) -> int:
    words = {"true": 1, "false": 0, "yes": 1, "no": 0}
    text = value.strip().lower()
    if text in words:
        return words[text]
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"set {word} is {value!r}; expected a whole number, true or false") from None
