"""Plans as command lines of other engines, in the words of their descriptions. No torch, no engine is imported."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from swiftspec.acceptance.importing import chain_rates
from swiftspec.artifacts.fleet import DraftLength
from swiftspec.artifacts.gain import Verdict
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.planned import candidate_of
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.devices import DEVICES
from swiftspec.engines import Engine
from swiftspec.engines.words import LengthRange, Method
from swiftspec.errors import FieldError
from swiftspec.export.command import Export, ServerSettings, server_command
from swiftspec.export.nearest import Runnable, checkpoint, drafter_of, has_policy, method_of, model_argument, nearest
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.policies import POLICIES, Layout, Policy
from swiftspec.policies.base import drafts_chain, drafts_elsewhere, shape_of
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding

# Draft tokens by batch size of chains on some devices, in some processes on a CPU, for at most so many requests.
Lengths = Callable[[int, int, int], Sequence[DraftLength]]

__all__ = ["Export", "Lengths", "export_plan", "expressible", "length_ranges"]

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_DTYPES |= {name: name for name in _DTYPES.values()}
_OTHER_WEIGHTS = ("int8", "int4", "mxfp4", "nvfp4")
ADDRESS = "ipc:///tmp/swiftspec-draft"
_MOST_RUNNING = 64  # requests, whose caches a draft server allocates when it starts; all others decode plainly
_NEVER = "Draft tokens by batch size: {engine} always drafts as many."
_NOT_IMITATED = "Draft tokens by batch size: one mean acceptance holds for all lengths, so their number is fixed."
# vllm/config/vllm.py of 0.32 and sglang/srt/speculative/adaptive_spec_params.py of 0.5.23 switch schedules off then,
# since ranks would choose different lengths; whether TensorRT-LLM's agree is not known.
_OF_RANKS = "Draft tokens by batch size: ranks of attention in data parallel draft alike, so their number is fixed."
_FALLING = "More draft tokens for more requests at once: the first length of {engine} has to be the largest."


def length_ranges(lengths: Sequence[DraftLength], last: int) -> tuple[LengthRange, ...]:
    """Draft tokens by ranges of batch sizes up to `last`; each size has the length of the next smaller one given."""
    ordered = sorted((each for each in lengths if each.batch <= last), key=lambda each: each.batch)
    ends = [following.batch - 1 for _, following in pairwise(ordered)] + [last]
    ranges: list[LengthRange] = []
    for each, end in zip(ordered, ends, strict=False):
        if ranges and ranges[-1].num_draft_tokens == each.num_draft_tokens:
            ranges[-1] = ranges[-1]._replace(last=end)
        else:
            ranges.append(LengthRange(each.batch if ranges else 1, end, each.num_draft_tokens))
    return tuple(ranges)


def expressible(
    engine: Engine, wanted: tuple[LengthRange, ...], *, method: Method | None, imitates: bool, ranks: int = 1
) -> tuple[tuple[LengthRange, ...], tuple[str, ...]]:
    """The part of a schedule that an engine has, and sentences about the rest.

    imitates: whether acceptance is imitated, for which all lengths need acceptance by position. ranks: of attention in
    data parallel.
    """
    if not wanted:
        return (), ()
    words = engine.schedule
    if words is None or method not in words.methods:
        return (), (words.only_others if words else _NEVER.format(engine=engine.full_name),)
    if ranks > 1:
        return (), (_OF_RANKS,)
    if imitates and engine.imitation is not None and engine.imitation.lost:
        return (), (_NOT_IMITATED,)
    if not words.falls:
        return wanted, ()
    least = accumulate((each.num_draft_tokens for each in wanted), min)
    falling = tuple(each._replace(num_draft_tokens=length) for each, length in zip(wanted, least, strict=True))
    return falling, (_FALLING.format(engine=engine.full_name),) if falling != wanted else ()


def export_plan(
    plan: Plan,
    engine: Engine,
    *,
    policy: str | None = None,
    lengths: Lengths | None = None,
    max_running: int | None = None,
    imitated: AcceptanceTrace | None = None,
    draft: str | None = None,
    address: str = ADDRESS,
) -> Export:
    """The command that starts an engine on a plan, or on the nearest plan that it can express.

    policy: one of the plan's alternatives instead of its choice.
    lengths: finds the draft tokens of a chain by batch size, from devices, processes and requests at once. A plan for a
        fleet has its own.
    max_running: requests at once; if not given, those of the load that the plan was made for. Without, no schedule is
        exported.
    imitated: imitate the acceptance of chains on this trace, without the draft's weights.
    draft: repository or directory of the draft's checkpoint, instead of the plan's.
    address: of a draft server.

    ValueError: if the engine runs plans as they are, has nothing like the policy, or imitates no acceptance.
    """
    if engine.command is None:
        raise FieldError("engine", f"{engine.name}, which runs a plan as it is: swiftspec serve --plan FILE")
    if imitated is not None and engine.imitation is None:
        raise FieldError("synthetic", "true", f"{engine.full_name} imitates no acceptance")
    layout = DeviceLayout.parse(plan.layout) if plan.layout else None
    if layout is not None and (objection := engine.objection(layout)) is not None:
        raise FieldError("layout", layout, objection)
    planned = candidate_of(plan, policy)
    found = nearest(plan, planned, engine, no_trees=imitated is not None)
    drafts, is_apart = found.policy.layout is not Layout.TARGET_ONLY, drafts_elsewhere(found.policy)
    method = method_of(found.policy, drafter_of(plan.draft.model))
    asked = max_running
    if max_running is None and plan.under_load is not None:
        max_running = plan.under_load.options.max_running
    wanted = _schedule(plan, found, lengths, max_running)
    schedule, lost = expressible(
        engine, wanted, method=method, imitates=imitated is not None, ranks=layout.dp if layout else 1
    )
    own, unnamed = checkpoint(plan.draft.model, engine)
    if unnamed and (draft is not None or not drafts):
        unnamed = ""
    served = ServerSettings(
        target=model_argument(plan.target.model, engine),
        draft=(draft or own) if drafts else None,
        method=method,
        policy=found.policy,
        layout=DeviceLayout(tp=found.degree) if layout is None or layout.is_plain else layout,
        draft_degree=found.draft_degree,
        dtype=_DTYPES.get(plan.target.dtype),
        quantisation=_quantisation(plan),
        schedule=schedule,
        max_running=max_running,
        address=address if is_apart else "",
    )
    served = replace(served, **_assumed(plan, found, engine, served, max_running=asked))
    if imitated is not None:
        served = _imitating(served, imitated)
    command = server_command(engine, served)
    return Export(
        engine=engine.name,
        full_name=engine.full_name,
        version=engine.command.release,
        planned=planned.describe(),
        planned_tokens_per_s=planned.tokens_per_s,
        candidate=found.describe(),
        tokens_per_s=found.tokens_per_s,
        num_replicas=plan.fleet.num_replicas if plan.fleet else 1,
        basis=found.basis,
        arguments=command.arguments,
        environment=dict(command.environment),
        draft_server=tuple(_draft_server(plan, found, served)) if is_apart else (),
        files=dict(command.files),
        configuration=dict(command.configuration),
        schedule=schedule,
        not_expressed=(*not_expressed(plan, planned, engine), *lost, *command.not_expressed),
        remarks=(*([unnamed] if unnamed else []), *remarks(plan, found, engine), *command.remarks),
    )


def _schedule(plan: Plan, found: Runnable, lengths: Lengths | None, max_running: int | None) -> tuple[LengthRange, ...]:
    """Of a chain, if several requests are served at once and drafting pays for a single one."""
    if not drafts_chain(found.policy) or max_running is None or max_running == 1:
        return ()
    best: Sequence[DraftLength] = ()
    if plan.fleet is not None and plan.fleet.chosen.num_devices == found.num_devices:
        best = plan.fleet.draft_lengths
    elif lengths is not None:
        best = lengths(found.num_devices, found.degree if plan.device == "cpu" else 1, max_running)
    ranges = length_ranges(best, max_running)
    return ranges if ranges and ranges[0].num_draft_tokens else ()


def _assumed(
    plan: Plan, found: Runnable, engine: Engine, served: ServerSettings, *, max_running: int | None
) -> dict[str, Any]:
    """What the plan assumed of a server: its limits, cache and memory. Nothing of measured devices.

    max_running: requests at once that the user asks for, of all ranks together.
    """
    if plan.device not in DEVICES or engine.command is None:
        return {}
    device, is_own = DEVICES[plan.device], plan.engine == engine.name
    settings = {word: value for word, value in plan.engine_settings.items() if word in engine.words}
    limits = engine.limits(device, settings)
    kv_dtype = plan.kv_dtype or engine.kv_dtype(device, plan.quantisation.get(Role.TARGET, plan.target.dtype), settings)
    assumed: dict[str, Any] = {
        "limits": limits,
        "usual": engine.limits(device),
        "is_loaded": is_own and plan.under_load is not None,
        "kv_dtype": engine.command.fp8_cache if kv_dtype == "fp8" else "auto",
        "max_context": plan.longest_request or None,
        "device_bytes": device.memory_bytes,
        "memory": plan.memory[0] if len(plan.memory) == 1 and not found.basis else None,
    }
    if is_own and plan.under_load is not None and max_running is None:
        # The limits of this engine, as it counts them: of each rank, or of all.
        ranks = 1 if engine.limits_of_all_ranks else served.layout.dp
        assumed["max_running"] = limits.requests * ranks
    return assumed


def _draft_server(plan: Plan, found: Runnable, served: ServerSettings) -> Iterator[str]:
    """Words of the command of a draft server, for an engine that asks one."""
    devices = plan.candidates[found.policy.name].groups[Role.DRAFT]
    device = plan.draft_device or plan.device
    cores = DEVICES[device].cores if device in DEVICES else len(devices) if device == "cpu" else 0
    if not cores:
        yield from ("env", f"CUDA_VISIBLE_DEVICES={devices[0]}")
    yield from ("swiftspec", "serve", "--role", "draft", "--draft", served.draft or "")
    yield from ("--policy", found.policy.name, "--address", served.address)
    if cores:
        yield from ("--devices", str(cores))
    settings = {
        name: ":".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in shape_of(found.policy).items()
    }
    if served.max_running is not None:
        settings["max_running"] = str(min(served.max_running, _MOST_RUNNING))
    if plan.longest_request:
        settings["max_context"] = str(plan.longest_request)
    if not cores:
        settings["device"] = "cuda"
    yield from ("--set", ",".join(f"{name}={value}" for name, value in settings.items()))


def _imitating(served: ServerSettings, trace: AcceptanceTrace) -> ServerSettings:
    if not drafts_chain(served.policy):
        names = ", ".join(policy.name for policy in POLICIES.values() if drafts_chain(policy()))
        why = f"only the acceptance of a chain can be imitated, of {names}"
        raise FieldError("policy", repr(served.policy.name), why)
    rates, _ = chain_rates(trace, served.num_draft_tokens)
    return replace(served, rates=rates)


def _quantisation(plan: Plan) -> dict[Role, str]:
    stated = {Role.TARGET: plan.target.dtype, Role.DRAFT: plan.draft.dtype} | plan.quantisation
    return {role: name for role, name in stated.items() if name in ("fp8", "int8", "int4")}


def not_expressed(plan: Plan, planned: Candidate, engine: Engine) -> Iterator[str]:
    """Sentences about a planned candidate, the most important first."""
    policy, name = planned.build(), engine.full_name
    drafter = drafter_of(plan.draft.model)
    is_known = has_policy(engine, policy, drafter)
    if policy.layout is Layout.DISAGGREGATED and not is_known:
        yield (f"A draft on devices of its own ({planned.split}): {name} runs both models in turn on the same devices.")
        yield f"Drafting while the target verifies ({planned.policy}): {name} drafts between verifications only."
        yield from _degrees(planned, engine)
        yield f"Decoding alone when the draft is late (after {planned.patience_s:g} s): {name} waits for its draft."
    if not is_known:
        yield from _shape(policy, engine, drafter)
    control = planned.control
    if control is None and plan.under_load is not None:
        control = plan.under_load.options.control
    if control not in (None, "none"):
        yield f"The control {control}, which changes how much is verified under load: {name} has no such one."
    for role, model in ((Role.TARGET, plan.target), (Role.DRAFT, plan.draft)):
        if model.inflate is not None:
            yield f"The {role}'s inflation ({model.inflate}): {name} runs {model.model} as it is."
        if plan.quantisation.get(role, model.dtype) in _OTHER_WEIGHTS:
            quantised = plan.quantisation.get(role, model.dtype)
            yield f"The {role}'s weights in {quantised}: {name} reads them from a checkpoint; name such a one instead."


def remarks(plan: Plan, found: Runnable, engine: Engine) -> Iterator[str]:
    basis = "forwards composed of measured kernels" if plan.engine else "swiftspec's own engine"
    yield f"Speeds are predicted for {basis} on {plan.device}; none was measured on {engine.full_name}."
    plain = plan.candidates.get("autoregressive")
    speed = plain.tokens_per_s if plain is not None else 0.0
    if found.tokens_per_s is not None and speed > found.tokens_per_s and found.policy.target_rows > 1:
        yield f"Without a draft {speed:.1f} tokens/s are predicted, which is more; --policy autoregressive exports it."
    if plan.gain is not None and plan.gain.verdict is Verdict.OPEN:
        interval = f"{plan.gain.low:.2f} to {plan.gain.high:.2f} times plain decoding"
        yield f"Whether drafting gains is open ({interval}): {plan.gain.closed_by}."
    if plan.fleet is not None and plan.fleet.num_replicas > 1:
        yield (
            f"The command starts one of {plan.fleet.num_replicas} equal servers: run it once for each, on devices "
            "and a port of its own, behind a proxy that gives requests out in turn."
        )
    if plan.longest_request:
        longest = plan.longest_request
        yield f"Requests of up to {longest} tokens, output included, were planned for: longer ones are refused."


def _degrees(planned: Candidate, engine: Engine) -> Iterator[str]:
    target, draft = (len(planned.groups[role]) for role in (Role.TARGET, Role.DRAFT))
    allowed = (1, target) if engine.leaves_draft_whole else (target,)
    if draft not in allowed:
        parts = "A draft that is not divided" if draft == 1 else f"A draft divided into {draft} parts"
        rule = "into as many parts as the target, or not at all" if 1 in allowed else "into as many parts as the target"
        yield f"{parts}: {engine.full_name} divides it {rule}."


def _shape(policy: Policy, engine: Engine, drafter: Method) -> Iterator[str]:
    name = engine.full_name
    if drafts_chain(policy):
        yield f"Drafts by {drafter}: {name} has no such method."
    if policy.num_candidates > 1:
        trees = "chains and EAGLE-2's trees" if engine.eagle2_trees else "chains"
        yield f"A tree of {policy.target_rows} rows ({policy.name}): {name} verifies {trees} only."
    if policy.fuzzy:
        yield f"Draft forwards with several layers at once ({policy.name}): {name} has none."
    if policy.exits:
        yield f"Drafting from the middle of the target ({policy.name}): {name} has no early exit."
    if policy.target_groups > 1:
        yield f"{policy.target_groups} copies of the target for one request: {name} gives a request to one."
    if isinstance(policy, SuffixDecoding) and method_of(policy, drafter) in engine.methods:
        yield f"{policy.branches} continuations of a token ({policy.name}): {name} follows one."
    elif policy.layout is Layout.TARGET_ONLY:
        yield f"Drafts by {policy.name}: {name} has no such method."
