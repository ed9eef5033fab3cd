"""The differential oracle: terms of rules are read on requests, and compared with the findings of the engine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pdp.opa.modules import Module
from pdp.workbench.proof import terms, values
from pdp.workbench.proof.rules import OutsideError, heads, policy_rules
from pdp.workbench.proof.terms import Term
from pdp.workbench.proof.translate import TranslatedPolicy
from tests.workbench.proof.builtins import UnknownBuiltinError
from tests.workbench.proof.cases import Case, answers_of
from tests.workbench.proof.reading import ConflictError, Reading

_DEEP: Final = 20_000
_VALID: Final = "authz.lib.shape.valid"


@dataclass(slots=True)
class Agreement:
    """What a comparison found, by rule.

    Attributes:
        compared: the number of requests.
        fired: the number of requests in which the engine finds that the rule holds.
        different: the requests in which the term says otherwise than the engine, with the engine's answer.
        unread: the number of requests for which the oracle lacks a builtin, or the engine failed.
        outside: the reasons why rules are not translated.
    """

    compared: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    different: list[tuple[str, Case, bool]] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)
    outside: dict[str, str] = field(default_factory=dict)


def modules_of(texts: Mapping[str, str]) -> dict[str, Module]:
    """Return modules by path."""
    return {path: Module(Path(path), text, custom=path.startswith("custom/")) for path, text in texts.items()}


def translated(opa: Path, texts: Mapping[str, str]) -> tuple[TranslatedPolicy, dict[str, Term], dict[str, str]]:
    """Return a policy's translation, for each head the formula that it fires, and why others are not translated."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEEP))
    modules = modules_of(texts)
    translation = TranslatedPolicy(policy_rules(opa, modules, modules))
    found: dict[str, Term] = {}
    outside: dict[str, str] = {}
    for name in sorted(heads(translation.rules)):
        try:
            found[name] = values.nonempty(translation.rule(name))
        except OutsideError as error:
            outside[name] = str(error)
    if _VALID in translation.rules:
        found[_VALID] = terms.holds(translation.rule(_VALID))
    return translation, found, outside


def agreement(opa: Path, texts: Mapping[str, str], cases: Sequence[Case]) -> Agreement:
    """Compare the terms of all heads with the engine on requests."""
    translation, found, outside = translated(opa, texts)
    result = Agreement(outside=outside)
    answers = answers_of(opa, dict(texts), [f"data.{name}" for name in found], cases)
    reading = Reading()
    for number, (case, answer) in enumerate(zip(cases, answers, strict=True)):
        documents = reading.on(case.given, case.data, broken=number % 2 == 1)
        if answer is None:
            result.unread["the engine failed"] += 1
            continue
        conflicts = [(name, formula) for name, every in translation.conflicts.items() for formula in every]
        for name, formula in (*found.items(), *conflicts):
            expected = answer.get(f"data.{name}", False) if found.get(name) is formula else False
            try:
                holds = documents.read(formula)
            except (UnknownBuiltinError, ConflictError) as error:
                result.unread[f"{name}: {type(error).__name__} {error}"] += 1
                continue
            result.compared[name] += 1
            result.fired[name] += expected
            if holds != expected:
                result.different.append((name, case, expected))
    return result
