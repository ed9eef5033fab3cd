"""Whether a tool can run right now, and why not."""

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
    """Why a tool with a function is not available."""
    registry = registry_of({"name": "do_it", **fields}, programs=programs, capabilities={"network"})
    if "cli" not in fields:
        registry.bind("do_it", lambda: None, available=available)
    (status,) = registry.check_availability()
    assert status.available == (not status.reason)
    assert available is not None or registry.lacking("do_it") == status.reason
    return status.reason


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one program, and one file that is none."""
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
def test_what_is_needed(fields: dict[str, Any], reason: str) -> None:
    assert why_not(**fields) == reason


def raising() -> bool:
    raise OSError("secret")


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (lambda: True, ""), (lambda: (True, ""), ""), (lambda: False, "not available"),
        (lambda: (False, "rate limit hit"), "rate limit hit"), (lambda: (False, ""), "not available"),
        (lambda: (False, "x" * 999), "x" * 200),
        (lambda: None, "its availability check gives NoneType, not true or false"),
        (lambda: 1, "its availability check gives int, not true or false"),
        (raising, "its availability check raised OSError"),
    ],
)  # fmt: skip
def test_a_tools_own_check(probe: Any, reason: str) -> None:
    assert why_not(probe) == reason


def test_an_asynchronous_check_leaves_nothing_behind() -> None:
    async def later() -> bool:
        return True

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert why_not(later) == "its availability check gives coroutine, not true or false"
        gc.collect()  # a coroutine that is left behind warns

    assert warned == []


def test_a_program_that_others_can_write_to_is_not_available(tmp_path: Path) -> None:
    (tmp_path / "grep").chmod(0o777)
    own = {"grep": Program(path=str(tmp_path / "grep"))}

    assert why_not(programs=own, type="cli", cli={"argv": ["grep"]}) == (
        f"program `grep`: others can write to {tmp_path}/grep, or to a folder above it"
    )


def test_the_registry_asks_for_all_of_it() -> None:
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
