"""The CPU kernels of `swiftspec/kernels/cpu` as Python calls them, compiled for this machine, once.

Where there is no compiler, or `SWIFTSPEC_CPU_KERNELS` is `off`, there is no library, and callers compute with torch.
Where it is `load`, nothing is compiled or said: another process has just done so.
"""

import ctypes
import logging
import os
from contextlib import suppress
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from swiftspec.kernels.cpu_build import Build, CannotCompileError, this_build
from swiftspec.kernels.cpu_cache import DamagedError, Folder, cache_folders, file_in_memory, private_folder

_SWITCH = "SWIFTSPEC_CPU_KERNELS"
_log = logging.getLogger("swiftspec")


def _all(kind: Any, *names: str) -> list[tuple[str, Any]]:
    """Fields of one type."""
    return [(name, kind) for name in names]


class Matrix(Structure):
    """Packed weights: as in linear.hpp; the others below are as in model.hpp."""

    _fields_ = (
        *_all(c_void_p, "panels", "scales", "bias"),
        *_all(c_int32, "num_outputs", "num_inputs", "format"),
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
        *_all(c_void_p, "attention_norm", "feed_forward_norm", "query_norm", "key_norm"),
        *_all(Matrix, "qkv", "output", "gate_up", "down", "router"),
        ("experts", POINTER(Expert)),
    )


class Model(Structure):
    """A model's shape and weights."""

    _fields_ = (
        *_all(c_int32, "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim"),
        *_all(c_int32, "vocab_size", "num_positions"),
        ("norm_eps", c_float),
        ("embedding", c_void_p),
        ("embedding_format", c_int32),
        *_all(c_void_p, "final_norm", "turns"),
        ("layers", POINTER(Layer)),
        ("head", Matrix),
        *_all(c_int32, "num_experts", "num_active", "is_normalised"),
    )


class SequenceRows(Structure):
    """The rows of one sequence in a forward, its model, and its cache."""

    _fields_ = (
        *_all(c_void_p, "model", "cache"),
        ("visible", c_char_p),
        *_all(c_int32, "num_slots", "prefix_length", "tree_length", "first_row", "num_rows", "num_logits"),
    )


class Step(Structure):
    """A forward of some rows, of one or several sequences."""

    _fields_ = (
        *_all(c_int32, "num_rows", "num_sequences"),
        *_all(c_void_p, "sequences", "tokens", "positions", "residual", "normed", "qkv", "attended", "gated", "shrunk"),
        ("widest_adapter", c_int32),
        *_all(c_void_p, "routed", "shares", "chosen", "rounded"),
        ("rounded_width", c_int64),
    )


class Library:
    """The compiled functions; decoder.cpp says what they do.

    content: the library itself: a file could change after its check.

    lanes: numbers in a vector. has_float16: whether weights may be stored in float16. has_bfloat16_products: whether
    the processor multiplies bfloat16 by itself.

    OSError: if it cannot be loaded. AttributeError: if it lacks a function.
    """

    def __init__(self, content: bytes) -> None:
        functions = ctypes.CDLL(file_in_memory(content))
        self.lanes: int = functions.swiftspec_lanes()
        self.has_float16 = bool(functions.swiftspec_has_float16())
        self.has_bfloat16_products = bool(functions.swiftspec_has_bfloat16_products())
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
        self.top_candidates.argtypes = (pointer, pointer, c_float, number, number, number, pointer, pointer)
        self.draw = functions.swiftspec_draw
        self.draw.argtypes = (pointer, pointer, c_float, number, number, pointer)
        for function in (self.layers, self.attention, self.feed_forward, self.logits, self.top_candidates, self.draw):
            function.restype = None


def prepare_library() -> None:
    """Compile the kernels if this machine has none yet, for processes that will load them, and say so."""
    _library()


@cache
def load_library() -> Library | None:
    """The kernels, compiled if this machine has none yet; None where they cannot be had."""
    return _library()


def loaded_library() -> Library | None:
    """The kernels, if this process has loaded them."""
    return load_library() if load_library.cache_info().currsize else None


def _library() -> Library | None:
    switch = os.environ.get(_SWITCH, "").lower()
    if switch in ("0", "off"):
        return None
    try:
        build = this_build()
        return _stored(build) if switch == "load" else _stored_or_compiled(build)
    except CannotCompileError as error:
        if switch != "load":
            _log.warning("%s, so torch computes, several times slower", error)
        return None


def _stored(build: Build) -> Library | None:
    """The library from the first folder that has one; what is wrong with others has been said."""
    for path in cache_folders():
        with suppress(OSError, DamagedError), private_folder(path) as folder:
            if content := folder.read(build.name):
                return _loaded(content)
    return None


def _stored_or_compiled(build: Build) -> Library:
    """The library from the first folder that can have one. CannotCompileError if none can."""
    faults: list[str] = []
    compiled: bytes | None = None
    for path in cache_folders():
        try:
            with private_folder(path) as folder:
                library = _read(folder, build, path)
                if library is None:
                    compiled = compiled or build.compile()
                    library = _first_loaded(compiled)
                    folder.write(build.name, compiled)
        except OSError as error:
            faults.append(f"{path} ({error.strerror})")
        else:
            if faults:
                _warn_once(f"the CPU kernels are kept in {path}, since they cannot be in {' and '.join(faults)}")
            return library
    raise CannotCompileError(f"the CPU kernels cannot be kept in {' or '.join(faults) or 'any folder'}")


def _read(folder: Folder, build: Build, path: Path) -> Library | None:
    """The library in a folder; None, and a warning, if it is to be compiled."""
    try:
        content = folder.read(build.name)
        if content is not None:
            return _loaded(content)
        _log.warning("compiling the CPU kernels for this machine, once (some 10 s)")
    except DamagedError as error:
        _log.warning("compiling the CPU kernels again (some 10 s): %s cannot be used, %s", path / build.name, error)
    return None


def _first_loaded(compiled: bytes) -> Library:
    try:
        return _loaded(compiled)
    except DamagedError as error:
        raise CannotCompileError(f"the CPU kernels cannot be used as they were compiled: {error}") from error


@cache
def _loaded(content: bytes) -> Library:
    """The library of this content, loaded once. DamagedError if it cannot be."""
    try:
        return Library(content)
    except (OSError, AttributeError) as error:
        raise DamagedError(f"it cannot be loaded ({error})") from error


@cache
def _warn_once(message: str) -> None:
    _log.warning(message)
