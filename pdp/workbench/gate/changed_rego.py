"""Check changed Rego: unit tests must cover all of its lines, and scenarios must detect each mutant of changed Rego.

A module of the bundle counts as changed if the last release has no module of that path with the same text. This
includes modules of the baseline. For a first release, the baseline bundle of this program is the last release.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import orjson

from pdp.engine.bundle.file import Bundle, baseline_bundle_path, read_bundle
from pdp.errors import UsageError
from pdp.installed import packaged
from pdp.opa.evaluation import coverage_lines
from pdp.opa.modules import DECISION, Module, baseline_policies_path, collect, write_texts
from pdp.opa.program import needed_opa, run_opa
from pdp.workbench.mutation.equivalents import beside, read_equivalents
from pdp.workbench.mutation.mutant import Fate
from pdp.workbench.mutation.run import MutationRun, mutate
from pdp.workbench.scenarios.files.suite import Suite, find_suites, load_suites
from pdp.workbench.shown_file import line_ranges, shown_file

_TIMEOUT: Final = 300.0
_FAILED: Final = ": FAIL"


class ChangedRego:
    """The Rego modules of a bundle that differ from those of the `last` release. `folders` have their unit tests."""

    def __init__(self, bundle: Bundle, last: Bundle | None, folders: Iterable[Path], engine_timeout: float) -> None:
        before = (read_bundle(baseline_bundle_path()) if last is None else last).modules
        self._texts: Mapping[str, str] = bundle.modules
        self.paths = frozenset(path for path, text in self._texts.items() if before.get(path) != text)
        self._baseline = any(not path.startswith("custom/") for path in self.paths)
        by_place = {folder.resolve(): folder for folder in folders if not (folder / DECISION).is_file()}
        self._engine_timeout = engine_timeout
        self._folders = [baseline_policies_path(), *by_place.values()]
        self.summary = f"{len(self.paths)} module{'s' * (len(self.paths) != 1)} of Rego new or changed"

    def untested(self) -> list[str]:
        """Return the failing unit tests, or the lines of changed modules that no unit test evaluates."""
        if not self.paths:
            return []
        sources = self._sources()
        tests = collect(self._folders[0], self._folders, tests=True)
        texts = {path: module.text for path, module in tests.items() if module.custom or self._baseline}
        with tempfile.TemporaryDirectory(prefix="pdp-unit-tests-") as name:
            write_texts(Path(name), {**texts, **self._texts})
            arguments = ["test", "--coverage", "--format", "json", "--timeout", f"{_TIMEOUT:.0f}s", "."]
            done = run_opa(needed_opa("unit tests of Rego"), arguments, timeout=_TIMEOUT, folder=Path(name))
        if done.returncode != 0:
            output = (done.stdout + done.stderr).decode(errors="replace")
            lines = [line for line in output.splitlines() if line.startswith("data.") and _FAILED in line]
            return [f"fails: {line.partition(_FAILED)[0]}" for line in dict.fromkeys(lines)] or output.splitlines()
        measured = coverage_lines(orjson.loads(done.stdout))
        reasons = []
        for path in sorted(self.paths):
            missed = measured[path].missed if path in measured else {1}
            if missed:
                where = f"{shown_file(sources[path].file)}: lines {line_ranges(sorted(missed))}"
                reasons.append(f"{where}: no unit test evaluates them: write one in {Path(path).stem}_test.rego")
        return reasons

    def survivors(self, suites: Sequence[Suite]) -> tuple[str, list[str]]:
        """Return a summary, and the mutants that no scenario detects and that are not marked as equivalent."""
        if not self.paths or not suites:
            return self.summary, ["no scenario file uses a manifest of the bundle"] if self.paths else []
        sources = self._sources()
        own = find_suites([packaged("tests/scenarios")]) if self._baseline else []
        judges = [*suites, *load_suites(own, self._engine_timeout)]
        run = MutationRun()
        marked = read_equivalents(beside([suite.file for suite in judges]))
        opa = needed_opa("mutants of Rego")
        mutate(judges, opa=opa, baseline=True, only=None, marked=marked, run=run, modules=self.paths)
        reasons = [str(fault) for fault in run.faults]
        for survivor in run.of(Fate.SURVIVED):
            mutant = survivor.mutant
            path = mutant.id.partition(":")[0]
            where = f"{shown_file(sources[path].file)}:{mutant.place.line}"
            reasons.append(f"{where}: {mutant.kind} in {mutant.owner} survives; run: pdp mutate --only {mutant.id}")
        unbroken = self.paths - {judgement.mutant.id.partition(":")[0] for judgement in run.judgements.values()}
        none = f"; no mutants of {', '.join(sorted(unbroken))}" if unbroken else ""
        return f"{run.count(Fate.KILLED)} of {run.total} mutants are killed, {self.summary}{none}", reasons

    def _sources(self) -> Mapping[str, Module]:
        sources = collect(self._folders[0], self._folders)
        wrong = [path for path in sorted(self.paths) if path not in sources or sources[path].text != self._texts[path]]
        if wrong:
            raise UsageError(
                "\n".join(f"{path}: no policy folder has this module with the text of the bundle" for path in wrong),
                hint="pass the folders from which the bundle was built, with their unit tests: --policies DIR",
            )
        return sources
