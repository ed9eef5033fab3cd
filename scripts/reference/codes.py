"""The pages of the codes: a table of all, and one page for each reason code and each error code."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import yaml

from pdp.approvals.people import Refusal
from pdp.documents import read_document
from pdp.errors import BundleError, EngineError, EngineTimeoutError, StateError, UsageError
from pdp.opa.modules import baseline_policies_path, collect
from pdp.opa.rules import RuleSite, rule_sites, sites_by_code
from pdp.service.app import STATUS as ERROR_STATUS
from pdp.service.approvals.routes import STATUS as APPROVAL_STATUS
from pdp.service.errors import CODES as HTTP_CODES
from pdp.service.models.proposals import KEY_CODES
from pdp.workbench.codes import Code, codes
from scripts.reference.markdown import ROOT, block, code, escaped, fence, page, paragraph, source, table

_GROUPS: Final = {
    "rejection": ("Rejections", "A check rejects the proposal before a tool runs. See `outcome.rejection.code`."),
    "failure": ("Failures", "An allowed call has no result. See `outcome.failure.code`."),
    "reason": (
        "Reasons",
        "A decision has one or more reasons. See `reasons` in the output and `codes` in the audit event.",
    ),
    "approval": ("Approvals", "A step of an approval is not allowed."),
    "error": ("Errors", "A Python exception, an answer of the service or a message of a command has this code."),
    "http": ("HTTP answers", "The body of an answer of the service has this code in `error.code`."),
    "pattern": (
        "Patterns",
        "A call or its result breaks a rule of the tool's pattern. See `details.rule`.",
    ),
    "lint": ("Findings in your files", "`pdp manifest lint` or `pdp test` reports a finding with this code."),
    "exit": ("Exit codes", "A command ends with this code."),
}
_VERDICTS: Final = {"deny": "DENY", "step_up": "STEP_UP", "allow": "ALLOW"}
_STATUS: Final = {
    **ERROR_STATUS,
    **{f"approvals.{refusal}": APPROVAL_STATUS.get(refusal, 409) for refusal in Refusal},
    **{name: status for status, name in HTTP_CODES.items()},
    **dict.fromkeys(KEY_CODES, 409),
}


def pages() -> Iterator[tuple[str, str]]:
    """Yield the file names and texts of the table and of the page of each code."""
    groups: dict[str, list[Code]] = defaultdict(list)
    sites = sites_by_code(rule_sites(collect(baseline_policies_path(), [baseline_policies_path()])))
    for entry in codes():
        groups[entry.kind].append(entry)
        yield f"codes/{entry.code}.md", _page(entry, sites.get(entry.code, ()))
    yield (
        "codes.md",
        page(
            "Reason and error codes",
            "A code is stable; messages may change. `pdp explain CODE` prints what the page of a code says.",
            *(part for kind, texts in _GROUPS.items() for part in _group(*texts, groups[kind])),
        ),
    )


def _group(title: str, text: str, members: list[Code]) -> Iterator[str]:
    yield f"## {title}"
    yield text
    concerns: dict[str, list[Code]] = defaultdict(list)
    for each in members:
        concerns[each.code.partition(".")[0]].append(each)
    for name, part in concerns.items() if len(members) > 30 else [("", members)]:  # noqa: PLR2004 - a long table
        if name:
            yield f"### {name}"
        yield table(("code", "meaning"), [(f"[{code(e.code)}](codes/{e.code}.md)", escaped(e.meaning)) for e in part])


def _page(entry: Code, sites: tuple[RuleSite, ...]) -> str:
    return page(
        entry.title if entry.kind == "exit" else code(entry.code),
        escaped(entry.meaning) if entry.kind == "exit" else f"**{escaped(entry.title)}.** {escaped(entry.meaning)}",
        f"**Remedy**: {escaped(entry.remedy)}" if entry.remedy else "",
        *_places(entry, sites),
        *_rules(sites),
        *_scenario(entry.code),
    )


def _places(entry: Code, sites: tuple[RuleSite, ...]) -> Iterator[str]:
    """Yield where users meet the code: Python, the service and the command line."""
    lines = [] if sites else [_GROUPS[entry.kind][1]]
    if entry.kind == "reason" and not sites:
        lines = ["The enforcement point gives this reason, and the verdict is `DENY`."]
    if entry.raised:
        module, _, name = entry.raised.rpartition(".")
        error = getattr(import_module(module), name)
        lines = [f"Python raises `{name}` of `{module}`."]
        if issubclass(error, EngineError | BundleError | StateError):
            lines.append("If the error stops a decision, the verdict is `DENY` with this code.")
        usage = issubclass(error, UsageError | BundleError | EngineTimeoutError)
        lines.append(f"A command that ends with this error has the exit code {2 if usage else 1}.")
    if entry.code in _STATUS:
        lines.append(f"The service answers with the HTTP status {_STATUS[entry.code]}.")
    if lines:
        yield "## Where it occurs"
        yield "\n".join(f"- {line}" for line in lines)


def _rules(sites: tuple[RuleSite, ...]) -> Iterator[str]:
    for site in sites:
        yield "## Rule" if len(sites) == 1 else f"## Rule in line {site.line}"
        place = source(f"policies/{site.module}", site.line)
        verdict = _VERDICTS.get(site.part)
        says = (
            f"gives this reason for the verdict `{verdict}`" if verdict else f"adds the obligation `{site.obligation}`"
        )
        yield f"The concern `{site.concern}` {says}:\n{place}"
        yield fence("rego", site.text)
        if site.unreached:
            yield paragraph(f"No scenario reaches this rule. {site.unreached}")


def _scenario(name: str) -> Iterator[str]:
    found = [(cost, place, scenario) for cost, place, scenario in _scenarios().get(name, ())]
    if found:
        _, file, scenario = min(found, key=lambda each: (each[0], each[1]))
        yield "## Scenario"
        yield f"The scenario *{escaped(scenario['name'])}* shows this code:\n{source(file)}"
        shown = [line for key, value in scenario.items() if key != "golden" for line in block(key, value)]
        yield fence("yaml", "\n".join(shown))


@cache
def _scenarios() -> dict[str, list[tuple[int, str, dict[str, Any]]]]:
    """Return the scenarios that expect each code, with a number that is lower for simpler ones, and their files."""
    found: dict[str, list[tuple[int, str, dict[str, Any]]]] = defaultdict(list)
    for folder in ("examples", "tests/scenarios"):
        for file in sorted((ROOT / folder).rglob("*scenarios.yaml")):
            for scenario in _read(file).get("scenarios", ()):
                place = str(file.relative_to(ROOT))
                for name in _expected(scenario.get("steps") or [scenario]):
                    found[name].append((len(str(scenario)) + 1000 * ("request" in str(scenario)), place, scenario))
    return found


def _read(file: Path) -> Any:
    try:
        return yaml.load(file.read_text(), yaml.CSafeLoader)
    except yaml.YAMLError:  # PyYAML forbids an anchor that occurs twice.
        return read_document(file).value


def _expected(steps: Iterable[dict[str, Any]]) -> set[str]:
    expects = [each for step in steps for each in _listed(step.get("expect"))]
    return {name for each in expects for name in each.get("codes") or ()}


def _listed(expect: Any) -> list[Any]:
    return expect if isinstance(expect, list) else [expect or {}]
