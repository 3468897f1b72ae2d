"""Prompts of varied lengths, one after another, as a server has them: `python -m tests.engine.growth --prompts 500`.

They go through an `AsyncEngine` on the bundled pair. Exits with 1 unless no process grows once it is warm.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import swiftspec
from swiftspec.artifacts.plan import Plan
from swiftspec.files.document import ModelRef
from swiftspec.policies.effects import Role
from tests.cli.samples import plan as sample_plan
from tests.engine.processes import num_files, resident_bytes

MAX_CONTEXT = 512
WARM_PROMPTS = 20  # until then buffers are made, and Python's own caches filled
# Of a process, after the warm prompts: an allocator keeps some back, in huge pages of 2 MB each. Prefills that compiled
# for every new length took a role 96 to 100 MB in 60 prompts, an engine that kept its requests 22 MB in 500.
MOST_GROWTH_BYTES = 20 << 20
_EVERY = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """Resources that the processes hold at the end, compared with those when they were warm.

    Parameters
    ----------
    bytes, files : dict
        By process: resident memory, and file descriptors, gained.
    phases : list
        Resident megabytes of every process, now and then.
    """

    requests: int
    bytes: dict[str, int]
    files: dict[str, int]
    phases: list[dict[str, float]] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return max(self.bytes.values()) <= MOST_GROWTH_BYTES and max(self.files.values()) <= 0


def demo_plan() -> Plan:
    """The bundled pair, a role on each core."""
    return sample_plan(
        target=ModelRef(model="demo/target", dtype="float32"), draft=ModelRef(model="demo/draft", dtype="float32")
    )


def grow(*, num_prompts: int, max_new_tokens: int, seed: int, report: Callable[[str], None]) -> Grown:
    """Run prompts of random tokens; no two of the same length until every length has come."""
    rng = random.Random(seed)
    longest = MAX_CONTEXT - max_new_tokens
    lengths = [
        length for _ in range(1 + num_prompts // longest) for length in rng.sample(range(1, longest), longest - 1)
    ]
    prompts = [tuple(rng.choices(range(1, 300), k=length)) for length in (longest, *lengths[: num_prompts - 1])]
    return asyncio.run(_run(prompts, max_new_tokens, report))


async def _run(prompts: Iterable[tuple[int, ...]], max_new_tokens: int, report: Callable[[str], None]) -> Grown:
    phases: list[dict[str, float]] = []
    warm: dict[str, tuple[int, int]] = {}
    async with swiftspec.AsyncEngine(demo_plan(), max_context=MAX_CONTEXT) as engine:
        for done, prompt in enumerate(prompts, start=1):
            async for _ in engine.generate(prompt, max_new_tokens=max_new_tokens):
                pass
            if done == WARM_PROMPTS:
                warm = _sizes(engine)
            if done % _EVERY == 0 or done == WARM_PROMPTS:
                phases.append({name: size / 1e6 for name, (size, _) in _sizes(engine).items()})
                report(f"{done} prompts: " + ", ".join(f"{name} {mb:.1f} MB" for name, mb in phases[-1].items()))
        final, requests = _sizes(engine), engine.stats().requests
    return Grown(
        requests=requests,
        bytes={name: final[name][0] - size for name, (size, _) in warm.items()},
        files={name: final[name][1] - files for name, (_, files) in warm.items()},
        phases=phases,
    )


def _sizes(engine: swiftspec.AsyncEngine) -> dict[str, tuple[int, int]]:
    """Resident bytes, and open file descriptors, by process."""
    roles = {process.role: process.pid for process in engine._running._launcher.processes}
    pids = {"launcher": os.getpid(), "target": roles[Role.TARGET], "draft": roles[Role.DRAFT]}
    return {name: (resident_bytes(pid), num_files(pid)) for name, pid in pids.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    grown = grow(
        num_prompts=options.prompts,
        max_new_tokens=options.new_tokens,
        seed=options.seed,
        report=partial(print, flush=True),
    )
    print(f"gained since prompt {WARM_PROMPTS}: {grown.bytes} bytes, {grown.files} files", flush=True)
    return 0 if grown.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
