"""The prompts of SwiftSpec's paper in one file: 80 of each of six data sets, from EAGLE's repository (`eagle/data`).

python -m tools.paper_prompts EAGLE/eagle/data --out paper.jsonl
swiftspec trace --target llama-3-70b/ --draft llama-3.2-3b/ --prompts paper.jsonl --out trace.npz

The paper took its prompts as EAGLE-2 did. Ids begin with the data set, so that results can be told apart by it.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from swiftspec.artifacts.prompts import read_prompts
from swiftspec.files.writing import write_output

DATASETS = {
    "mt_bench": "MT-Bench",
    "humaneval": "HumanEval",
    "gsm8k": "GSM8K",
    "alpaca": "Alpaca",
    "sum": "CNN/DailyMail",
    "qa": "Natural Questions",
}
NUM_PROMPTS = 80  # of each


def lines(folder: Path) -> Iterator[str]:
    """Lines of the prompts file. ValueError names a file that cannot be read or has another number of prompts."""
    for name, title in DATASETS.items():
        path = folder / name / "question.jsonl"
        prompts = read_prompts(path)
        if len(prompts) != NUM_PROMPTS:
            raise ValueError(f"{path}: {len(prompts)} prompts of {title}; expected {NUM_PROMPTS}")
        for prompt in prompts:
            yield json.dumps({"id": f"{name}-{prompt.prompt_id}", "prompt": prompt.text, "dataset": title})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.paper_prompts", description=__doc__)
    parser.add_argument("folder", type=Path, help="has a folder with question.jsonl for each data set")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        write_output(options.out, "".join(f"{line}\n" for line in lines(options.folder)).encode())
    except (ValueError, OSError) as error:
        print(f"paper_prompts: error: {error}", file=sys.stderr)
        return 2
    print(f"{NUM_PROMPTS * len(DATASETS)} prompts of {len(DATASETS)} data sets: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
