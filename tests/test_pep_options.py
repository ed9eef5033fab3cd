"""What an enforcement point is given and cannot use is refused when it is given, not at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdp import Pep, Registry
from pdp.errors import UsageError
from tests.support import payments
from tests.support.payments import EXAMPLE


def from_files(**options: Any) -> Pep:
    return Pep.from_files(str(EXAMPLE / "manifest.json"), governance=str(EXAMPLE / "governance.yaml"), **options)


def from_registry(**options: Any) -> Pep:
    registry = Registry.from_files(EXAMPLE / "manifest.json", governance=EXAMPLE / "governance.yaml")
    return Pep.from_registry(registry, **options)


def changed(**options: Any) -> Pep:
    with payments.engine() as engine:
        return Pep(payments.effective(), engine).with_changes(**options)


MAKERS = [from_files, from_registry, changed]


def wire(**arguments: Any) -> Any:
    return arguments


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (
            {"tools": {"initiate_wire": wire, "initiate_wirre": wire}},
            "tools: `initiate_wirre` is not a tool of manifest 2026.07.1",
            "did you mean `initiate_wire`?",
        ),
        (
            {"tools": {"shell": wire}},
            "tools: `shell` is not a tool of manifest 2026.07.1",
            "name each function as its tool in the manifest",
        ),
        (
            {"tools": {5: wire}},
            "tools: a value of type int is not a tool of manifest 2026.07.1",
            "name each function as its tool in the manifest",
        ),
        (
            {"tools": {"validate_payment": 5}},
            "tools: `validate_payment` has a value of type int for its function",
            "pass something to call",
        ),
        ({"tools": [wire]}, "tools: a value of type list is no mapping", "pass functions by the name of their tool"),
        ({"approvals": 5}, "approvals: a value of type int is no Approvals", "pass `Approvals()`"),
        (
            {"audit": "x.jsonl"},
            "audit: a value of type str is no AuditLog",
            "pass `FileAudit(Path(...))`, or another AuditLog",
        ),
        ({"deployment": {}}, "deployment: a value of type dict is no Deployment", "pass `Deployment(...)`"),
        (
            {"keys": "sqlite:///x.db"},
            "keys: a value of type str is no store of keys",
            "pass one, such as `SqlIdempotency(store)`",
        ),
        (
            {"actions": object()},
            "actions: a value of type object is no store of actions",
            "pass one, such as `SqlActions(store)`",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_that_are_none(make: Callable[..., Pep], options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(**options)

    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize("make", MAKERS)
def test_functions_of_tools_are_taken(make: Callable[..., Pep]) -> None:
    pep = make(tools={"initiate_wire": wire, "validate_payment": print})

    assert {name: name in pep._parts.tools for name in pep.manifest.tools} == {
        "lookup_beneficiary": False,
        "validate_payment": True,
        "initiate_wire": True,
    }
