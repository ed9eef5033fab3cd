"""The baseline with the concerns of examples and tests, and changed versions of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import yaml

from pdp.opa.modules import Module, baseline_policies_path, collect

Modules = Mapping[str, Module]
Edits = Mapping[str, Sequence[Sequence[str]]]
"""Texts and their replacements by module."""

_ROOT = Path(__file__).parents[3]


@cache
def all_modules() -> Modules:
    """Return the modules of the baseline and of all concerns in examples and tests."""
    baseline = baseline_policies_path()
    folders = [*sorted(_ROOT.glob("examples/*/policies")), _ROOT / "tests" / "scenarios" / "concerns"]
    return collect(baseline, [baseline, *folders])


def changed(edits: Edits) -> Modules:
    """Return the modules with edits, each of which has to fit."""
    modules = dict(all_modules())
    for path, pairs in edits.items():
        for old, new in pairs:
            text = modules[path].text
            assert old in text, (path, old)
            modules[path] = replace(modules[path], text=text.replace(old, new))
    return modules


@cache
def refactorings() -> Mapping[str, Edits]:
    """Return changes that change no decision, by their name."""
    found: Mapping[str, Edits] = yaml.safe_load(Path(__file__).with_name("refactorings.yaml").read_text())
    return found
