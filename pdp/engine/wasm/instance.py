"""A policy that OPA compiled, with its data in a memory of its own, evaluated through wasmtime's public calls.

Source: OPA's WebAssembly ABI, version 1.2: `opa_eval` takes the places of data and input in the module's memory and
answers the place of a C string. `pdp.engine.wasm.direct` makes the same calls faster where it can; both give the same
answers and errors.

The guards: the functions' types are checked when a module is loaded; each address against the memory's present size;
memory is grown before it is written; an evaluation has a deadline and a memory limit. An instance whose evaluation
failed is closed, for its memory may be left in any state.
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
LOAD_MEMORY: Final = 1 << 30  # most memory that a policy and its data may occupy before the first evaluation, in bytes
ANSWER_CHUNK: Final = 4096  # how many bytes of an answer are looked at first

_LOAD_TICKS: Final = math.ceil(30 / TICK)
_MEMORY_SPACE: Final = 1 << 32
_UNSIGNED: Final = 0xFFFFFFFF
_NOTE: Final = 200
_ABI_MAJOR: Final = 1
_ABI_MINOR: Final = 2


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


class WasmInstance:
    """A policy with its data in a memory of its own. Not for two threads at once.

    `data`, `memory_limit` and `entrypoints` are as of `InstancePool`; `closed`: it was closed, or an evaluation failed.

    Raises:
        BundleError: the policy calls builtins that are not in it, is of another ABI, or cannot read its data.
        EngineError: the machine has no room for an instance.
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
                raise EngineError(f"no room for an instance of the policy: {error_text(error)}") from error
            raise
        self._limit = min(self._size + memory_limit, _MEMORY_SPACE - PAGE)
        self._store.set_limits(memory_size=self._limit)

    def evaluate(self, entrypoint: int, body: bytes, ticks: int) -> bytes:
        """Evaluate one entrypoint for an input, and stop after so many steps of the engine's epoch.

        A `body` that is not JSON is an undefined input, for the policy to deny. What is returned is the result set as
        OPA writes it: `[{"result": document}]`, or `[]` where the document is undefined.

        Raises:
            RequestRefusedError: the input does not fit; the instance can be used further.
            EngineTimeoutError, AnswerInvalidError: stopped; failed or out of memory. The instance is closed.
            EngineError: the instance is closed already.
        """
        heap = self._heap
        size = len(body)
        end = heap + size
        if end > self._room:
            self._make_room(size, ticks)
        self._write(heap, body)
        self._set_deadline(ticks)
        # OPA allocates from the next multiple of eight on, and forgets what the evaluation before this one left.
        return self._string(self._invoke("opa_eval", 0, entrypoint, self._data, heap, size, (end + 7) & -8, 0))

    def close(self) -> None:
        """Give the memory back."""
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
        self._look()
        major, minor = (self._version(name) for name in ("opa_wasm_abi_version", "opa_wasm_abi_minor_version"))
        if major != _ABI_MAJOR or minor is None or minor < _ABI_MINOR:
            raise BundleError(
                f"the policy is of OPA's ABI {major}.{minor}, not {_ABI_MAJOR}.{_ABI_MINOR}", hint=REBUILD
            )
        missing = self._described("builtins")
        if missing:
            raise BundleError(f"the policy calls builtins that are not in it: {', '.join(sorted(missing))}")
        self.entrypoints = self._described("entrypoints")
        at = self._invoke("opa_malloc", len(data))
        if not 0 < at <= self._size - len(data):
            raise AnswerInvalidError(f"the policy put {len(data)} bytes of data outside its memory")
        self._write(at, data)
        self._data = self._invoke("opa_json_parse", at, len(data))
        if self._data == 0:
            raise BundleError("the policy cannot read its data: not JSON")
        self._heap = (self._invoke("opa_heap_ptr_get") + 7) & -8

    def _version(self, name: str) -> int | None:
        exported = self._exports.get(name)
        return exported.value(self._store) if isinstance(exported, wasmtime.Global) else None

    def _described(self, name: str) -> dict[str, int]:
        text = self._string(self._invoke("opa_json_dump", self._invoke(name)))
        try:
            described = parse_json(text)
        except JsonValueError as error:
            raise AnswerInvalidError(f"its {name} are not JSON") from error
        if not isinstance(described, dict) or not all(type(number) is int for number in described.values()):
            raise AnswerInvalidError(f"its {name} are not numbers by name")
        return described

    def _make_room(self, size: int, ticks: int) -> None:
        """Grow the memory for an input of `size` bytes.

        OPA itself grows it, as it keeps count of the size: what the host adds, it would add once more.
        """
        if self.closed:
            raise EngineError("the instance is closed")
        wanted = size + PAGE
        if self._size + wanted + PAGE > self._limit:
            raise RequestRefusedError(f"the request has {size} bytes, more than the engine's memory has room for")
        self._set_deadline(ticks)
        self._invoke("opa_heap_ptr_set", self._heap)
        self._invoke("opa_malloc", wanted)
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
            raise AnswerInvalidError("the policy's answer is not a text in its memory")
        return text[:length]

    def _fail(self, cause: wasmtime.Trap | wasmtime.WasmtimeError) -> NoReturn:
        """Close the instance and raise what ended the call: an abort of OPA's, a trap or another error."""
        note = error_text(cause)
        if at := self._abort_message.value(self._store) & _UNSIGNED:
            self._look()
            note = self._read(at, _NOTE).split(b"\0")[0].decode(errors="replace")
        self.close()
        if isinstance(cause, wasmtime.Trap) and cause.trap_code is wasmtime.TrapCode.INTERRUPT:
            raise EngineTimeoutError("the policy did not finish within its deadline") from cause
        if note.startswith("opa_malloc"):
            raise AnswerInvalidError("the policy used up its memory") from cause
        raise AnswerInvalidError(f"the policy failed: {note}") from cause

    # What `pdp.engine.wasm.direct` does in another way.

    def _set_deadline(self, ticks: int) -> None:
        self._store.set_epoch_deadline(ticks)

    def _invoke(self, name: str, *arguments: int) -> int:
        """Call a function that the module exports, and look at the memory; 0 is the answer of one without a result."""
        try:
            answer = self._exports[name](self._store, *arguments)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            self._fail(error)
        self._look()
        return (answer or 0) & _UNSIGNED

    def _look(self) -> None:
        self._size = self._memory.data_len(self._store)
        # OPA's first allocation starts at most seven bytes after the input.
        self._room = self._size - 8

    def _write(self, at: int, data: bytes) -> None:
        self._memory.write(self._store, data, at)

    def _read(self, at: int, size: int) -> bytes:
        """Return what is at an address, less than `size` where the memory ends."""
        return bytes(self._memory.read(self._store, at, at + size))

    def _release(self) -> None:
        self._store.close()
