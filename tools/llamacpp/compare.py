"""Our engine and llama.cpp in turn, in one run: the same weights, prompts and cores.

    python -m tools.llamacpp.compare [--folder build/llamacpp] [--layers 48] [--rounds 3]

Tokens/s of whole requests, prefill included, medians over the rounds; and how many greedy tokens are those of our
autoregressive decoding. `ATEN_CPU_CAPABILITY=avx2` limits both. Policies have their default shapes: no plan is made.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import torch

from swiftspec.artifacts.prompts import read_prompts, spread
from swiftspec.cli import console
from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.model.weights.inflate import write_inflated
from swiftspec.engine.process.placement import Placement
from swiftspec.engine.tasks import EncodedPrompts
from swiftspec.files.document import ModelRef
from swiftspec.models.inflation import Inflation
from swiftspec.models.spec import model_directory
from swiftspec.policies import Layout, Request, make_policy
from swiftspec.policies.effects import Role
from tools.llamacpp.peer import LlamaCpp, Run, UnavailableError

NUM_PROMPTS = 6
NEW_TOKENS = 96
KINDS = ("bf16", "f16")  # two bytes a weight, as ours
# llama.cpp's settings: threads of the draft, most tokens proposed, least probability of one.
PROPOSALS = ((1, 6, 0.5), (1, 3, 0.0))
OURS = (("autoregressive", 1), ("autoregressive", 2), ("serial_chain", 2), ("serial_tree", 2))

Decode = Callable[[], Run]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("build/llamacpp"))
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    try:
        peer = LlamaCpp.build(args.folder)
    except UnavailableError as error:
        console.error(error)
        return 2
    texts = spread(read_prompts(model_directory("demo/prompts") / "validate.jsonl"), NUM_PROMPTS)
    prompts = [tokens for _, tokens in EncodedPrompts.of(texts, model="demo/target")]
    with ExitStack() as stack:
        engines = {**ours(prompts, args.layers, stack), **theirs(peer, prompts, args.folder, args.layers)}
        runs: dict[str, list[Run]] = {name: [] for name in engines}
        for _ in range(args.rounds):
            for name, decode in engines.items():
                runs[name].append(decode())
    show(runs)
    return 0


def ours(prompts: Sequence[tuple[int, ...]], layers: int, stack: ExitStack) -> dict[str, Decode]:
    """Warm engines of our own."""
    models = {
        Role.TARGET: ModelRef(model="demo/target", inflate=f"layers={layers}", dtype="float32"),
        Role.DRAFT: ModelRef(model="demo/draft", dtype="float32"),
    }

    def start(groups: dict[Role, tuple[int, ...]], layout: Layout) -> Launcher:
        return stack.enter_context(Launcher(models, Placement(groups=groups), layout=layout, max_context=1024))

    together = {cores: start({Role.TARGET: tuple(range(cores))}, Layout.COLOCATED) for cores in (1, 2)}
    apart = start({Role.TARGET: (0,), Role.DRAFT: (1,)}, Layout.DISAGGREGATED)
    decodes: dict[str, Decode] = {"our swiftspec, 1+1": partial(decode, apart, "swiftspec", prompts)}
    return decodes | {f"our {name}, {cores}": partial(decode, together[cores], name, prompts) for name, cores in OURS}


def decode(engine: Launcher, name: str, prompts: Sequence[tuple[int, ...]]) -> Run:
    policy, seconds, tokens = make_policy(name), 0.0, []
    for prompt in prompts:
        request = Request(prompt=prompt, max_new_tokens=NEW_TOKENS)
        generation = engine.generate(policy, request, request_id="", sampler=Sampler())
        seconds += generation.timeline.e2e_s
        tokens.append(tuple(generation.tokens))
    return Run(seconds=seconds, tokens=tuple(tokens))


def theirs(peer: LlamaCpp, prompts: Sequence[tuple[int, ...]], folder: Path, layers: int) -> dict[str, Decode]:
    """llama.cpp, plain with one and two threads, and speculative with each setting."""
    inflated = folder / f"target-{layers}"
    if not inflated.exists():
        inflation = Inflation.parse(f"layers={layers}")
        write_inflated(model_directory("demo/target"), inflation, inflated, dtype=torch.bfloat16)
    decodes: dict[str, Decode] = {}
    for kind in KINDS:
        target, draft = (peer.convert(path, kind) for path in (inflated, model_directory("demo/draft")))
        run = partial(peer.decode, prompts, target=target, new_tokens=NEW_TOKENS)
        decodes |= {f"llama.cpp {kind}, {count}": partial(run, num_threads=count) for count in (1, 2)}
        for threads, most, least in PROPOSALS:
            setting = partial(
                run, draft=draft, num_threads=2, draft_threads=threads, most_proposed=most, least_probability=least
            )
            decodes[f"llama.cpp {kind} speculative, 2+{threads}, at most {most}, from {least}"] = setting
    return decodes


def show(runs: dict[str, list[Run]]) -> None:
    reference = runs["our autoregressive, 1"][0].tokens
    total = sum(map(len, reference))
    rows = []
    for name, each in runs.items():
        pairs = zip(reference, each[0].tokens, strict=True)
        same = sum(mine == other for texts in pairs for mine, other in zip(*texts, strict=True))
        rows.append((name, f"{total / median(run.seconds for run in each):.1f}", f"{same} of {total}"))
    title = f"{NUM_PROMPTS} prompts, {NEW_TOKENS} tokens each"
    console.table(title, ("engine, threads", "tokens/s", "tokens as in fp32"), rows)


if __name__ == "__main__":
    sys.exit(main())
