"""Policies that OPA compiled to WebAssembly: compiled for this machine, and checked to be what the binding may call.

Source: OPA's WebAssembly ABI, version 1.2. Direct calls are not checked when they are made: types are, here.
"""

import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

import wasmtime

from pdp.errors import BundleError

PAGE: Final = 65536  # the unit in which a module's memory grows, in bytes
TICK: Final = 0.01  # seconds: the unit in which evaluations are timed; who evaluates counts the engine's epoch up by it
REBUILD: Final = "build the bundle again with `pdp bundle build`"  # what to do about a module that cannot be used

_CHECKSUM: Final = 32
_MOST_STORED: Final = 16

# Parameters and results of what is exported, all of them i32. A direct call with another type would read and write
# beyond its arguments.
_EXPORTS: Final[Mapping[str, tuple[int, int]]] = {
    "opa_eval": (7, 1),
    "opa_malloc": (1, 1),
    "opa_json_parse": (2, 1),
    "opa_json_dump": (1, 1),
    "opa_heap_ptr_get": (0, 1),
    "opa_heap_ptr_set": (1, 0),
    "builtins": (0, 1),
    "entrypoints": (0, 1),
}
# What a policy may import beside its memory: WebAssembly as well, so that no evaluation calls Python. `opa_abort` notes
# where its message is. A policy has all its builtins within itself, so a call of another one fails.
_HOST: Final = b"""(module
  (global $message (export "message") (mut i32) (i32.const 0))
  (func (export "opa_abort") (param i32) (global.set $message (local.get 0)) unreachable)
  (func (export "opa_println") (param i32))
  (func (export "opa_builtin0") (param i32 i32) (result i32) unreachable)
  (func (export "opa_builtin1") (param i32 i32 i32) (result i32) unreachable)
  (func (export "opa_builtin2") (param i32 i32 i32 i32) (result i32) unreachable)
  (func (export "opa_builtin3") (param i32 i32 i32 i32 i32) (result i32) unreachable)
  (func (export "opa_builtin4") (param i32 i32 i32 i32 i32 i32) (result i32) unreachable))"""


class WasmModule:
    """A policy that `opa build -t wasm` made, compiled for this machine. Threads share it; each needs an instance.

    Raises:
        BundleError: not WebAssembly, or not a policy that this binding can call.

    Attributes:
        host: the module with what the policy imports beside its memory.
        pages: how large its memory has to be before it starts, in units of `PAGE`.
    """

    def __init__(self, wasm: bytes) -> None:
        try:
            self.engine = wasmtime.Engine(_config())
            self.compiled = wasmtime.Module.deserialize(self.engine, _compile(wasm))
            self.host = wasmtime.Module.deserialize(self.engine, _compile(_HOST))
        except wasmtime.WasmtimeError as error:
            raise BundleError(f"the policy is not WebAssembly: {error_text(error)}", hint=REBUILD) from error
        self.imports = [imported.name or "" for imported in self.compiled.imports]
        # OPA imports a memory of two pages, however much static data it puts there, so that a larger policy would not
        # start. That data begins within the first two pages and is part of the file.
        self.pages = len(wasm) // PAGE + 3
        if self.imports.count("memory") != 1:
            raise BundleError("the policy does not import its memory as OPA's policies do", hint=REBUILD)
        offered = {exported.name: _shape(exported.type) for exported in self.host.exports}
        for imported in self.compiled.imports:
            kind = imported.type
            if isinstance(kind, wasmtime.MemoryType):
                is_offered = imported.name == "memory" and not kind.is_64 and not kind.is_shared
                self.pages = max(self.pages, kind.limits.min)
            else:
                is_offered = _shape(kind) is not None and _shape(kind) == offered.get(imported.name or "")
            if imported.module != "env" or not is_offered:
                raise BundleError(
                    f"the policy asks for {imported.module}.{imported.name}, which is not offered", hint=REBUILD
                )
        exports = {exported.name: exported.type for exported in self.compiled.exports}
        for name, shape in _EXPORTS.items():
            if _shape(exports.get(name)) != shape:
                raise BundleError(f"the policy does not export {name} as OPA's policies do", hint=REBUILD)


def _config() -> wasmtime.Config:
    config = wasmtime.Config()
    config.epoch_interruption = True
    # Less than the smallest stack that threads are usually given: beyond it the process would end, not the evaluation.
    config.max_wasm_stack = 256 * 1024
    # A forked child has no compiler threads and would wait for them for ever; they hardly gain anything either.
    config.parallel_compilation = False
    return config


# Compiling takes 0.1 s and is the same for all engines of one policy. A file of machine code is trusted as far as
# Python's own byte code is: it lies where that lies, and whoever can write there has this process already.
@lru_cache(maxsize=4)
def _compile(wasm: bytes) -> bytes:
    file = Path(cache_from_source(str(Path(__file__).with_name(f"policy_{sha256(wasm).hexdigest()}.py"))))
    engine = wasmtime.Engine(_config())
    with suppress(OSError, wasmtime.WasmtimeError):
        stored = file.read_bytes()
        code = stored[_CHECKSUM:]
        # A file that was cut must not be run. One of another wasmtime or processor is refused by `deserialize`.
        if stored[:_CHECKSUM] == sha256(code).digest():
            wasmtime.Module.deserialize(engine, code)
            return code
    code = bytes(wasmtime.Module(engine, wasm).serialize())
    if not sys.dont_write_bytecode:
        _store(file, sha256(code).digest() + code)
    return code


def _store(file: Path, content: bytes) -> None:
    from pdp.audit.file import replace_file  # noqa: PLC0415 - once for each policy

    with suppress(OSError):
        replace_file(file, content)
        stored = sorted(file.parent.glob("policy_*"), key=lambda policy: policy.stat().st_mtime)
        for old in stored[:-_MOST_STORED]:
            old.unlink(missing_ok=True)


def _shape(kind: object) -> tuple[int, int] | None:
    """Return how many parameters and results a function of i32 alone has; None of anything else."""
    if not isinstance(kind, wasmtime.FuncType) or {str(each) for each in (*kind.params, *kind.results)} - {"i32"}:
        return None
    return len(kind.params), len(kind.results)


def error_text(error: Exception) -> str:
    """Return the end of wasmtime's message, which is its cause; what stands above it is a trace of functions."""
    message = error.message if isinstance(error, wasmtime.Trap) else str(error)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else "unknown"
