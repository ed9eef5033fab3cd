"""The bodies of the HTTP API as pydantic models, shared by the routes, the OpenAPI document and the Python client.

- access: AuthZEN evaluations, searches and metadata
- proposals: proposed calls and plans, their sessions, results and answers
- approvals: approvals, and requests to list, await or deny them
- tokens: access tokens
- operation: health, readiness, audit events, tools, the manifest, errors

Unknown fields of a request are errors, except in AuthZEN, where the specification says to ignore them.
"""

import re
from typing import Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict
from typing_extensions import TypeAliasType

JsonObject = TypeAliasType("JsonObject", dict[str, Any])
"""Any JSON object. The name appears in the OpenAPI document and in generated clients."""


def _digits(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch("-?[0-9]{1,19}", value):
        raise ValueError("must be a whole number in digits")
    return value


DIGITS: Final = BeforeValidator(_digits)
"""Validates a whole number in a query. Pydantic alone would also accept `+1`, ` 1`, `1_0` and `1.0`."""


class Body(BaseModel):
    """A request or answer body that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid")
