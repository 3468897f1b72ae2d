"""Compilation of the CPU kernels for this machine, by its own C++ compiler."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

_SOURCES = Path(__file__).parent / "cpu"
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-shared", "-fPIC", "-pthread")
# torch's variable that limits the instructions it uses limits ours, too.
_ARCHITECTURES = {"default": "x86-64", "avx2": "x86-64-v3"}
_COMPILING_TAKES_AT_MOST_S = 300.0


class CannotCompileError(Exception):
    """Says why there are no CPU kernels."""


class Build(NamedTuple):
    """A way to compile the sources, and a name made of all that the result depends on."""

    command: tuple[str, ...]
    name: str

    def compile(self) -> bytes:
        """The library's content. CannotCompileError if there is none."""
        try:
            with tempfile.TemporaryDirectory(prefix="swiftspec-compiling-") as folder:  # which only this user can open
                result = Path(folder) / self.name
                subprocess.run(
                    [*self.command, str(_SOURCES / "decoder.cpp"), "-o", str(result)],
                    check=True,
                    capture_output=True,
                    timeout=_COMPILING_TAKES_AT_MOST_S,
                )
                return result.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotCompileError(f"the CPU kernels cannot be compiled ({error})") from error


def this_build() -> Build:
    """How this machine compiles the kernels. CannotCompileError if it cannot."""
    compiler = _compiler()
    capability = os.environ.get("ATEN_CPU_CAPABILITY", "")
    command = (*compiler, *_FLAGS, f"-march={_ARCHITECTURES.get(capability, 'native')}")
    digest = hashlib.sha256(repr(command).encode())
    try:
        digest.update(Path(command[0]).resolve().read_bytes())
        digest.update(_instructions().encode())
        for source in sorted(_SOURCES.iterdir()):
            digest.update(source.read_bytes())
    except OSError as error:
        raise CannotCompileError(f"the CPU kernels cannot be compiled ({error})") from error
    return Build(command, f"cpu-kernels-{digest.hexdigest()[:16]}.so")


def _compiler() -> tuple[str, ...]:
    """Path and arguments of the compiler that CXX names, otherwise of the first one there is."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise CannotCompileError(f"CXX is {os.environ['CXX']!r}; expected a command ({error})") from error
    for name, *arguments in [named] if named else [[name] for name in _COMPILERS]:
        if path := shutil.which(name):
            return (path, *arguments)
    raise CannotCompileError("there is no C++ compiler for the CPU kernels")


def _instructions() -> str:
    """What distinguishes this processor's instructions from another's, for folders that machines share."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
