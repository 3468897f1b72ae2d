"""Compilation of kernels without a GPU: inside `compiling()` a wrapper's launches are compiled, not run.

So exactly those kernels are checked that the wrapper would launch, including alignment and constants. Needs a process
without TRITON_INTERPRET; ptxas and cuobjdump come with triton.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from swiftspec.kernels.runtime import INTERPRETED

HOPPER = GPUTarget("cuda", 90, 32)
MAX_SHARED_BYTES = 227 * 1024  # per block, sm_90 (CUDA C++ Programming Guide, compute capabilities)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled kernel, as a GPU would receive it."""

    name: str
    ptx: str
    registers: int
    stack_bytes: int  # anything above 0 is a spill
    shared_bytes: int

    def count(self, instruction: str) -> int:
        """Number of matches of an instruction (a regular expression) in the PTX."""
        return len(re.findall(instruction, self.ptx))


class _NoDriver:
    """Driver that names the GPU to compile for; everything else would need a GPU."""

    def get_current_target(self) -> GPUTarget:
        return HOPPER

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


@contextmanager
def compiling(*, inspect: bool = True) -> Iterator[list[Compiled]]:
    """Collect the kernels launched inside, compiled for sm_90 into Triton's cache. not inspect: only fill the cache."""
    if INTERPRETED:
        raise RuntimeError("kernels were imported under TRITON_INTERPRET=1; nothing can be compiled")
    collected: list[Compiled] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = run(self, *args, **kwargs | {"warmup": True})
        if inspect:
            collected.append(_inspect(self.fn.__name__, kernel))
        return kernel

    # Triton looks for a driver only when asked for one, which is avoided here.
    with patch.object(driver, "_active", _NoDriver()), patch.object(JITFunction, "run", compile_only):
        yield collected


def _inspect(name: str, kernel: Any) -> Compiled:
    kernel = kernel.result() if hasattr(kernel, "result") else kernel
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        command = [str(tool), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    used = dict(re.findall(r"(REG|STACK):(\d+)", usage))
    return Compiled(
        name=name,
        ptx=kernel.asm["ptx"],
        registers=int(used["REG"]),
        stack_bytes=int(used["STACK"]),
        shared_bytes=int(kernel.metadata.shared),
    )
