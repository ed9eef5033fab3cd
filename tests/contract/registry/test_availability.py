"""Whether a tool can run right now, and why not."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest

from pdp.circuit import Circuit
from pdp.contract.registry.registry import Registry, why_unavailable
from pdp.manifest.effective import effective_tool
from pdp.manifest.model import DeclaredTool, Governance, Manifest, Program, Tool

PROGRAMS = {"grep": Program(), "absent": Program()}
LISTED = Governance(actions={}, programs=PROGRAMS)


def entry(**fields: Any) -> Tool:
    tool = {"name": "grep_files", "schema": {"type": "object"}, **fields}
    return effective_tool(DeclaredTool.model_validate(tool), None, PROGRAMS)


def needs(*requires: str) -> Tool:
    return entry(safety={"requires": requires})


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


def cli(program: str) -> Tool:
    return entry(type="cli", cli={"argv": [program, "-r"]})


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (entry(), ""),
        (cli("grep"), ""),
        (cli("absent"), "program absent is not found"),
        (needs("binary:grep", "env:API_KEY", "network"), ""),
        (needs("binary:absent"), "program absent is not found"),
        (needs("binary:"), "program  is not found"),
        (needs("env:ABSENT"), "environment variable ABSENT is not set"),
        (needs("env:EMPTY"), "environment variable EMPTY is not set"),
        (needs("network", "filesystem"), "capability filesystem is not granted"),
        (needs("tpm:x"), "capability tpm:x is not granted"),
    ],
)
def test_what_is_needed(tool: Tool, reason: str) -> None:
    assert why_unavailable(tool, {"network"}, None) == reason


def raising() -> bool:
    raise OSError("secret")


async def later() -> bool:
    return True


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (lambda: True, ""), (lambda: (True, ""), ""), (lambda: False, "not available"),
        (lambda: (False, "rate limit hit"), "rate limit hit"), (lambda: (False, ""), "not available"),
        (lambda: (False, "x" * 999), "x" * 200),
        (lambda: None, "its availability check gives NoneType, not true or false"),
        (lambda: 1, "its availability check gives int, not true or false"),
        (later, "its availability check gives coroutine, not true or false"),
        (raising, "its availability check raised OSError"),
    ],
)  # fmt: skip
def test_a_tools_own_check(probe: Any, reason: str) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert why_unavailable(entry(), (), probe) == reason
        gc.collect()  # a coroutine that is left behind warns

    assert warned == []


def test_a_program_that_may_not_run_is_not_available() -> None:
    schema = {"type": "object", "properties": {"pattern": {"type": "string"}}}
    unlisted = {"name": "list_files", "type": "cli", "cli": {"argv": ["ls"]}, "schema": {"type": "object"}}
    unused = {"name": "grep_files", "type": "cli", "cli": {"argv": ["grep"]}, "schema": schema}
    registry = Registry([Manifest.model_validate({"manifest_version": "1", "tools": [unlisted, unused]})], LISTED)

    assert [(status.available, status.reason) for status in registry.check_availability()] == [
        (False, "`cli.argv` does not use argument `pattern`"),
        (False, "program `ls` is not listed in the governance file"),
    ]


def test_a_program_that_others_can_write_to_is_not_available(tmp_path: Path) -> None:
    (tmp_path / "grep").chmod(0o777)
    tool = cli("grep").model_copy(update={"program": Program(path=str(tmp_path / "grep"))})

    assert why_unavailable(tool, (), None) == (
        f"program `grep`: others can write to {tmp_path}/grep, or to a folder above it"
    )


def test_the_registry_asks_for_all_of_it() -> None:
    tools = (
        {"name": "grep_files", "type": "cli", "cli": {"argv": ["grep"]}, "schema": {"type": "object"}},
        {"name": "read_web", "schema": {"type": "object"}, "safety": {"requires": ["network"]}},
        {"name": "roll_dice", "schema": {"type": "object"}},
    )
    manifest = Manifest.model_validate({"manifest_version": "1", "tools": tools})
    registry = Registry([manifest], LISTED, circuit=lambda: Circuit(failures=1))
    for name in ("read_web", "roll_dice"):
        registry.bind(name, lambda: None)

    def reasons() -> dict[str, str]:
        return {status.name: status.reason for status in registry.check_availability()}

    assert reasons() == {"grep_files": "", "read_web": "capability network is not granted", "roll_dice": ""}
    registry.note_run("roll_dice", failed=True)
    registry.note_run("grep_files", failed=False)
    assert reasons()["roll_dice"] == "failed 1 times in a row"
    assert [shown["name"] for shown in registry.definitions("plain")] == ["grep_files"]


def test_a_registry_says_what_a_tool_lacks() -> None:
    tool = DeclaredTool.model_validate(
        {"name": "grep_files", "schema": {"type": "object"}, "safety": {"requires": ["gpu"]}}
    )
    manifest = Manifest.model_construct(manifest_version="1", agents=None, tools=(tool,))

    assert Registry([manifest]).lacking("grep_files") == "capability gpu is not granted"
    assert Registry([manifest], capabilities=["gpu"]).lacking("grep_files") == ""
