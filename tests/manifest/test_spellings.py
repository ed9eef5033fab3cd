"""Registry records (tool pattern library, 9.5): read, written and read again; deprecation; releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdp.errors import Fault, FileFaultsError, UsageError
from pdp.manifest.load import load_manifest
from pdp.manifest.model import DeclaredTool
from pdp.manifest.spellings import registry_record
from tests.support import ROOT

EXAMPLES = ROOT / "examples"
RECORD = EXAMPLES / "registry/manifest.yaml"


def test_the_printed_record_is_written_with_its_own_keys_in_their_order() -> None:
    (tool,) = load_manifest(RECORD).tools
    printed = yaml.safe_load(RECORD.read_text())
    record = registry_record(tool)

    assert list(record) == list(printed)
    otherwise = ["markings", "signature"]
    assert [name for name in record if record[name] != printed[name]] == otherwise
    assert record["markings"] == ["pii.medium", "regulated.kvkk"]


@pytest.mark.parametrize("file", [RECORD, EXAMPLES / "underwriting/manifest.yaml"], ids=["registry", "underwriting"])
def test_what_is_written_reads_back_as_the_same_entry(file: Path) -> None:
    for tool in load_manifest(file).tools:
        registered = tool if tool.id else tool.model_copy(update={"id": f"tool.{tool.name}"})
        text = json.dumps(registry_record(DeclaredTool.model_validate(_stated(registered)))).encode()
        (again,) = load_manifest("record.json", text=text).tools
        assert again == registered


def _stated(tool: DeclaredTool) -> dict[str, Any]:
    return tool.model_dump(by_alias=True, exclude_none=True)


@pytest.mark.parametrize("field", ["id", "version"])
def test_a_tool_is_registered_by_id_and_version(field: str) -> None:
    entry = {"name": "pay_bill", "id": "tool.pay_bill", "version": "1.0.0", "schema": {"type": "object"}}
    del entry[field]
    with pytest.raises(UsageError) as caught:
        registry_record(DeclaredTool.model_validate(entry))
    assert str(caught.value) == f"tool pay_bill has no `{field}`, and is registered under it (state its `{field}`)"


def test_a_deprecated_version_loads_with_a_warning() -> None:
    text = RECORD.read_text().replace("deprecation: null", "deprecation: use 2.0.0 from July on")
    warnings: list[Fault] = []
    load_manifest("m.yaml", text=text.encode(), warnings=warnings)
    (warning,) = [one for one in warnings if "deprecated" in one.message]

    assert (warning.message, warning.hint, warning.place.line) == (
        "`lookup_policyholder` is deprecated: use 2.0.0 from July on", "let agents pin what takes its place", 27,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("commits", "message", "warning"),
    [
        ("issue_all", "`issue_all` is not in this manifest: nothing commits it", True),
        ("compose_quote", "`compose_quote` has pattern composition, and does not commit", False),
    ],
)
def test_what_a_staging_tool_names_is_a_tool_that_commits(commits: str, message: str, warning: bool) -> None:
    text = (EXAMPLES / "underwriting/manifest.yaml").read_text()
    named = text.replace("commits: [issue_policy]", f"commits: [{commits}]")
    named = named.replace("enum: [issue_policy]", f"enum: [{commits}]")
    found: list[Fault] = []
    try:
        load_manifest("m.yaml", text=named.encode(), warnings=found)
    except FileFaultsError as error:
        found += error.faults
    about_commits = [fault for fault in found if commits in fault.message]
    assert [(fault.message, fault.warning) for fault in about_commits] == [(message, warning)]
