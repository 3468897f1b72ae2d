"""What an engine's own parser says of exported commands; run by the check `export` in an environment with that engine.

    python tools/checks/export_probe.py vllm cases.json result.json

Nothing of swiftspec is imported. The engines are imported by name, so that they need not be installed elsewhere.
"""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_SGLANG_OPTIONS = (
    *("--model-path", "--tp-size", "--attn-dp-size", "--ep-size"),
    *("--dtype", "--quantization", "--max-running-requests", "--page-size"),
)
_VLLM_OPTIONS = (
    *("--tensor-parallel-size", "--data-parallel-size", "--enable-expert-parallel"),
    *("--dtype", "--quantization", "--max-num-seqs", "--speculative-config"),
)


def probe(engine: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Options of an engine, and for every case None or why it was refused."""
    found = _vllm(cases) if engine == "vllm" else _sglang(cases)
    assert isinstance(found, dict), "both return one"
    return found


def _vllm(cases: list[dict[str, Any]]) -> dict[str, Any]:
    platforms, cpu = import_module("vllm.platforms"), import_module("vllm.platforms.cpu")
    vars(platforms)["_current_platform"] = cpu.CpuPlatform()  # there is no accelerator to find
    arguments = import_module("vllm.engine.arg_utils").EngineArgs
    config = import_module("vllm.config")
    schedules = import_module("vllm.v1.spec_decode.dynamic.utils")
    # Suffix decoding asks whether its compiled package is installed, and nothing else of it here.
    vars(import_module("vllm.config.speculative"))["has_arctic_inference"] = lambda: True
    parser = arguments.add_cli_args(import_module("vllm.utils.argparse_utils").FlexibleArgumentParser())

    def check(words: list[str]) -> None:
        engine = arguments.from_cli_args(parser.parse_args(["--model", *words[2:]]))
        parallel = config.ParallelConfig(
            tensor_parallel_size=engine.tensor_parallel_size, distributed_executor_backend="mp"
        )
        speculation = engine.create_speculative_config(engine.create_model_config(), parallel)
        if speculation is not None and speculation.num_speculative_tokens_per_batch_size:
            schedules.build_dynamic_sd_schedule_lookup(
                [list(entry) for entry in speculation.num_speculative_tokens_per_batch_size],
                vllm_max_batch_size=engine.max_num_seqs,
                vllm_num_speculative_tokens=speculation.num_speculative_tokens,
            )

    fields = config.SpeculativeConfig.__dataclass_fields__
    return {
        "version": import_module("vllm").__version__,
        "options": _options(parser, _VLLM_OPTIONS),
        "configuration": {name: str(field.type) for name, field in fields.items()},
        "choices": {
            "method": _literals(import_module("vllm.config.speculative").SpeculativeMethod),
            "rejection_sample_method": _literals(import_module("vllm.config.speculative").RejectionSampleMethod),
        },
        "refusals": [_refusal(check, case["arguments"]) for case in cases],
    }


def _sglang(cases: list[dict[str, Any]]) -> dict[str, Any]:
    arguments = import_module("sglang.srt.server_args").ServerArgs
    environment = import_module("sglang.srt.environ").envs
    parser = argparse.ArgumentParser()
    arguments.add_cli_args(parser)

    def check(words: list[str]) -> None:
        arguments.from_cli_args(parser.parse_args(words[3:]))

    return {
        "version": import_module("sglang").__version__,
        "options": _options(parser, _SGLANG_OPTIONS),
        "environment": [name for name in dir(environment) if name.startswith("SGLANG_SIMULATE_ACC")],
        "refusals": [_refusal(check, case["arguments"]) for case in cases],
    }


def _refusal(check: Any, words: list[str]) -> str | None:
    try:
        check(words)
    except SystemExit:
        return "refused by the parser, see its message above"
    except Exception as error:  # noqa: BLE001 - the engine's checks raise whatever they like; each is a refusal
        return " ".join(f"{type(error).__name__}: {error}".split())[:400]
    return None


def _options(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> dict[str, Any]:
    """Type and choices of these options, and of all with `speculative` in their names."""
    found = {}
    for action in parser._actions:
        for name in action.option_strings:
            if name in names or name.startswith("--speculative"):
                choices = None if action.choices is None else [str(choice) for choice in action.choices]
                kind = getattr(action.type, "__name__", None) if action.nargs != 0 else "flag"
                found[name] = {"type": kind, "choices": choices}
    return found


def _literals(kind: Any) -> list[str]:
    """Values of a Literal, nested ones included."""
    values: list[str] = []
    for each in kind.__args__:
        values += [each] if isinstance(each, str) else _literals(each)
    return values


if __name__ == "__main__":
    _, named, source, target = sys.argv
    Path(target).write_text(json.dumps(probe(named, json.loads(Path(source).read_text()))), encoding="utf-8")
