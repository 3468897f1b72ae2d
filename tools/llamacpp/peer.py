"""llama.cpp, fetched by package, and a small program on top of its libraries that decodes token ids.

python -m tools.llamacpp.peer FOLDER      fetch and build, into a folder that may be kept
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.llamacpp.gguf_model import write_gguf

_VERSION = "3.22.1"  # of the packages; llama.cpp's own build is in them
_PACKAGES = {"source": f"node-llama-cpp@{_VERSION}", "libraries": f"@node-llama-cpp/linux-x64@{_VERSION}"}
_SOURCE = Path(__file__).with_name("peer.cpp")
_LINKED = ("libllama*.so", "libggml.*so", "libggml-base.so")
_MOST_S = 1200.0
# Its libraries choose the best for this processor; torch's variable limits them here as it limits our kernels.
_ONLY = {"avx2": "libggml-cpu-haswell.so", "default": "libggml-cpu-x64.so"}


class UnavailableError(Exception):
    """llama.cpp cannot be had here; one sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Seconds of all prompts, and the tokens of each."""

    seconds: float
    tokens: tuple[tuple[int, ...], ...]


class LlamaCpp:
    """The built program, its libraries beside it."""

    version = f"llama.cpp of node-llama-cpp {_VERSION}"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = folder / _libraries_name() / "peer"

    @classmethod
    def build(cls, folder: Path) -> LlamaCpp:
        """Fetch and build what is not in `folder` yet. `UnavailableError` without npm, a compiler or a registry."""
        folder = folder.resolve()
        peer = cls(folder)
        for tool in ("npm", "g++", "git"):
            if shutil.which(tool) is None:
                raise UnavailableError(f"llama.cpp is not compared: there is no {tool} here")
        try:
            if not peer._program.exists():
                peer._fetch()
                peer._compile()
        except subprocess.SubprocessError as error:
            said = str(getattr(error, "stderr", None) or error).strip().splitlines()
            cause = next((line for line in said if "error" in line.lower()), said[-1])
            raise UnavailableError(f"llama.cpp is not compared: {cause}") from None
        return peer

    def convert(self, directory: Path, kind: str) -> Path:
        """The model of a Hugging Face directory as GGUF, written once."""
        out = self._folder / f"{directory.name}-{kind}.gguf"
        if not out.exists():
            write_gguf(directory, out, kind, gguf_package=self._folder / "llama.cpp/gguf-py")
        return out

    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        target: Path,
        num_threads: int,
        new_tokens: int,
        draft: Path | None = None,
        draft_threads: int = 1,
        most_proposed: int = 6,
        least_probability: float = 0.5,
    ) -> Run:
        """Greedy output of each prompt; with `draft`, by llama.cpp's speculative decoding with these limits."""
        options = ["-m", str(target), *_threads(num_threads), "-c", "1024"]
        if draft is not None:
            options += ["-md", str(draft), "--spec-type", "draft-simple", "-td", str(draft_threads)]
            options += ["-tbd", str(draft_threads)]
            options += ["--temp", "0", "--samplers", "top_k", "--top-k", "1"]
            options += ["--spec-draft-n-max", str(most_proposed), "--spec-draft-p-min", str(least_probability)]
        lines = self._run("ar" if draft is None else "spec", options, prompts, PEER_N=str(new_tokens))
        return Run(
            seconds=sum(line["seconds"] for line in lines), tokens=tuple(tuple(line["tokens"]) for line in lines)
        )

    def asked(self, target: Path, *, num_threads: int, num_sequences: int, num_tokens: int) -> list[str]:
        """Command of a process that answers questions; its environment has `PEER_MODE=ask`."""
        room = str(num_sequences * num_tokens)
        limits = ["-np", str(num_sequences), "-c", room, "-b", str(num_tokens)]
        return [str(self._program), "-m", str(target), *_threads(num_threads), *limits]

    def _run(
        self, mode: str, options: Sequence[str], prompts: Sequence[Sequence[int]], **variables: str
    ) -> list[dict[str, Any]]:
        path = self._folder / f"prompts-{os.getpid()}.txt"
        path.write_text("".join(" ".join(map(str, prompt)) + "\n" for prompt in prompts))
        command = [str(self._program), *options]
        environment = os.environ | {"PEER_MODE": mode, "PEER_PROMPTS": str(path)} | variables
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=_MOST_S)
        finally:
            path.unlink()
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def _fetch(self) -> None:
        for name, package in _PACKAGES.items():
            into = self._folder / name
            if into.exists():
                continue
            self._folder.mkdir(parents=True, exist_ok=True)
            packed = _call("npm", "pack", package, "--silent", folder=self._folder).split()[-1]
            with tarfile.open(self._folder / packed) as archive:
                archive.extractall(into, filter="data")
        if not (self._folder / "llama.cpp").exists():
            bundle = self._folder / "source/package/llama/gitRelease.bundle"
            _call("git", "clone", "--quiet", str(bundle), "llama.cpp", folder=self._folder)

    def _compile(self) -> None:
        libraries = self._program.parent
        shutil.copytree(self._folder / "libraries/package/bins/linux-x64", libraries, dirs_exist_ok=True)
        if wanted := _ONLY.get(os.environ.get("ATEN_CPU_CAPABILITY", "")):
            for path in libraries.glob("libggml-cpu-*.so"):
                if path.name != wanted:
                    path.unlink()
        headers = self._folder / "llama.cpp"
        includes = [f"-I{headers / name}" for name in ("common", "include", "ggml/include", "vendor")]
        names = sorted(path.name for pattern in _LINKED for path in libraries.glob(pattern))
        linked = [f"-L{libraries}", *(f"-l:{name}" for name in names), "-Wl,-rpath,$ORIGIN", "-lpthread"]
        _call("g++", "-std=c++17", "-O1", *includes, str(_SOURCE), "-o", str(self._program), *linked, folder=libraries)


def _libraries_name() -> str:
    return f"bin-{os.environ.get('ATEN_CPU_CAPABILITY') or 'best'}"


def _threads(count: int) -> list[str]:
    """Of one row and of a batch."""
    return ["-t", str(count), "-tb", str(count)]


def _call(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=_MOST_S)
    return done.stdout


if __name__ == "__main__":
    LlamaCpp.build(Path(sys.argv[1]))
