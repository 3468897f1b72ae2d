"""Verbs and flags as they were called before: they still work, and a verb says its new name."""

from collections.abc import Mapping, Sequence

from swiftspec.cli import console

_COMPARED = "closed:1,4,16,64"  # loads at which `kinds` compared drafts


def _set(*names: str) -> dict[str, str]:
    """Flags that are settings now, of the same names."""
    return {f"--{name.replace('_', '-')}": f"--set {name}={{}}" for name in names}


_PROMPTS = {"--limit": "--num-prompts {}"}
_OF_LOADS = {
    "--workload": "--load {}",
    **_set("control", "max_running", "max_waiting", "kv_blocks", "prefill_tokens", "gather_ms"),
}
# Verb, as it is called now or was before -> old flag -> its new words; {} is its value.
_FLAGS: Mapping[str, Mapping[str, str]] = {
    "kinds": {"--clients": "--load closed:{},"},  # with a comma at the end, so that even one load is compared at
    "report": {"--out": "--report {}"},
    "secret": {"--out": "--new-secret {}"},
    "trace": _PROMPTS,
    "plan": {
        "--quant": "--dtype {}",
        "--context": "--prompt-tokens {}",
        "--workload": "--load {}",
        "--min-tokens-per-s": "--limit speed={}",
        "--max-tpot-ms": "--limit tpot={}",
        "--max-ttft-ms": "--limit ttft={}",
        "--tpot-ms": "--limit tpot={}",
        "--ttft-ms": "--limit ttft={}",
        "--percentile": "--limit p={}",
        "--max-gpus": "--limit devices={}",
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
    "loadtest": {"--workload": "--load {}"} | _PROMPTS,
    "serve": {
        **_set("max_context", "max_running", "max_waiting", "kv_blocks", "max_restarts", "request_timeout_s"),
        **_set("send_timeout_s", "drain_s", "control", "earlier_outputs", "keep_timelines"),
    },
    "workload": {
        **_set("system_prompt_tokens", "system_prompts", "distinct_prompts", "turns", "think_time_s"),
        **_set("start_s", "duration_s", "rate"),
    },
    "import": {
        "--vllm-metrics": "--from {}",
        "--sglang-metrics": "--from {}",
        "--trace": "--from {}",
        "--context": "--set prompt_tokens={}",
        "--thinking": "--set thinking=true",
        "--no-thinking": "--set thinking=false",
        **_set("kind", "num_draft_tokens", "dataset", "temperature", "prompt_tokens"),
    },
}


# Old verb -> the new one.
_VERBS: Mapping[str, str] = {
    "kinds": "plan",
    "report": "plan",
    "compare": "plan",
    "rates": "import",
    "secret": "run",
    "backtest": "study backtest",
    "atts": "study atts",
    "sweep": "study latency",
    "tenants": "study tenants",
    "models": "list models",
    "devices": "list devices",
    "policies": "list policies",
}


def renewed(arguments: Sequence[str]) -> list[str]:
    """The arguments in today's words. ValueError for a verb that is two commands now."""
    if not arguments:
        return []
    verb, *rest = arguments
    if verb in _VERBS:
        console.note(f"swiftspec: `swiftspec {verb}` is now `swiftspec {_VERBS[verb]}`")
        rest = _of_old_verb(verb, rest)
        verb, *names = _VERBS[verb].split()
        rest = [*names, *rest]
    found = _renewed_flags(verb, rest)
    return [verb, *(_today(found) if verb == "plan" else found)]


def _renewed_flags(verb: str, arguments: Sequence[str]) -> list[str]:
    known = _FLAGS.get(verb, {})
    found: list[str] = []
    waiting = list(arguments)
    while waiting:
        flag, equals, value = waiting.pop(0).partition("=")
        if flag not in known:
            found.append(f"{flag}{equals}{value}")
            continue
        for word in known[flag].split():
            if "{}" not in word or equals:
                found.append(word.format(value))
            elif waiting:
                found.append(word.format(waiting.pop(0)))
    return found


def _of_old_verb(verb: str, arguments: Sequence[str]) -> list[str]:
    found = _renewed_flags(verb, arguments)
    if verb == "compare" and "--run" in found:
        raise ValueError(
            "--run is of `swiftspec compare`, which is two commands now: `swiftspec plan --out plan.json` shows every "
            "policy at its best, and `swiftspec validate --plan plan.json --prompts FILE` measures them"
        )
    return [*found, "--load", _COMPARED] if verb == "kinds" and "--load" not in found else found


def _today(arguments: list[str]) -> list[str]:
    """Three flags of `plan` that are said with others now."""
    role, cluster, draft = (_taken(arguments, flag) for flag in ("--role", "--backend", "--draft-quant"))
    if role == "decode" and not any(each.startswith("transfer_ms=") for each in arguments):
        arguments += ["--set", "transfer_ms=0"]
    if cluster:
        number = _taken(arguments, "--jobs")
        arguments += ["--jobs", f"{cluster}:{number}" if number else cluster]
    if draft:
        arguments += ["--dtype", f"{_taken(arguments, '--dtype') or 'bf16'},{draft}"]
    return arguments


def _taken(arguments: list[str], flag: str) -> str | None:
    """Take a flag out, and return its value; None without."""
    if flag not in arguments[:-1]:
        return None
    place = arguments.index(flag)
    del arguments[place]
    return arguments.pop(place)
