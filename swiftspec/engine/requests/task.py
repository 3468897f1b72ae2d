"""A request with its name, as the engine runs it, and what its caller says of it beside."""

from dataclasses import dataclass
from math import inf

from swiftspec.policies import Request

__all__ = ["RequestOptions", "Task"]

_LEAST_TPOT_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What a caller says of a request beside its text.

    Parameters
    ----------
    client : str
        Whose it is.
    tpot_s : float or None
        Its limit on the time per token, for controls that keep limits; a microsecond or more.
    tenant : int
        Number of its tenant; 0 is the target itself.
    """

    client: str = ""
    tpot_s: float | None = None
    tenant: int = 0

    def __post_init__(self) -> None:
        if self.tpot_s is not None and not _LEAST_TPOT_S <= self.tpot_s < inf:
            raise ValueError(f"tpot_s is {self.tpot_s}; expected {_LEAST_TPOT_S} or more seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A request with the id of its prompt, and the number of its tenant; 0 is the target itself."""

    prompt_id: str
    request: Request
    tenant: int = 0
