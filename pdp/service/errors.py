"""Error answers: an HTTP status, a stable code, and a message that says what to do."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from pdp.errors import PdpError
from pdp.installed import code_url

Model = TypeVar("Model", bound=BaseModel)
CODES: Final = {
    400: "service.bad_request",
    401: "service.unauthenticated",
    403: "service.forbidden",
    404: "service.not_found",
    405: "service.method_not_allowed",
    408: "service.timeout",
    409: "service.conflict",
    413: "service.too_large",
    429: "service.rate_limited",
    500: "service.internal",
    503: "service.unavailable",
}
_WORDS: Final = {
    "missing": "is missing",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "string_type": "must be a text",
}


class HttpError(PdpError, HTTPException):
    """An error answer with its HTTP `status` and the stable `error_code` of its body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        HTTPException.__init__(self, status, message, headers or {})
        self.status, self.message, self.hint = status, message, hint
        self.error_code = code or CODES.get(status, "service.bad_request")

    def as_json(self) -> dict[str, Any]:
        """Return the JSON body of the error answer."""
        hint = {} if self.hint is None else {"hint": self.hint}
        return {"error": {"code": self.error_code, "message": self.message, **hint, "link": code_url(self.error_code)}}


def read_model(model: type[Model], value: Any, place: str = "") -> Model:
    """Parse a JSON value as a pydantic model. Raise `HttpError` 400 if this is impossible; `place` names the field."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid(error.errors(), place) from None


def invalid(errors: Sequence[Any], at: str = "") -> HttpError:
    """Return the HTTP error for the first of pydantic's `errors`. `at` is the field in which pydantic found them."""
    first = errors[0]
    parts = [at, *(str(part) for part in first["loc"] if part not in ("body", "query"))]
    place = ".".join(filter(None, parts)) or "the body"
    if first["type"] == "extra_forbidden":
        return HttpError(400, f"unknown field {place!r:.60}", hint="GET /openapi.json describes the fields")
    message = first["msg"].removeprefix("Value error, ")
    return HttpError(400, f"{place:.60} {_WORDS.get(first['type']) or f'is not valid: {message}'}")
