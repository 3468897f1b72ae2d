"""Exported commands against the parsers of vLLM and SGLang themselves.

Downloads the released packages into FOLDER (not into this environment), unpacks their Python parts, makes an
environment that sees this one's packages and the few others that parsing needs, and runs every command that the plans
can be exported to through the engine's own parser; of vLLM also through its model and speculative configurations, with
config.json files of the models in place of repositories. `--record tests/export/options.json` writes the parsers'
options. TensorRT-LLM is not checked: PyPI has no package of it that can be unpacked. Criteria, for each engine: no
command is refused, and a wrong one is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.cli import console
from swiftspec.engines import Engine
from swiftspec.engines.sglang import SGLANG
from swiftspec.engines.vllm import VLLM
from swiftspec.export import Export, export_plan
from swiftspec.planner.under_load.schedule import draft_schedule
from tools.checks.criterion import Criterion, at_least, at_most

_CHECKED = (VLLM, SGLANG)
_PUBLISHED = Path(__file__).parents[2] / "swiftspec" / "models" / "published.json"
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_ARCHITECTURES["qwen3"] = "Qwen3ForCausalLM"
_MAX_RUNNING = 64
# What the parsers import and this project does not have; without their own dependencies, which include torch for CUDA.
_PACKAGES = (
    *("aiohttp", "aiohappyeyeballs", "aiosignal", "anyio", "apache-tvm-ffi", "attrs", "blake3", "cachetools", "cbor2"),
    *("compressed-tensors", "depyf", "diskcache", "distro", "einops", "fastapi", "frozenlist", "gguf", "ijson"),
    *("ipython", "jiter", "jsonschema", "jsonschema-specifications", "lark", "llguidance", "lm-format-enforcer"),
    *(
        "mistral_common",
        "msgspec",
        "multidict",
        "openai",
        "openai-harmony",
        "opentelemetry-api",
        "orjson",
        "outlines_core",
    ),
    *("partial-json-parser", "propcache", "prometheus-fastapi-instrumentator", "py-cpuinfo", "pybase64"),
    *("python-json-logger", "referencing", "rpds-py", "sentencepiece", "setproctitle", "sniffio", "tiktoken"),
    *("traitlets", "uvloop", "watchfiles", "xgrammar", "yarl"),
)
# config.json of a head beside its target's fields, as in the checkpoints of each kind's authors.
_HEADS: dict[str, dict[str, Any]] = {
    "EAGLE3-CHECKPOINT": {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "model_type": "llama"},
    "P-EAGLE-CHECKPOINT": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 4,
        "model_type": "llama",
        "ptd_token_id": 128002,
    },
    "DFLASH-CHECKPOINT": {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 5,
        "model_type": "qwen3",
        "block_size": 16,
        "dflash_config": {"mask_token_id": 128002, "target_layer_ids": [1, 20, 40, 60, 77]},
    },
    "DSPARK-CHECKPOINT": {
        "architectures": ["Qwen3DSparkModel"],
        "num_hidden_layers": 5,
        "model_type": "qwen3",
        "block_size": 16,
        "markov_rank": 256,
        "target_layer_ids": [1, 20, 40, 60, 77],
        "mask_token_id": 128002,
    },
}
_PARD_TOKEN = {"pard_token": 128002}
_PARD_OF = {"amd/PARD-Llama-3.2-1B": "meta-llama/Llama-3.2-1B"}
# A dense target that comes with MTP layers, in place of one that does not.
_WITH_MTP = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}


def check(
    plan: Annotated[tuple[Path, ...], "files, with commas between them"],
    folder: Annotated[Path, "for downloads and the environment; kept"],
    record: Annotated[Path | None, "write the parsers' options there"] = None,
) -> Iterator[Criterion]:
    """Offer every command to its engine."""
    folder.mkdir(parents=True, exist_ok=True)
    python = _environment(folder)
    recorded = {}
    for engine in _CHECKED:
        result, exports = _probed(engine, plan, folder, python)
        *refusals, refusal_of_wrong = result.pop("refusals")
        recorded[engine.name] = result
        for export, refusal in zip(exports, refusals, strict=True):
            if refusal is not None:
                console.say(f"{export.candidate}: {refusal}")
        name = f"{engine.full_name} {result['version']}"
        num_refused = sum(refusal is not None for refusal in refusals)
        yield at_most(f"{name}: refused of {len(exports)} commands", num_refused, 0)
        yield at_least(f"{name}: wrong commands that are refused", int(refusal_of_wrong is not None), 1)
    if record is not None:
        record.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


def _probed(engine: Engine, plans: Sequence[Path], folder: Path, python: Path) -> tuple[dict[str, Any], list[Export]]:
    """The probe's result, whose last refusal is of a wrong command, and the exports before it."""
    package = _unpacked(engine, folder)
    found = [export for path in plans for export in _commands(engine, path)]
    exports = [*{export.arguments: export for export in found}.values()]  # several policies have the same nearest plan
    console.say(f"{len(found)} exports to {engine.full_name}, {len(exports)} different commands")
    wrong = exports[-1].model_copy(update={"arguments": (*exports[-1].arguments, *_WRONG[engine.name])})
    cases = [{"arguments": list(_with_files(export, folder))} for export in (*exports, wrong)]
    source, target = folder / f"{engine.name}-cases.json", folder / f"{engine.name}-result.json"
    source.write_text(json.dumps(cases), encoding="utf-8")
    probe = Path(__file__).with_name("export_probe.py")
    command = [str(python), str(probe), engine.name, str(source), str(target)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(package)})
    result: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return result, exports


# Imitated acceptance needs its rates; a tree's width is a number.
_WRONG = {
    "vllm": (
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 2, "synthetic_acceptance_rates": [1]}',
    ),
    "sglang": ("--speculative-eagle-topk", "wide"),
}


def _commands(engine: Engine, path: Path) -> Iterator[Export]:
    """Every policy of a plan, for one request and for several, and with imitated acceptance if there is a draft."""
    planned = Planned.load(path)

    @cache
    def lengths(num_devices: int, ranks: int, max_running: int) -> Any:
        return draft_schedule(
            planned.profile, planned.trace, num_devices=num_devices, max_running=max_running, ranks=ranks
        )

    for policy in planned.plan.candidates:
        for max_running in (None, _MAX_RUNNING):
            for imitated in (None, planned.trace):
                if imitated is not None and not _drafts(planned.plan, policy):
                    continue
                try:
                    yield export_plan(
                        planned.plan, engine, policy=policy, lengths=lengths, max_running=max_running, imitated=imitated
                    )
                except ValueError as error:
                    if max_running is None and imitated is None:
                        console.say(f"{path.name}: {error}")


def _drafts(plan: Plan, policy: str) -> bool:
    """Whether a plan's candidate has a draft model."""
    return plan.candidates[policy].build().draft_rows > 0


def _with_files(export: Export, folder: Path) -> Iterator[str]:
    """Arguments with directories that hold a config.json in place of repositories, and with the files they name."""
    table = json.loads(_PUBLISHED.read_text(encoding="utf-8"))
    configs = {entry["source"]: _config(entry["config"]) for entry in table.values()}
    target = next(configs[word] for word in export.arguments if word in configs)
    configs |= {name: target | fields for name, fields in _HEADS.items()}
    configs |= {name: configs[of] | _PARD_TOKEN for name, of in _PARD_OF.items()}
    is_mtp = "mtp" in export.configuration.values() or "NEXTN" in export.configuration.values()
    for name, text in export.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    for word in export.arguments:
        changed = str(folder / word) if word in export.files else word
        for source, config in configs.items():
            if source == word or f'"{source}"' in word:
                with_mtp = is_mtp and source == word
                directory = folder / "models" / (source.replace("/", "--") + "-mtp" * with_mtp)
                directory.mkdir(parents=True, exist_ok=True)
                text = json.dumps(config | (_WITH_MTP if with_mtp else {}))
                (directory / "config.json").write_text(text, encoding="utf-8")
                changed = changed.replace(source, str(directory))
        yield changed


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"architectures": [_ARCHITECTURES[fields["model_type"]]]}


def _unpacked(engine: Engine, folder: Path) -> Path:
    """Folder with the Python parts of an engine's released package."""
    package = folder / engine.name
    if package.exists():
        return package
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"{engine.name}=={_release(engine)}"]
    subprocess.run([*pip, "--dest", str(folder)], check=True)
    wheel = next(folder.glob(f"{engine.name}-{_release(engine)}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(package, [name for name in archive.namelist() if not name.endswith(".so")])
    return package


def _release(engine: Engine) -> str:
    assert engine.command is not None, "it is started by one"
    return engine.command.release


def _environment(folder: Path) -> Path:
    """Python of an environment that sees this one's packages, and those that the parsers need besides."""
    python = folder / "environment" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "environment", with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", *_PACKAGES], check=True)
        major, minor = sys.version_info[:2]
        packages = folder / "environment" / "lib" / f"python{major}.{minor}" / "site-packages"
        (packages / "planner.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python
