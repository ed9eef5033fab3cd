"""Check the baseline, the examples and their manifests with commands of `pdp`, in one process that starts only once."""

import io
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

from pdp.cli import run_command

EXAMPLES: Final = Path("examples")
# The manifests of `registry` follow the documents, and the tools of the others name no sources.
MAY_WARN: Final = ("assistant", "payments", "rag", "registry", "underwriting")


def commands() -> Iterator[list[str | Path]]:
    """Yield the commands that must succeed."""
    yield ["check", "--scenarios", "tests/scenarios"]
    # Each example is checked separately, because concerns of two examples could have the same name.
    for policies in sorted(EXAMPLES.glob("*/policies")):
        yield ["check", "--policies", policies, "--scenarios", policies.parent]
    for manifest in sorted(EXAMPLES.glob("*/manifest.*")):
        governance = manifest.with_name("governance.yaml")
        options: list[str | Path] = ["--governance", governance] if governance.exists() else []
        if manifest.parent.name not in MAY_WARN:
            options.append("--strict")
        yield ["manifest", "lint", manifest, *options]
    # These are AgentDojo's tools, few of which can be undone, so `--strict` would fail.
    for manifest in sorted(EXAMPLES.glob("agentdojo/*.json")):
        yield ["manifest", "lint", manifest, "--governance", manifest.with_suffix(".governance.yaml")]


def main() -> int:
    """Run the commands up to the first that fails. Print its output, and return its exit code."""
    for command in commands():
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            code = run_command([str(word) for word in command])
        if code:
            print(said.getvalue(), file=sys.stderr, end="")
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
