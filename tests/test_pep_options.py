"""A function of no tool is refused when it is given, not at every call."""

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
    ("name", "hint"),
    [
        ("initiate_wirre", "did you mean `initiate_wire`?"),
        ("shell", "name each function as its tool in the manifest"),
    ],
)
def test_a_function_that_no_tool_has_is_refused(make: Callable[..., Pep], name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(tools={"initiate_wire": wire, name: wire})

    assert caught.value.message == f"tools: `{name}` is not a tool of manifest 2026.07.1"
    assert caught.value.hint == hint


@pytest.mark.parametrize("make", MAKERS)
def test_functions_of_tools_are_taken(make: Callable[..., Pep]) -> None:
    pep = make(tools={"initiate_wire": wire, "validate_payment": print})

    assert {name: name in pep._parts.tools for name in pep.manifest.tools} == {
        "lookup_beneficiary": False,
        "validate_payment": True,
        "initiate_wire": True,
    }
