"""Messages between nodes, as bytes: `kind worker {json}`. Policies are sent by name; no message can name code."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, NamedTuple, get_type_hints

from pydantic import PlainSerializer, PlainValidator, ValidationError, create_model

from swiftspec.artifacts.document import Facts, first_problem
from swiftspec.engine.process.protocol import Cancel, Committed, Failed, Finished, Generate, Ready, Setup
from swiftspec.policies import Policy, make_policy
from swiftspec.policies.base import shape_of

__all__ = ["MAX_BYTES", "Bye", "Clock", "Close", "Frame", "Join", "Message", "decode", "encode"]

MAX_BYTES = 2**26  # the spans of a million phases
_LOCAL = "curve"  # a field that every node fills in for itself


@dataclass(frozen=True, slots=True)
class Close:
    """To a node: end this worker."""


@dataclass(frozen=True, slots=True)
class Join:
    """To node 0: this node has connected."""


@dataclass(frozen=True, slots=True)
class Bye:
    """To a node: end every worker, and the agent."""


@dataclass(frozen=True, slots=True)
class Clock:
    """To a node: report your time. It answers with `node_s`; both are of `time.perf_counter`."""

    asked_s: float
    node_s: float = 0.0


Message = Setup | Generate | Cancel | Close | Join | Bye | Clock | Ready | Committed | Finished | Failed
_KINDS: Mapping[str, type[Message]] = {
    "setup": Setup,
    "generate": Generate,
    "cancel": Cancel,
    "close": Close,
    "join": Join,
    "bye": Bye,
    "clock": Clock,
    "ready": Ready,
    "committed": Committed,
    "finished": Finished,
    "failed": Failed,
}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}


class Frame(NamedTuple):
    """A message to or from the worker of that number; 0 for the node itself."""

    worker: int
    message: Message


def encode(frame: Frame) -> bytes:
    """The bytes on the wire. ValueError if there are too many."""
    cls: Any = type(frame.message)
    body = _body(cls).model_construct(**{name: getattr(frame.message, name) for name in _fields(cls)})
    data = f"{_NAMES[cls]} {frame.worker} {body.model_dump_json()}".encode()
    if len(data) > MAX_BYTES:
        raise ValueError(f"a message of kind {_NAMES[cls]} has {len(data)} bytes; expected {MAX_BYTES} at most")
    return data


def decode(data: bytes) -> Frame:
    """The frame. ValueError for anything that `encode` does not write."""
    kind, _, rest = data[:MAX_BYTES].partition(b" ")
    worker, _, body = rest.partition(b" ")
    cls: Any = _KINDS.get(kind.decode("ascii", "replace"))
    if cls is None or len(data) > MAX_BYTES or not (worker.isdigit() and len(worker) < 10):
        raise ValueError(f"a message of {len(data)} bytes begins with {data[:20]!r}; expected its kind and a worker")
    try:
        values = _body(cls).model_validate_json(body, strict=True)
        return Frame(int(worker), cls(**{name: getattr(values, name) for name in _fields(cls)}))
    except ValidationError as error:
        raise ValueError(f"a message of kind {_NAMES[cls]}: {first_problem(error)}") from error


def _fields(cls: Any) -> list[str]:  # a dataclass
    return [field.name for field in fields(cls) if field.name != _LOCAL]


@cache
def _body(cls: Any) -> type[Facts]:
    """A model of a message's fields, with policies by name."""
    hints = get_type_hints(cls)
    types: dict[str, Any] = {name: _PolicyByName if hints[name] is Policy else hints[name] for name in _fields(cls)}
    return create_model(cls.__name__, __base__=Facts, **types)


def _named(policy: Policy) -> dict[str, Any]:
    return {"name": policy.name, "shape": shape_of(policy)}


def _made(value: Any) -> Policy:
    if not isinstance(value, dict) or value.keys() != {"name", "shape"} or not isinstance(value["shape"], dict):
        raise ValueError("expected a policy's name and shape")
    shape = {key: tuple(item) if isinstance(item, list) else item for key, item in value["shape"].items()}
    return make_policy(str(value["name"]), **shape)


_PolicyByName = Annotated[Any, PlainSerializer(_named), PlainValidator(_made)]
