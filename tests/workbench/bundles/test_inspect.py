"""`pdp bundle inspect` shows the content and the signature of a bundle."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.engine.bundle.signature import Signature
from pdp.json import canonical, digest
from pdp.workbench.bundles.inspect import inspect_bundle
from tests.support.bundle_releases import bundle, key, key_file
from tests.support.command_line import pdp

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
        data={"config": {"required_concerns": ["hours", "limits"]}, **data},
        modules={"authz/decision.rego": "package authz", "custom/hours.rego": "package custom.concerns.hours"},
    )


def test_inspect_command_lists_the_complete_content_of_a_bundle() -> None:
    name = digest(canonical(MANIFEST))
    bundle = read_bundle(packed(manifests={name: MANIFEST}, settings={"a": 1}))

    def tool(name: str, **stated: Any) -> dict[str, Any]:
        return {
            "name": name, "version": None, "action": name, "risk_tier": None, "effect_class": None, "scopes": [],
        } | stated  # fmt: skip

    assert inspect_bundle(bundle) == {
        "revision": bundle.revision, "release": 7, "digest": bundle.digest, "size": bundle.size, "module_size": 8,
        "modules": 2, "signature": None,
        "concerns": ["hours", "limits"],
        "manifests": [
            {
                "digest": name, "version": "2026.07.1",
                "tools": [
                    tool("look", effect_class="read-internal"), tool("odd"),
                    tool("pay", version="2.1.0", action="wire", risk_tier="high", scopes=["a", "b"]),
                ],
            },
        ],
        "data": {
            "config": len(canonical(bundle.data["config"])), "manifests": len(canonical({name: MANIFEST})),
            "settings": 7,
        },
    }  # fmt: skip


@pytest.mark.parametrize("with_key", [False, True])
def test_inspect_shows_and_verifies_the_signature_of_a_bundle(tmp_path: Path, with_key: bool) -> None:
    file = tmp_path / "b"
    file.write_bytes(bundle(2))
    keys = ["--public-key", key_file(tmp_path).with_name("one.pub")] if with_key else []

    shown = pdp("bundle", "inspect", file, *keys)
    answer = pdp("bundle", "inspect", file, *keys, "--json").json

    claim = "verified" if with_key else "not verified: name a public key with --public-key"
    assert f"  signature  ES256, key {key().public.id} ({claim})" in shown.out.splitlines()
    assert answer["signature"] == asdict(Signature(key().public.id, "ES256", verified=with_key))
    assert answer["signature"]["verified"] is with_key


def test_inspect_command_escapes_control_characters_in_a_bundle(tmp_path: Path) -> None:
    file = tmp_path / "b"
    evil = {"manifest_version": "1\x1b[31m", "tools": {"a\nconcern fake": {"effect_class": "pure"}}}
    name = digest(canonical(evil))
    file.write_bytes(packed(manifests={name: evil}))
    bundle = read_bundle(file)

    assert pdp("bundle", "inspect", file).out.splitlines() == [
        f"{file}: release 7, {bundle.size} bytes",
        f"  revision   {bundle.revision}",
        f"  file       {bundle.digest}",
        "  signature  none",
        "  policy     2 Rego modules, WebAssembly of 8 bytes",
        f"  data       config (148 bytes), manifests ({len(canonical({name: evil}))} bytes)",
        "  concerns   hours, limits",
        "",
        f"manifest 1\\x1b[31m  {name}",
        "  a\\nconcern fake: pure; no risk; no scope",
    ]


def test_inspect_rejects_a_file_that_is_not_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"nope")

    complaint = f"error: {tmp_path}/b: damaged, or not a gzip file\n"
    hint = "    hint: copy the file again, or build the bundle with `pdp bundle build`\n"
    hint += "    more: pdp explain bundle.invalid\n"
    assert pdp("bundle", "inspect", tmp_path / "b") == (2, "", complaint + hint)
