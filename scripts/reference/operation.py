"""The pages of metrics, alerts, audit events, commands.yaml and enforcement points."""

import re
from collections.abc import Iterable, Iterator
from textwrap import fill
from typing import Any, Final
from unittest.mock import Mock

import yaml
from prometheus_client import REGISTRY

from pdp.audit.chain import AuditEvent
from pdp.execution.telemetry import Telemetry
from pdp.hooks import shapes
from pdp.service.metrics import STATES
from pdp.testing import CASES
from scripts.reference.markdown import ROOT, code, escaped, fence, page, paragraph, table

_DOCS: Final = ROOT / "docs/reference"


def pages() -> Iterator[tuple[str, str]]:
    """Yield the file names and texts of the pages."""
    yield "metrics.md", _metrics()
    yield "alerts.md", _alerts()
    yield "audit-event.md", _audit_event()
    yield "commands-yaml.md", _commands_yaml()
    yield "enforcement-points.md", _enforcement_points()


def _metrics() -> str:
    counted = [(each._name, each._type, each._labelnames, each._documentation) for each in _collectors()]  # noqa: SLF001
    known = [*counted, *((name, "gauge", labels, text) for name, (text, labels) in STATES.items())]
    rows = [
        (code(name + ("_total" if kind == "counter" else "")), kind, ", ".join(map(code, labels)), escaped(text))
        for name, kind, labels, text in sorted(known)
    ]
    return page(
        "Metrics",
        "The service answers `GET /metrics` in Prometheus' format. The token needs the scope `metrics` or `audit`.",
        "No label contains a text from a caller: a tool that is not in the manifest is `unknown`.",
        table(("metric", "type", "labels", "meaning"), rows),
        "## OpenTelemetry",
        "An application with `Pep(..., telemetry=Telemetry())` records these metrics of its tools' runs.",
        table(("metric", "type", "unit", "meaning"), sorted(_instruments())),
    )


def _collectors() -> list[Any]:
    return [each for each in REGISTRY._collector_to_names if getattr(each, "_name", "").startswith("pdp_")]  # noqa: SLF001


def _instruments() -> Iterator[tuple[str, str, str, str]]:
    provider = Mock()
    Telemetry(meter_provider=provider)
    for method, arguments, options in provider.get_meter.return_value.method_calls:
        kind = method.removeprefix("create_").removeprefix("observable_")
        yield (
            code(arguments[0]),
            kind,
            code(options["unit"]) if "unit" in options else "",
            escaped(options["description"]),
        )


def _alerts() -> str:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return page(
        "Alerts",
        "`deploy/prometheus/alerts.yaml` has these rules for Prometheus. "
        "Their commands need the service's address in `PDP`, and its database in `PDP_DATABASE_URL`.",
        table(
            ("alert", "severity", "fires after"),
            [
                (f"[{rule['alert']}](#{rule['alert'].lower()})", rule["labels"]["severity"], rule["for"])
                for rule in rules
            ],
        ),
        *(part for rule in rules for part in _alert(rule)),
    )


def _alert(rule: dict[str, Any]) -> Iterator[str]:
    notes = rule["annotations"]
    yield f"## {rule['alert']}"
    yield paragraph(_without_templates(notes["summary"])) + "."
    yield _without_templates(notes["description"])
    if steps := notes.get("steps"):
        yield _without_templates(steps)
    yield "The alert fires when this expression holds:"
    yield fence("promql", rule["expr"])


def _without_templates(text: str) -> str:
    """Replace Prometheus' templates, such as `{{ $labels.tenant }}`, by the name of the value."""
    return re.sub(r"\{\{ ?\$(?:labels\.)?(\w+)(?: \| \w+)? ?\}\}", lambda match: f"`{match[1].upper()}`", text)


def _audit_event() -> str:
    texts = yaml.safe_load((_DOCS / "audit-event.yaml").read_text())
    kinds = {**AuditEvent.__annotations__, "seq": "int", "prev_hash": "str", "hash": "str"}
    rows = [(code(name), _kind(kinds[name]), escaped(text)) for name, text in texts["fields"].items()]
    return page(
        "Audit event",
        paragraph(texts["introduction"]),
        "## Types",
        table(("type", "records"), [(code(name), escaped(text)) for name, text in texts["types"].items()]),
        "## Fields",
        table(("field", "type", "meaning"), rows),
        "## Outcomes",
        table(("outcome", "meaning"), [(code(name), escaped(text)) for name, text in texts["outcomes"].items()]),
    )


def _kind(annotation: Any) -> str:
    text = str(getattr(annotation, "__forward_arg__", annotation))
    for part, word in _KINDS:
        if part in text:
            return word
    return "text"


_KINDS: Final = (
    ("Sequence[dict", "list of objects"), ("Sequence", "list of texts"), ("dict", "object"), ("bool", "true or false"),
    ("float", "number"), ("int", "whole number"),
)  # fmt: skip


def _commands_yaml() -> str:
    texts = yaml.safe_load((_DOCS / "commands-yaml.yaml").read_text())
    forms = [(code(each["form"]), escaped(each["says"]), code(each["example"])) for each in texts["forms"]]
    return page(
        "Rules for commands",
        paragraph(texts["introduction"]),
        fence("yaml", texts["example"]),
        _named("list", texts["lists"]),
        "## Placeholders",
        _named("placeholder", {name: texts["placeholders"][name] for name in shapes.PLACEHOLDERS}),
        "## Forms",
        table(("form", "matches", "example"), forms),
        "## Details",
        _list(texts["rules"]),
        "## Programs that cannot be listed",
        paragraph(texts["refused"]),
        fence("text", shapes.RUNNERS.strip()),
        "## Rules of a repository",
        paragraph(texts["repository"]),
        fence("yaml", texts["repository_example"]),
        _named("list", texts["repository_lists"]),
        _named("rule", texts["repository_rules"]),
        paragraph(texts["repository_paths"]),
    )


def _named(head: str, texts: dict[str, str]) -> str:
    return table((head, "meaning"), [(code(name), escaped(text)) for name, text in texts.items()])


def _list(texts: Iterable[str]) -> str:
    return "\n".join(fill(f"- {text}", 150, subsequent_indent="  ", break_on_hyphens=False) for text in texts)


def _enforcement_points() -> str:
    data = yaml.safe_load((_DOCS / "enforcement-points.yaml").read_text())
    passed = [
        (escaped(name), escaped(row.get("versions", "")), f"{sum(case not in row for case in CASES)} of {len(CASES)}")
        for name, row in data["rows"].items()
    ]
    others = [
        (escaped(name), case, escaped(row[case])) for name, row in data["rows"].items() for case in CASES if case in row
    ]
    return page(
        "Enforcement points",
        paragraph(
            "The suite `pdp.testing` runs the same cases on each enforcement point. A case passes if exactly the right "
            "calls reach the bodies of the tools, and the model learns why the others did not run."
        ),
        table(("enforcement point", "versions", "passed cases"), passed),
        "## Cases that did not pass",
        table(("enforcement point", "case", "result"), others),
        "## Cases",
        _list(CASES),
        "## Notes",
        _list(f"**{escaped(name)}**: {text}" for name, text in data["notes"].items()),
        "## Limits of the suite",
        _list(f"**{escaped(name)}**: {text}" for name, text in data["limits"].items()),
    )
