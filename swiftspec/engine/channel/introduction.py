"""Introduction of a draft that serves targets of other engines; it goes beside its replies to probes."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from pydantic import ValidationError

from swiftspec.files.document import Facts, first_problem
from swiftspec.policies.base import Policy, Value, shape_of
from swiftspec.policies.effects import Message, PeerError, ProbeReply
from swiftspec.policies.registry import make_policy


class Introduction(Facts):
    """A draft that serves.

    version: of the messages and of this. name, shape: of the policy whose draft program it runs. vocabulary: digest of
    its tokenizer, empty if not known. num_requests: drafted for at once. max_context: tokens of the longest.
    """

    VERSION: ClassVar[int] = 1

    version: int = VERSION
    name: str
    shape: dict[str, Value]
    vocab_size: int
    vocabulary: str
    num_requests: int
    max_context: int

    @classmethod
    def of(cls, policy: Policy, **facts: Any) -> Self:
        return cls(name=policy.name, shape=shape_of(policy), **facts)

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """What `model_dump_json` wrote. PeerError, a clause, for anything else."""
        try:
            found = cls.model_validate_json(content)
            _ = found.policy
        except ValidationError as error:
            raise PeerError(f"its introduction is not understood ({first_problem(error)})") from error
        except ValueError as error:
            raise PeerError(f"its policy is not known here ({error})") from error
        if found.version != cls.VERSION:
            raise PeerError(f"its messages have version {found.version}, expected {cls.VERSION}")
        return found

    @cached_property
    def policy(self) -> Policy:
        """The policy. ValueError if this package has none of that name and shape."""
        return make_policy(self.name, **self.shape)


@dataclass(slots=True)
class Introduced:
    """The target's end. latest: what came last. expected: of the server in use; replies of others are not delivered."""

    latest: bytes = b""
    expected: bytes = b""

    def takes(self, message: Message, payload: bytes, /) -> bool:
        if not isinstance(message, ProbeReply):
            return not payload
        self.latest = payload
        return payload == self.expected
