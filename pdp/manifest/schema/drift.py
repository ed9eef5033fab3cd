"""Whether a tool really takes what its manifest says that it takes."""

import logging
from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Any, Final

from pdp.json import JsonValueError, check_json
from pdp.manifest.schema.compile import compile_schema
from pdp.manifest.schema.differences import DEFAULT, Bump, default_of, schema_changes
from pdp.manifest.schema.walk import argument_schemas

_NOT_DECLARED: Final = "the tool's default, which is decided on. Add it to the manifest as `default`"
_log = logging.getLogger("pdp.pep")


def drift(declared: Mapping[str, Any], real: Mapping[str, Any], taken: Container[str] = ()) -> list[str]:
    """Return, a line each, where the real schema of a tool's arguments is not what is declared of them.

    A tool may take more values than it is declared to: none of them reaches it. It may not take fewer, nor other
    arguments or defaults: what it has by itself for one that is not declared, or is left out, nobody decides upon.
    The defaults of the arguments in `taken` are decided with each call.
    """
    changes = schema_changes(declared, real, "request")
    return [
        f"{change.path or 'arguments'}: {change.what}"
        for change in changes
        if change.bump is Bump.MAJOR
        or change.what.startswith("is new")
        or (change.what.startswith(DEFAULT) and change.path not in taken)
    ]


def tool_defaults(name: str, declared: Mapping[str, Any], real: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a tool's optional arguments that the declared schema admits; log those it does not state.

    A default of null says nothing, and is left out.
    """
    known, required = argument_schemas(declared), declared.get("required", ())
    found = {key: default_of(node) for key, node in argument_schemas(real).items() if key in known}
    found = {key: value for key, value in found.items() if value is not None and key not in required}
    taken: dict[str, Any] = {}
    for key, value in found.items():
        stated = default_of(known[key])
        with suppress(JsonValueError):
            check_json(value)
            admitted = compile_schema({"$defs": declared.get("$defs", {}), "allOf": [*known[key].parts]})
            if stated in (None, value) and admitted.is_valid(value):
                taken[key] = value
                if stated is None:
                    _log.warning("%s: %s is %r where a call leaves it out: %s", name, key, value, _NOT_DECLARED)
    return taken
