"""Compiles the CPU kernels of `swiftspec/kernels/cpu` for this machine, once, and loads them.

The library lies in a cache folder under a name made of all that it depends on. Where there is no compiler, or
`SWIFTSPEC_CPU_KERNELS` is `off`, there is no library, and callers compute with torch.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_void_p
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Adapter",
    "Expert",
    "Layer",
    "Library",
    "Matrix",
    "Model",
    "SequenceRows",
    "Step",
    "load_library",
    "prepare_library",
]

_SOURCES = Path(__file__).parent / "cpu"
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-shared", "-fPIC", "-pthread")
_SWITCH = "SWIFTSPEC_CPU_KERNELS"
# torch's variable that limits the instructions it uses limits ours, too.
_ARCHITECTURES = {"default": "x86-64", "avx2": "x86-64-v3"}
_COMPILING_TAKES_AT_MOST_S = 300.0
_log = logging.getLogger("swiftspec")


class Matrix(Structure):
    """Packed weights: as in linear.hpp, as are the others below in model.hpp."""

    _fields_ = (
        ("panels", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("num_outputs", c_int32),
        ("num_inputs", c_int32),
        ("format", c_int32),
        ("adapter", c_void_p),
    )


class Adapter(Structure):
    """Two thin matrices whose product is added to that of a matrix."""

    _fields_ = (("down", Matrix), ("up", Matrix))


class Expert(Structure):
    """A network among which a router chooses."""

    _fields_ = (("gate_up", Matrix), ("down", Matrix))


class Layer(Structure):
    """One layer's norms and matrices."""

    _fields_ = (
        ("attention_norm", c_void_p),
        ("feed_forward_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("qkv", Matrix),
        ("output", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("router", Matrix),
        ("experts", POINTER(Expert)),
    )


class Model(Structure):
    """A model's shape and weights."""

    _fields_ = (
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("vocab_size", c_int32),
        ("num_positions", c_int32),
        ("norm_eps", c_float),
        ("embedding", c_void_p),
        ("embedding_format", c_int32),
        ("final_norm", c_void_p),
        ("turns", c_void_p),
        ("layers", POINTER(Layer)),
        ("head", Matrix),
        ("num_experts", c_int32),
        ("num_active", c_int32),
        ("is_normalised", c_int32),
    )


class SequenceRows(Structure):
    """The rows of one sequence in a forward, its model, and its cache."""

    _fields_ = (
        ("model", c_void_p),
        ("cache", c_void_p),
        ("visible", c_char_p),
        ("num_slots", c_int32),
        ("prefix_length", c_int32),
        ("tree_length", c_int32),
        ("first_row", c_int32),
        ("num_rows", c_int32),
        ("num_logits", c_int32),
    )


class Step(Structure):
    """A forward of some rows, of one or several sequences."""

    _fields_ = (
        ("num_rows", c_int32),
        ("num_sequences", c_int32),
        ("sequences", c_void_p),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("residual", c_void_p),
        ("normed", c_void_p),
        ("qkv", c_void_p),
        ("attended", c_void_p),
        ("gated", c_void_p),
        ("shrunk", c_void_p),
        ("widest_adapter", c_int32),
        ("routed", c_void_p),
        ("shares", c_void_p),
        ("chosen", c_void_p),
    )


class Library:
    """The compiled functions; decoder.cpp says what they do.

    Attributes
    ----------
    lanes : int
        Numbers in a vector, on which the order of packed weights depends.
    has_float16 : bool
        Whether weights may be stored in float16.
    """

    def __init__(self, path: Path) -> None:
        functions = ctypes.CDLL(str(path))
        self.lanes: int = functions.swiftspec_lanes()
        self.has_float16 = bool(functions.swiftspec_has_float16())
        step, number, pointer = POINTER(Step), c_int32, c_void_p
        self.embed = functions.swiftspec_embed
        self.embed.argtypes = (step,)
        self.embed.restype = number
        self.layers = functions.swiftspec_layers
        self.layers.argtypes = (step, number, number, number)
        self.attention = functions.swiftspec_attention
        self.feed_forward = functions.swiftspec_feed_forward
        self.attention.argtypes = self.feed_forward.argtypes = (step, number, pointer, number)
        self.logits = functions.swiftspec_logits
        self.logits.argtypes = (step, pointer, number)
        self.top_candidates = functions.swiftspec_top_candidates
        self.top_candidates.argtypes = (pointer, number, number, number, pointer, pointer)
        self.top_candidates.restype = None
        for function in (self.layers, self.attention, self.feed_forward, self.logits):
            function.restype = None


class _Build(NamedTuple):
    """A way to compile the sources, and the name of what comes out."""

    command: tuple[str, ...]
    name: str


def prepare_library() -> None:
    """Compile the kernels if this machine has none yet, for processes that will load them, and say so."""
    build = _build()
    if build is None:
        if not _is_off():
            _log.warning("there is no C++ compiler for the CPU kernels, so torch computes, several times slower")
    elif not (path := _cache_folder() / build.name).exists():
        _log.warning("compiling the CPU kernels for this machine, once (some 10 s)")
        try:
            _compile(build, path)
        except (OSError, subprocess.SubprocessError) as error:
            _log.warning("the CPU kernels cannot be compiled (%s), so torch computes, several times slower", error)


@cache
def load_library() -> Library | None:
    """The kernels, compiled if this machine has none yet; None where they cannot be had."""
    build = _build()
    if build is None:
        return None
    path = _cache_folder() / build.name
    try:
        if not path.exists():
            _compile(build, path)
        return Library(path)
    except (OSError, subprocess.SubprocessError):  # torch computes the same
        return None


def _is_off() -> bool:
    return os.environ.get(_SWITCH, "").lower() in ("0", "off")


def _build() -> _Build | None:
    if _is_off():
        return None
    names = [shlex.split(os.environ["CXX"])] if os.environ.get("CXX") else [[name] for name in _COMPILERS]
    compiler, path = next(((name, found) for name in names if name and (found := shutil.which(name[0]))), ([], None))
    if path is None:
        return None
    capability = os.environ.get("ATEN_CPU_CAPABILITY", "")
    command = (path, *compiler[1:], *_FLAGS, f"-march={_ARCHITECTURES.get(capability, 'native')}")
    digest = hashlib.sha256(repr(command).encode())
    digest.update(Path(path).resolve().read_bytes())
    digest.update(_instructions().encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return _Build(command, f"cpu-kernels-{digest.hexdigest()[:16]}.so")


def _instructions() -> str:
    """What distinguishes this processor's instructions from another's, for folders that machines share."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "swiftspec"


def _compile(build: _Build, path: Path) -> None:
    """Write the library to `path`, complete or not at all: others may be compiling the same."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # what lies here is run
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".compiling-") as folder:
        result = Path(folder) / path.name
        subprocess.run(
            [*build.command, str(_SOURCES / "decoder.cpp"), "-o", str(result)],
            check=True,
            capture_output=True,
            timeout=_COMPILING_TAKES_AT_MOST_S,
        )
        result.replace(path)
