"""Changes of the baseline's policies, read from the YAML files in this folder, each with a witness.

The witness of a change is a request whose verdict the change alters. A file is a list of:

    name: the name of the change
    class: the kind of the change
    edits: [{file, text, replacement}, {file, added}]    replaces the first occurrence of `text` in the file;
                                                         `added` is a rule that is appended to the file
    base: the request of `witnesses.py` from which the witness is derived; default: `wire`
    request, entry, manifest, directory, settings, config: {JSON POINTER: VALUE}    the changes of the base request
    verdicts: [BEFORE, AFTER]
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from pdp.json import canonical, digest
from pdp.opa.modules import baseline_policies_path, collect
from tests.policies.hand_mutants.witnesses import BASES, DIGEST

WEAKENED: Final = ("approvals", "numbers", "names", "data", "runs")
BACK_DOORS: Final = ("back_doors",)

ABSENT: Final = "absent"
"""This value removes a field from the base request."""

_PARTS: Final = ("request", "entry", "manifest", "directory", "settings", "config")


@dataclass(frozen=True, slots=True)
class HandMutant:
    """A change of the policies, with its witness: a request for which the change alters the verdict.

    Attributes:
        name: The name of the change.
        kind: What is changed, from the field `class` of the file.
        modules: The texts of the changed modules, keyed by path.
        plan: Whether the witness is a plan and not a call.
        body: The request that is the witness, as the engine receives it.
        data: The OPA data for the decision on the witness.
        verdicts: The verdicts on the witness, without and with the change.
    """

    name: str
    kind: str
    modules: dict[str, str]
    plan: bool
    body: bytes
    data: dict[str, Any]
    verdicts: tuple[str, str]

    @property
    def packages(self) -> list[str]:
        return [package_name(text) for text in self.modules.values()]


def package_name(module: str) -> str:
    return f"\n{module}".split("\npackage ", 1)[1].split("\n", 1)[0].strip()


def baseline_modules() -> dict[str, str]:
    """Return the texts of the baseline's modules, keyed by path. Unit tests are left out."""
    baseline = baseline_policies_path()
    return {path: module.text for path, module in collect(baseline, [baseline]).items()}


def hand_mutants(*files: str) -> list[HandMutant]:
    """Return the changes in the YAML files with these names or, without names, in all YAML files."""
    modules = baseline_modules()
    items = [
        item
        for name in files or (*WEAKENED, *BACK_DOORS)
        for item in yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text())
    ]
    return [_mutant(item, modules) for item in items]


def sample(mutants: Sequence[HandMutant], size: int) -> list[HandMutant]:
    """Return a sample of the changes. The sample depends on the text of the baseline, as in `pdp mutate --sample`."""
    policies = canonical(baseline_modules()).decode()
    return sorted(mutants, key=lambda mutant: digest(f"{mutant.name} {policies}".encode()))[:size]


def _mutant(stated: dict[str, Any], modules: dict[str, str]) -> HandMutant:
    changed: dict[str, str] = {}
    for edit in stated["edits"]:
        file = edit["file"]
        changed[file] = _edited(changed.get(file, modules[file]), edit, stated["name"])
    base = stated.get("base", "wire")
    world = deepcopy(BASES[base])
    for part in _PARTS:
        for pointer, value in stated.get(part, {}).items():
            _set(world[part], pointer.split("/")[1:], value)
    before, after = stated["verdicts"]
    manifest = {**world["manifest"], "tools": {world["entry"]["name"]: world["entry"]}}
    return HandMutant(
        name=stated["name"],
        kind=stated["class"],
        modules=changed,
        plan=base == "plan",
        body=canonical(world["request"]),
        data={"manifests": {DIGEST: manifest}, **{part: world[part] for part in ("directory", "settings", "config")}},
        verdicts=(before, after),
    )


def _edited(text: str, edit: dict[str, str], name: str) -> str:
    if "added" in edit:
        return f"{text}\n{edit['added']}\n"
    if edit["text"] not in text:
        raise AssertionError(f"{name}: `{edit['text']}` is not in {edit['file']}")
    return text.replace(edit["text"], edit["replacement"], 1)


def _set(holder: Any, keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        holder = holder[int(key)] if isinstance(holder, list) else holder.setdefault(key, {})
    if isinstance(holder, list):
        # An index after the last item appends the value to the list.
        holder[int(keys[-1]) : int(keys[-1]) + 1] = [value]
    elif value == ABSENT:
        del holder[keys[-1]]
    else:
        holder[keys[-1]] = value
