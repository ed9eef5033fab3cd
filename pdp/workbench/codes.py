"""All codes that users meet: reasons of policies and program, rejections, failures, errors and exit codes.

The codes of policies come from the METADATA of their rules, all others from `codes.yaml`.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

import yaml

from pdp.errors import PdpError
from pdp.manifest.fields import Pattern
from pdp.opa.modules import baseline_policies_path, collect
from pdp.opa.rules import statements
from pdp.workbench.scenarios.files.read import ScenarioSource
from pdp.workbench.scenarios.files.suite import find_suites

Kind = Literal["reason", "rejection", "failure", "error", "approval", "http", "pattern", "lint", "exit"]
_CODES: Final = Path(__file__).parent / "codes.yaml"
_PATTERN: Final = "<pattern>"


class Code(NamedTuple):
    """A code and its texts. `file` and `line` are the first rule of a policy that has the code.

    `raised` is the Python class of an error. `scenario` is the first scenario that expects the code, as `FILE:LINE:
    NAME`. The texts `remedy` and `scenario` may be empty.
    """

    code: str
    kind: Kind
    title: str
    meaning: str
    remedy: str = ""
    file: str = ""
    line: int = 0
    raised: str = ""
    scenario: str = ""


def codes(policies: Sequence[Path] = (), scenarios: Sequence[Path] = ()) -> list[Code]:
    """Return all codes, sorted: those of the baseline, of the program, and of the user's `policies`.

    `scenarios` are files or folders with scenarios that may expect a code. Faulty scenario files are skipped.
    """
    found = {code.code: code for code in (*_of_program(), *_of_policies(policies))}
    shown = _shown_by(scenarios)
    return [found[name]._replace(scenario=shown.get(name, "")) for name in sorted(found)]


def _of_program() -> Iterator[Code]:
    for kind, texts in yaml.safe_load(_CODES.read_text(encoding="utf-8")).items():
        for name, text in texts.items():
            for pattern in Pattern if _PATTERN in name else ("",):
                code = name.replace(_PATTERN, pattern.replace("-", "_"))
                yield Code(
                    code, kind, text["title"], text["meaning"], text.get("remedy", ""), raised=text.get("class", "")
                )


def _of_policies(policies: Sequence[Path]) -> Iterator[Code]:
    baseline = baseline_policies_path()
    for module in reversed(collect(baseline, [baseline, *policies]).values()):
        for statement in reversed(statements(module.text)):
            custom = statement.metadata.get("custom")
            if isinstance(custom, dict) and isinstance(custom.get("code"), str):
                texts = (statement.metadata.get("title"), statement.metadata.get("description"), custom.get("remedy"))
                title, meaning, remedy = (" ".join(str(text or "").split()) for text in texts)
                yield Code(custom["code"], "reason", title, meaning, remedy, str(module.file), statement.line)


def _shown_by(scenarios: Sequence[Path]) -> dict[str, str]:
    shown: dict[str, str] = {}
    for file in find_suites(scenarios) if scenarios else ():
        with suppress(PdpError):
            source = ScenarioSource(file)
            for scenario, path, _ in source.scenarios():
                place = f"{file}:{source.document.place(path).line}: {scenario.name}"
                for expect in (expect for step in scenario.steps for expect in step.expectations):
                    refused = f"approvals.{expect.refused}" if expect.refused else None
                    for code in (*(expect.codes or ()), expect.rejection, expect.failure, refused):
                        shown.setdefault(str(code), place)
    return shown
