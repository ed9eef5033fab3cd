"""A policy instance that is called through wasmtime's C API, with the ctypes declarations of the wasmtime package.

The public `Func.__call__` converts every argument, which costs more time than a policy. wasmtime does not check direct
calls, so this module must keep the guards that `pdp.engine.wasm.instance` describes.

The names used here are private to wasmtime. `fits` tests these names once, on a small module. If the test fails, the
public API is used.
"""

import ctypes
import struct
from functools import cache
from typing import Final

import wasmtime
from wasmtime import _ffi as ffi

from pdp.engine.wasm.instance import WasmInstance, WasmModule

# A call passes an array of seven wasmtime_val_raw_t. An i32 takes the first four bytes of an element.
_SLOT: Final = ctypes.sizeof(ffi.wasmtime_val_raw_t)
_ARGUMENTS: Final = struct.Struct("<" + f"I{_SLOT - 4}x" * 7)

# The functions are declared again here, because wasmtime's own prototypes create an object for every pointer.
# PYFUNCTYPE keeps the interpreter lock, which suits calls of nanoseconds; CFUNCTYPE releases it, so that evaluations
# run in parallel.
_Pointer: Final = ctypes.c_void_p
_call = ctypes.CFUNCTYPE(_Pointer, _Pointer, _Pointer, _Pointer, ctypes.c_size_t, _Pointer)(
    ("wasmtime_func_call_unchecked", ffi.dll)
)
_set_deadline = ctypes.PYFUNCTYPE(None, _Pointer, ctypes.c_uint64)(("wasmtime_context_set_epoch_deadline", ffi.dll))
_memory_size = ctypes.PYFUNCTYPE(ctypes.c_size_t, _Pointer, _Pointer)(("wasmtime_memory_data_size", ffi.dll))
_memory_base = ctypes.PYFUNCTYPE(_Pointer, _Pointer, _Pointer)(("wasmtime_memory_data", ffi.dll))

# The number of parameters that wasmtime itself declares for each function, compared at the start.
_DECLARED: Final = {
    "wasmtime_func_call_unchecked": 5,
    "wasmtime_context_set_epoch_deadline": 2,
    "wasmtime_memory_data_size": 2,
    "wasmtime_memory_data": 2,
    "wasmtime_store_delete": 1,
}
_PROBE: Final = """(module (memory (export "memory") 1)
  (func (export "probe") (param i32 i32 i32 i32 i32 i32 i32) (result i32)
    (i32.store (i32.const 8) (local.get 6)) (i32.sub (local.get 5) (local.get 0))))"""


class _DirectCalls:
    def __init__(self, store: wasmtime.Store, memory: wasmtime.Memory) -> None:
        self.context = ctypes.cast(store._context(), _Pointer).value  # noqa: SLF001 - checked by `fits`
        self._memory = memory._memory  # noqa: SLF001 - checked by `fits`
        self.memory_at = ctypes.addressof(self._memory)
        self.trap = _Pointer()
        self.trap_at = ctypes.addressof(self.trap)
        self._arguments = (ffi.wasmtime_val_raw_t * 7)()
        self.arguments_at = ctypes.addressof(self._arguments)
        self.slots = memoryview(self._arguments).cast("B")
        self.result = self.slots.cast("I")

    def call(self, function: wasmtime.Func, *arguments: int) -> int | None:
        """Call a function, whose result is then in `result`. Return the address of wasmtime's error, or None."""
        _ARGUMENTS.pack_into(self.slots, 0, *arguments, *(0,) * (7 - len(arguments)))
        function_at = ctypes.addressof(function._func)  # noqa: SLF001 - checked by `fits`
        error: int | None = _call(self.context, function_at, self.arguments_at, 7, self.trap_at)
        return error

    def failure(self, error: int | None) -> wasmtime.WasmtimeError | wasmtime.Trap:
        if error is not None:
            failure = ctypes.cast(error, ctypes.POINTER(ffi.wasmtime_error_t))
            return wasmtime.WasmtimeError._from_ptr(failure)  # noqa: SLF001 - checked by `fits`
        return wasmtime.Trap._from_ptr(ctypes.cast(self.trap, ctypes.POINTER(ffi.wasm_trap_t)))  # noqa: SLF001 - see fits

    def memory_size(self) -> int:
        size: int = _memory_size(self.context, self.memory_at)
        return size

    def memory(self) -> memoryview:
        """Return a view of the module's memory. The next call may move the memory and so invalidates the view."""
        size = self.memory_size()
        return memoryview((ctypes.c_ubyte * size).from_address(_memory_base(self.context, self.memory_at))).cast("B")


@cache
def fits() -> bool:
    """Return whether the C API of the installed wasmtime can be called directly."""
    try:
        return _declared() and _probed()
    except (AttributeError, TypeError, ValueError, ctypes.ArgumentError, wasmtime.WasmtimeError):
        return False


def _declared() -> bool:
    return (
        _SLOT in {16, 24}
        and getattr(ffi.wasmtime_val_raw_t.i32, "offset", None) == 0
        and all(len(getattr(ffi.dll, name).argtypes) == count for name, count in _DECLARED.items())
        and all(hasattr(kind, "_from_ptr") for kind in (wasmtime.WasmtimeError, wasmtime.Trap))
        and hasattr(wasmtime.Store, "_consume")
    )


def _probed() -> bool:
    store = wasmtime.Store()
    exports = wasmtime.Instance(store, wasmtime.Module(store.engine, _PROBE), []).exports(store)
    memory, function = exports["memory"], exports["probe"]
    if not (isinstance(memory, wasmtime.Memory) and isinstance(function, wasmtime.Func)):
        return False
    if not (
        isinstance(function._func, ffi.wasmtime_func_t)  # noqa: SLF001 - this checks the private name
        and isinstance(memory._memory, ffi.wasmtime_memory_t)  # noqa: SLF001 - this checks the private name
    ):
        return False
    calls = _DirectCalls(store, memory)
    error = calls.call(function, 3, 0, 0, 0, 0, 1, 0xFFFFFFF0)
    seen = calls.memory()
    return (
        (error, calls.trap.value, calls.result[0]) == (None, None, 0xFFFFFFFE)
        and len(seen) == memory.data_len(store)
        and seen[8:12].tobytes() == memory.read(store, 8, 12) == b"\xf0\xff\xff\xff"
    )


class DirectInstance(WasmInstance):
    """A `WasmInstance` that uses wasmtime's C API. Use it only if `fits()` returns true."""

    def _link(self, module: WasmModule) -> None:
        super()._link(module)
        self._calls = _DirectCalls(self._store, self._memory)

    def _set_deadline(self, ticks: int) -> None:
        _set_deadline(self._calls.context, ticks)

    def _call_export(self, name: str, *arguments: int) -> int:
        calls = self._calls
        error = calls.call(self._exports[name], *arguments)
        if error is not None or calls.trap.value is not None:
            self._raise_failure(calls.failure(error))
        answer: int = calls.result[0]
        # The view of the memory is kept, because creating one is slow and few evaluations grow the memory.
        if calls.memory_size() != self._size:
            self._update_size()
        return answer

    def _update_size(self) -> None:
        self._view = self._calls.memory()
        self._size = len(self._view)
        self._room = self._size - 8

    def _write(self, at: int, data: bytes) -> None:
        self._view[at : at + len(data)] = data

    def _read(self, at: int, size: int) -> bytes:
        return self._view[at : at + size].tobytes()

    def _release(self) -> None:
        self._view = memoryview(b"")
        # The store is deleted without `Store.close`: a Ctrl-C right after the deletion would make `close` delete it
        # twice and crash the process.
        ffi.wasmtime_store_delete(self._store._consume())  # noqa: SLF001 - checked by `fits`
