"""Profile of an engine on this machine: its servers started, probed together and ended."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from swiftspec.artifacts.pair import resolve_pair
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.served import Served
from swiftspec.engines import Engine
from swiftspec.engines.words import LengthRange
from swiftspec.errors import FieldError
from swiftspec.export.command import ServerSettings
from swiftspec.export.local import server_command
from swiftspec.export.nearest import drafter_of, has_policy, method_of, model_argument
from swiftspec.external.engine import EngineHere
from swiftspec.files.document import ModelRef
from swiftspec.loadtest.client import ServerClient
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.policies import Policy, make_policy, policy_classes
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import drafts_chain
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.profiler.served.measure import ProbeSizes, measure_servers, profile_of
from swiftspec.profiler.served.probes import Drafting, ProbedServer
from swiftspec.progress import Stages, silent

__all__ = ["drafting_policy", "probed_server", "profile_engine"]

_DTYPES: Final[Mapping[str, str]] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_MOST_TOKENS: Final = 8  # drafted, of a round
# Draft tokens by requests at once, in turn: so that neither grows with the other.
_LENGTHS: Final[Mapping[Drafting, tuple[int, ...]]] = {Drafting.LOOKUP: (8, 5, 3, 1), Drafting.DRAFT: (8, 3, 6, 2)}
_LADDER: Final = tuple(2**power for power in range(11))  # requests at once
_LONGEST: Final = 4096
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
    logs: Path | None = None,
    stages: Stages = silent,
) -> Profile:
    """Start an engine plainly, with looked-up drafts and with a draft, measure all three, and end them.

    On CPUs they run together and are measured in turn, so that they suffer alike from what the machine does meanwhile;
    on GPUs, where they do not fit beside each other, one after the other.

    max_sequences: requests at once, at most. minutes: no further pass begins after that. logs: folder for the servers'.

    ValueError: if a model cannot be read, a server does not start, or it is none that can be measured.
    """
    began_s = time.monotonic()
    pair = resolve_pair(target=target, draft=draft, inflate=None, dtype=_known(dtype), device=here.device)
    policies: dict[Drafting, Policy] = {
        Drafting.PLAIN: Autoregressive(),
        Drafting.LOOKUP: PromptLookup(num_draft_tokens=_MOST_TOKENS),
        Drafting.DRAFT: drafting_policy(here.engine, draft, num_draft_tokens=_MOST_TOKENS),
    }
    with ExitStack() as stack:
        folder = logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = []
        for drafting, policy in policies.items():
            settings = _settings(pair.target, pair.draft, policy, drafting)
            written = server_command(here.engine, settings)
            with stages(f"start {drafting}") as progress:
                started = here.server(
                    written.arguments,
                    target=settings.target,
                    environment=written.environment,
                    files=written.files,
                    log=folder / f"{drafting}.log",
                    progress=progress,
                )
                url = stack.enter_context(started).url
            servers.append(probed_server(url, drafting, lengths=_lengths(drafting)))
        sizes = ProbeSizes(sequences=max_sequences, longest=servers[0].client.max_context() or _LONGEST)
        with stages("profile") as progress:
            most_s = 60 * (minutes or 15.0) - (time.monotonic() - began_s)
            times = measure_servers(servers, sizes, most_s=most_s, progress=progress)
        plain, beside = (server.client.reading() for server in (servers[0], servers[-1]))
    limits = here.engine.limits_here(here.device, here.options)
    served = Served(
        engine=f"{here.engine.name}@{here.engine.release_name}",
        methods=tuple(filter(None, (method_of(each, drafter_of(pair.draft.model)) for each in policies.values()))),
        options=tuple(here.options),
        step_tokens=limits.step_tokens,
        requests=limits.requests,
        prefix_block=limits.prefix_block if plain.block_tokens is None else plain.block_tokens,
        runs_ahead=limits.runs_ahead,
        cache_tokens=plain.cache_tokens or limits.requests * sizes.longest,
        beside_draft=beside.cache_tokens,
        request_s=times.above.request_s,
        prompt_token_s=times.above.prompt_token_s,
        median_error=times.steps.median_error,
        largest_error=times.steps.largest_error,
        num_measured=times.num_measured,
        minutes=(time.monotonic() - began_s) / 60,
    )
    names = {drafting: policy.name for drafting, policy in policies.items()}
    return profile_of(
        times, sizes, device=here.device, target=pair.target, draft=pair.draft, served=served, policies=names
    )


def probed_server(url: str, drafting: Drafting, *, lengths: Callable[[int], int], api_key: str = "") -> ProbedServer:
    """A server that runs. ValueError if it does not answer, or tells no metrics."""
    client = ServerClient(url, api_key=api_key)
    model = client.model()
    client.reading()
    vocabulary = sorted({*client.tokenize(_TEXT, model=model)})
    return ProbedServer(client=client, model=model, drafting=drafting, vocabulary=vocabulary, lengths=lengths)


def _known(dtype: str) -> str:
    return "bfloat16" if dtype == "auto" else dtype


def _settings(target: ModelRef, draft: ModelRef, policy: Policy, drafting: Drafting) -> ServerSettings:
    drafter = drafter_of(draft.model)
    lengths = _lengths(drafting)
    schedule = [LengthRange(last // 2 + 1, last, lengths(last)) for last in _LADDER]
    return ServerSettings(
        target=model_argument(target.model),
        draft=model_argument(draft.model) if drafting is Drafting.DRAFT else None,
        method=method_of(policy, drafter),
        policy=policy,
        layout=DeviceLayout(tp=1),
        draft_degree=1,
        dtype=_DTYPES.get(target.dtype, target.dtype),
        schedule=() if drafting is Drafting.PLAIN else tuple(schedule),
    )


def _lengths(drafting: Drafting) -> Callable[[int], int]:
    """Draft tokens by requests at once, as probed."""
    pattern = _LENGTHS.get(drafting, (0,))
    return lambda sequences: pattern[(sequences - 1).bit_length() % len(pattern)]
