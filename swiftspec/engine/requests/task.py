"""A request with its name, as the engine runs it, and what its caller says of it beside."""

from dataclasses import dataclass

from swiftspec.policies import Request

__all__ = ["RequestOptions", "Task"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What a caller says of a request beside its text.

    Parameters
    ----------
    client : str
        Whose it is.
    tpot_s : float or None
        Its limit on the time per token, for controls that keep limits.
    tenant : int
        Number of its tenant; 0 is the target itself.
    """

    client: str = ""
    tpot_s: float | None = None
    tenant: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A request with the id of its prompt, and the number of its tenant; 0 is the target itself."""

    prompt_id: str
    request: Request
    tenant: int = 0
