"""Policies that OPA compiled to WebAssembly: compiled for this machine, and checked to be what the binding may call.

Source: OPA's WebAssembly ABI, version 1.2. Direct calls are not checked when they are made: types are, here.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Final

import wasmtime

from pdp.engine.bundle.file import replace_file
from pdp.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE: Final = 65536
"""The unit in which a module's memory grows, in bytes."""

TICK: Final = 0.01
"""The unit in which evaluations are timed, in seconds: whoever evaluates calls `WasmModule.tick` this often."""

REBUILD: Final = "build the bundle again with `pdp bundle build`"
"""What to do about a module that cannot be used."""

_CHECKSUM: Final = 32
_MOST_STORED: Final = 16

# Parameters and results of what is exported and what may be imported, all of them i32. A direct call with another type
# would read and write beyond its arguments.
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
_IMPORTS: Final[Mapping[str, tuple[int, int]]] = {
    "opa_abort": (1, 0),
    "opa_println": (1, 0),
    **{f"opa_builtin{count}": (count + 2, 1) for count in range(5)},
}


class WasmModule:
    """A policy, compiled for this machine and checked to be one. Threads may share it; each needs an instance.

    Args:
        wasm: the module as `opa build -t wasm` makes it.

    Raises:
        BundleError: not WebAssembly, or not a policy that this binding can call.

    Attributes:
        pages: how large its memory has to be before it starts, in units of `PAGE`.
    """

    def __init__(self, wasm: bytes) -> None:
        try:
            self.engine = wasmtime.Engine(_config())
            self.compiled = wasmtime.Module.deserialize(self.engine, _compile(wasm))
        except wasmtime.WasmtimeError as error:
            raise BundleError(f"the policy is not WebAssembly: {error_text(error)}", hint=REBUILD) from error
        self.imports = self.compiled.imports
        # OPA imports a memory of two pages, however much static data it puts there, so that a larger policy would not
        # start. That data begins within the first two pages and is part of the file.
        self.pages = len(wasm) // PAGE + 3
        if [imported.name for imported in self.imports].count("memory") != 1:
            raise BundleError("the policy does not import its memory as OPA's policies do", hint=REBUILD)
        for imported in self.imports:
            if imported.module != "env" or not _may_import(imported.name or "", imported.type):
                raise BundleError(
                    f"the policy asks for {imported.module}.{imported.name}, which is not offered", hint=REBUILD
                )
        exports = {exported.name: exported.type for exported in self.compiled.exports}
        for name, shape in _EXPORTS.items():
            if not _is_function(exports.get(name), shape):
                raise BundleError(f"the policy does not export {name} as OPA's policies do", hint=REBUILD)

    def tick(self) -> None:
        """Let `TICK` of the time of every running evaluation pass."""
        self.engine.increment_epoch()


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
    with suppress(OSError):
        replace_file(file, content)
        stored = sorted(file.parent.glob("policy_*"), key=lambda policy: policy.stat().st_mtime)
        for old in stored[:-_MOST_STORED]:
            old.unlink(missing_ok=True)


def _is_function(kind: object, shape: tuple[int, int]) -> bool:
    return (
        isinstance(kind, wasmtime.FuncType)
        and (len(kind.params), len(kind.results)) == shape
        and {str(each) for each in (*kind.params, *kind.results)} <= {"i32"}
    )


def _may_import(name: str, kind: object) -> bool:
    if name == "memory":
        return isinstance(kind, wasmtime.MemoryType) and not kind.is_64 and not kind.is_shared
    return name in _IMPORTS and _is_function(kind, _IMPORTS[name])


def error_text(error: Exception) -> str:
    """Return the end of wasmtime's message, which is its cause; what stands above it is a trace of functions."""
    message = error.message if isinstance(error, wasmtime.Trap) else str(error)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else "unknown"
