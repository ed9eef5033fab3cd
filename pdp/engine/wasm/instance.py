"""A thin binding of policies that OPA compiled to WebAssembly, on wasmtime's C API.

Source: OPA's WebAssembly ABI, version 1.2: `opa_eval` takes the places of data and input in the module's memory and
answers the place of a C string. It is called directly, because wasmtime's `Func.__call__` converts every argument and
so costs more than a policy.

Nobody else checks a direct call, so all of it is checked here: the functions' types once, when a module is loaded; each
address against the memory's present size; memory is grown before it is written, and looked up anew when it has grown.
An instance whose evaluation failed is closed, for its memory may be left in any state.
"""

from __future__ import annotations

import ctypes
import math
import struct
from typing import TYPE_CHECKING, Any, Final, NoReturn

import wasmtime
from wasmtime import _ffi as ffi

from pdp.engine.wasm.module import PAGE, REBUILD, TICK, error_text, making
from pdp.errors import AnswerInvalidError, BundleError, EngineError, EngineTimeoutError, RequestRefusedError
from pdp.json import JsonValueError, parse_json

if TYPE_CHECKING:
    from pdp.engine.wasm.module import WasmModule

LOAD_MEMORY: Final = 1 << 30
"""Most memory that a policy and its data may occupy before the first evaluation, in bytes."""

_LOAD_TICKS: Final = math.ceil(30 / TICK)
_MEMORY_SPACE: Final = 1 << 32
_ANSWER_CHUNK: Final = 4096

_ABI_MAJOR: Final = 1
_ABI_MINOR: Final = 2

# The arguments of a call: seven wasmtime_val_raw_t, of which an i32 uses the first four bytes.
_SLOT: Final = ctypes.sizeof(ffi.wasmtime_val_raw_t)
_ARGUMENTS: Final = struct.Struct("<" + f"I{_SLOT - 4}x" * 7)

# Prototypes of our own, as wasmtime's make an object for every pointer. PYFUNCTYPE keeps the interpreter's lock, which
# is right for calls of nanoseconds; CFUNCTYPE drops it, so that evaluations run in parallel.
_Pointer: Final = ctypes.c_void_p
_call = ctypes.CFUNCTYPE(_Pointer, _Pointer, _Pointer, _Pointer, ctypes.c_size_t, _Pointer)(
    ("wasmtime_func_call_unchecked", ffi.dll)
)
_set_deadline = ctypes.PYFUNCTYPE(None, _Pointer, ctypes.c_uint64)(("wasmtime_context_set_epoch_deadline", ffi.dll))
_memory_size = ctypes.PYFUNCTYPE(ctypes.c_size_t, _Pointer, _Pointer)(("wasmtime_memory_data_size", ffi.dll))
_memory_base = ctypes.PYFUNCTYPE(_Pointer, _Pointer, _Pointer)(("wasmtime_memory_data", ffi.dll))
_trap_new = ctypes.PYFUNCTYPE(_Pointer, ctypes.c_char_p, ctypes.c_size_t)(("wasmtime_trap_new", ffi.dll))


# What the module calls. These live as long as the program and do nothing that could raise: they note and answer a trap,
# which ends the evaluation. `noted` is the place of the instance's own number, so no object is looked up.
@ffi.wasmtime_func_unchecked_callback_t  # type: ignore[untyped-decorator]
def _on_abort(noted: int, _caller: object, arguments: Any, _count: int) -> Any:
    ctypes.c_int64.from_address(noted).value = arguments[0].i32 & 0xFFFFFFFF
    return _trap_new(b"opa_abort", 9)


@ffi.wasmtime_func_unchecked_callback_t  # type: ignore[untyped-decorator]
def _on_println(_noted: int, _caller: object, _arguments: Any, _count: int) -> int:
    return 0


@ffi.wasmtime_func_unchecked_callback_t  # type: ignore[untyped-decorator]
def _on_builtin(_noted: int, _caller: object, _arguments: Any, _count: int) -> Any:
    return _trap_new(b"host builtin", 12)


_CALLBACKS: Final = {"opa_abort": _on_abort, "opa_println": _on_println}
_NO_FINALIZER: Final = ctypes.cast(0, ctypes.CFUNCTYPE(None, ctypes.c_void_p))


class WasmInstance:
    """A policy with its data in a memory of its own. Not for two threads at once.

    Args:
        module: the policy.
        data: the base documents, as JSON.
        memory_limit: how many bytes an evaluation may use, beyond what policy and data occupy.

    Attributes:
        entrypoints: the number of each entrypoint by its path, as `authz/decision`.
        closed: whether it can be used no longer: it was closed, or an evaluation failed.

    Raises:
        BundleError: the policy calls builtins that are not in it, is of another ABI, or cannot read its data.
        EngineError: the machine has no room for an instance.
    """

    def __init__(self, module: WasmModule, data: bytes, memory_limit: int) -> None:
        self.closed = False
        self._aborted = ctypes.c_int64(-1)
        self._trap = _Pointer()
        self._trap_at = ctypes.addressof(self._trap)
        self._arguments = (ffi.wasmtime_val_raw_t * 7)()
        self._arguments_at = ctypes.addressof(self._arguments)
        self._slots = memoryview(self._arguments).cast("B")
        self._result = self._slots.cast("I")
        self._limit = LOAD_MEMORY
        with making:
            self._store = wasmtime.Store(module.engine)
        self._context = ctypes.cast(self._store._context(), _Pointer).value  # noqa: SLF001 - not public in wasmtime
        self._store.set_limits(memory_size=LOAD_MEMORY)
        self._store.set_epoch_deadline(_LOAD_TICKS)
        try:
            with making:
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
        """Evaluate one entrypoint.

        Args:
            entrypoint: its number.
            body: the input as JSON. What is not JSON is an undefined input, for the policy to deny.
            ticks: how many times `WasmModule.tick` is called until the evaluation is stopped.

        Returns:
            the result set as OPA writes it: `[{"result": document}]`, or `[]` where the document is undefined.

        Raises:
            RequestRefusedError: the input does not fit; the instance can be used further.
            EngineTimeoutError: stopped; the instance is closed.
            AnswerInvalidError: the policy failed or used up its memory; the instance is closed.
            EngineError: the instance is closed already.
        """
        heap = self._heap
        size = len(body)
        end = heap + size
        if end > self._room:
            self._make_room(size, ticks)
        self._view[heap:end] = body
        # OPA allocates from the next multiple of eight on, and forgets what the evaluation before this one left.
        _ARGUMENTS.pack_into(self._slots, 0, 0, entrypoint, self._data, heap, size, (end + 7) & -8, 0)
        _set_deadline(self._context, ticks)
        error = _call(self._context, self._eval_at, self._arguments_at, 7, self._trap_at)
        if error is not None or self._trap.value is not None:
            self._fail(error)
        answer = self._result[0]
        if _memory_size(self._context, self._memory_at) != self._size:
            self._look()
        text = self._view[answer : answer + _ANSWER_CHUNK].tobytes()
        length = text.find(b"\0")
        return text[:length] if length > 0 and answer else self._string(answer)

    def close(self) -> None:
        """Give the memory back."""
        if self.closed:
            return
        self.closed = True
        self._room = -1
        self._view = memoryview(b"")
        # Not `Store.close`: broken off by a Ctrl-C right after the deletion, it would delete again and end the process.
        ffi.wasmtime_store_delete(self._store._consume())  # noqa: SLF001 - not public in wasmtime

    def _link(self, module: WasmModule) -> None:
        context = self._store._context()  # noqa: SLF001 - not public in wasmtime
        externs = (ffi.wasmtime_extern_t * len(module.imports))()
        for extern, imported in zip(externs, module.imports, strict=True):
            kind = imported.type
            if isinstance(kind, wasmtime.MemoryType):
                pages = max(kind.limits.min, module.pages)
                memory = wasmtime.Memory(self._store, wasmtime.MemoryType(wasmtime.Limits(pages, None)))
                self._memory = memory._memory  # noqa: SLF001 - not public in wasmtime
                self._memory_at = ctypes.addressof(self._memory)
                extern.kind, extern.of.memory = ffi.WASMTIME_EXTERN_MEMORY, self._memory
            elif isinstance(kind, wasmtime.FuncType):
                callback = _CALLBACKS.get(imported.name or "", _on_builtin)
                function = ffi.wasmtime_func_t()
                ffi.wasmtime_func_new_unchecked(
                    context,
                    kind.ptr(),
                    callback,
                    ctypes.addressof(self._aborted),
                    _NO_FINALIZER,
                    ctypes.byref(function),
                )
                extern.kind, extern.of.func = ffi.WASMTIME_EXTERN_FUNC, function
        made = ffi.wasmtime_instance_t()
        trap = ctypes.POINTER(ffi.wasm_trap_t)()
        error = ffi.wasmtime_instance_new(
            context, module.compiled.ptr(), externs, len(externs), ctypes.byref(made), ctypes.byref(trap)
        )
        if error:
            raise wasmtime.WasmtimeError._from_ptr(error)  # noqa: SLF001 - not public in wasmtime
        if trap:
            raise AnswerInvalidError(error_text(wasmtime.Trap._from_ptr(trap)))  # noqa: SLF001 - not public in wasmtime
        self._exports = wasmtime.Instance._from_raw(made).exports(self._store)  # noqa: SLF001 - not public in wasmtime

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
        self._look()
        if not 0 < at <= self._size - len(data):
            raise AnswerInvalidError(f"the policy put {len(data)} bytes of data outside its memory")
        self._view[at : at + len(data)] = data
        self._data = self._invoke("opa_json_parse", at, len(data))
        if self._data == 0:
            raise BundleError("the policy cannot read its data: not JSON")
        self._heap = (self._invoke("opa_heap_ptr_get") + 7) & -8
        self._look()
        self._eval_at = ctypes.addressof(self._exports["opa_eval"]._func)  # type: ignore[union-attr] # noqa: SLF001

    def _version(self, name: str) -> int | None:
        exported = self._exports.get(name)
        return exported.value(self._store) if isinstance(exported, wasmtime.Global) else None

    def _described(self, name: str) -> dict[str, int]:
        """What the module says about itself: numbers by name."""
        text = self._string(self._invoke("opa_json_dump", self._invoke(name)))
        try:
            found = parse_json(text)
        except JsonValueError as error:
            raise AnswerInvalidError(f"its {name} are not JSON") from error
        if not isinstance(found, dict) or not all(type(number) is int for number in found.values()):
            raise AnswerInvalidError(f"its {name} are not numbers by name")
        return found

    def _invoke(self, name: str, *arguments: int) -> int:
        """Call a function of `_EXPORTS`; the answer of one that has no result means nothing."""
        _ARGUMENTS.pack_into(self._slots, 0, *arguments, *(0,) * (7 - len(arguments)))
        function = self._exports[name]._func  # type: ignore[union-attr] # noqa: SLF001 - not public in wasmtime
        error = _call(self._context, ctypes.addressof(function), self._arguments_at, 7, self._trap_at)
        if error is not None or self._trap.value is not None:
            self._fail(error)
        answer: int = self._result[0]
        self._look()
        return answer

    def _look(self) -> None:
        """Look up where the memory is, and how large."""
        size: int = _memory_size(self._context, self._memory_at)
        array = (ctypes.c_ubyte * size).from_address(_memory_base(self._context, self._memory_at))
        self._view = memoryview(array).cast("B")
        self._size = size
        # OPA's first allocation starts at most seven bytes after the input.
        self._room = size - 8

    def _make_room(self, size: int, ticks: int) -> None:
        """Grow the memory for an input of `size` bytes.

        OPA itself grows it, as it keeps count of the size: what the host adds, it would add once more.
        """
        if self.closed:
            raise EngineError("the instance is closed")
        wanted = size + PAGE
        if self._size + wanted + PAGE > self._limit:
            raise RequestRefusedError(f"the request has {size} bytes, more than the engine's memory has room for")
        _set_deadline(self._context, ticks)
        self._invoke("opa_heap_ptr_set", self._heap)
        self._invoke("opa_malloc", wanted)
        if self._heap + size > self._room:
            self.close()
            raise AnswerInvalidError("the policy did not grow its memory")

    def _string(self, at: int) -> bytes:
        """Read the C string at an address that the module named, however long it is."""
        text = self._view[at:].tobytes() if at else b""
        length = text.find(b"\0")
        if length <= 0:
            self.close()
            raise AnswerInvalidError("the policy's answer is not a text in its memory")
        return text[:length]

    def _fail(self, error: int | None) -> NoReturn:
        """Close the instance and raise what ended the call: an error of wasmtime, or a trap."""
        if error is not None:
            failure = ctypes.cast(error, ctypes.POINTER(ffi.wasmtime_error_t))
            cause: Exception = wasmtime.WasmtimeError._from_ptr(failure)  # noqa: SLF001 - not public in wasmtime
        else:
            trap = ctypes.cast(self._trap, ctypes.POINTER(ffi.wasm_trap_t))
            cause = wasmtime.Trap._from_ptr(trap)  # noqa: SLF001 - not public in wasmtime
        aborted = self._aborted.value
        if aborted >= 0:
            self._look()
            note = self._view[aborted : aborted + 200].tobytes().split(b"\0")[0].decode(errors="replace")
        else:
            note = error_text(cause)
        self.close()
        if isinstance(cause, wasmtime.Trap) and cause.trap_code is wasmtime.TrapCode.INTERRUPT:
            raise EngineTimeoutError("the policy did not finish within its deadline") from cause
        if note.startswith("opa_malloc"):
            raise AnswerInvalidError("the policy used up its memory") from cause
        raise AnswerInvalidError(f"the policy failed: {note}") from cause
