"""Run lint, types and the tests that start no program, for the files that changed.

These are the files that differ from the last commit, or the files of that commit if none differ. The tests are those of
the folders that mirror them. Run it as `scripts/test --quick`.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_NO_TESTS: Final = 5  # pytest's exit code for "no tests"


def changed() -> list[str]:
    """Return the files that differ from the last commit; if there are none, the files of that commit."""
    found = _git("diff", "--name-only", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    return found or _git("diff", "--name-only", "HEAD~1")


def _git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()  # noqa: S603, S607 - git


def tests_of(file: str) -> Iterator[str]:
    """Yield the test folder or test file that mirrors a changed file."""
    top, *parts = Path(file).parts
    if top == "tests":
        name = parts[-1]
        own = Path(file) if name.startswith("test_") else Path(file).parent
        if own != Path("tests") and "support" not in parts and (ROOT / own).exists():
            yield str(own)
    elif top in {"policies", "bundles"}:
        yield "tests/policies"
    elif top == "pdp":
        own = next((folder for folder in Path(*parts).parents if (ROOT / "tests" / folder).is_dir()), Path())
        yield from [str("tests" / own)] if own != Path() else map(str, sorted(Path("tests").glob("test_*.py")))


def main(words: list[str]) -> int:
    """Run each step and return 1 if one failed. `words` are arguments for pytest."""
    files = changed()
    modules = [file for file in files if file.endswith(".py") and (ROOT / file).exists()]
    tests = sorted({test for file in files for test in tests_of(file)})
    steps = [["mypy"], [sys.executable, "scripts/structure.py"]]
    if modules:
        steps = [["ruff", "check", *modules], ["ruff", "format", "--check", *modules], *steps]
    if tests:
        steps += [["pytest", "-q", "-n", "2", "-m", "not process and not opa and not docker", *tests, *words]]
    failed = 0
    for step in steps:
        print("==", *step[:2], flush=True)
        code = subprocess.run(step, cwd=ROOT, check=False).returncode  # noqa: S603 - tools of this project
        failed = failed or (code not in {0, _NO_TESTS} and code)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
