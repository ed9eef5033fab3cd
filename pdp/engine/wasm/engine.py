"""The engine in the process: a bundle's WebAssembly, evaluated by the calling thread."""

from collections.abc import Mapping
from typing import Any, Final, Self

from pdp.engine.bundle.file import Bundle, baseline_bundle_path, read_bundle
from pdp.engine.data import merged_data
from pdp.engine.protocol import DECISION, Engine, check_seconds
from pdp.errors import (
    AnswerInvalidError,
    BundleError,
    EngineError,
    RequestRefusedError,
    UndefinedDocumentError,
    UsageError,
)
from pdp.json import MAX_BYTES, canonical

DEADLINE: Final = 0.5  # default time for one evaluation, in seconds; usual ones take 0.0001
MEMORY_LIMIT: Final = 64 * 1024 * 1024  # default memory for one evaluation beyond what policy and data occupy, in bytes

_LEAST_MEMORY: Final = 1024 * 1024
_MOST_MEMORY: Final = 2 * 1024 * 1024 * 1024
_BEFORE: Final = b'[{"result":'
_AFTER: Final = b"}]"
_UNDEFINED: Final = b"[]"


class EmbeddedEngine(Engine):
    """Decides by a bundle's WebAssembly, in the process and in the calling thread. Threads decide in parallel.

    The asynchronous methods evaluate on the event loop, as handing an evaluation of 0.1 ms to a thread costs as much:
    at worst, they hold the loop up for `deadline`.

    Args:
        bundle: policies and data; see `read_bundle`.
        manifests: the document of each effective manifest by its digest, beside those in the bundle.
        data: the roots `directory` and `settings`, laid over the bundle's.
        deadline: seconds after which an evaluation is stopped: a DENY `engine.timeout`.
        memory_limit: bytes that an evaluation may use beyond what policy and data occupy.

    Raises:
        BundleError: the bundle's module is not a policy of this program, or cannot read its data.
        UsageError: data that is not admitted, or a limit out of range.
        EngineError: the machine has no room for the policy.
    """

    name = "embedded"

    def __init__(
        self,
        bundle: Bundle,
        *,
        manifests: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        deadline: float = DEADLINE,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        check_seconds("deadline", deadline)
        if type(memory_limit) is not int or not _LEAST_MEMORY <= memory_limit <= _MOST_MEMORY:
            raise UsageError(
                f"memory_limit: {memory_limit!r:.40} bytes are out of range", hint=f"{_LEAST_MEMORY} to {_MOST_MEMORY}"
            )
        merged = merged_data(bundle.data, manifests=manifests, data=data)
        documents = canonical(merged)
        # wasmtime takes 40 ms to import: only who makes an engine pays for it.
        from pdp.engine.wasm.pool import InstancePool  # noqa: PLC0415

        self._pool = InstancePool(bundle.wasm, documents, deadline=deadline, memory_limit=memory_limit)
        if DECISION not in self._pool.entrypoints:
            self._pool.close()
            raise BundleError(
                f"the bundle's policy has no entrypoint {DECISION}", hint="build it with `pdp bundle build`"
            )
        self._directory: Mapping[str, Any] = merged.get("directory", {})

    @classmethod
    def baseline(cls, *, manifests: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None) -> Self:
        """Return an engine with the released baseline bundle; arguments and errors as of the class."""
        return cls(read_bundle(baseline_bundle_path()), manifests=manifests, data=data)

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document for the canonical request `body`, as `Engine.evaluate` does.

        Raises:
            RequestRefusedError: more than 1 MiB, or more than the engine's memory has room for.
            EngineTimeoutError: not finished within the deadline.
            AnswerInvalidError: no decision: the policy failed, used up its memory, or leaves the document undefined.
            EngineError: closed, no room on the machine, or the bundle does not have the document.
        """
        if len(body) > MAX_BYTES:
            raise RequestRefusedError(f"the request has {len(body)} bytes, at most {MAX_BYTES} are admitted")
        entrypoint = self._pool.entrypoints.get(document)
        if entrypoint is None:
            raise EngineError(f"the bundle has no entrypoint {document}", hint="build it again: pdp bundle build")
        text = self._pool.evaluate(entrypoint, body)
        if text == _UNDEFINED:
            raise UndefinedDocumentError(
                "the policy leaves its decision undefined", hint=f"{document} must be defined for every input"
            )
        # Whoever gets the document parses it: it is JSON by itself only where the set has this one result.
        if not (text.startswith(_BEFORE) and text.endswith(_AFTER)):
            raise AnswerInvalidError("the policy's answer is not a result set of OPA")
        return text[len(_BEFORE) : -len(_AFTER)]

    async def adirectory(self) -> Mapping[str, Any]:
        """Return the bundle's `directory` with what is laid over it."""
        return self._directory

    def close(self) -> None:
        """Give all memory back and end the engine's clock; deciding afterwards is a DENY `engine.unavailable`."""
        self._pool.close()
