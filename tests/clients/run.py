"""Real clients against the real server: `make clients`. Each is installed, unmodified, into an environment of its own.

Takes some minutes, most of them for installing; needs pip's index, and the plan that `make demo` made, or another one
(`--plan`). For every client: what it measured beside what the server counted (`/metrics`) meanwhile. Exit code 1 if
they differ by more than 2 %, or, for TTFT, 5 ms: the way to the server and back is not in its own figures. lm-eval
measures no time: its log-likelihoods have to be those of the prompts as the server scores them one by one. With
`--vllm PYTHON`, of an environment that has vLLM for CPUs, its answers are compared with those of vLLM, field by field.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.prompts import read_prompts
from swiftspec.cli import console
from swiftspec.models.spec import model_directory
from swiftspec.models.tokenizer import Tokenizer
from tests.clients.lm_eval_client import run_lm_eval
from tools.served import served

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
REQUIREMENTS = {
    "openai": ["openai==3.54.0"],
    "guidellm": ["guidellm==0.8.1"],
    "aiperf": ["aiperf==0.13.0"],
    "lm-eval": ["lm-eval[api]==0.4.13", "transformers==5.23.0"],  # transformers for its tokenizers: without torch
}
TEMPLATE = (
    "{% for m in messages %}# {{ m.role }} {{ m.name or '' }}: {{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "{{ m.tool_call_id or '' }}{% generation %}{% endgeneration %}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson(indent=1) }}{% endif %}{{ documents or '' }}"
    "{% if add_generation_prompt %}def {% endif %}{{ extra or '' }}"
)
NUM_REQUESTS, NUM_CLIENTS = 40, 4
PROMPT_TOKENS, PROMPT_CHARACTERS, OUTPUT_TOKENS = 48, 160, 64
WITHIN, WITHIN_S = 0.02, 5e-3

Figures = dict[str, float]  # means, in seconds, and tokens per iteration


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, default=ROOT / "swiftspec-demo/plan.json")
    parser.add_argument("--work", type=Path, default=ROOT / "build/clients", help="environments and logs")
    parser.add_argument("--only", choices=[*REQUIREMENTS, "vllm"], help="one client")
    parser.add_argument("--vllm", type=Path, help="Python of an environment with vLLM; without it vLLM is skipped")
    parser.add_argument("--policy", help="of the plan, against vLLM")
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    tokenizer = model_directory(Plan.load(chosen.plan).target.model)
    template = chosen.work / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}")
    runs: Mapping[str, Callable[[Path, str, Path], Figures]] = {
        "openai": run_openai,
        "guidellm": run_guidellm,
        "aiperf": run_aiperf,
        "lm-eval": run_lm_eval,
    }
    held = True
    for name in REQUIREMENTS if chosen.only is None else {chosen.only} & set(REQUIREMENTS):
        python = environment(chosen.work / name, REQUIREMENTS[name])
        log = chosen.work / f"{name}.server.log"
        with served(chosen.plan, "--chat-template", str(template), log=log) as (_, url):
            before = counted(url)
            measured = runs[name](python, url, tokenizer)
            held &= agree(name, measured, between(before, counted(url)))
    if chosen.only in (None, "vllm"):
        held &= compare_with_vllm(chosen.vllm, chosen.plan, chosen.work / "vllm", chosen.policy)
    return 0 if held else 1


def compare_with_vllm(python: Path | None, plan: Path, folder: Path, policy: str | None) -> bool:
    """Ask both the same, of a copy of the target with ends and sampling of its own; whether the answers are alike."""
    if python is None:
        console.say("vllm: skipped; --vllm PYTHON names an environment that has it")
        return True
    made = Plan.load(plan)
    model, template = folder / "model", folder / "template.jinja"
    shutil.copytree(model_directory(made.target.model), model, dirs_exist_ok=True)
    (end,) = Tokenizer(model).encode("\n\n\n", special_tokens=False)
    generation = {"eos_token_id": [0, end], "temperature": 0.0, "repetition_penalty": 1.0}
    (model / "generation_config.json").write_text(json.dumps(generation))
    template.write_text(TEMPLATE)
    target = made.target.model_copy(update={"model": str(model)})
    made.model_copy(update={"target": target}).save(folder / "plan.json")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Not its `vllm`: that of the package for CPUs looks for its own version under another package's name.
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--chat-template", str(template), "--max-model-len", "512"]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (folder / "vllm.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | settings)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        ours = ["--chat-template", str(template), *(["--policy", policy] if policy else [])]
        with served(folder / "plan.json", *ours, log=folder / "server.log") as (_, url):
            asking = [str(python), str(HERE / "vllm_client.py"), url, f"http://127.0.0.1:{port}"]
            return subprocess.run(asking, check=False).returncode == 0
    finally:
        process.terminate()
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server is healthy; RuntimeError if it ends instead."""
    while process.poll() is None:
        with suppress(OSError), urlopen(url):
            return
        time.sleep(1.0)
    raise RuntimeError(f"the server of {url} has ended")


def environment(folder: Path, requirements: list[str]) -> Path:
    """Python of an environment with these packages."""
    python = folder / "bin/python"
    if not (folder / "installed").exists():
        console.say(f"Installing {' '.join(requirements)} into {folder}")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "-q", "--constraint", str(HERE / "constraints.txt")]
        subprocess.run([*command, *requirements], check=True)
        (folder / "installed").touch()
    return python


def run_openai(python: Path, url: str, _: Path) -> Figures:
    subprocess.run([str(python), str(HERE / "openai_client.py"), url], check=True)
    return {}


def run_guidellm(python: Path, url: str, tokenizer: Path) -> Figures:
    out = python.parents[1] / "report.json"
    parts = {
        "backend": f"kind=openai_http,target={url},model=demo/target",
        "profile": f"kind=concurrent,streams={NUM_CLIENTS}",
        "constraint": f"kind=max_requests,count={NUM_REQUESTS}",
        "tokenizer": f"kind=huggingface_auto,model={tokenizer}",
        "data": f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
        "output": f"kind=json,path={out}",
    }
    options = [each for name, value in parts.items() for each in (f"--{name}", value)]
    subprocess.run([str(python.with_name("guidellm")), "run", *options, "--disable-console"], check=True)
    metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]

    def mean(name: str) -> float:
        return float(metrics[name]["successful"]["mean"])

    return {
        "TTFT": mean("time_to_first_token_ms") / 1e3,
        "TPOT": mean("inter_token_latency_ms") / 1e3,
        "E2E": mean("request_latency"),
        "tokens per iteration": mean("iter_tokens_per_iteration"),
    }


def run_aiperf(python: Path, url: str, tokenizer: Path) -> Figures:
    """With prompts that the model knows how to continue: AIPerf's first token is the first chunk with any text."""
    folder, prompts = python.parents[1] / "artifacts", python.parents[1] / "prompts.jsonl"
    texts = [each.text[:PROMPT_CHARACTERS] for each in read_prompts(model_directory("demo/prompts") / "trace.jsonl")]
    prompts.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:NUM_REQUESTS]))
    options = {
        "url": url,
        "endpoint-type": "completions",
        "model": "demo/target",
        "tokenizer": str(tokenizer),
        "concurrency": str(NUM_CLIENTS),
        "request-count": str(NUM_REQUESTS),
        "input-file": str(prompts),
        "custom-dataset-type": "single_turn",
        "artifact-dir": str(folder),
        "ui": "none",
    }
    command = [str(python.with_name("aiperf")), "profile", "--streaming"]
    command += [part for name, value in options.items() for part in (f"--{name}", value)]
    command += ["--extra-inputs", "ignore_eos:true", "--extra-inputs", f"max_tokens:{OUTPUT_TOKENS}"]
    subprocess.run(command, check=True)
    metrics = json.loads((folder / "profile_export_aiperf.json").read_text())

    def mean(name: str) -> float:
        return float(metrics[name]["avg"]) / 1e3

    return {
        "TTFT": mean("time_to_first_token"),
        "TPOT": mean("inter_token_latency"),
        "E2E": mean("request_latency"),
    }


_METRICS = {
    "TTFT": "time_to_first_token_seconds",
    "TPOT": "request_time_per_output_token_seconds",
    "E2E": "e2e_request_latency_seconds",
    "tokens per iteration": "round_tokens",
}


def counted(url: str) -> dict[str, tuple[float, float]]:
    """Sum and count of each figure so far."""
    with urlopen(f"{url}/metrics") as answer:
        values = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#"))
    return {
        name: (float(values[f"swiftspec:{metric}_sum"]), float(values[f"swiftspec:{metric}_count"]))
        for name, metric in _METRICS.items()
    }


def between(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> Figures:
    """Means of what came in between."""
    return {name: (after[name][0] - before[name][0]) / max(1.0, after[name][1] - before[name][1]) for name in _METRICS}


def agree(name: str, measured: Figures, ours: Figures) -> bool:
    """Print both; whether they agree."""
    held = True
    for figure, value in measured.items():
        apart = value / ours[figure] - 1
        held &= abs(apart) <= WITHIN or (figure == "TTFT" and abs(value - ours[figure]) <= WITHIN_S)
        console.say(f"{name}: {figure} {value:.5g}, /metrics {ours[figure]:.5g}: {apart:+.1%}".replace("%", " %"))
    return held


if __name__ == "__main__":
    sys.exit(main())
