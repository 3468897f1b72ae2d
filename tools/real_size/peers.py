"""The engines that are compared, fetched by package into a folder, and how each is started."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.llamacpp.peer import LlamaCpp, UnavailableError
from tools.real_size.random_model import write_random

_OPENVINO = "openvino-genai==2026.4.1"
_HERE = Path(__file__).parent
MOST_SEQUENCES, MOST_TOKENS = 8, 2304  # of a question; as in ours.py

# Weights of so many bits, in each engine's own format.
CLASSES = ("16 bits", "8 bits")


@dataclass(frozen=True, slots=True)
class Start:
    """An engine's name with its version, its command, and variables of its environment."""

    name: str
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


class Peers:
    """What can be had of the peers.

    folder: takes packages and models, and may be kept. vllm: an interpreter that has it. missing: a sentence for each
    that cannot be had.
    """

    def __init__(self, folder: Path, *, vllm: str | None) -> None:
        self._folder, self._vllm = folder.resolve(), vllm
        self._threads = str(len(os.sched_getaffinity(0)))
        self.missing: list[str] = []
        self._llama_cpp = self._openvino = None
        try:
            self._llama_cpp = LlamaCpp.build(self._folder / "llamacpp")
        except UnavailableError as error:
            self.missing.append(str(error))
            return  # GGUF files are written with its package, and OpenVINO reads them, too
        try:
            self._openvino = _environment(self._folder / "openvino", _OPENVINO)
        except subprocess.CalledProcessError as error:
            self.missing.append(f"OpenVINO GenAI is not compared: {error.stderr.strip().splitlines()[-1]}")

    def ours(self, model: str, precision: str) -> list[Start]:
        """Ways to start this project's engine with a model of `SHAPES` in one of `CLASSES`."""
        python, directory = (sys.executable, "-m", "tools.real_size.ours"), self._directory(model)
        dtypes = ("bfloat16", "float32") if precision == "16 bits" else ("int8",)
        return [Start(f"swiftspec {dtype}", (*python, str(directory), dtype, self._threads)) for dtype in dtypes]

    def others(self, model: str, precision: str) -> Iterator[Start]:
        """Ways to start each of the others that can be had."""
        directory, is_16_bit = self._directory(model), precision == "16 bits"
        for kind in ("bf16", "f16") if is_16_bit else ("q8_0",):
            if self._llama_cpp:
                yield self._of_llama_cpp(self._llama_cpp, directory, kind)
        if self._llama_cpp and self._openvino:
            gguf = self._llama_cpp.convert(directory, "f16" if is_16_bit else "q8_0")
            words = (self._openvino, str(_HERE / "openvino_worker.py"), str(gguf), _openvino_precision(), self._threads)
            yield Start(f"{_OPENVINO} {'fp16' if is_16_bit else 'int8'} weights, {_openvino_precision()}", words)
        if self._vllm and is_16_bit:
            command = (self._vllm, str(_HERE / "vllm_worker.py"), str(directory), "bfloat16")
            yield Start(f"{_vllm_version(self._vllm)} bfloat16", command)

    def speculation(
        self, target: Path, draft: Path, precision: str, prompts: Path, tokens: int, counts: Sequence[int]
    ) -> Iterator[list[Start]]:
        """Ways to start each engine's speculation, ours first, with these numbers of draft tokens."""
        is_16_bit = precision == "16 bits"
        dtype, kind = ("bfloat16", "f16") if is_16_bit else ("int8", "q8_0")
        pair, rest = (str(target), str(draft)), (str(prompts), str(tokens))
        ours = (sys.executable, "-m", "tools.real_size.ours_speculation", *pair, dtype, *rest)
        ways: list[tuple[str, tuple[str, ...]]] = [(f"swiftspec {dtype}", ours)]
        if self._llama_cpp and self._openvino:
            gguf = [str(self._llama_cpp.convert(model, kind)) for model in (target, draft)]
            worker = str(_HERE / "openvino_speculation.py")
            ways.append((_OPENVINO, (self._openvino, worker, *gguf, _openvino_precision(), *rest)))
        if self._vllm and is_16_bit:
            worker = str(_HERE / "vllm_speculation.py")
            ways.append((f"{_vllm_version(self._vllm)} bfloat16", (self._vllm, worker, *pair, *rest)))
        for name, command in ways:
            yield [Start(name, (*command, str(count))) for count in counts]

    def _directory(self, model: str) -> Path:
        directory = self._folder / model
        if not (directory / "model.safetensors").exists():
            write_random(model, directory)
        return directory

    def _of_llama_cpp(self, llama_cpp: LlamaCpp, directory: Path, kind: str) -> Start:
        command = llama_cpp.asked(
            llama_cpp.convert(directory, kind),
            num_threads=int(self._threads),
            num_sequences=MOST_SEQUENCES,
            num_tokens=MOST_TOKENS,
        )
        return Start(f"{llama_cpp.version} {kind}", tuple(command), {"PEER_MODE": "ask"})


def _environment(folder: Path, package: str) -> str:
    """Interpreter of an environment that has a package."""
    python = folder / "bin/python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", package]
        subprocess.run(command, check=True, capture_output=True, text=True)
        (folder / "installed").touch()
    return str(python)


def _openvino_precision() -> str:
    """bf16 where processors multiply it; it is what OpenVINO takes there by itself."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return "bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else "f32"


def _vllm_version(python: str) -> str:
    program = "import vllm; print('vLLM', vllm.__version__)"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.split("\n")[-2]
