"""Each method of MCP has its line in the mapping, whichever revision has it."""

from __future__ import annotations

from mcp_types.methods import SPEC_CLIENT_METHODS

from pdp.gateway.mapping import DECIDED, FILTERED, OF_TASKS, PASSED, REFUSED


def test_every_method_of_the_sdk_has_a_line_and_one_alone() -> None:
    lines = [*DECIDED, *FILTERED, *OF_TASKS, *PASSED, *REFUSED]
    assert len(set(lines)) == len(lines)
    assert set(lines) - set(SPEC_CLIENT_METHODS) == {*OF_TASKS, "notifications/initialized"}
    assert set(SPEC_CLIENT_METHODS) - set(lines) == set()
