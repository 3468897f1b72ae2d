"""Settings: what `--set NAME=VALUE,..` may change, of this package by its names and of another engine by its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting's type, its lowest value or its values, what it is, for `--help`, and its value if it is not given."""

    kind: type[int] | type[float] | type[bool] | type[str]
    least: float
    meaning: str
    usual: int | float | None = None
    values: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        """What a value must be, for errors."""
        if self.kind is bool:
            return "true or false"
        if self.values:
            return f"one of {', '.join(self.values)}"
        return f"a {'whole ' if self.kind is int else ''}number of at least {self.least:g}"

    def value(self, text: str) -> int | float | bool | str | None:
        """The value that a text states; None if it states none of this type."""
        if self.kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
        if self.kind is str:
            return text if not self.values or text in self.values else None
        try:
            value = self.kind(text)
            assert not isinstance(value, str)
        except ValueError:
            return None
        return value if self.least <= value < float("inf") else None


_RUNNING = Setting(int, 1, "requests at once")
_BLOCKS = Setting(int, 1, "blocks of 16 tokens in the target's cache")
_CONTROL = Setting(
    str, 0, "how much is drafted and verified: fixed:K, goodput, goodput-per-request, worth, slo, or none, all of it"
)
_EARLIER = Setting(int, 1, "suffix decoding searches the last N outputs, too, whoever asked for them")
_TARGETS = Setting(int, 1, "equal targets that share the requests, each with these limits and devices of its own")
_DRAFTS = Setting(int, 1, "draft groups that all targets share; one for each target if not given")

SCHEDULER: Final[Mapping[str, Setting]] = {
    "max_running": _RUNNING,
    "max_waiting": Setting(int, 0, "more waiting requests are refused"),
    "kv_blocks": _BLOCKS,
    "prefill_tokens": Setting(int, 1, "prompt tokens of a step"),
    "gather_ms": Setting(float, 0, "a verification's wait for the others'"),
    "control": _CONTROL,
    "num_targets": _TARGETS,
    "num_drafts": _DRAFTS,
}
SIMULATOR: Final[Mapping[str, Setting]] = {
    **SCHEDULER,
    "replay": Setting(bool, 0, "false: grow every tree, where recorded rounds would do"),
    "earlier_outputs": _EARLIER,
}
SERVER: Final[Mapping[str, Setting]] = {
    "max_running": Setting(int, 1, "requests at once", 8),
    "max_waiting": Setting(int, 0, "more waiting requests are refused with 429", 256),
    "max_context": Setting(int, 2, "tokens of the longest request"),
    "kv_blocks": _BLOCKS,
    "control": _CONTROL,
    "num_targets": Setting(int, 1, _TARGETS.meaning, 1),
    "num_drafts": _DRAFTS,
    "earlier_outputs": _EARLIER,
    "generation_config": Setting(
        bool, 0, "whether the model's generation_config.json has the defaults of sampling", True
    ),
    "keep_timelines": Setting(int, 0, "of the last N requests, for `validate --url`; no text", 0),
    "max_restarts": Setting(int, 0, "of a draft that died, within an hour", 3),
    "request_timeout_s": Setting(float, 0.001, "longest time of a request"),
    "send_timeout_s": Setting(float, 0.1, "a client that takes nothing for so long is given up", 30),
    "drain_s": Setting(float, 0, "time that requests have to end after Ctrl-C", 30),
}
DRAFT_SERVER: Final[Mapping[str, Setting]] = {
    "max_running": Setting(int, 1, "requests at once", 8),
    "max_context": Setting(int, 2, "tokens of the longest request; as the draft has positions, 4096 at most"),
    "device": Setting(str, 0, "cpu or cuda", values=("cpu", "cuda")),
    "dtype": Setting(str, 0, "of the draft; float32 on a CPU, bfloat16 on a GPU"),
}
PLANNER: Final[Mapping[str, Setting]] = {
    "max_running": _RUNNING,
    "load_requests": Setting(int, 1, "of the load, the first so many are simulated"),
    "transfer_ms": Setting(float, 0, "of a pool that only decodes: from a prompt's end until its cache is there"),
    "price_per_hour": Setting(float, 0, "of one device, in any currency"),
    "ranks": Setting(int, 1, "on a CPU, only groups of N processes"),
    "host_ms": Setting(float, 0, "your own host time of a step"),
    "expert_correlation": Setting(float, 0, "1: consecutive tokens choose experts independently"),
    "draft_kv_budget": Setting(int, 1, "tokens that the draft's cache keeps"),
}

DRAWN: Final[Mapping[str, Setting]] = {
    "system_prompt_tokens": Setting(int, 1, "all prompts begin with the same N tokens"),
    "system_prompts": Setting(int, 1, "N different ones of these, in turn", 1),
    "distinct_prompts": Setting(int, 1, "N different prompts, again and again"),
    "turns": Setting(int, 1, "conversations of N requests, whose prompts are the text so far and new tokens"),
    "think_time_s": Setting(float, 0, "from an answer's end to the next turn"),
}
REPLAYED: Final[Mapping[str, Setting]] = {
    "start_s": Setting(float, 0, "where to start, after the first row"),
    "duration_s": Setting(float, 0, "how much to take"),
    "rate": Setting(float, 0, "stretch the time axis to these requests/s"),
    "time_unit": Setting(str, 0, "of mooncake's stamps, s or ms, where the file does not tell", values=("s", "ms")),
}
# Those of models.heads, which help does without.
_DRAFTERS: Final = ("eagle", "eagle3", "mtp", "p-eagle", "dflash", "dspark", "domino", "pard")
CONDITIONS: Final[Mapping[str, Setting]] = {
    "kind": Setting(
        str,
        0,
        "of drafter: serial, parallel, head, block, or none, as n-grams and suffixes; or what it is, as pard, eagle3, "
        "mtp, dflash, dspark",
        values=("serial", "parallel", "head", "block", "none", *_DRAFTERS),
    ),
    "num_draft_tokens": Setting(int, 1, "of a chain, or steps of a tree, if the file does not tell; of a trace 8"),
    "top_k": Setting(int, 1, "of a tree"),
    "rows": Setting(int, 2, "that a tree has in a verification, SGLang's number of draft tokens"),
    "dataset": Setting(str, 0, "that was served"),
    "temperature": Setting(float, 0, "of a trace 0"),
    "thinking": Setting(bool, 0, "whether the target was thinking"),
    "prompt_tokens": Setting(int, 1, "of a prompt"),
}


def listed(known: Mapping[str, Setting]) -> str:
    """The settings with their meanings and usual values, for a flag's help."""
    return "; ".join(
        f"{name} ({setting.meaning}{'' if setting.usual is None else f', {setting.usual:g}'})"
        for name, setting in known.items()
    )


def parse_settings(texts: Sequence[str] | None) -> dict[str, str]:
    """Texts by name, of `max_num_seqs=128,block_size=32`, given once or several times. ValueError for anything else."""
    found: dict[str, str] = {}
    for part in (part.strip() for text in texts or () for part in text.split(",")):
        if not part:
            continue
        word, equals, value = part.partition("=")
        word = word.strip().removeprefix("--").replace("-", "_")
        if not (equals and word and value.strip()):
            raise ValueError(f"--set has {part!r}; expected NAME=VALUE, such as max_num_seqs=128")
        if word in found:
            raise ValueError(f"--set names {word} twice; expected it once")
        found[word] = value.strip()
    return found


def typed(found: Mapping[str, str], known: Mapping[str, Setting]) -> dict[str, Any]:
    """Values of the settings that are known, by name. ValueError naming a setting that is out of range."""
    values: dict[str, Any] = {}
    for word in found.keys() & known.keys():
        values[word] = known[word].value(found[word])
        if values[word] is None:
            raise ValueError(f"--set {word} is {found[word]}; expected {known[word].expected}")
    return values


def usual(known: Mapping[str, Setting]) -> dict[str, Any]:
    """The values of settings that are not given, by name."""
    return {name: setting.usual for name, setting in known.items()}


def own_settings(texts: Sequence[str] | None, known: Mapping[str, Setting]) -> dict[str, Any]:
    """Settings where no other engine has a say. ValueError naming one that is not known."""
    found = parse_settings(texts)
    if unknown := next((word for word in found if word not in known), None):
        raise ValueError(f"--set {unknown} is unknown; expected {', '.join(known)}")
    return typed(found, known)
