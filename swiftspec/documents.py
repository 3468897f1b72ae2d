"""The files that pass between stages: schema'd JSON, checked on load, written whole or not at all. No torch here."""

import hashlib
import io
import json
import os
import platform
import shlex
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Self
from zipfile import BadZipFile

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

__all__ = [
    "Document",
    "Facts",
    "ModelRef",
    "Origin",
    "Spread",
    "file_sha256",
    "first_problem",
    "read_archive",
    "write_atomically",
]


class Facts(BaseModel):
    """Frozen values; unknown fields, NaN and infinities are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=False)


class Origin(Facts):
    """Where a file comes from."""

    command: str
    created_utc: str
    versions: dict[str, str]
    device: str

    @classmethod
    def here(cls) -> "Origin":
        """This command, now, on this machine."""
        names = ("swiftspec-llm", "torch", "numpy", "simpy")
        return cls(
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={"python": platform.python_version(), **{name: _version(name) for name in names}},
            device=device_name(),
        )


class ModelRef(Facts):
    """A model as the user named it: a Hugging Face directory or `demo/...`, with its inflation and dtype."""

    model: str
    inflate: str | None = None
    dtype: str

    def __str__(self) -> str:
        inflated = f" inflated to {self.inflate}" if self.inflate else ""
        return f"{self.model}{inflated} in {self.dtype}"


class Spread(Facts):
    """A distribution in two numbers."""

    median: float
    p95: float


class Document(Facts):
    """A file with a schema name and version and an origin."""

    schema_name: ClassVar[str]
    schema_version: ClassVar[int]

    origin: Origin

    def save(self, path: Path) -> None:
        """Write the whole document, or leave what was there."""
        write_atomically(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """What a saved file holds."""
        return self.to_json().encode() + b"\n"

    def to_json(self) -> str:
        """The document as text, schema and version first."""
        head = {"schema": self.schema_name, "version": self.schema_version}
        return json.dumps(head | self.model_dump(mode="json"), indent=1, allow_nan=False)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """ValueError, one sentence naming file, field and value, for anything that is not such a document."""
        try:
            content = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise ValueError(f"{path}: not a JSON document ({error})") from error
        return cls.parse(content, source=str(path))

    @classmethod
    def parse(cls, content: object, *, source: str) -> Self:
        """As `load`, from an object already read."""
        if not isinstance(content, Mapping) or content.get("schema") != cls.schema_name:
            found = content.get("schema") if isinstance(content, Mapping) else content
            raise ValueError(f"{source}: schema is {_shown(found)}; expected {cls.schema_name!r}")
        if content.get("version") != cls.schema_version:
            raise ValueError(
                f"{source}: version of {cls.schema_name} is {_shown(content.get('version'))}; "
                f"this swiftspec reads version {cls.schema_version}"
            )
        body = {key: value for key, value in content.items() if key not in ("schema", "version")}
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise ValueError(f"{source}: {first_problem(error)}") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside, then rename: a reader or a full disk never sees half a file."""
    partial = path.parent / f".{path.name}.{os.getpid()}.partial"
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        with suppress(OSError):
            partial.unlink()  # there unless it was renamed, an interrupt included


def read_archive(path: Path, *, kind: str) -> dict[str, np.ndarray]:
    """Arrays of an .npz file by name; ValueError with one sentence if it is none. `kind` says what it should be."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    # What numpy and zipfile raise for bytes that are no archive; an unknown compression is a kind of RuntimeError.
    except (ValueError, TypeError, EOFError, KeyError, RuntimeError, BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: not {kind} (.npz)") from error


def file_sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def device_name() -> str:
    """The processor's own name and the number of cores this process may use."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def first_problem(error: ValidationError) -> str:
    """Field, value and what is wrong, of the first thing that does not validate."""
    problem = error.errors(include_url=False)[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    if problem["type"] == "missing":
        return f"{field} is missing"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{field} is {_shown(problem['input'])}; {message}" if field else message
