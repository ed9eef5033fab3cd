"""Flows of synthetic requests, as an enforcement point with another manifest would send them."""

from typing import Any

from pdp.workbench.neighbours.runs import made_run, run_under

_ENTRY: dict[str, Any] = {"flow": {}, "roles": {"to": "destination", "files": "body", "/files/*/path": "object"}}


def _roles(flow: Any) -> dict[str, str]:
    return {argument["path"]: argument["role"] for argument in flow["arguments"]}


def test_synthetic_run_has_a_value_for_each_role() -> None:
    assert _roles(made_run([_ENTRY])) == {"/files": "body", "/files/0/path": "object", "/to": "destination"}


def test_values_get_the_roles_that_the_other_manifest_states_for_their_paths() -> None:
    paths = ("/files/3/path", "/files/3/kind", "/to", "/other", "")
    arguments = [{"path": path, "role": "value", "sources": ["model"], "from": []} for path in paths]
    request = {"action": {"properties": {"tool": "send"}}, "context": {"flow": {"arguments": arguments}}}

    changed = run_under(request, {"tools": {"send": _ENTRY}})

    # The value with an empty path stands for all values that the request does not list.
    assert _roles(changed["context"]["flow"]) == {
        "/files/3/path": "object", "/files/3/kind": "body", "/to": "destination", "": "value"
    }  # fmt: skip
