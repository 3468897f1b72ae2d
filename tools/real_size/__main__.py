"""The engine beside its peers at a real size, in turn in one run.

python -m tools.real_size build/real_size --vllm ~/vllm/bin/python --json real_size.json
"""

import argparse
import json
from pathlib import Path

from tools.real_size.comparison import compare
from tools.real_size.peers import CLASSES, Peers
from tools.real_size.random_model import SHAPES


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.real_size", description=__doc__)
    parser.add_argument("folder", type=Path, help="takes packages and models, and may be kept")
    parser.add_argument("--vllm", help="interpreter of an environment that has vLLM")
    parser.add_argument("--model", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("--precision", choices=CLASSES, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peers = Peers(options.folder, vllm=options.vllm)
    for sentence in peers.missing:
        print(sentence)
    found = []
    for precision in options.precision or CLASSES:
        ours = peers.ours(options.model, precision)
        for other in peers.others(options.model, precision):  # one at a time: all models would not fit the memory
            print(f"\n{options.model} beside {other.name}", flush=True)
            for result in compare([*ours, other], rounds=options.rounds):
                print("\n".join(result.lines()), flush=True)
                found.append(result.as_json())
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
