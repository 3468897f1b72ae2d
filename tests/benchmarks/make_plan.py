"""A plan for the bundled pair on this machine, made now, for `make bench`: python -m tests.benchmarks.make_plan DIR."""

import sys
from pathlib import Path

import swiftspec
from swiftspec.demo import DEMO_INFLATION
from swiftspec.models.spec import model_directory

TARGET, DRAFT, DTYPE = "demo/target", "demo/draft", "fp32"  # exact; a bf16 checkpoint still takes two bytes a weight
NEW_TOKENS = 96
NUM_TRACED = 60


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    prompts = model_directory("demo/prompts") / "trace.jsonl"
    profile = swiftspec.profile(TARGET, DRAFT, inflate=DEMO_INFLATION, dtype=DTYPE)
    trace = swiftspec.trace(TARGET, DRAFT, prompts, dtype=DTYPE, max_new_tokens=NEW_TOKENS, limit=NUM_TRACED)
    swiftspec.plan(profile=profile, trace=trace).save(folder / "plan.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
