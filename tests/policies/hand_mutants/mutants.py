"""Changes of the baseline's policies as the files beside this one state them, each with a witness.

A file is a list of:

    name: what the change comes to
    class: what kind of change it is
    edits: [{file, text, replacement}, {file, added}]    `text` stands once in the file, or the first one counts;
                                                         `added` is a rule at its end
    base: the call of `witnesses.py` from which its witness starts; `wire` when it is not stated
    request, entry, manifest, directory, settings, config: {JSON POINTER: VALUE}    what the witness has instead
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
"""The value of a field that a witness does not have."""

_PARTS: Final = ("request", "entry", "manifest", "directory", "settings", "config")


@dataclass(frozen=True, slots=True)
class HandMutant:
    """One change.

    Attributes:
        name, kind: in words; kind is the file's `class`.
        modules: the whole texts of the changed modules by their path.
        plan: whether the witness is a plan.
        body: the witness as the engine is asked it; data: what it is decided by.
        verdicts: before and after.
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
        """The packages of the changed modules, dotted."""
        return [package_name(text) for text in self.modules.values()]


def package_name(module: str) -> str:
    """Return the package of a module's text, dotted."""
    return f"\n{module}".split("\npackage ", 1)[1].split("\n", 1)[0].strip()


def baseline_modules() -> dict[str, str]:
    """Return the baseline's modules by path, without tests."""
    baseline = baseline_policies_path()
    return {path: module.text for path, module in collect(baseline, [baseline]).items()}


def hand_mutants(*files: str) -> list[HandMutant]:
    """Return the changes that the files state, by default all."""
    modules = baseline_modules()
    stated = [
        item
        for name in files or (*WEAKENED, *BACK_DOORS)
        for item in yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text())
    ]
    return [_mutant(item, modules) for item in stated]


def sample(mutants: Sequence[HandMutant], size: int) -> list[HandMutant]:
    """Return some of the changes, as `pdp mutate --sample` does: others when the baseline has changed."""
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
        raise AssertionError(f"{name}: `{edit['text']}` does not stand in {edit['file']}")
    return text.replace(edit["text"], edit["replacement"], 1)


def _set(holder: Any, keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        holder = holder[int(key)] if isinstance(holder, list) else holder.setdefault(key, {})
    if isinstance(holder, list):
        # After the last one, it is added.
        holder[int(keys[-1]) : int(keys[-1]) + 1] = [value]
    elif value == ABSENT:
        del holder[keys[-1]]
    else:
        holder[keys[-1]] = value
