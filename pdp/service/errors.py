"""Error answers: a status, a stable code, and a message that says what to do."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from pdp.errors import PdpError

Model = TypeVar("Model", bound=BaseModel)
_CODES: Final = {
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
    "model_type": "has to be an object",
    "model_attributes_type": "has to be an object",
    "dict_type": "has to be an object",
    "list_type": "has to be a list",
    "string_type": "has to be a text",
}


class HttpError(PdpError, HTTPException):
    """An error answer: its HTTP `status`, and a stable `error_code` in its body."""

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
        self.error_code = code or _CODES.get(status, "service.bad_request")

    def as_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        hint = {} if self.hint is None else {"hint": self.hint}
        return {"error": {"code": self.error_code, "message": self.message, **hint}}


def read_model(model: type[Model], value: Any, place: str = "") -> Model:
    """Return a value as its model; HttpError 400 if the model refuses it. `place`: the field that the value is."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid(error.errors(), place) from None


def invalid(errors: Sequence[Any], at: str = "") -> HttpError:
    """Return the answer to a request that its model refuses, by the first of pydantic's errors; `at`: their place."""
    first = errors[0]
    parts = [at, *(str(part) for part in first["loc"] if part not in ("body", "query"))]
    place = ".".join(filter(None, parts)) or "the body"
    if first["type"] == "extra_forbidden":
        return HttpError(400, f"unknown field {place!r:.60}", hint="GET /openapi.json describes the fields")
    message = first["msg"].removeprefix("Value error, ")
    return HttpError(400, f"{place:.60} {_WORDS.get(first['type']) or f'is not valid: {message}'}")
