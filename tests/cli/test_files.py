"""For an unusable file, `pdp decide` names the fault, its location and a hint, and exits with code 2."""

import os
import re
from pathlib import Path

import pytest

from pdp.audit.verify import verify_chain
from tests.support.command_line import OPTIONS, Done, line, pdp, written
from tests.support.payments import wire

MEGABYTES = 10 * 1024 * 1024
DEEP = 10_000
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{to}: &{to} [{','.join([f'*{of}'] * 10)}]\n" for of, to in zip("abcdefgh", "bcdefghi", strict=True)
)
KINDS: dict[str, bytes | str] = {
    "empty": b"",
    "binary": bytes(range(256)) * 40,
    "large": '{"a": "' + "x" * MEGABYTES + '"}',
    "deep": "[" * DEEP + "]" * DEEP,
    "list": "[1,2]",
    "unknown": '{"nonsense": 1}',
    "exploding": BOMB,
}
MISSING = "error: FILE: no such file\n    hint: check the path\n"
FOLDER = "error: FILE: is a folder, not a file\n    hint: pass a file in the folder\n"
X160 = '    {"a": "' + "x" * 153 + "\n"
DEEP_160 = "    " + "[" * 160 + "\n"
EMPTY = "FILE:1:1: the file is empty\n    hint: check that this is the right file\n"
BINARY = (
    "FILE:2:118: not text: byte 0x80 is not UTF-8\n"
    "    hint: save the file as UTF-8, and check that it is the right one\n"
)
TOO_DEEP = f"FILE:1:65: nested deeper than 64 levels\n{DEEP_160}{' ' * 68}^\n    hint: make the structure flatter\n"
EXPLODES = (
    "FILE:5:17: aliases add more than 50000 values\n"
    "    e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n"
    f"{' ' * 20}^\n"
    "    hint: write the values out, or split the file\n"
)
ANY_DOCUMENT = {"missing": MISSING, "folder": FOLDER, "empty": EMPTY}
SESSION_KEYS = (
    "agent, claims, config, facts, home_domains, idempotency_key, plan, prompt, purpose, request_id, run_id, state, "
    "time"
)
NO_BUNDLE = (
    "error: FILE: damaged, or not a gzip file\n    hint: copy the file again, or build the bundle "
    "with `pdp bundle build`\n    more: pdp explain bundle.invalid\n"
)
NO_AUDIT = (
    "error: audit file FILE cannot be continued: {}\n"
    "    hint: run `pdp audit verify`, move the file away as evidence, and start a new file\n"
)
NO_FOLDER = "error: FILE: not a folder\n    hint: give folders with Rego files\n"


def absent(name: str, source: str) -> str:
    return f"FILE:1:1: `{name}` is missing\n{source}    ^\n"


def unknown_root(root: str, source: str) -> str:
    return f"FILE:1:2: the root `{root}` is not allowed\n{source}     ^\n    hint: use only directory and settings\n"


def unknown(name: str, source: str, hint: str) -> str:
    return f"FILE:1:2: unknown key `{name}`\n{source}     ^\n    hint: {hint}\n"


NONSENSE = '    {"nonsense": 1}\n'
COMPLAINTS: dict[str, dict[str, str]] = {
    "PROPOSAL": {
        "missing": MISSING,
        "folder": FOLDER,
    },
    "-m": {
        **ANY_DOCUMENT,
        "binary": BINARY,
        "deep": TOO_DEEP,
        "exploding": EXPLODES,
        "large": absent("manifest_version", X160)
        + absent("tools", X160)
        + unknown("a", X160, "known keys: agents, manifest_version, ontology, tools"),
        "list": "FILE:1:1: a manifest must be a mapping\n    [1,2]\n    ^\n    hint: check that it is the right file\n",
        "unknown": absent("manifest_version", NONSENSE)
        + absent("tools", NONSENSE)
        + unknown("nonsense", NONSENSE, "known keys: agents, manifest_version, ontology, tools"),
    },
    "-s": {
        **ANY_DOCUMENT,
        "list": "FILE:1:1: the file must be a mapping, not a list\n    [1,2]\n    ^\n",
        "unknown": absent("claims", NONSENSE) + unknown("nonsense", NONSENSE, f"known keys: {SESSION_KEYS}"),
    },
    "-g": {
        **ANY_DOCUMENT,
        "list": "FILE:1:1: a governance file must be a mapping\n    [1,2]\n    ^\n"
        "    hint: check that it is the right file\n",
        "unknown": unknown("nonsense", NONSENSE, "known keys: actions, clauses, flow, programs"),
    },
    "--data": {
        **ANY_DOCUMENT,
        "list": "FILE:1:1: must be a mapping\n    [1,2]\n    ^\n    hint: write the keys directory and settings\n",
        "unknown": unknown_root("nonsense", NONSENSE),
    },
    "--policies": {
        **dict.fromkeys(("missing", "binary"), NO_FOLDER),
        "folder": "error: FILE: no Rego file in it\n    hint: give folders with Rego files\n",
    },
    "--bundle": {
        **dict.fromkeys(("binary", "large"), NO_BUNDLE),
        "missing": "error: FILE: cannot be read: No such file or directory\n    hint: give the path of a bundle file\n"
        "    more: pdp explain bundle.invalid\n",
        "folder": "error: FILE: cannot be read: Is a directory\n    hint: give the path of a bundle file\n"
        "    more: pdp explain bundle.invalid\n",
        "empty": "error: FILE: the file is empty\n    hint: copy the file again, or build the bundle with `pdp "
        "bundle build`\n    more: pdp explain bundle.invalid\n",
    },
    "--audit": {
        "binary": NO_AUDIT.format("not an event"),
        "large": NO_AUDIT.format("its last event is incomplete"),
        "folder": "error: audit file FILE cannot be opened: Is a directory\n    hint: check folder and permissions\n",
    },
}


def bad_file(folder: Path, kind: str) -> Path:
    """Return the path of an unusable file. For the kind `missing`, there is no file; for `folder`, it is a folder."""
    file = folder / "FILE"
    if kind == "folder":
        file.mkdir()
    elif kind != "missing":
        written(file, KINDS[kind])
    return file


def with_file(option: str, file: Path, proposal: Path) -> Done:
    """Run `pdp decide` with `option` set to the path of the file."""
    if option == "PROPOSAL":
        return pdp(*line(file))
    if option in OPTIONS:
        return pdp(*line(proposal, **{option[1:]: file}))
    return pdp(*line(proposal), option, file)


@pytest.mark.parametrize(
    ("option", "kind"), [(option, kind) for option, complaints in COMPLAINTS.items() for kind in complaints]
)
def test_error_names_the_unusable_input_file_and_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, kind: str
) -> None:
    if option == "--policies":
        # Use a fake OPA, so that the result does not depend on whether OPA is installed.
        monkeypatch.setenv("PDP_OPA", str(fake_opa(tmp_path)))
    file = bad_file(tmp_path, kind)
    done = with_file(option, file, written(tmp_path / "wire.json", wire()))
    complaint = COMPLAINTS[option][kind]
    if not complaint.startswith("error: "):
        count = complaint.count("FILE:")
        complaint += f"error: {count} {'fault' if count == 1 else 'faults'} in FILE\n"
    assert done == (2, "", complaint.replace("FILE", str(file)))


def fake_opa(folder: Path) -> Path:
    """Write a program that only reports the right version of OPA."""
    program = written(folder / "opa", '#!/bin/sh\n[ "$1" = version ] && echo "Version: 1.22.4"\n')
    program.chmod(0o755)
    return program


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
@pytest.mark.parametrize("option", COMPLAINTS)
def test_unreadable_file_is_reported(tmp_path: Path, option: str) -> None:
    file = written(tmp_path / "FILE", "{}")
    file.chmod(0)
    done = with_file(option, file, written(tmp_path / "wire.json", wire()))
    assert (done.code, done.out) == (2, "")
    assert re.match(r"error: (audit file )?\S*FILE.*(ermission|not a folder)", done.err)
    assert "\n    hint: " in done.err


def test_decide_accepts_an_empty_audit_file(tmp_path: Path) -> None:
    file = bad_file(tmp_path, "empty")
    assert with_file("--audit", file, written(tmp_path / "wire.json", wire())).code == 3
    assert verify_chain(file.read_bytes().splitlines()) == 1
