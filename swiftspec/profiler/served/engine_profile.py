"""Profile of an engine on this machine: its servers started, probed together and ended."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path, PurePath
from typing import Final

from swiftspec.artifacts.pair import Pair, resolve_pair
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.served import Served
from swiftspec.engines import Engine, engine_named
from swiftspec.engines.words import LengthRange, Method
from swiftspec.errors import FieldError
from swiftspec.export.command import ServerSettings, server_command
from swiftspec.export.nearest import drafter_of, has_policy, method_of, model_argument
from swiftspec.external.engine import EngineHere
from swiftspec.loadtest.client import ServerClient
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.policies import Policy, make_policy, policy_classes
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import drafts_chain
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.profiler.served.measure import Measurements, ProbeSizes, ServerTimes, measure_servers, profile_of
from swiftspec.profiler.served.probes import Drafting, Probe, ProbedServer
from swiftspec.progress import Stages, silent

_MOST_TOKENS: Final = 8  # drafted, of a round
# Draft tokens by requests at once, in turn: so that neither grows with the other. A draft of few tokens for one request
# verifies no more rows than plain decoding was measured with, which tells what a round takes beyond its forwards.
_LENGTHS: Final[Mapping[Drafting, tuple[int, ...]]] = {Drafting.LOOKUP: (8, 5, 3, 1), Drafting.DRAFT: (2, 8, 1, 5)}
_LADDER: Final = tuple(2**power for power in range(11))  # requests at once
_LONGEST: Final = 4096
_LOOK: Final = Probe(1, 16, 8)  # by which a server shows how it drafts
_MINUTES: Final = 15.0
_TEXT: Final = (
    "def area(width, height):\n    return width * height\n\nThe quick brown fox jumps over the lazy dog, and then it "
    "sleeps for a while. import os, sys; for name in sorted(os.listdir('.')): print(len(name), name.upper())\n"
)


def drafting_policy(engine: Engine, draft: str, *, num_draft_tokens: int) -> Policy:
    """The policy by which an engine drafts chains with a draft. FieldError if it does not."""
    drafter = drafter_of(draft)
    for kind in policy_classes():
        policy = kind()
        if drafts_chain(policy) and method_of(policy, drafter) is drafter and has_policy(engine, policy, drafter):
            return make_policy(policy.name, num_draft_tokens=num_draft_tokens)
    raise FieldError("draft", draft, f"{engine.full_name} does not draft with {drafter}")


def profile_engine(
    target: str,
    draft: str,
    *,
    here: EngineHere,
    dtype: str = "auto",
    max_sequences: int = 8,
    minutes: float | None = None,
    starts: int = 3,
    logs: Path | None = None,
    stages: Stages = silent,
) -> Profile:
    """Start an engine plainly, with a draft and with looked-up drafts, measure all three, and end them.

    On CPUs they run together and are measured in turn, so that they suffer alike from what the machine does meanwhile;
    on GPUs, where they have no room beside each other, one after the other.

    max_sequences: requests at once, at most. minutes: no further pass begins after that. starts: of these three, the
    first so many. logs: folder for the servers'.

    ValueError: if a model cannot be read, a server does not start, or it is none that can be measured.
    """
    began_s = time.monotonic()
    pair = resolve_pair(target=target, draft=draft, inflate=None, dtype=_known(dtype), device=here.device)
    policies: dict[Drafting, Policy] = {
        Drafting.PLAIN: Autoregressive(),
        Drafting.DRAFT: drafting_policy(here.engine, draft, num_draft_tokens=_MOST_TOKENS),
    }
    if Method.PROMPT_LOOKUP in here.engine.methods:
        policies[Drafting.LOOKUP] = PromptLookup(num_draft_tokens=_MOST_TOKENS)
    policies = dict([*policies.items()][:starts])
    ends_s = began_s + 60 * (minutes or _MINUTES)
    together = [policies] if here.device == "cpu" else [{drafting: each} for drafting, each in policies.items()]
    found: list[Measurements] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, group in enumerate(together):
            with ExitStack() as stack:
                servers = [
                    stack.enter_context(_server(here, pair, policy, drafting, logs or Path(folder), stages))
                    for drafting, policy in group.items()
                ]
                share_s = (ends_s - time.monotonic()) / (len(together) - number)
                found.append(_measured(servers, max_sequences=max_sequences, most_s=share_s, stages=stages))
    measured = reduce(Measurements.also, found)
    return _profile(measured, pair, policies, here.engine, device=here.device, options=here.options, began_s=began_s)


@contextmanager
def _server(
    here: EngineHere, pair: Pair, policy: Policy, drafting: Drafting, logs: Path, stages: Stages
) -> Iterator[ProbedServer]:
    """A server that drafts as a policy."""
    engine = here.engine
    lengths = _lengths(engine, drafting)
    schedule = tuple(LengthRange(last // 2 + 1, last, lengths(last)) for last in _LADDER)
    settings = ServerSettings(
        target=model_argument(pair.target.model, engine),
        draft=model_argument(pair.draft.model, engine) if drafting is Drafting.DRAFT else None,
        method=method_of(policy, drafter_of(pair.draft.model)),
        policy=policy,
        layout=DeviceLayout(tp=1),
        draft_degree=1,
        dtype=pair.target.dtype,
        schedule=() if drafting is Drafting.PLAIN or engine.schedule is None else schedule,
    )
    written = server_command(engine, settings)
    with ExitStack() as stack:
        with stages(f"start {drafting}") as progress:
            log = logs / f"{drafting}.log"
            server = stack.enter_context(here.server(written, target=settings.target, log=log, progress=progress))
        yield probed_server(server.url, drafting, lengths=lengths, cores=here.cores(server))


def profile_url(
    url: str,
    target: str,
    draft: str,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    max_sequences: int = 8,
    minutes: float | None = None,
    api_key: str = "",
    stages: Stages = silent,
) -> Profile:
    """Measure a server that runs, and drafts as it does: without a draft, or always as many tokens.

    target, draft: the models that it serves, as the profile's users name them. Else as `profile_engine`.

    ValueError: if it does not answer, tells no metrics, has another target, or is of an engine that is not known here.
    """
    began_s = time.monotonic()
    pair = resolve_pair(target=target, draft=draft, inflate=None, dtype=_known(dtype), device=device)
    server = probed_server(url, Drafting.PLAIN, lengths=lambda _: 0, api_key=api_key)
    before = server.client.reading()
    server.decoding(_LOOK, seed=0)
    counted = server.client.reading().since(before)
    engine = engine_named(counted.engine)
    if engine.release and (release := server.client.release()):
        engine = engine.at(release)
    _check_target(server, pair.target.model, engine)
    policies: dict[Drafting, Policy] = {Drafting.PLAIN: Autoregressive()}
    if drafts := counted.count("spec_decode_num_drafts"):
        length = round(counted.count("spec_decode_num_draft_tokens") / drafts)
        server = replace(server, drafting=Drafting.DRAFT, lengths=lambda _: length)
        policies = {Drafting.DRAFT: drafting_policy(engine, draft, num_draft_tokens=length)}
    most_s = 60 * (minutes or _MINUTES) - (time.monotonic() - began_s)
    found = _measured([server], max_sequences=max_sequences, most_s=most_s, stages=stages)
    return _profile(found, pair, policies, engine, device=device, options=(), began_s=began_s)


def _check_target(server: ProbedServer, target: str, engine: Engine) -> None:
    """FieldError if a server's model is another one, by the last part of its path: a container has its own folders."""
    weights = server.client.weights() or ""
    if "/" in weights and PurePath(weights).name.lower() != PurePath(model_argument(target, engine)).name.lower():
        raise FieldError("target", target, f"{server.client.url} serves {weights}")


def _measured(servers: Sequence[ProbedServer], *, max_sequences: int, most_s: float, stages: Stages) -> Measurements:
    sizes = ProbeSizes(sequences=max_sequences, longest=servers[0].client.max_context() or _LONGEST)
    with stages("profile") as progress:
        return measure_servers(servers, sizes, most_s=most_s, progress=progress)


def _profile(
    measured: Measurements,
    pair: Pair,
    policies: Mapping[Drafting, Policy],
    engine: Engine,
    *,
    device: str,
    options: Sequence[str],
    began_s: float,
) -> Profile:
    """The profile of servers. began_s: when their start began, of `time.monotonic`."""
    sizes, beside = measured.sizes, measured.readings.get(Drafting.DRAFT)
    plain = next(iter(measured.readings.values()))
    times = ServerTimes.of(measured)
    limits = engine.limits_here(device, options)
    drafter = drafter_of(pair.draft.model)
    served = Served(
        engine=f"{engine.name}@{engine.release_name}" if engine.release else engine.name,
        methods=tuple(filter(None, (method_of(each, drafter) for each in policies.values()))),
        options=tuple(options),
        step_tokens=limits.step_tokens,
        requests=limits.requests,
        prefix_block=limits.prefix_block if plain.block_tokens is None else plain.block_tokens,
        runs_ahead=limits.runs_ahead,
        cache_tokens=plain.cache_tokens or limits.requests * sizes.longest,
        beside_draft=beside.cache_tokens if beside else None,
        request_s=times.request_s,
        prompt_token_s=times.prompt_token_s,
        measured=times.measured,
        minutes=(time.monotonic() - began_s) / 60,
        pace_s=measured.pace_s,
    )
    names = {drafting: policy.name for drafting, policy in policies.items()}
    return profile_of(times, sizes, device=device, target=pair.target, draft=pair.draft, served=served, policies=names)


def probed_server(
    url: str,
    drafting: Drafting,
    *,
    lengths: Callable[[int], int],
    api_key: str = "",
    cores: Set[int] = frozenset(),
) -> ProbedServer:
    """A server that runs. ValueError if it does not answer, or tells no metrics."""
    client = ServerClient(url, api_key=api_key)
    model = client.model()
    client.reading()
    vocabulary = sorted({*client.tokenize(_TEXT, model=model)})
    return ProbedServer(
        client=client, model=model, drafting=drafting, vocabulary=vocabulary, lengths=lengths, cores=cores
    )


def _known(dtype: str) -> str:
    return "bfloat16" if dtype == "auto" else dtype


def _lengths(engine: Engine, drafting: Drafting) -> Callable[[int], int]:
    """Draft tokens by requests at once, as probed: one number where the engine has no schedule."""
    pattern = _LENGTHS.get(drafting, (0,))
    if engine.schedule is None and drafting is not Drafting.PLAIN:
        pattern = (_MOST_TOKENS // 2,)
    return lambda sequences: pattern[(sequences - 1).bit_length() % len(pattern)]
