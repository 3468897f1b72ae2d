"""Verbs and flags as they were called before: they still work, and a verb says its new name."""

import re
from collections.abc import Callable, Mapping, Sequence

from swiftspec.cli import console

__all__ = ["renewed"]

_COMPARED = "closed:1,4,16,64"  # loads at which `kinds` compared drafts


def _set(*names: str) -> dict[str, str]:
    """Flags that are settings now, of the same names."""
    return {f"--{name.replace('_', '-')}": f"--set {name}=" for name in names}


_PROMPTS = {"--limit": "--num-prompts"}
_OF_LOADS = {
    "--workload": "--load",
    **_set("control", "max_running", "max_waiting", "kv_blocks", "prefill_tokens", "gather_ms"),
}
# Verb -> old flag -> the new one, with the name that its value gets if that ends with `=`; whole if it has a value.
_FLAGS: Mapping[str, Mapping[str, str]] = {
    "trace": _PROMPTS,
    "plan": {
        "--quant": "--dtype",
        "--context": "--prompt-tokens",
        "--workload": "--load",
        "--min-tokens-per-s": "--limit speed=",
        "--max-tpot-ms": "--limit tpot=",
        "--max-ttft-ms": "--limit ttft=",
        "--tpot-ms": "--limit tpot=",
        "--ttft-ms": "--limit ttft=",
        "--percentile": "--limit p=",
        "--max-gpus": "--limit devices=",
        "--expert-parallel": "--layout tp8ep8",
        **_set("load_requests", "max_running", "transfer_ms", "host_ms", "price_per_hour", "ranks"),
        **_set("draft_kv_budget", "expert_correlation"),
    },
    "simulate": {
        **_OF_LOADS,
        **_set("earlier_outputs"),
        "--replay": "--set replay=true",
        "--full": "--set replay=false",
    },
    "validate": _OF_LOADS | _PROMPTS,
    "loadtest": {"--workload": "--load"} | _PROMPTS,
    "serve": {
        **_set("max_context", "max_running", "max_waiting", "kv_blocks", "max_restarts", "request_timeout_s"),
        **_set("send_timeout_s", "drain_s", "control", "earlier_outputs", "keep_timelines"),
    },
    "workload": {
        **_set("system_prompt_tokens", "system_prompts", "distinct_prompts", "turns", "think_time_s"),
        **_set("start_s", "duration_s", "rate"),
    },
    "import": {
        "--vllm-metrics": "--from",
        "--sglang-metrics": "--from",
        "--trace": "--from",
        "--context": "--set prompt_tokens=",
        "--thinking": "--set thinking=true",
        "--no-thinking": "--set thinking=false",
        **_set("kind", "num_draft_tokens", "dataset", "temperature", "prompt_tokens"),
    },
}


def renewed(arguments: Sequence[str]) -> list[str]:
    """The arguments in today's words. ValueError for a verb that is two commands now."""
    if not arguments:
        return []
    verb, *rest = arguments
    if verb in _VERBS:
        new, change = _VERBS[verb]
        console.note(f"swiftspec: `swiftspec {verb}` is now `swiftspec {new}`")
        verb, *rest = *new.split(), *change(rest)
    return [verb, *_renewed_flags(verb, rest)]


def _renewed_flags(verb: str, arguments: Sequence[str]) -> list[str]:
    known = _FLAGS.get(verb, {})
    found: list[str] = []
    waiting = list(arguments)
    while waiting:
        flag, equals, value = waiting.pop(0).partition("=")
        if flag not in known:
            found.append(f"{flag}{equals}{value}")
            continue
        name, _, beginning = known[flag].partition(" ")
        found.append(name)
        if beginning and not beginning.endswith("="):
            found.append(beginning)
        elif equals or waiting:
            found.append(f"{beginning}{value if equals else waiting.pop(0)}")
    return _today(found) if verb == "plan" else found


def _today(arguments: list[str]) -> list[str]:
    """Three flags of `plan` that are said with others now."""
    is_told = any(each.startswith("transfer_ms=") for each in arguments)
    if _taken(arguments, "--role") == "decode" and not is_told:
        arguments += ["--set", "transfer_ms=0"]
    if cluster := _taken(arguments, "--backend"):
        _change(arguments, "--jobs", lambda number: f"{cluster}:{number}", otherwise=cluster)
    if draft := _taken(arguments, "--draft-quant"):
        _change(arguments, "--dtype", lambda target: f"{target},{draft}", otherwise=f"bf16,{draft}")
    return arguments


def _taken(arguments: list[str], flag: str) -> str | None:
    """Take a flag out, and return its value; None without."""
    if flag not in arguments[:-1]:
        return None
    place = arguments.index(flag)
    del arguments[place]
    return arguments.pop(place)


def _change(arguments: list[str], flag: str, change: Callable[[str], str], *, otherwise: str) -> None:
    """Change a flag's value where it stands, or add the flag."""
    if flag in arguments[:-1]:
        place = arguments.index(flag) + 1
        arguments[place] = change(arguments[place])
    else:
        arguments += [flag, otherwise]


def _kinds(arguments: Sequence[str]) -> list[str]:
    """Loads with a comma at the end, so that even one is compared at."""
    flags = [each.partition("=")[0] for each in arguments]
    if "--clients" not in flags:
        return [*arguments, "--load", _COMPARED]
    place = flags.index("--clients")
    given = arguments[place].partition("=")[2] or "".join(arguments[place + 1 : place + 2])
    after = place + 1 if "=" in arguments[place] else place + 2
    return [*arguments[:place], "--load", f"closed:{given},", *arguments[after:]]


def _out_as(flag: str) -> Callable[[Sequence[str]], list[str]]:
    return lambda arguments: [re.sub("^--out(?=$|=)", flag, each) for each in arguments]


def _compare(arguments: Sequence[str]) -> list[str]:
    if "--run" in arguments:
        raise ValueError(
            "--run is of `swiftspec compare`, which is two commands now: `swiftspec plan --out plan.json` shows every "
            "policy at its best, and `swiftspec validate --plan plan.json --prompts FILE` measures them"
        )
    return list(arguments)


# Old verb -> the new one, and what becomes of its arguments.
_VERBS: Mapping[str, tuple[str, Callable[[Sequence[str]], list[str]]]] = {
    "kinds": ("plan", _kinds),
    "report": ("plan", _out_as("--report")),
    "compare": ("plan", _compare),
    "rates": ("import", list),
    "secret": ("run", _out_as("--new-secret")),
    "models": ("list models", list),
    "devices": ("list devices", list),
    "policies": ("list policies", list),
}
