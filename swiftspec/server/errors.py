"""Errors as OpenAI's API reports them."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

INTERNAL = "an error in the server; its log has more"

_TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
_UNAVAILABLE = 503
_CODES = {401: "invalid_api_key", 404: "not_found", 413: "body_too_large", 429: "rate_limit_exceeded"}


class RequestError(Exception):
    """A request that is answered with an error. status: of HTTP. param: the field at fault."""

    def __init__(
        self,
        sentence: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.param = param
        self.code = code or _CODES.get(status)
        self.headers = {"retry-after": "1"} if status == _UNAVAILABLE else {}
        self.headers |= headers or {}

    @property
    def response(self) -> JSONResponse:
        body = error_body(str(self), status=self.status, param=self.param, code=self.code)
        return JSONResponse(body, self.status, self.headers)


def error_body(
    sentence: str, *, status: int = 500, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """JSON of an error, as the `openai` client reads it."""
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": sentence, "type": kind, "param": param, "code": code}}
