"""Serial against parallel drafting with the bundled parallel draft. `python -m tools.parallel_drafts [--run]`

Simulated: the best of a few shapes of each policy on the recorded two-core machine, whose draft forwards are made 1 and
8 times as long, as a larger draft's would be. `--run` measures tokens per round and tokens/s on this machine, in
rounds of all policies on each prompt, with the shapes that are best at a factor of 1.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.files.document import ModelRef
from swiftspec.models.spec import model_directory
from swiftspec.models.tokenizer import Tokenizer
from swiftspec.planner.search.space import Fit
from swiftspec.policies import Layout, Policy, Request, make_policy
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Timeline

__all__ = ["main"]

RECORDED = Path(__file__).resolve().parents[1] / "swiftspec/profiles/demo-zen4-2-cores"
TARGET = ModelRef(model="demo/target", inflate="layers=48", dtype="float32")
DRAFT = ModelRef(model="demo/parallel_draft", dtype="float32")
MODELS = {Role.TARGET: TARGET, Role.DRAFT: DRAFT}
NEW_TOKENS = 64
FACTORS = (1, 8)
SHAPES: dict[str, Sequence[dict[str, Any]]] = {
    "serial_chain": [{"num_draft_tokens": number} for number in (1, 3, 5)],
    "parallel_chain": [{"num_draft_tokens": number} for number in (2, 3, 5)],
    "parallel_tree": [{"verify_rows": rows, "num_masks": 2} for rows in (4, 8, 12)],
    "swiftspec": [{"verify_rows": rows, "expand_rows": expand} for rows in (8, 12) for expand in (4, 8)],
    "swiftspec_parallel": [
        {"verify_rows": rows, "expand_nodes": nodes, "num_masks": 2} for rows in (8, 12) for nodes in (4, 8)
    ],
}


def record(limit: int, draft: ModelRef = DRAFT) -> AcceptanceTrace:
    """A draft's trace on bundled prompts that no plan was made for."""
    from swiftspec.profiler.acceptance import record_trace

    tokenizer = Tokenizer(model_directory(TARGET.model))
    lines = (model_directory("demo/prompts") / "validate.jsonl").read_text().splitlines()
    prompts = [json.loads(line) for line in lines[:: max(1, len(lines) // limit)]][:limit]
    return record_trace(
        target=TARGET.model_copy(update={"inflate": None}),  # which does not change its output
        draft=draft,
        prompts=[(prompt["id"], tokenizer.encode(prompt["prompt"])) for prompt in prompts],
        max_new_tokens=NEW_TOKENS,
        num_candidates=12,
        num_threads=1,
        progress=lambda *_: None,
    )


def slower(profile: Profile, factor: float) -> Profile:
    """The profile with longer draft forwards."""
    steps = []
    for step in profile.steps:
        scale = factor if step.role is Role.DRAFT else 1.0
        steps.append(step.model_copy(update={"quantiles_s": tuple(scale * value for value in step.quantiles_s)}))
    return profile.model_copy(update={"steps": tuple(steps)})


def best(name: str, profile: Profile, trace: AcceptanceTrace) -> tuple[Policy, float, float]:
    """The fastest of a policy's shapes, its tokens/s and tokens per round."""
    from swiftspec.simulator.driver import Simulator

    simulator, fit = Simulator(profile, trace), Fit(trace)
    outcomes = []
    for shape in SHAPES[name]:
        policy = fit(make_policy(name, **shape))
        is_apart = policy.layout is Layout.DISAGGREGATED
        degrees = {Role.TARGET: 1, Role.DRAFT: 1} if is_apart else {Role.TARGET: 2}
        figures = measure(simulator.run(policy, degrees=degrees).timelines).figures
        outcomes.append((policy, figures.tokens_per_s, figures.tokens_per_round))
    return max(outcomes, key=lambda outcome: outcome[1])


def measured(policies: Sequence[Policy], trace: AcceptanceTrace) -> Iterator[tuple[str, float, float]]:
    """Name, tokens/s and tokens per round of each policy on this machine; every output is checked."""
    from swiftspec.engine.launcher import Launcher
    from swiftspec.engine.model.sampling.sampler import Sampler
    from swiftspec.engine.process.placement import Placement

    groups: dict[Layout, dict[Role, tuple[int, ...]]] = {
        Layout.COLOCATED: {Role.TARGET: (0, 1)},
        Layout.DISAGGREGATED: {Role.TARGET: (0,), Role.DRAFT: (1,)},
    }
    for layout in groups:
        some = [policy for policy in policies if policy.layout is layout]
        with Launcher(MODELS, Placement(groups=groups[layout]), layout=layout, max_context=512) as engine:
            timelines: dict[Policy, list[Timeline]] = {policy: [] for policy in some}
            for prompt in trace.prompts:
                output = tuple(prompt.target_tokens.tolist())
                request = Request(prompt=tuple(prompt.prompt_tokens.tolist()), max_new_tokens=len(output))
                for policy in some:
                    found = engine.generate(policy, request, request_id=prompt.prompt_id, sampler=Sampler())
                    if found.tokens != output:
                        raise RuntimeError(f"{policy.name}: its output for {prompt.prompt_id} is not the target's own")
                    timelines[policy].append(found.timeline)
        for policy in some:
            figures = measure(timelines[policy]).figures
            yield policy.name, figures.tokens_per_s, figures.tokens_per_round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=8, help="prompts")
    parser.add_argument("--run", action="store_true", help="also measure, on this machine")
    args = parser.parse_args()
    trace, plan = record(args.limit), Plan.load(RECORDED / "plan.json")
    profile = Profile.load(RECORDED / plan.profile.path)
    for masks in range(trace.num_ahead + 1):
        hits = [_first_choices(trace, index, masks) for index in range(len(trace.prompts))]
        print(f"first choice after {masks} masks: {np.concatenate(hits).mean():.3f}")
    chosen = []
    for factor in FACTORS:
        for name in SHAPES:
            policy, speed, per_round = best(name, slower(profile, factor), trace)
            print(f"draft x{factor}: {speed:6.1f} tokens/s {per_round:5.2f} tokens per round  {policy}", flush=True)
            chosen += [policy] if factor == FACTORS[0] else []
    for name, speed, per_round in measured(chosen, trace) if args.run else ():
        print(f"measured {name}: {speed:.1f} tokens/s {per_round:.2f} tokens per round", flush=True)


def _first_choices(trace: AcceptanceTrace, index: int, masks: int) -> np.ndarray:
    """Whether the draft's first choice is the target's, at every output position that can have so many masks."""
    prompt = trace.prompts[index]
    choices = prompt.draft.tokens if not masks or prompt.ahead is None else prompt.ahead.tokens[:, masks - 1]
    right: np.ndarray = (choices[:, 0] == prompt.target_tokens)[masks:]
    return right


if __name__ == "__main__":
    main()
