"""What `pdp bundle inspect` shows of a bundle."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from pdp.engine.bundle.file import baseline_bundle_path, pack_bundle, read_bundle
from pdp.engine.bundle.signature import Signature
from pdp.json import canonical, digest
from pdp.workbench.bundles.inspect import ConcernSummary, ManifestSummary, ToolSummary, inspect_bundle
from tests.support import ROOT
from tests.support.bundle_releases import bundle, key, key_file, tiny
from tests.support.command_line import pdp

if TYPE_CHECKING:
    from pathlib import Path

REGO = """# METADATA
# title: Hours
package custom.concerns.hours

# METADATA
# title: Closed
# custom:
#   code: hours.closed
deny contains {} if false

# METADATA
# custom:
#   code: hours.early
deny contains {} if false
"""
DECISION = """package authz

# METADATA
# custom:
#   code: decision.nothing_allows
_x := 1
"""
MANIFEST: dict[str, Any] = {
    "manifest_version": "2026.07.1",
    "tools": {
        "pay": {"name": "pay", "version": "2.1.0", "pdp_action": "wire", "risk_tier": "high", "scopes": ["a", "b"]},
        "look": {"name": "look", "effect_class": "read-internal"},
        "odd": {"version": 5, "scopes": "a", "risk_tier": []},
    },
}


def packed(**data: Any) -> bytes:
    return pack_bundle(
        release=7,
        wasm=b"\0asm\x01\0\0\0",
        data={"config": {"required_concerns": ["hours"]}, **data},
        modules={"authz/decision.rego": DECISION, "custom/hours.rego": REGO},
    )


def test_all_that_is_in_it() -> None:
    name = digest(canonical(MANIFEST))
    found = read_bundle(packed(manifests={name: MANIFEST}, settings={"a": 1}))

    inspected = inspect_bundle(found)

    assert inspected.concerns == (
        ConcernSummary("decision", custom=False, required=False, codes=("decision.nothing_allows",)),
        ConcernSummary("hours", custom=True, required=True, codes=("hours.closed", "hours.early")),
    )
    assert inspected.manifests == (
        ManifestSummary(
            name,
            "2026.07.1",
            (
                ToolSummary("look", None, "look", None, "read-internal", ()),
                ToolSummary("odd", None, "odd", None, None, ()),
                ToolSummary("pay", "2.1.0", "wire", "high", None, ("a", "b")),
            ),
        ),
    )
    assert inspected.data == {
        "config": len(canonical(found.data["config"])), "manifests": len(canonical({name: MANIFEST})), "settings": 7,
    }  # fmt: skip
    assert (inspected.revision, inspected.release, inspected.digest) == (found.revision, 7, found.digest)
    assert (inspected.size, inspected.module_size, inspected.modules) == (found.size, 8, 2)
    assert inspected.signature is None


def test_every_code_of_the_baseline_is_found() -> None:
    """The codes in the released bundle are those that its Rego states in METADATA, each under its own concern."""
    inspected = inspect_bundle(read_bundle(baseline_bundle_path()))
    names = sorted(path.name for path in (ROOT / "policies/authz/concerns").iterdir())

    assert [each.name for each in inspected.concerns if each.required] == names
    assert [each.name for each in inspected.concerns if not each.required] == ["decision", "planning"]
    stated = {
        line.split("code:")[1].strip()
        for file in (ROOT / "policies/authz").rglob("*.rego")
        if not file.name.endswith("_test.rego")
        for line in file.read_text().splitlines()
        if line.startswith("#   code:")
    }
    assert {code for each in inspected.concerns for code in each.codes} == stated


@pytest.mark.parametrize("with_key", [False, True])
def test_the_signature_is_shown_and_verified_with_a_key(tmp_path: Path, with_key: bool) -> None:
    file = tmp_path / "b"
    file.write_bytes(bundle(2))
    keys = ["--key", key_file(tmp_path).with_name("one.pub")] if with_key else []

    shown = pdp("bundle", "inspect", file, *keys)
    answer = pdp("bundle", "inspect", file, *keys, "--json").json

    claim = "verified" if with_key else "not verified: name a public key with --key"
    assert f"  signature  ES256, key {key().public.id} ({claim})" in shown.out.splitlines()
    assert answer["signature"] == asdict(Signature(key().public.id, "ES256", verified=with_key))
    assert answer["signature"]["verified"] is with_key


def test_what_people_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "b"
    evil = {"manifest_version": "1\x1b[31m", "tools": {"a\nconcern fake": {"effect_class": "pure"}}}
    name = digest(canonical(evil))
    file.write_bytes(packed(manifests={name: evil}))
    found = read_bundle(file)

    assert pdp("bundle", "inspect", file).out.splitlines() == [
        f"{file}: release 7, {found.size} bytes",
        f"  revision   {found.revision}",
        f"  file       {found.digest}",
        "  signature  none",
        "  policy     2 Rego modules, WebAssembly of 8 bytes",
        f"  data       config (139 bytes), manifests ({len(canonical({name: evil}))} bytes)",
        "",
        "concern decision (baseline)",
        "  decision.nothing_allows",
        "concern hours (custom, required)",
        "  hours.closed",
        "  hours.early",
        "",
        f"manifest 1\\x1b[31m  {name}",
        "  a\\nconcern fake: pure; no risk; no scope",
    ]


def test_json_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "b"
    file.write_bytes(tiny(4))
    found = read_bundle(file)

    assert pdp("bundle", "inspect", file, "--json").json == {
        "file": str(file), "revision": found.revision, "release": 4, "digest": found.digest, "size": found.size,
        "module_size": 8, "modules": 1, "signature": None, "manifests": [], "concerns": [],
        "data": {"config": len(canonical(found.data["config"])), "settings": 2},
    }  # fmt: skip


def test_a_file_that_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"nope")

    complaint = f"error: {tmp_path}/b: not a gzip file, or a damaged one\n"
    hint = "    hint: copy the file again, or build it with `pdp bundle build`\n"
    assert pdp("bundle", "inspect", tmp_path / "b") == (2, "", complaint + hint)
