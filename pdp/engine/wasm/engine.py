"""The engine in the process. Each evaluation of a bundle's WebAssembly runs in the calling thread."""

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

DEADLINE: Final = 0.5  # The default number of seconds for one evaluation; a typical evaluation takes 0.0001.
MEMORY_LIMIT: Final = 64 * 1024 * 1024  # The default bytes for one evaluation, in addition to policy and data.

_LEAST_MEMORY: Final = 1024 * 1024
_MOST_MEMORY: Final = 2 * 1024 * 1024 * 1024
_BEFORE: Final = b'[{"result":'
_AFTER: Final = b"}]"
_UNDEFINED: Final = b"[]"


class EmbeddedEngine(Engine):
    """An engine that runs a bundle's WebAssembly in the process. Threads decide in parallel.

    An evaluation blocks the calling thread, or with the async methods the event loop, for about 0.1 ms.

    Args:
        bundle: policies and data, as `read_bundle` returns them.
        manifests: documents of effective manifests by their digest, in addition to the bundle's manifests.
        data: the keys `directory` and `settings` of the policy's data, which are merged over the bundle's data.
        deadline: seconds after which an evaluation is stopped, and the decision is a DENY `engine.timeout`.
        memory_limit: bytes that an evaluation may use in addition to policy and data.

    Raises:
        BundleError: the bundle has no usable policy, or the policy cannot read its data.
        UsageError: the data is invalid, or a limit is out of range.
        EngineError: there is not enough memory for the policy.

    Examples:
        >>> from pathlib import Path
        >>> from pdp import Pep
        >>> from pdp.engines import read_bundle
        >>> from pdp.files import load_effective
        >>> call = {"tool": "lookup_beneficiary", "arguments": {"payee_name": "Acme", "invoice_ref": "INV-8842"}}
        >>> with EmbeddedEngine(read_bundle(Path("../../bundles/payments.tar.gz"))) as engine:
        ...     pep = Pep(load_effective("manifest.json", "governance.yaml"), engine)
        ...     pep.decide(call, {"claims": {"sub": "officer-123"}}).codes
        ('scopes.missing',)
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
                f"memory_limit: {memory_limit!r:.40} bytes are out of range",
                hint=f"give {_LEAST_MEMORY} to {_MOST_MEMORY}",
            )
        merged = merged_data(bundle.data, manifests=manifests, data=data)
        documents = canonical(merged)
        # wasmtime is imported with the first engine, because the import takes 40 ms.
        from pdp.engine.wasm.pool import InstancePool  # noqa: PLC0415

        self._pool = InstancePool(bundle.wasm, documents, deadline=deadline, memory_limit=memory_limit)
        if DECISION not in self._pool.entrypoints:
            self._pool.close()
            raise BundleError(
                f"the bundle's policy has no entrypoint {DECISION}", hint="build the bundle with `pdp bundle build`"
            )
        self._directory: Mapping[str, Any] = merged.get("directory", {})

    @classmethod
    def baseline(cls, *, manifests: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None) -> Self:
        """Return an engine with the released baseline bundle. The arguments and errors are the constructor's."""
        return cls(read_bundle(baseline_bundle_path()), manifests=manifests, data=data)

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document for a request in its canonical form, as `Engine.evaluate` does.

        Raises:
            RequestRefusedError: the request has more than 1 MiB, or does not fit into the memory.
            EngineTimeoutError: the evaluation exceeds the deadline.
            AnswerInvalidError: the policy failed, used up its memory, or does not define the document.
            EngineError: the engine is closed, there is not enough memory, or the bundle does not have the document.
        """
        if len(body) > MAX_BYTES:
            raise RequestRefusedError(f"the request has {len(body)} bytes, but at most {MAX_BYTES} are allowed")
        entrypoint = self._pool.entrypoints.get(document)
        if entrypoint is None:
            raise EngineError(
                f"the bundle has no entrypoint {document}", hint="build the bundle again: pdp bundle build"
            )
        text = self._pool.evaluate(entrypoint, body)
        if text == _UNDEFINED:
            raise UndefinedDocumentError(
                "the policy leaves its decision undefined", hint=f"{document} must be defined for every input"
            )
        # The caller parses the extracted bytes as JSON. They are valid JSON only if the result set has exactly this one
        # result.
        if not (text.startswith(_BEFORE) and text.endswith(_AFTER)):
            raise AnswerInvalidError("the policy's answer is not a result set of OPA")
        return text[len(_BEFORE) : -len(_AFTER)]

    async def adirectory(self) -> Mapping[str, Any]:
        """Return the `directory` of the bundle's data merged with the engine's data."""
        return self._directory

    def close(self) -> None:
        """Free the memory and end the clock thread. Later decisions are a DENY `engine.unavailable`."""
        self._pool.close()
