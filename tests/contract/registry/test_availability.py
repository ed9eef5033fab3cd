"""The registry says which tools can run now, and why each other tool cannot run."""

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest

from pdp.contract.registry.registry import Registry
from pdp.manifest.model import Governance, Manifest, Program

LISTED = {"grep": Program(), "absent": Program()}


def registry_of(*tools: dict[str, Any], programs: dict[str, Program] = LISTED, **options: Any) -> Registry:
    manifest = {"manifest_version": "1", "tools": [{"schema": {"type": "object"}, **tool} for tool in tools]}
    return Registry(Manifest.model_validate(manifest), Governance(actions={}, programs=programs), **options)


def why_not(available: Any = None, programs: dict[str, Program] = LISTED, **fields: Any) -> str:
    """Return why a registered tool with these fields is unavailable, or an empty text if it is available."""
    registry = registry_of({"name": "do_it", **fields}, programs=programs, capabilities={"network"})
    if "cli" not in fields:
        registry.bind("do_it", lambda: None, available=available)
    (status,) = registry.check_availability()
    assert status.available == (not status.reason)
    assert available is not None or registry.lacking("do_it") == status.reason
    return status.reason


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up a PATH with one program, `grep`, and with a file `text` that is not executable."""
    (tmp_path / "grep").write_text("#!/bin/sh\n")
    (tmp_path / "grep").chmod(0o755)
    (tmp_path / "text").write_text("no program")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("API_KEY", "x")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("ABSENT", raising=False)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        ({"type": "cli", "cli": {"argv": ["grep", "-r"]}}, ""),
        ({"type": "cli", "cli": {"argv": ["absent", "-r"]}}, "program absent is not found"),
        *(
            ({"safety": {"requires": requires}}, reason)
            for requires, reason in [
                (["binary:grep", "env:API_KEY", "network"], ""),
                (["binary:absent"], "program absent is not found"),
                (["binary:"], "program  is not found"),
                (["env:ABSENT"], "environment variable ABSENT is not set"),
                (["env:EMPTY"], "environment variable EMPTY is not set"),
                (["network", "filesystem"], "capability filesystem is not granted"),
                (["tpm:x"], "capability tpm:x is not granted"),
            ]
        ),
    ],
)
def test_tool_without_its_requirements_is_unavailable(fields: dict[str, Any], reason: str) -> None:
    assert why_not(**fields) == reason


def raising() -> bool:
    raise OSError("secret")


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (lambda: True, ""), (lambda: (True, ""), ""), (lambda: False, "not available"),
        (lambda: (False, "rate limit hit"), "rate limit hit"), (lambda: (False, ""), "not available"),
        (lambda: (False, "x" * 999), "x" * 200),
        (lambda: None, "the tool's availability check returned NoneType, not true or false"),
        (lambda: 1, "the tool's availability check returned int, not true or false"),
        (raising, "the tool's availability check raised OSError"),
    ],
)  # fmt: skip
def test_custom_availability_check_decides_whether_a_tool_is_available(probe: Any, reason: str) -> None:
    assert why_not(probe) == reason


def test_asynchronous_availability_check_is_rejected_and_closed() -> None:
    async def later() -> bool:
        return True

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert why_not(later) == "the tool's availability check returned coroutine, not true or false"
        gc.collect()  # If the coroutine had not been closed, Python would warn here.

    assert warned == []


def test_tool_is_unavailable_if_other_users_can_write_to_its_program(tmp_path: Path) -> None:
    (tmp_path / "grep").chmod(0o777)
    own = {"grep": Program(path=str(tmp_path / "grep"))}

    assert why_not(programs=own, type="cli", cli={"argv": ["grep"]}) == (
        f"program `grep`: other users can write to {tmp_path}/grep, or to a folder above it"
    )


def test_registry_reports_the_availability_of_every_tool() -> None:
    registry = registry_of(
        {"name": "grep_files", "type": "cli", "cli": {"argv": ["grep"]}},
        {"name": "read_web", "safety": {"requires": ["network"]}},
        {"name": "roll_dice"},
    )
    for name in ("read_web", "roll_dice"):
        registry.bind(name, lambda: None)

    assert [(status.name, status.type, status.reason) for status in registry.check_availability()] == [
        ("grep_files", "cli", ""), ("read_web", "python", "capability network is not granted"),
        ("roll_dice", "python", ""),
    ]  # fmt: skip
    assert [shown["name"] for shown in registry.definitions("plain")] == ["grep_files", "roll_dice"]
