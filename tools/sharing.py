"""Draft and target on one GPU: as two processes, and as two streams of one.

Their outputs are compared, their times recorded. On a CPU, two cores take the GPU's place, as a dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from swiftspec.artifacts.metrics import measure
from swiftspec.devices.local import Device
from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.fork_server_client import ForkServer, shared_fork_server
from swiftspec.engine.process.placement import LocalExecutor, Placement
from swiftspec.engine.process.run_folder import run_folder
from swiftspec.engine.process.timeouts import DraftRecovery
from swiftspec.files.document import ModelRef
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.chains.serial import SerialTree
from swiftspec.policies.effects import Role
from tools.shared_process import ThreadExecutor

Record = dict[str, Any]
OpenSite = Callable[[Path, ForkServer], LocalExecutor]

_PROMPTS, _PROMPT_TOKENS = 4, 64
_PATIENCE_S = 5.0


def sharing_records(device: Device, *, target: ModelRef, draft: ModelRef, max_new_tokens: int = 64) -> Iterator[Record]:
    """One for each way to share: tokens/s, the median round, and how many outputs differ from the target's own.

    Parameters
    ----------
    device : "cpu" or "cuda"
    target, draft : ModelRef
    max_new_tokens : int
        Output tokens for each of a few random prompts.
    """
    both = {Role.TARGET: (0,), Role.DRAFT: (0,) if device == "cuda" else (1,)}
    ways: dict[str, OpenSite] = {"two processes": LocalExecutor, "two streams": ThreadExecutor}
    measured = _Measurement(device, target, draft, max_new_tokens=max_new_tokens)
    alone, serial = measured.run(LocalExecutor, Layout.COLOCATED, {Role.TARGET: (0,)}, (Autoregressive(), SerialTree()))
    yield measured.record("target alone", *alone, alone[0])
    yield measured.record("in turn", *serial, alone[0])
    for way, open_executor in ways.items():
        (shared,) = measured.run(open_executor, Layout.DISAGGREGATED, both, (SwiftSpec(),))
        yield measured.record(way, *shared, alone[0])


Outputs = list[tuple[int, ...]]


class _Measurement:
    """The same random prompts on one engine after another."""

    def __init__(self, device: Device, target: ModelRef, draft: ModelRef, *, max_new_tokens: int) -> None:
        self._device = device
        self._target, self._draft = target, draft
        vocab_size = ModelSpec.from_directory(model_directory(target.model)).vocab_size
        tokens = np.random.default_rng(0).integers(1, vocab_size, (_PROMPTS, _PROMPT_TOKENS))
        self._requests = [Request(prompt=tuple(row), max_new_tokens=max_new_tokens) for row in tokens.tolist()]

    def run(
        self,
        open_executor: OpenSite,
        layout: Layout,
        groups: Mapping[Role, tuple[int, ...]],
        policies: tuple[Policy, ...],
    ) -> list[tuple[Outputs, float, float]]:
        """Outputs, tokens/s and seconds of the median round of each policy. The first prompt also warms up."""
        with ExitStack() as stack:
            folder = stack.enter_context(run_folder())
            engine = stack.enter_context(
                Launcher(
                    {Role.TARGET: self._target, Role.DRAFT: self._draft},
                    Placement(groups=groups, device=self._device),
                    layout=layout,
                    max_context=_PROMPT_TOKENS + self._requests[0].max_new_tokens,
                    recovery=DraftRecovery(patience_s=_PATIENCE_S),
                    executor=open_executor(folder, stack.enter_context(shared_fork_server())),
                )
            )
            return [self._measured(engine, policy) for policy in policies]

    def _measured(self, engine: Launcher, policy: Policy) -> tuple[Outputs, float, float]:
        requests = [self._requests[0], *self._requests]
        generations = [
            engine.generate(policy, request, request_id=str(number), sampler=Sampler())
            for number, request in enumerate(requests)
        ][1:]
        figures = measure([generation.timeline for generation in generations]).figures
        return [generation.tokens for generation in generations], figures.tokens_per_s, figures.round_s.median

    @staticmethod
    def record(way: str, outputs: Outputs, tokens_per_s: float, round_s: float, expected: Outputs) -> Record:
        differing = sum(output != own for output, own in zip(outputs, expected, strict=True))
        return {
            "kind": "sharing",
            "way": way,
            "tokens_per_s": tokens_per_s,
            "round_s": round_s,
            "differing_outputs": differing,
        }
