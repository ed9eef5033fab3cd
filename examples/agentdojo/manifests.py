"""Write the manifests of the four suites from the functions of AgentDojo: `python manifests.py`, with agentdojo 0.1.35.

Names, descriptions, parameters and results come from the functions. `BOUNDS` has everything that only a deployer knows:
the form of identifiers, accounts and dates.
"""

import json
from pathlib import Path
from typing import Any, Final

from agentdojo.task_suite.load_suites import get_suites
from pydantic import TypeAdapter

VERSION: Final = "v1.2.2"
_IDENTIFIER: Final = {"pattern": "^[A-Za-z0-9_-]{1,64}$"}
_IBAN: Final = {"pattern": "^[A-Z]{2}[0-9]{2}[A-Z0-9]{8,30}$"}
_ACCOUNT: Final = {"pattern": "^(me|[A-Z]{2}[0-9]{2}[A-Z0-9]{8,30})$"}
_DATE: Final = {"pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}
# Times without a time zone, which `format: date-time` rejects.
_TIME: Final = {"pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,15}$"}

# The form of texts that the types leave open: of a record's field, a function's result or an argument.
BOUNDS: Final[dict[str, dict[str, Any]]] = {
    "CalendarEvent.id_": _IDENTIFIER,
    "CloudDriveFile.id_": _IDENTIFIER,
    "Email.id_": _IDENTIFIER,
    "Transaction.sender": _ACCOUNT,
    "Transaction.recipient": _ACCOUNT,
    "Transaction.date": _DATE,
    "cancel_calendar_event.event_id": _IDENTIFIER,
    "delete_email.email_id": _IDENTIFIER,
    "delete_file.file_id": _IDENTIFIER,
    "get_current_day": _DATE,
    "get_iban": _IBAN,
    "remove_user_from_slack.user": {"maxLength": 100},
    "update_password.password": {"maxLength": 100},
}


def manifest(suite: Any) -> dict[str, Any]:
    """Return the manifest of a suite."""
    records: dict[str, Any] = {}
    tools = [_entry(function, records) for function in suite.tools]
    return {"manifest_version": f"agentdojo-{VERSION}", "$defs": records, "tools": tools}


def _entry(function: Any, records: dict[str, Any]) -> dict[str, Any]:
    entry = {
        "name": function.name,
        "version": "1.0.0",
        "description": " ".join(function.description.split()),
        "schema": _schema(function.parameters, records, function.name),
    }
    if function.return_type is not None:  # A function may have no description.
        entry["result_schema"] = _schema(function.return_type, records) | BOUNDS.get(function.name, {})
    return entry


def _schema(type_: Any, records: dict[str, Any], name: str = "") -> dict[str, Any]:
    """Return the schema of a type, and add the records that it refers to."""
    schema = TypeAdapter(type_).json_schema(mode="serialization")
    schema.pop("title", None)
    records |= schema.pop("$defs", {})
    for record, members in {**records, name or getattr(type_, "__name__", ""): schema}.items():
        for field, part in members.get("properties", {}).items():
            if part.get("format") == "date-time":
                del part["format"]
                part.update(_TIME)
            part.update(BOUNDS.get(f"{record}.{field}", {}))
    return schema


if __name__ == "__main__":
    for name, suite in get_suites(VERSION).items():
        text = json.dumps(manifest(suite), indent=1, ensure_ascii=False) + "\n"
        Path(__file__).with_name(f"{name}.json").write_text(text, encoding="utf-8")
