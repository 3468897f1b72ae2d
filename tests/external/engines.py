"""The real vLLM from profile to validation, on CPUs: `make engines ENGINES_ARGS="--vllm PYTHON"`.

PYTHON is that of an environment with vLLM for CPUs (docs/engines.md says how it is made); nothing is installed here.
Takes about 20 minutes of a quiet machine with two cores and 16 GB: greedy outputs of every method beside those of plain
decoding, a profile, a plan and its validation, and starts that fail. Results are in DIR/engines.json, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from swiftspec.artifacts.prompts import read_prompts
from swiftspec.cli import console
from swiftspec.engine.model.weights.inflate import write_inflated
from swiftspec.engines import engine_named
from swiftspec.export.command import ServerSettings, server_command
from swiftspec.export.nearest import drafter_of, method_of
from swiftspec.external.engine import EngineHere
from swiftspec.external.server import ServerError
from swiftspec.loadtest.client import ServerClient
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.inflation import Inflation
from swiftspec.models.spec import ModelSpec
from swiftspec.policies import Policy
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.policies.trees.heads import HeadChain
from tests.external import drafter, drafter_speed
from tests.external.drafted_vllm import Setting

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "swiftspec/demo"
LAYERS = 48  # so many that a row of the target takes some 25 draft forwards
OPTIONS = ("--max-model-len", "1024", "--max-num-seqs", "16")
LAYERS_BY_DRAFT_FORWARDS = {10: 19, 20: 38, 40: 77}  # of targets whose row takes about as many draft forwards
NUM_PROMPTS, NUM_TOKENS, LENGTH = 40, 64, 4
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, required=True, help="Python of an environment with vLLM for CPUs")
    parser.add_argument("--work", type=Path, default=ROOT / "build/engines", help="models, logs and results")
    parser.add_argument(
        "--only", choices=["outputs", "way", "faults", "hour", "drafter", "drafter-speed"], help="one part"
    )
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    target, head = write_models(asked.work)
    here = EngineHere(engine=engine_named("vllm@0.32.0"), python=str(asked.vllm), options=OPTIONS)
    results: dict[str, object] = {}
    held = True
    if asked.only in (None, "outputs"):
        results["outputs"] = apart = outputs(here, target, head, asked.work)
        held &= not any(apart.values())
    if asked.only in (None, "faults"):
        results["faults"] = wrong = faults(asked.vllm, target, asked.work)
        held &= not wrong
    if asked.only in (None, "way"):
        results["way"] = way(asked.vllm, target, asked.work)
    if asked.only in (None, "hour"):
        results["hour"] = hour(asked.vllm, target, asked.work)
    if asked.only == "drafter-speed":
        results["drafter speed"] = compared(here, asked.work)
    if asked.only == "drafter":
        prompts = [each.text for each in read_prompts(DEMO / "prompts/validate.jsonl")[:NUM_PROMPTS]]
        plain = server_command(here.engine, _settings(target, Autoregressive(), DEMO / "draft"))
        setting = Setting(here=here, plain=plain, target=target, draft=DEMO / "draft", folder=asked.work)
        lookup = server_command(here.engine, _settings(target, PromptLookup(num_draft_tokens=LENGTH), DEMO / "draft"))
        results["drafter"], held = drafter.check(setting, lookup, prompts)
    (asked.work / "engines.json").write_text(json.dumps(results, indent=1))
    return 0 if held else 1


def write_models(folder: Path) -> tuple[Path, Path]:
    """The bundled target with more layers, and its EAGLE-3 head, which reads the layers that the small one's became."""
    target, head = folder / "target", folder / "head"
    if not target.is_dir():
        write_inflated(DEMO / "target", Inflation(layers=LAYERS), target, dtype=torch.float32, seed=0)
    shutil.copytree(DEMO / "head", head, dirs_exist_ok=True)
    small = ModelSpec.from_directory(DEMO / "target").num_layers
    config = json.loads((head / "config.json").read_text())
    layers = config["eagle_config"][LAYER_IDS]
    config["eagle_config"][LAYER_IDS] = [layer * LAYERS // small for layer in layers]
    (head / "config.json").write_text(json.dumps(config))
    return target, head


def outputs(here: EngineHere, target: Path, head: Path, folder: Path) -> dict[str, int]:
    """Of every method, prompts whose greedy text is not that of plain decoding."""
    methods: Mapping[str, tuple[Policy, Path]] = {
        "plain": (Autoregressive(), DEMO / "draft"),
        "n-gram": (PromptLookup(num_draft_tokens=LENGTH), DEMO / "draft"),
        "draft model": (SerialChain(num_draft_tokens=LENGTH), DEMO / "draft"),
        "EAGLE-3": (HeadChain(num_draft_tokens=LENGTH), head),
    }
    texts = {
        name: _texts(here, target, policy, draft, folder / f"{name}.log") for name, (policy, draft) in methods.items()
    }
    apart = {
        name: sum(mine != plain for mine, plain in zip(of_method, texts["plain"], strict=True))
        for name, of_method in texts.items()
        if name != "plain"
    }
    rows = [(name, f"{count} of {NUM_PROMPTS}") for name, count in apart.items()]
    console.table("Greedy outputs in fp32 that differ from plain decoding's", ("method", "prompts"), rows)
    return apart


def _texts(here: EngineHere, target: Path, policy: Policy, draft: Path, log: Path) -> list[str]:
    written = server_command(here.engine, _settings(target, policy, draft))
    stage = f"outputs of {policy.name}"
    with here.server(written, target=str(target), log=log, stage=stage, stages=console.progress) as server:
        client = ServerClient(server.url)
        model = client.model()
        prompts = read_prompts(DEMO / "prompts/validate.jsonl")[:NUM_PROMPTS]
        return [
            client.write(each.text, model=model, num_tokens=NUM_TOKENS, temperature=0.0, seed=0).text
            for each in prompts
        ]


def _settings(target: Path, policy: Policy, draft: Path) -> ServerSettings:
    drafts = policy.layout.name == "COLOCATED"
    return ServerSettings(
        target=str(target),
        draft=str(draft) if drafts else None,
        method=method_of(policy, drafter_of(str(draft))),
        policy=policy,
        layout=DeviceLayout(tp=1),
        draft_degree=1,
        dtype="float32",
    )


def compared(here: EngineHere, folder: Path) -> object:
    """vLLM's own methods at their best lengths here, and with a draft server, for targets of three sizes."""
    found = {}
    for forwards, layers in LAYERS_BY_DRAFT_FORWARDS.items():
        sized = folder / f"target-{forwards}"
        sized.mkdir(exist_ok=True)
        if not (target := sized / "target").is_dir():
            write_inflated(DEMO / "target", Inflation(layers=layers), target, dtype=torch.float32, seed=0)
        found[f"{forwards} draft forwards"] = _compared(here, target, sized)
        (folder / "drafter-speed.json").write_text(json.dumps(found, indent=1))
    return found


def _compared(here: EngineHere, target: Path, folder: Path) -> object:
    methods: Mapping[str, tuple[Policy, str]] = {
        "plain": (Autoregressive(), "0-1"),
        "n-gram, 5": (PromptLookup(num_draft_tokens=5), "0-1"),
        "draft model, 5": (SerialChain(num_draft_tokens=5), "0-1"),
        "draft model, 5, one core": (SerialChain(num_draft_tokens=5), "0"),
    }
    draft = DEMO / "draft"
    own = {
        name: (server_command(here.engine, _settings(target, policy, draft)), cores)
        for name, (policy, cores) in methods.items()
    }
    setting = Setting(here=here, plain=own["plain"][0], target=target, draft=draft, folder=folder)
    served = drafter_speed.profiles(setting, "one-core", "0")
    drafts, trace = drafter_speed.draft_profile(setting), drafter_speed.traced(setting)
    shapes = {"swiftspec_chain": "num_draft_tokens=5", "ssd": "num_draft_tokens=5"}
    every = {"autoregressive": "", "prompt_lookup": "num_draft_tokens=5", "serial_chain": "num_draft_tokens=5"} | shapes
    predicted = drafter_speed.predicted(setting, served, drafts, trace, every)
    (folder / "predicted.json").write_text(json.dumps(predicted, indent=1))
    measured = drafter_speed.speeds(setting, own, shapes, once=("plain", "n-gram, 5"))
    return {"predicted": predicted, "measured": measured}


def way(python: Path, target: Path, folder: Path) -> object:
    """Profile, trace, plan and validation, as a user types them."""
    pair = ["--target", str(target), "--draft", str(DEMO / "draft"), "--dtype", "fp32"]
    profile, trace, plan, load = (
        str(folder / name) for name in ("profile.json", "trace.npz", "plan.json", "load.json")
    )
    prompts, others = (str(DEMO / "prompts" / name) for name in ("trace.jsonl", "validate.jsonl"))
    arguments = ["--python", str(python)]
    options = ["--server-args", " ".join(OPTIONS)]
    _run("profile", "--engine", "vllm@0.32.0", *arguments, *options, *pair, "--out", profile)
    _run("trace", *pair, "--prompts", prompts, "--num-prompts", "48", "--out", trace)
    lengths = ["--prompt-tokens", "uniform:70:120", "--output-tokens", "fixed:96"]
    _run("workload", "--arrivals", "closed:4", "--requests", "24", *lengths, "--out", load)
    _run("plan", *pair, "--profile", profile, "--trace", trace, "--load", load, "--out", plan)
    report = folder / "validated.json"
    _run("validate", "--plan", plan, "--load", load, "--prompts", others, *arguments, "--json", str(report))
    _run("run", "--plan", plan, *arguments, "--prompt", "def add(a, b):", "--max-new-tokens", "16")
    return json.loads(report.read_text())["policies"]


def hour(python: Path, target: Path, folder: Path) -> object:
    """What tools.cluster_hour writes of its dry run."""
    out = folder / "hour"
    arguments = ["--target", str(target), "--draft", str(DEMO / "draft"), "--dtype", "fp32", "--out", str(out)]
    engine = ["--engine", "vllm@0.32.0", "--python", str(python), "--server-args", " ".join(OPTIONS)]
    prompts = ["--prompts", str(DEMO / "prompts/validate.jsonl")]
    command = [sys.executable, "-m", "tools.cluster_hour", "--dry-run", *arguments, *engine, *prompts]
    subprocess.run(command, check=True, cwd=ROOT)
    with tarfile.open(out.with_suffix(".tar.gz")) as packed:
        names = packed.getnames()
        results = json.loads((out / "results.json").read_text())
    assert not any(name.endswith((".jsonl", ".npz")) for name in names), "texts are not sent"
    assert all(results["vllm_bench"].values()), "vLLM's own client measured every load"
    return {"sent": names, "vllm_bench": results["vllm_bench"]}


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "swiftspec", *arguments], check=True)


def faults(python: Path, target: Path, folder: Path) -> list[str]:
    """Names of the faults that did not end with one sentence, exit code 2 and no process."""
    draft = str(DEMO / "draft")
    pair = ["--target", str(target), "--draft", draft, "--dtype", "fp32", "--out", str(folder / "no.json")]
    engine = ["--engine", "vllm@0.32.0", "--python", str(python)]
    cases: Mapping[str, tuple[Sequence[str], str]] = {
        "no such Python": (["--engine", "vllm", "--python", "/no/python", *pair], "there is no program /no/python"),
        "an option that it does not know": ([*engine, *pair, "--server-args", "--no-such-option"], "no-such-option"),
        "a model too long for its cache": (
            [*engine, *pair, "--server-args", "--max-model-len 100000"],
            r"vLLM ended before it was ready",
        ),
        "nothing at the address": (["--url", "http://127.0.0.1:9", *pair], "no answer"),
    }
    wrong = [name for name, (arguments, sentence) in cases.items() if not _refused(name, arguments, sentence)]
    return wrong + _faults_of_a_server(python, target, pair, folder)


def _faults_of_a_server(python: Path, target: Path, pair: Sequence[str], folder: Path) -> list[str]:
    """The same of one that takes longer than it may, wants a key, has another model, and dies."""
    here = EngineHere(engine=engine_named("vllm@0.32.0"), python=str(python), options=(*OPTIONS, "--api-key", "secret"))
    written = server_command(here.engine, _settings(target, Autoregressive(), DEMO / "draft"))
    key = folder / "key"
    key.write_text("secret\n")
    wrong, before = [], _servers()
    start = partial(EngineHere.server, written=written, target=str(target), stage="faults", stages=console.progress)
    try:
        with start(replace(here, start_s=3.0), log=folder / "slow.log"):
            wrong.append("slower than its limit")
    except ServerError as error:
        console.say(f"slower than its limit: {error}")
        if "not ready after 3 s" not in str(error) or _servers() != before:
            wrong.append("slower than its limit")
    with start(here, log=folder / "keyed.log") as server:
        keyed = ["--url", server.url, "--api-key-file", str(key)]
        other = ["--target", str(DEMO / "draft"), *pair[2:]]
        for name, arguments, sentence, dies in (
            ("no key", ["--url", server.url, *pair], "401", None),
            ("another model", [*keyed, *other], "serves .*target", None),
            ("it dies half way", [*keyed, *pair], "a request failed|no answer", server.group.pid),
        ):
            if not _refused(name, arguments, sentence, dies=dies):
                wrong.append(name)
    return wrong


def _refused(name: str, arguments: Sequence[str], sentence: str, *, dies: int | None = None) -> bool:
    """Whether a profile ends with such a sentence, exit code 2 and no process more. dies: a group that is killed."""
    before = _servers()
    command = [sys.executable, "-m", "swiftspec", "profile", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as profile:
        assert profile.stderr is not None
        said = []
        for line in profile.stderr:
            said.append(line)
            if dies is not None and line.startswith("profile: "):
                os.killpg(dies, signal.SIGKILL)
                before, dies = set(), None
    text = "".join(said)
    console.say(f"{name}: exit code {profile.returncode}; {said[-1].strip() if said else ''}")
    good = profile.returncode == 2 and "Traceback" not in text and re.search(sentence, text) is not None
    return good and _servers() <= before


def _servers() -> set[int]:
    """Processes of vLLM on this machine."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if b"vllm.entrypoints" in (folder / "cmdline").read_bytes().split(b"\0"):
                    found.add(int(folder.name))
            except OSError:
                continue
    return found


if __name__ == "__main__":
    sys.exit(main())
