"""Verbs and flags as they were called before: they still work, and a verb says its new name."""

from collections.abc import Callable, Mapping, Sequence

from swiftspec.cli import console

__all__ = ["renewed"]

_COMPARED = "closed:1,4,16,64"  # loads at which `kinds` compared drafts
_CONTROL = {"--control": "--set control="}
_EARLIER = {"--earlier-outputs": "--set earlier_outputs="}
_OF_LOADS = {
    **_CONTROL,
    "--workload": "--load",
    "--max-running": "--set max_running=",
    "--max-waiting": "--set max_waiting=",
    "--kv-blocks": "--set kv_blocks=",
    "--prefill-tokens": "--set prefill_tokens=",
    "--gather-ms": "--set gather_ms=",
}
_PROMPTS = {"--limit": "--num-prompts"}
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
        "--load-requests": "--set load_requests=",
        "--max-running": "--set max_running=",
        "--transfer-ms": "--set transfer_ms=",
        "--host-ms": "--set host_ms=",
        "--price-per-hour": "--set price_per_hour=",
        "--ranks": "--set ranks=",
        "--draft-kv-budget": "--set draft_kv_budget=",
        "--expert-correlation": "--set expert_correlation=",
        "--expert-parallel": "--layout tp8ep8",
    },
    "simulate": {**_OF_LOADS, **_EARLIER, "--replay": "--set replay=true", "--full": "--set replay=false"},
    "validate": _OF_LOADS | _PROMPTS,
    "loadtest": {"--workload": "--load"} | _PROMPTS,
    "serve": {
        f"--{name.replace('_', '-')}": f"--set {name}="
        for name in (
            *("max_context", "max_running", "max_waiting", "kv_blocks", "max_restarts"),
            *("request_timeout_s", "send_timeout_s", "drain_s"),
            *("control", "earlier_outputs", "keep_timelines"),
        )
    },
    "workload": {
        f"--{name.replace('_', '-')}": f"--set {name}="
        for name in (
            *("system_prompt_tokens", "system_prompts", "distinct_prompts", "turns", "think_time_s"),
            *("start_s", "duration_s", "rate"),
        )
    },
    "import": {
        "--vllm-metrics": "--from",
        "--sglang-metrics": "--from",
        "--trace": "--from",
        "--context": "--set prompt_tokens=",
        "--thinking": "--set thinking=true",
        "--no-thinking": "--set thinking=false",
        **{
            f"--{name.replace('_', '-')}": f"--set {name}="
            for name in ("kind", "num_draft_tokens", "dataset", "temperature", "prompt_tokens")
        },
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
    return _with_pool(_with_cluster(_with_draft_format(found))) if verb == "plan" else found


def _with_pool(arguments: list[str]) -> list[str]:
    """`--role decode` as a time of transfer."""
    if "--role" not in arguments[:-1]:
        return arguments
    place = arguments.index("--role")
    role = arguments[place + 1]
    kept = [*arguments[:place], *arguments[place + 2 :]]
    is_told = any(each.startswith("transfer_ms=") for each in kept)
    return kept if role != "decode" or is_told else [*kept, "--set", "transfer_ms=0"]


def _with_cluster(arguments: list[str]) -> list[str]:
    """`--backend ray --jobs 64` as `--jobs ray:64`."""
    if "--backend" not in arguments[:-1]:
        return arguments
    place = arguments.index("--backend")
    cluster = arguments[place + 1]
    kept = [*arguments[:place], *arguments[place + 2 :]]
    if "--jobs" not in kept[:-1]:
        return [*kept, "--jobs", cluster]
    number = kept.index("--jobs") + 1
    kept[number] = f"{cluster}:{kept[number]}"
    return kept


def _with_draft_format(arguments: list[str]) -> list[str]:
    """`--dtype A --draft-quant B` as `--dtype A,B`."""
    if "--draft-quant" not in arguments[:-1]:
        return arguments
    place = arguments.index("--draft-quant")
    draft = arguments[place + 1]
    kept = [*arguments[:place], *arguments[place + 2 :]]
    if "--dtype" not in kept[:-1]:
        return [*kept, "--dtype", f"bf16,{draft}"]
    kept[kept.index("--dtype") + 1] += f",{draft}"
    return kept


def _kinds(arguments: Sequence[str]) -> list[str]:
    """Loads with a comma at the end, so that even one is compared at."""
    flags = [each.partition("=")[0] for each in arguments]
    if "--clients" not in flags:
        return [*arguments, "--load", _COMPARED]
    place = flags.index("--clients")
    given = arguments[place].partition("=")[2] or "".join(arguments[place + 1 : place + 2])
    after = place + 1 if "=" in arguments[place] else place + 2
    return [*arguments[:place], "--load", f"closed:{given},", *arguments[after:]]


def _report(arguments: Sequence[str]) -> list[str]:
    return [each.replace("--out", "--report", 1) if each.partition("=")[0] == "--out" else each for each in arguments]


def _compare(arguments: Sequence[str]) -> list[str]:
    if "--run" in arguments:
        raise ValueError(
            "--run is of `swiftspec compare`, which is two commands now: `swiftspec plan --out plan.json` shows every "
            "policy at its best, and `swiftspec validate --plan plan.json --prompts FILE` measures them"
        )
    return list(arguments)


def _secret(arguments: Sequence[str]) -> list[str]:
    return [each.replace("--out", "--new-secret", 1) for each in arguments]


# Old verb -> the new one, and what becomes of its arguments.
_VERBS: Mapping[str, tuple[str, Callable[[Sequence[str]], list[str]]]] = {
    "kinds": ("plan", _kinds),
    "report": ("plan", _report),
    "compare": ("plan", _compare),
    "rates": ("import", list),
    "secret": ("run", _secret),
    "models": ("list models", list),
    "devices": ("list devices", list),
    "policies": ("list policies", list),
}
