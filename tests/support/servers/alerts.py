"""Evaluates the alerts of deploy/prometheus/alerts.yaml with promtool, for metrics that a real service has answered."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support import PATIENCE, ROOT
from tests.support.command_line import written

RULES = ROOT / "deploy/prometheus/alerts.yaml"
ALERTS: Mapping[str, Mapping[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}

PROMTOOL = os.environ.get("PDP_PROMTOOL") or shutil.which("promtool")
NO_PROMTOOL = "no promtool found: run `scripts/prometheus`, and set PDP_PROMTOOL to the path that it prints"

_FAULT = 91  # The fault happens in this minute: the first scrape is repeated until then.
_LONGEST = 90  # The tests end this many minutes after the fault.
_STALLED = 6  # The minutes after which a sweep counts as stalled.
_SWEPT = "pdp_sweep_last_success_timestamp_seconds"

_Key = tuple[str, tuple[tuple[str, str], ...]]


class Scrape(NamedTuple):
    """The metrics of a service at one time. Without `families`, the service did not answer."""

    families: Mapping[str, Metric]
    samples: Mapping[_Key, float]

    def value(self, name: str) -> float:
        """Return the sum of the samples with this name."""
        return sum(value for (each, _), value in self.samples.items() if each == name)


def scrape(client: httpx.Client) -> Scrape:
    """Read the metrics of a service, as Prometheus does, and add the metric `up`."""
    try:
        answer = client.get("/metrics")
    except httpx.TransportError:
        return Scrape({}, {("up", ()): 0})
    assert answer.status_code == 200, answer.text
    return read(answer.text)


def read(text: str) -> Scrape:
    """Parse an answer of `/metrics`. Times become relative to now, because time starts at zero in promtool."""
    families = {each.name: each for each in text_string_to_metric_families(text) if each.name.startswith("pdp_")}
    samples: dict[_Key, float] = {("up", ()): 1}
    for sample in (sample for family in families.values() for sample in family.samples):
        now = time.time() if sample.name.endswith("_timestamp_seconds") else 0
        samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value - now
    return Scrape(families, samples)


def check_alerts(
    folder: Path, scrapes: Sequence[Scrape], before: Iterable[str], after: Iterable[str], *, swept: bool = True
) -> None:
    """Check that exactly the alerts `before` fire before a fault, and exactly `after` when their `for` is over.

    The first scrape describes the time before the fault, the others the time after it, a minute apart. Counters that
    grew between the others go on to grow. Unless `swept`, the sweep does not end after the fault.
    """
    before, after = set(before), set(after)
    keys = sorted({key for each in scrapes for key in each.samples})
    patience = max((_minutes(ALERTS[name]["for"]) for name in after - before), default=_LONGEST)
    patience += 0 if swept else _STALLED
    times = {_FAULT - 1: before, _FAULT: before & after, _FAULT + patience + 1: after}
    expr = 'group by (alertname) (ALERTS{alertstate="firing"})'
    tests = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": [{"series": _series(key), "values": _values(key, scrapes, swept=swept)} for key in keys],
            "promql_expr_test": [
                {"expr": expr, "eval_time": f"{minute}m", "exp_samples": [
                    {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)
                ]}
                for minute, names in times.items()
            ],
        }],
    }  # fmt: skip
    promtool("test", "rules", written(folder / "alerts_test.json", tests))


def promtool(*words: str | Path) -> None:
    """Run promtool, which must succeed. Without promtool, skip the test."""
    if PROMTOOL is None:
        pytest.skip(NO_PROMTOOL)
    done = subprocess.run([PROMTOOL, *words], check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


def _minutes(text: str) -> int:
    return int(text[:-1]) * {"m": 1, "h": 60}[text[-1]]


def _series(key: _Key) -> str:
    labels = {"job": "pdp", "instance": "pdp:8181", **dict(key[1])}
    return key[0] + "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


def _values(key: _Key, scrapes: Sequence[Scrape], *, swept: bool) -> str:
    first, *later = (each.samples.get(key) for each in scrapes)
    pace = 60 if key[0] == _SWEPT else 0
    parts = [f"_x{_FAULT}" if first is None else f"{first:f}+{pace}x{_FAULT - 1}"]
    last = later[-1] if later else first
    if last is None:
        return f"{parts[0]} stale _x{_LONGEST}"
    growth = last - (later[0] or 0) if key[0].endswith("_total") and later else pace * swept
    return f"{parts[0]} {last + pace * _FAULT:f}+{growth:f}x{_LONGEST}"
