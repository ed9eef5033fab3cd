"""Which recorded requests a change can matter for: those for which the changed branch of a rule is evaluated at all.

A branch of which no line is evaluated for a request, with OPA's shortcuts switched off, is not evaluated for it when it
is changed either: whoever asks for it has not changed. So the request is decided as before, and need not be tried.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdp.workbench.opa.evaluation import Evaluator

_AT_ONCE: Final = 2
_QUERY: Final = "[d | some body in input; d := data.authz.decision with input as body]"
_OPTIONS: Final = ("--coverage", "--coverage-runs=", "--disable-indexing", "--disable-early-exit")


class Reach:
    """The lines that each request has evaluated, known for some requests together.

    Args:
        evaluator: with the modules and the data that decide.
        groups: requests that are likely to be decided alike; each costs a run.
    """

    def __init__(self, evaluator: Evaluator, groups: Iterable[Sequence[bytes]]) -> None:
        self._lines: dict[bytes, Mapping[str, frozenset[int]] | None] = {}
        several = list(groups)
        pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pdp-reach")
        try:
            for bodies, lines in zip(several, pool.map(lambda each: _evaluated(evaluator, each), several), strict=True):
                self._lines |= dict.fromkeys(bodies, lines)
        finally:
            # Who is interrupted does not wait for what has not begun.
            pool.shutdown(wait=True, cancel_futures=True)

    def matters(self, body: bytes, module: str, lines: tuple[int, int] | None) -> bool:
        """Return whether a change within these lines of a module can matter for a request; None is any change."""
        known = self._lines.get(body)
        if known is None or lines is None:
            return True
        first, last = lines
        return any(first <= line <= last for line in known.get(module, ()))


def _evaluated(evaluator: Evaluator, bodies: Sequence[bytes]) -> Mapping[str, frozenset[int]] | None:
    """The lines of each module that were evaluated; None when that cannot be told."""
    with tempfile.TemporaryDirectory(prefix="pdp-reach-") as folder:
        file = Path(folder, "inputs.json")
        file.write_bytes(b"[" + b",".join(bodies) + b"]")
        sources = evaluator.sources(Path(folder), {})
        answer, _ = evaluator.run(_QUERY, file, list(sources.values()), *_OPTIONS)
    files: dict[str, Any] | None = answer.get("coverage", {}).get("files")
    if "errors" in answer or files is None:
        return None
    return {
        path: frozenset(
            row
            for part in files.get(source, files.get(source.removeprefix("/"), {})).get("covered", ())
            for row in range(part["start"]["row"], part["end"]["row"] + 1)
        )
        for path, source in sources.items()
    }
