"""Speculation of several engines at a real size, in turn: the bundled pair, expanded to 0.91 and 0.10 billion weights.

python -m tools.real_size.speculation build/real_size --vllm ~/vllm/bin/python

Expanded models write what the small ones write, so acceptance is real, and the same for all engines. A figure is
tokens/s of a few prompts, one after another, the better of two runs after a first one; of each engine the best number
of draft tokens counts. Drafts and target have all cores. llama.cpp, slower with drafts than without, is not here.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from swiftspec.artifacts.prompts import read_prompts, spread
from swiftspec.engine.tasks import encoded_prompts
from swiftspec.models.spec import model_directory
from tools.real_size.peers import CLASSES, Peers, Start

PAIR = {"target": "layers=16,hidden=2048", "draft": "layers=12,hidden=768"}
NUM_PROMPTS, NEW_TOKENS = 3, 64
DRAFT_TOKENS = (0, 3, 4, 5)  # 0: without a draft


def expanded(folder: Path) -> tuple[Path, Path]:
    """Directories of target and draft, written once."""
    found = []
    for role, shape in PAIR.items():
        directory = folder / f"expanded-{role}"
        if not (directory / "model.safetensors").exists():
            command = ["inflate", "--target", f"demo/{role}", "--inflate", shape, "--out", str(directory)]
            subprocess.run([sys.executable, "-m", "swiftspec", *command], check=True)
        found.append(directory)
    target, draft = found
    return target, draft


def write_prompts(folder: Path, target: Path) -> Path:
    """The token ids of some bundled prompts."""
    texts = spread(read_prompts(Path(model_directory("demo/prompts")) / "validate.jsonl"), NUM_PROMPTS)
    ids = [list(map(int, tokens)) for _, tokens in encoded_prompts(texts, model=str(target))]
    path = folder / "prompts.json"
    path.write_text(json.dumps(ids))
    return path


def fastest(start: Start) -> float:
    """Tokens/s of the better run of a worker, the first left out. CalledProcessError if it fails."""
    done = subprocess.run(start.command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"tokens_per_s"')]
    return max(float(json.loads(line)["tokens_per_s"]) for line in lines[1:])


def compare(starts: Sequence[Sequence[Start]], rounds: int) -> Iterator[str]:
    """A line for every engine: its best number of draft tokens, and how many times as fast ours, the first, is."""
    best: dict[str, tuple[float, int]] = {}
    for _ in range(rounds):
        for of_engine in starts:
            for count, start in zip(DRAFT_TOKENS, of_engine, strict=True):
                best[start.name] = max(best.get(start.name, (0.0, 0)), (fastest(start), count))
    ours, _ = next(iter(best.values()))
    for name, (speed, count) in best.items():
        yield f"{name}: {speed:.1f} tokens/s with {count} draft tokens; ours {ours / speed:.2f} times"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.real_size.speculation", description=__doc__)
    parser.add_argument("folder", type=Path, help="takes packages and models, and may be kept")
    parser.add_argument("--vllm", help="interpreter of an environment that has vLLM")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    peers = Peers(options.folder, vllm=options.vllm)
    for sentence in peers.missing:
        print(sentence)
    target, draft = expanded(options.folder.resolve())
    prompts = write_prompts(options.folder.resolve(), target)
    for precision in CLASSES:
        print(f"\n{precision}", flush=True)
        ways = [
            list(of_engine)
            for of_engine in peers.speculation(target, draft, precision, prompts, NEW_TOKENS, DRAFT_TOKENS)
        ]
        for line in compare(ways, options.rounds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
