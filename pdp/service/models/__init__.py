"""The bodies of the HTTP API as pydantic models: routes, the OpenAPI document and the Python client use the same ones.

access     AuthZEN: evaluations, searches, metadata
proposals  proposed calls and plans, their sessions, results and answers
approvals  approvals, and the steps that people take
tokens     access tokens
operation  health, readiness, events, tools, the manifest, errors

A model refers to the records of the lower layers (`Reason`, `Action`, `Trace`) where the answer has their form, so a
field is written once. Unknown fields of requests are errors; AuthZEN's models ignore them, as the specification says.
"""

import re
from typing import Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict
from typing_extensions import TypeAliasType

JsonObject = TypeAliasType("JsonObject", dict[str, Any])
"""Any JSON object, as one named type of the OpenAPI document, and so of generated clients."""


def _digits(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch("-?[0-9]{1,19}", value):
        raise ValueError("a number in digits is expected")
    return value


DIGITS: Final = BeforeValidator(_digits)
"""For a whole number in a query. Pydantic alone would read `+1`, ` 1`, `1_0` and `1.0` too."""


class Body(BaseModel):
    """A body whose fields are all known."""

    model_config = ConfigDict(extra="forbid")
