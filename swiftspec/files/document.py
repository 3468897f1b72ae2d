"""Files between stages: JSON with a schema, checked on load, written whole or not at all. No torch here."""

import hashlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema

from swiftspec.files.reading import open_input, read_json, shown
from swiftspec.files.writing import write_output
from swiftspec.machine import device_name


def _fail_fast(schema: Any) -> None:
    """Let every list of a schema stop at the first error: a million errors take gigabytes."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple"):
            schema["fail_fast"] = True
        schema = list(schema.values())
    if isinstance(schema, list | tuple):
        for part in schema:
            _fail_fast(part)


class FailFastModel(BaseModel):
    """Frozen values, of whose lists only the first wrong item is reported."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _fail_fast(schema)
        return schema


class Facts(FailFastModel):
    """Frozen values; unknown fields, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=False)

    @classmethod
    def checked(cls, values: Mapping[str, object], *, source: str) -> Self:
        """Facts with these values. ValueError, one sentence that begins with the source, for wrong ones."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ValueError(f"{source}: {first_problem(error)}") from error

    def replaced(self, **changes: object) -> Self:
        """A copy with other values of some fields, checked as a new one."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)


Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1 + 1e-6)]  # perhaps a sum, and so rounded


class Origin(Facts):
    """Origin of a file: tool, versions, machine, date, command."""

    command: str
    created_utc: str
    versions: dict[str, str]
    device: str

    @classmethod
    def here(cls) -> "Origin":
        """Origin of a file written by this command, now, on this machine."""
        names = ("swiftspec-llm", "torch", "numpy", "simpy")
        return cls(
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={"python": platform.python_version(), **{name: _version(name) for name in names}},
            device=device_name(),
        )


_QUANTISED = frozenset({"int8", "int4", "fp8"})


class ModelRef(Facts):
    """A model as the user named it: a Hugging Face directory or `demo/...`, with its inflation and dtype."""

    model: str
    inflate: str | None = None
    dtype: str

    @property
    def is_lossy(self) -> bool:
        """Whether weights are rounded to fewer bits, so that outputs are not the checkpoint's own."""
        return self.dtype in _QUANTISED

    def __str__(self) -> str:
        inflated = f" inflated to {self.inflate}" if self.inflate else ""
        return f"{self.model}{inflated} in {self.dtype}{' (lossy)' if self.is_lossy else ''}"


class Basis(Facts):
    """A file that another one was computed from: path and SHA-256."""

    path: str
    sha256: str


class Spread(Facts):
    """A distribution in two numbers."""

    median: float
    p95: float


class Document(Facts):
    """A file with a schema name and version and an origin."""

    schema_name: ClassVar[str]
    schema_version: ClassVar[int]

    origin: Origin

    def save(self, path: Path | str) -> None:
        """Write JSON, whole or not at all."""
        write_output(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """The bytes of a saved file."""
        return self.to_json().encode() + b"\n"

    def to_json(self) -> str:
        """The document as text, schema and version first."""
        head = {"schema": self.schema_name, "version": self.schema_version}
        return json.dumps(head | self.model_dump(mode="json"), indent=1, allow_nan=False)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what `save` wrote. ValueError, one sentence naming file, field and value, for anything else."""
        return cls.parse(read_json(Path(path), pipes=True), source=str(path))

    @classmethod
    def parse(cls, content: object, *, source: str) -> Self:
        """The document in an object already read. ValueError as `load`."""
        if not isinstance(content, Mapping) or content.get("schema") != cls.schema_name:
            found = content.get("schema") if isinstance(content, Mapping) else content
            raise ValueError(f"{source}: schema is {shown(found)}; expected {cls.schema_name!r}")
        if content.get("version") != cls.schema_version:
            raise ValueError(
                f"{source}: version of {cls.schema_name} is {shown(content.get('version'))}; "
                f"this swiftspec reads version {cls.schema_version}"
            )
        body = {key: value for key, value in content.items() if key not in ("schema", "version")}
        return cls.checked(body, source=source)


def file_sha256(path: Path) -> str:
    """Hex digest of a file's bytes. ValueError if it cannot be read."""
    with os.fdopen(open_input(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def first_problem(error: ValidationError) -> str:
    """Field, value and fault of the first item that does not validate."""
    problem = error.errors(include_url=False)[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    if problem["type"] == "missing":
        return f"{field} is missing"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{field} is {shown(problem['input'])}; {message}" if field else message
