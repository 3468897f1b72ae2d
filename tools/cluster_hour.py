"""Whether plans hold for vLLM on your GPUs: one command, an hour, one file to send.

    python -m tools.cluster_hour --target llama-8b/ --draft llama-1b/ --dtype bf16 --prompts yours.jsonl \\
        --python vllm-env/bin/python --server-args "--max-model-len 4096" --out hour

It profiles vLLM (three starts), records the draft's acceptance on 24 of the first half of the prompts, by this
package's engine on the host's cores, plans for the largest load, and writes its predictions. Only then it starts
vLLM twice, plainly and with the plan's method, and sends four closed loops of the other prompts to each: by this
package's load test, and by vLLM's own `bench serve`, which wants `vllm[bench]`. OUT.tar.gz has all results and no
text of yours. --dry-run does the same on CPUs, smaller.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swiftspec.api.validating_served import compared, server_of
from swiftspec.artifacts.load_report import PolicyLoad
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.prompts import read_prompts
from swiftspec.artifacts.workload import Workload
from swiftspec.cli import console
from swiftspec.cli.served import engine_here
from swiftspec.validation.served import ServedPrediction
from tools.sweep import frozen, show

_Cells = dict[tuple[str, str], PolicyLoad]  # by candidate and load
_Benches = dict[tuple[str, str], dict[str, Any]]

_OUTPUT_TOKENS = 256
_SENT = ("*.json", "*.txt", "*.log", "profile.json.logs/*.log")  # no prompts, and no trace, which has their tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="directory of the target")
    parser.add_argument("--draft", required=True, help="directory of a draft model, a head or a block drafter")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with `prompt`, 100 or more")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--python", required=True, help="of vLLM's environment")
    parser.add_argument("--server-args", default="", help="further options of vLLM's command")
    parser.add_argument("--clients", default="1,4,16,64", help="of the closed loops")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--dry-run", action="store_true", help="on CPUs: 1 and 2 clients, short answers")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.dry_run:
        asked.clients = "1,2"
    clients = [int(number) for number in asked.clients.split(",")]
    (asked.out / "machine.txt").write_text(_machine())
    planned, loads = _prepare(asked, clients)
    cells, benches = _measure(planned, loads, asked)
    results = {
        "cells": {f"{who} | {name}": cell.model_dump() for (who, name), cell in cells.items()},
        "vllm_bench": {f"{who} | {name}": bench for (who, name), bench in benches.items()},
    }
    (asked.out / "results.json").write_text(json.dumps(results))
    show(cells)
    _show_benches(cells, benches)
    archive = asked.out.with_suffix(".tar.gz")
    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted({path for pattern in _SENT for path in asked.out.glob(pattern)}):
            packed.add(path, path.relative_to(asked.out.parent))
    console.say(f"\nSend us {archive}: profile, plan, predictions, results, logs and the machine's description")


def _machine() -> str:
    try:
        return subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no nvidia-smi: {error}\n"


def _prepare(asked: Any, clients: Sequence[int]) -> tuple[Planned, dict[str, Workload]]:
    """The plan, and the loads."""
    out = asked.out
    texts = read_prompts(asked.prompts)
    half = len(texts) // 2
    for name, part in (("trace", texts[:half]), ("validate", texts[half:])):
        lines = [json.dumps({"id": each.prompt_id, "prompt": each.text}) for each in part]
        (out / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    pair = ["--target", asked.target, "--draft", asked.draft, "--dtype", asked.dtype]
    server = ["--engine", asked.engine, "--python", asked.python, "--server-args", asked.server_args]
    device = ["--device", "cpu" if asked.dry_run else "cuda"]
    sizes = ["--max-sequences", str(min(max(clients), 16)), *(["--minutes", "2", "--starts", "2"] * asked.dry_run)]
    few = ["--num-prompts", "8" if asked.dry_run else "24", "--max-new-tokens", "64"]  # they run on the host's cores
    _run("profile", *server, *device, *pair, *sizes, "--out", str(out / "profile.json"))
    _run("trace", *pair, *few, "--prompts", str(out / "trace.jsonl"), "--out", str(out / "trace.npz"))
    tokens = ["--prompts", str(out / "validate.jsonl"), "--tokenizer", asked.target]
    tokens += ["--output-tokens", f"fixed:{32 if asked.dry_run else _OUTPUT_TOKENS}"]
    loads = {}
    for number in clients:
        path = out / f"closed-{number}.json"
        requests = str((2 if asked.dry_run else 4) * max(4, number))
        _run("workload", "--arrivals", f"closed:{number}", "--requests", requests, *tokens, "--out", str(path))
        loads[path.stem] = Workload.load(path)
    given = ["--profile", str(out / "profile.json"), "--trace", str(out / "trace.npz"), "--load", str(path)]
    _run("plan", *pair, *given, "--out", str(out / "plan.json"))
    return Planned.load(out / "plan.json"), loads


def _measure(planned: Planned, loads: dict[str, Workload], asked: Any) -> tuple[_Cells, _Benches]:
    """What our load test and vLLM's own measured of plain decoding and of the plan's method."""
    served = planned.profile.served
    assert served is not None, "it was measured on servers"
    here = engine_here(served.engine, device=planned.profile.device, python=asked.python, options=served.options)
    plain = next(each for each in planned.plan.candidates.values() if each.build().plain)
    chosen = {each.describe(): each for each in (plain, planned.plan.chosen)}
    runs = {
        (who, name): ServedPrediction(planned=planned, candidate=each, workload=workload, seed=0)
        for who, each in chosen.items()
        for name, workload in loads.items()
    }
    predicted = frozen(runs, asked.out / "predicted.json")
    cells: _Cells = {}
    benches: _Benches = {}
    for who in chosen:
        first = runs[who, next(iter(loads))]
        with (
            tempfile.TemporaryDirectory() as folder,
            server_of(first, here, folder=Path(folder), stages=console.progress) as server,
        ):
            for name, workload in loads.items():
                prompts = asked.out / "validate.jsonl"
                run = runs[who, name]
                cell = compared(run, server, prompts, predicted[who, name], stages=console.progress)
                cells[who, name] = cell
                benches[who, name] = _bench(server.client.url, server.model, workload, asked)
    return cells, benches


def _bench(url: str, model: str, workload: Workload, asked: Any) -> dict[str, Any]:
    """The same load by vLLM's own client; empty if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "bench.json"
        options = {
            "--base-url": url,
            "--model": asked.target,
            "--served-model-name": model,
            "--dataset-name": "custom",
            "--dataset-path": str(asked.out / "validate.jsonl"),
            "--custom-output-len": str(workload.requests[0].output_tokens),
            "--num-prompts": str(len(workload.requests)),
            "--max-concurrency": str(workload.arrivals.num_clients),
            "--temperature": "0",
            "--result-filename": str(result),
        }
        words = [word for pair in options.items() for word in pair]
        flags = ["--skip-chat-template", "--ignore-eos", "--save-result", "--disable-tqdm"]
        command = [asked.python, "-c", _BENCH, *words, *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not result.exists():
            lines = done.stderr.strip().splitlines() or ["it wrote no result"]
            console.note(f"vllm bench serve failed: {lines[-1]}")
            return {}
        found: dict[str, Any] = json.loads(result.read_text())
        return {name: value for name, value in found.items() if isinstance(value, int | float | str)}


# As its command line does, but that the package may have another name, as on CPUs.
_BENCH = """
import argparse
from importlib import metadata
by_name = metadata.Distribution.from_name
metadata.Distribution.from_name = lambda name: next(
    found for found in metadata.distributions() if found.name in (name, name + "-cpu")
) if name == "vllm" else by_name(name)
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def _show_benches(cells: _Cells, benches: _Benches) -> None:
    rows = [
        (*names, f"{1e3 * cells[names].measured.tpot_s.mean:.1f}", f"{bench['mean_tpot_ms']:.1f}")
        for names, bench in benches.items()
        if bench
    ]
    columns = ("candidate", "load", "our load test", "vllm bench serve")
    console.table("TPOT, ms", columns, rows, num_text_columns=2)


def _run(*arguments: str) -> None:
    console.say(f"\nswiftspec {' '.join(arguments)}")
    if code := subprocess.run([sys.executable, "-m", "swiftspec", *arguments], check=False).returncode:
        sys.exit(code)  # it has said why


if __name__ == "__main__":
    main()
