"""The compiled policy of tests/support/rego/probes, and requests that trigger its behaviours and faults."""

import subprocess
import tarfile
from pathlib import Path
from typing import Any

import orjson
import wasmtime

from pdp.json import canonical

SOURCE = Path(__file__).parent / "rego/probes/authz/decision.rego"
DATA = {
    "config": {"bundle": {"revision": "sha256:probe", "release": 1}, "required_concerns": []},
    "settings": {"verdict": "ALLOW"},
}


def compile_probes(opa: Path, folder: Path) -> bytes:
    """Compile the policy with OPA and return the WebAssembly module."""
    packed = folder / "probes.tar.gz"
    subprocess.run(
        [opa, "build", "-t", "wasm", "-O", "0", "-e", "authz/decision", "-b", ".", "-o", packed],
        cwd=SOURCE.parents[1],
        check=True,
    )
    with tarfile.open(packed) as tar:
        module = tar.extractfile("/policy.wasm")
        assert module is not None
        return module.read()


def body(action: str, **context: Any) -> bytes:
    return canonical({"action": {"name": action}, "context": context})


def decision(seen: Any) -> dict[str, Any]:
    """Return the decision document of the action `echo` for the context `seen`."""
    return {
        "verdict": "ALLOW",
        "reasons": [{"code": "effects.gate_satisfied", "message": "seen", "details": {"seen": seen}}],
        "obligations": [],
        "bundle": {"revision": "sha256:probe", "release": 1},
    }


def parsed(text: bytes) -> Any:
    """Parse the document in a result set. Sets of Rego become arrays with the order that they have in the result."""
    results = orjson.loads(text)
    assert [set(result) for result in results] == [{"result"}]
    return results[0]["result"]


PARTS = {
    "import": '(import "env" "memory" (memory 1))',
    "opa_eval": '(func (export "opa_eval") (param i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 100))',
    "opa_malloc": '(func (export "opa_malloc") (param i32) (result i32) (i32.const 2048))',
    "opa_json_parse": '(func (export "opa_json_parse") (param i32 i32) (result i32) (i32.const 1))',
    "opa_json_dump": '(func (export "opa_json_dump") (param i32) (result i32) (local.get 0))',
    "opa_heap_ptr_get": '(func (export "opa_heap_ptr_get") (result i32) (i32.const 4096))',
    "opa_heap_ptr_set": '(func (export "opa_heap_ptr_set") (param i32))',
    "builtins": '(func (export "builtins") (result i32) (i32.const 200))',
    "entrypoints": '(func (export "entrypoints") (result i32) (i32.const 300))',
    "major": '(global (export "opa_wasm_abi_version") i32 (i32.const 1))',
    "minor": '(global (export "opa_wasm_abi_minor_version") i32 (i32.const 3))',
    "answer": r'(data (i32.const 100) "[{\22result\22:1}]\00")',
    "no builtins": r'(data (i32.const 200) "{}\00")',
    "names": r'(data (i32.const 300) "{\22authz/decision\22:0}\00")',
}


def by_hand(**parts: str) -> bytes:
    """Return a hand-written WebAssembly policy that returns 1. Arguments replace parts, and `_0` stands for a space."""
    text = "\n".join(
        ["(module", *(PARTS | {name.replace("_0", " "): part for name, part in parts.items()}).values(), ")"]
    )
    return bytes(wasmtime.wat2wasm(text))
