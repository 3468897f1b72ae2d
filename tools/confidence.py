"""Rows by the draft's own probabilities against fixed numbers of rows. `python -m tools.confidence [--draft MODEL]`

Simulated closed loops of some clients on the recorded two-core machine, with the acceptance of a bundled parallel draft
or block drafter, recorded here on prompts that no plan was made for, and the latencies of the serial draft: tokens/s of
chains of K tokens, of trees of some rows, of trees without the rows below `least_probability`, and of a long chain and
a large tree under the control `worth`, which learns how often each place is accepted.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.prompts import read_prompts
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.files.document import ModelRef
from swiftspec.models.spec import model_directory
from swiftspec.models.tokenizer import Tokenizer
from swiftspec.planner.search.space import Fit
from swiftspec.policies import Policy, make_policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.controller import Steering
from swiftspec.scheduler.controls.named import named_control
from swiftspec.simulator.jobs import Job
from swiftspec.simulator.serving import Serving
from swiftspec.timing.step_costs import StepCosts

RECORDED = Path(__file__).resolve().parents[1] / "swiftspec/profiles/demo-zen4-2-cores"
NEW_TOKENS = 64
DEGREES = {Role.TARGET: 2}
LENGTHS, ROWS, LEAST = range(1, 7), (2, 3, 4, 6, 8, 12), (0.05, 0.1, 0.2, 0.3, 0.4)
MOST_ROWS, NUM_MASKS = 16, 5


def shapes() -> Iterator[tuple[str, Policy, str | None]]:
    """Kind of each compared policy, the policy, and its control."""
    for length in LENGTHS:
        yield "chain of K", make_policy("parallel_chain", num_draft_tokens=length), None
    for rows in ROWS:
        yield "tree of so many rows", make_policy("parallel_tree", verify_rows=rows, num_masks=NUM_MASKS), None
    largest = make_policy("parallel_tree", verify_rows=MOST_ROWS, num_masks=NUM_MASKS)
    for least in LEAST:
        shape = {"verify_rows": MOST_ROWS, "num_masks": NUM_MASKS, "least_probability": least}
        yield "tree by probability", make_policy("parallel_tree", **shape), None
    yield "chain under worth", make_policy("parallel_chain", num_draft_tokens=LENGTHS[-1]), "worth"
    yield "tree under worth", largest, "worth"


def served(policy: Policy, control: str | None, trace: AcceptanceTrace, profile: Profile, *, clients: int) -> float:
    """Tokens per second of a closed loop over a trace's prompts."""
    policy = Fit(trace)(policy)
    steering = None
    if control is not None:
        costs = StepCosts.of(policy, profile.latencies, degrees=dict.fromkeys(Role, 2), ranks={}, context=128)
        steering = Steering.of(policy, named_control(control), costs)
    serving = Serving(
        profile.latencies,
        trace,
        policy,
        degrees=DEGREES,
        admission=AdmissionLimits(max_running=clients),
        batch=BatchLimits(prefill_rows=1000),
        steering=steering,
    )
    jobs = [
        Job(arrival_s=0.0, prompt_index=index, output_tokens=len(prompt.target_tokens))
        for index, prompt in enumerate(trace.prompts)
    ]
    run = serving.run(jobs, num_clients=clients)
    return sum(len(request.text.output) for request in run.requests) / run.end_s


def record(limit: int, draft: str = "demo/parallel_draft") -> AcceptanceTrace:
    """A draft's trace on bundled prompts that no plan was made for."""
    from swiftspec.profiler.acceptance import record_trace

    tokenizer = Tokenizer(model_directory("demo/target"))
    prompts = list(read_prompts(model_directory("demo/prompts") / "validate.jsonl"))
    return record_trace(
        target=ModelRef(model="demo/target", dtype="float32"),
        draft=ModelRef(model=draft, dtype="float32"),
        prompts=[
            (prompt.prompt_id, tokenizer.encode(prompt.text))
            for prompt in prompts[:: max(1, len(prompts) // limit)][:limit]
        ],
        max_new_tokens=NEW_TOKENS,
        num_candidates=12,
        num_threads=1,
        progress=lambda *_: None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", default="demo/parallel_draft")
    parser.add_argument("--limit", type=int, default=24, help="prompts")
    parser.add_argument("--clients", type=int, nargs="+", default=(1, 4, 8))
    args = parser.parse_args()
    trace = record(args.limit, args.draft)
    profile = Profile.load(RECORDED / Plan.load(RECORDED / "plan.json").profile.path)
    for clients in args.clients:
        for kind, policy, control in shapes():
            speed = served(policy, control, trace, profile, clients=clients)
            print(f"{clients} clients: {speed:6.1f} tokens/s  {kind}: {policy}", flush=True)


if __name__ == "__main__":
    main()
