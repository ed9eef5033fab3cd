"""A compiled policy with its data in WebAssembly memory, evaluated through wasmtime's public API.

Source: OPA's WebAssembly ABI, version 1.2: `opa_eval` takes the addresses of data and input in the module's memory and
returns the address of a C string.

Guards: function types are checked when a module is loaded; each address is checked against the current memory size;
memory grows before it is written; an evaluation has a deadline and a memory limit. An instance whose evaluation failed
is closed, because its memory is in an unknown state.
"""

import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, Final, NoReturn

import wasmtime

from pdp.errors import AnswerInvalidError, BundleError, EngineError, EngineTimeoutError, RequestRefusedError
from pdp.json import JsonValueError, parse_json

PAGE: Final = 65536  # The number of bytes by which a module's memory grows.
TICK: Final = 0.01  # The seconds between two increments of wasmtime's epoch, in which deadlines are measured.
# the hint for a WebAssembly module that cannot be used
REBUILD: Final = "build the bundle again with `pdp bundle build`"

_CHECKSUM: Final = 32
_MOST_STORED: Final = 16

# The numbers of parameters and results of the exported functions, all of type i32. Other types would access memory
# beyond the arguments.
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
# The functions that a policy imports. They are WebAssembly too, so an evaluation never calls Python. `opa_abort` stores
# the address of its message. A policy contains the builtins that it can use here, so calling any other builtin fails.
_HOST: Final = b"""(module
  (global $message (export "message") (mut i32) (i32.const 0))
  (func (export "opa_abort") (param i32) (global.set $message (local.get 0)) unreachable)
  (func (export "opa_println") (param i32))
  (func (export "opa_builtin0") (param i32 i32) (result i32) unreachable)
  (func (export "opa_builtin1") (param i32 i32 i32) (result i32) unreachable)
  (func (export "opa_builtin2") (param i32 i32 i32 i32) (result i32) unreachable)
  (func (export "opa_builtin3") (param i32 i32 i32 i32 i32) (result i32) unreachable)
  (func (export "opa_builtin4") (param i32 i32 i32 i32 i32 i32) (result i32) unreachable))"""
LOAD_MEMORY: Final = 1 << 30  # The maximum bytes of a policy and its data before the first evaluation.
ANSWER_CHUNK: Final = 4096  # The number of bytes of an answer that are searched first for the answer's end.

_LOAD_TICKS: Final = math.ceil(30 / TICK)
_MEMORY_SPACE: Final = 1 << 32
_UNSIGNED: Final = 0xFFFFFFFF
_NOTE: Final = 200
_ABI_MAJOR: Final = 1
_ABI_MINOR: Final = 2


class WasmModule:
    """A policy's WebAssembly, compiled for this machine. Threads share the module, but each needs its own instance.

    Raises `BundleError` if the content is not WebAssembly, or does not have the interface of OPA's policies.
    """

    def __init__(self, wasm: bytes) -> None:
        try:
            self.engine = wasmtime.Engine(_config())
            self.compiled = wasmtime.Module.deserialize(self.engine, _compile(wasm))
            self.host = wasmtime.Module.deserialize(self.engine, _compile(_HOST))
        except wasmtime.WasmtimeError as error:
            raise BundleError(f"the policy is not WebAssembly: {error_text(error)}", hint=REBUILD) from error
        self.imports = [imported.name or "" for imported in self.compiled.imports]
        # OPA always declares a memory of two pages, which is too small if a policy has much static data. The static
        # data is part of the file, so the file's size limits how much memory is added.
        self.pages = len(wasm) // PAGE + 3
        if self.imports.count("memory") != 1:
            raise BundleError("not a policy compiled by OPA: it does not import its memory", hint=REBUILD)
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
                    f"the policy imports {imported.module}.{imported.name}, which is not available", hint=REBUILD
                )
        exports = {exported.name: exported.type for exported in self.compiled.exports}
        for name, shape in _EXPORTS.items():
            if _shape(exports.get(name)) != shape:
                raise BundleError(f"not a policy compiled by OPA: it does not export {name}", hint=REBUILD)


def _config() -> wasmtime.Config:
    config = wasmtime.Config()
    config.epoch_interruption = True
    # The limit is smaller than the usual stack of a thread, because a larger stack would overflow and crash the
    # process.
    config.max_wasm_stack = 256 * 1024
    # The compiler uses no extra threads: a forked child would wait for them for ever, and they save hardly any time.
    config.parallel_compilation = False
    return config


# Compiling takes 0.1 s, so the result is cached for all engines of a policy. The cached machine code is as safe as
# Python's byte code in the same folder: anyone who can write there already controls this process.
@lru_cache(maxsize=4)
def _compile(wasm: bytes) -> bytes:
    file = Path(cache_from_source(str(Path(__file__).with_name(f"policy_{sha256(wasm).hexdigest()}.py"))))
    engine = wasmtime.Engine(_config())
    with suppress(OSError, wasmtime.WasmtimeError):
        stored = file.read_bytes()
        code = stored[_CHECKSUM:]
        # A truncated file must not be run, so its digest is checked. `deserialize` only rejects code of another
        # wasmtime or processor.
        if stored[:_CHECKSUM] == sha256(code).digest():
            wasmtime.Module.deserialize(engine, code)
            return code
    code = bytes(wasmtime.Module(engine, wasm).serialize())
    if not sys.dont_write_bytecode:
        _store(file, sha256(code).digest() + code)
    return code


def _store(file: Path, content: bytes) -> None:
    from pdp.audit.file import replace_file  # noqa: PLC0415 - only needed once for each policy

    with suppress(OSError):
        replace_file(file, content)
        stored = sorted(file.parent.glob("policy_*"), key=lambda policy: policy.stat().st_mtime)
        for old in stored[:-_MOST_STORED]:
            old.unlink(missing_ok=True)


def _shape(kind: object) -> tuple[int, int] | None:
    """Return how many parameters and results a function type has, or None if any type is not i32."""
    if not isinstance(kind, wasmtime.FuncType) or {str(each) for each in (*kind.params, *kind.results)} - {"i32"}:
        return None
    return len(kind.params), len(kind.results)


def error_text(error: Exception) -> str:
    """Return the last line of wasmtime's message, which is the cause. The earlier lines are a stack trace."""
    message = error.message if isinstance(error, wasmtime.Trap) else str(error)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else "unknown"


class WasmInstance:
    """A policy with its data in memory, for one thread at a time. `close` and failed evaluations set `closed`.

    Raises `BundleError` if the policy needs unknown builtins, has another ABI, or cannot read its data, and
    `EngineError` if an instance needs too much memory.
    """

    def __init__(self, module: WasmModule, data: bytes, memory_limit: int) -> None:
        self.closed = False
        self._limit = LOAD_MEMORY
        self._store = wasmtime.Store(module.engine)
        self._store.set_limits(memory_size=LOAD_MEMORY)
        self._store.set_epoch_deadline(_LOAD_TICKS)
        try:
            self._link(module)
            self._load(data)
        except BaseException as error:
            self.close()
            if isinstance(error, (AnswerInvalidError, EngineTimeoutError)):
                raise BundleError(f"policy and data cannot be loaded: {error.message}", hint=REBUILD) from error
            if isinstance(error, wasmtime.WasmtimeError):
                raise EngineError(f"not enough memory for an instance of the policy: {error_text(error)}") from error
            raise
        self._limit = min(self._size + memory_limit, _MEMORY_SPACE - PAGE)
        self._store.set_limits(memory_size=self._limit)

    def evaluate(self, entrypoint: int, body: bytes, ticks: int) -> bytes:
        """Evaluate one entrypoint and return OPA's result set: `[{"result": document}]`, or `[]` if undefined.

        The evaluation is stopped after `ticks` ticks of the clock. If `body` is not JSON, the input is undefined, and
        so the policy denies. Raises `RequestRefusedError` if the input does not fit into the memory.
        `EngineTimeoutError` and `AnswerInvalidError` close the instance, and further calls raise `EngineError`.
        """
        heap = self._heap
        size = len(body)
        end = heap + size
        if end > self._room:
            self._grow_memory(size, ticks)
        self._write(heap, body)
        self._set_deadline(ticks)
        # OPA allocates from the next multiple of eight, so the next evaluation overwrites the memory of the last one.
        return self._string(self._call_export("opa_eval", 0, entrypoint, self._data, heap, size, (end + 7) & -8, 0))

    def close(self) -> None:
        """Release the instance's memory."""
        if self.closed:
            return
        self.closed = True
        self._room = -1
        self._release()

    def _link(self, module: WasmModule) -> None:
        store = self._store
        offered: dict[str, Any] = dict(wasmtime.Instance(store, module.host, []).exports(store).items())
        self._abort_message = offered["message"]
        self._memory = wasmtime.Memory(store, wasmtime.MemoryType(wasmtime.Limits(module.pages, None)))
        offered["memory"] = self._memory
        try:
            exports = wasmtime.Instance(store, module.compiled, [offered[name] for name in module.imports]).exports(
                store
            )
        except wasmtime.Trap as trap:
            raise AnswerInvalidError(error_text(trap)) from trap
        self._exports: dict[str, Any] = dict(exports.items())

    def _load(self, data: bytes) -> None:
        self._update_size()
        major, minor = (self._version(name) for name in ("opa_wasm_abi_version", "opa_wasm_abi_minor_version"))
        if major != _ABI_MAJOR or minor is None or minor < _ABI_MINOR:
            raise BundleError(
                f"the policy has OPA's ABI {major}.{minor}, expected {_ABI_MAJOR}.{_ABI_MINOR}", hint=REBUILD
            )
        missing = self._numbers_by_name("builtins")
        if missing:
            raise BundleError(
                f"the policy calls builtins that its WebAssembly module does not contain: {', '.join(sorted(missing))}"
            )
        self.entrypoints = self._numbers_by_name("entrypoints")
        at = self._call_export("opa_malloc", len(data))
        if not 0 < at <= self._size - len(data):
            raise AnswerInvalidError(f"the policy put {len(data)} bytes of data outside its memory")
        self._write(at, data)
        self._data = self._call_export("opa_json_parse", at, len(data))
        if self._data == 0:
            raise BundleError("the policy cannot read its data: not JSON")
        self._heap = (self._call_export("opa_heap_ptr_get") + 7) & -8

    def _version(self, name: str) -> int | None:
        exported = self._exports.get(name)
        return exported.value(self._store) if isinstance(exported, wasmtime.Global) else None

    def _numbers_by_name(self, name: str) -> dict[str, int]:
        text = self._string(self._call_export("opa_json_dump", self._call_export(name)))
        try:
            described = parse_json(text)
        except JsonValueError as error:
            raise AnswerInvalidError(f"the policy's {name} are not JSON") from error
        if not isinstance(described, dict) or not all(type(number) is int for number in described.values()):
            raise AnswerInvalidError(f"the policy's {name} are not a map of names to numbers")
        return described

    def _grow_memory(self, size: int, ticks: int) -> None:
        """Let OPA grow the memory for an input of `size` bytes, because OPA keeps its own record of the memory size."""
        if self.closed:
            raise EngineError("the instance is closed")
        wanted = size + PAGE
        if self._size + wanted + PAGE > self._limit:
            raise RequestRefusedError(f"the request has {size} bytes, more than fits into the engine's memory")
        self._set_deadline(ticks)
        self._call_export("opa_heap_ptr_set", self._heap)
        self._call_export("opa_malloc", wanted)
        if self._heap + size > self._room:
            self.close()
            raise AnswerInvalidError("the policy did not grow its memory")

    def _string(self, at: int) -> bytes:
        text = self._read(at, ANSWER_CHUNK) if at else b""
        length = text.find(b"\0")
        if length < 0 and len(text) == ANSWER_CHUNK:
            text = self._read(at, self._size)
            length = text.find(b"\0")
        if length <= 0:
            self.close()
            raise AnswerInvalidError("the policy's answer is not a string in its memory")
        return text[:length]

    def _raise_failure(self, cause: wasmtime.Trap | wasmtime.WasmtimeError) -> NoReturn:
        """Close the instance and raise the cause of a failed call: OPA's abort message, a trap or another error."""
        note = error_text(cause)
        if at := self._abort_message.value(self._store) & _UNSIGNED:
            self._update_size()
            note = self._read(at, _NOTE).split(b"\0")[0].decode(errors="replace")
        self.close()
        if isinstance(cause, wasmtime.Trap) and cause.trap_code is wasmtime.TrapCode.INTERRUPT:
            raise EngineTimeoutError("the policy did not finish within its deadline") from cause
        if note.startswith("opa_malloc"):
            raise AnswerInvalidError("the policy used up its memory") from cause
        raise AnswerInvalidError(f"the policy failed: {note}") from cause

    # `DirectInstance` overrides the methods below.

    def _set_deadline(self, ticks: int) -> None:
        self._store.set_epoch_deadline(ticks)

    def _call_export(self, name: str, *arguments: int) -> int:
        """Call an exported function and update the recorded memory size. Return 0 for a function without a result."""
        try:
            answer = self._exports[name](self._store, *arguments)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            self._raise_failure(error)
        self._update_size()
        return (answer or 0) & _UNSIGNED

    def _update_size(self) -> None:
        self._size = self._memory.data_len(self._store)
        # OPA's first allocation starts at most seven bytes after the input.
        self._room = self._size - 8

    def _write(self, at: int, data: bytes) -> None:
        self._memory.write(self._store, data, at)

    def _read(self, at: int, size: int) -> bytes:
        return bytes(self._memory.read(self._store, at, at + size))

    def _release(self) -> None:
        self._store.close()
