"""Reading one scenario file: its scenarios as models, and every fault of it with its place.

A scenario with one step may be written without `steps`. It is read as if it had been written with it, and its faults
stand where the author wrote them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import ValidationError

from pdp.documents import nearest, shown_name
from pdp.manifest.findings import FaultyFile, Finding
from pdp.workbench.scenarios.files.scenario import ACTIONS, EXPECTED, Expect, Scenario, ScenarioFile, Step
from pdp.workbench.scenarios.files.sessions import session_faults

if TYPE_CHECKING:
    import pathlib

    from pdp.documents.document import Path
    from pdp.errors import Fault

_OF_FILE: Final = frozenset(ScenarioFile.model_fields)
_OF_SCENARIO: Final = frozenset(Scenario.model_fields)
_OF_STEP: Final = frozenset(Step.model_fields)
# `session` stands in both, and in a scenario without `steps` it is the scenario's.
_OF_ONE_STEP: Final = _OF_STEP - {"session"}
_ONE_OF: Final = f"it needs one of {', '.join(ACTIONS)}"


class Located(NamedTuple):
    """A scenario and where it and its steps stand in the document."""

    scenario: Scenario
    path: Path
    steps: tuple[Path, ...]


class ScenarioSource(FaultyFile):
    """One scenario file as far as it could be read; `faults` are what is wrong with it.

    Attributes:
        settings: the file without its scenarios; settings that are faulty are left out, and are in `unusable`.
        path: the file.

    Raises:
        UsageError: the file cannot be read.
        FileFaultsError: it cannot be read further, or its value is not a mapping.
    """

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__(path, None, "scenario file")
        self.path = path
        record = {name: value for name, value in self.document.value.items() if name != "scenarios"}
        known, spelt = self._known(record, _OF_FILE, ())
        settings, self.unusable = self.read(ScenarioFile, known, lambda at: (spelt.get(str(at[0]), at[0]), *at[1:]))
        self.settings = settings or ScenarioFile()
        self._check_session(self.settings.session, (spelt["session"],))

    def find(self, path: Path, message: str, hint: str | None = None, *, key: bool = False) -> None:
        """Add a fault of the part at `path`, or of its key."""
        self.add_findings([Finding(path, message, hint, key=key)])

    def add(self, faults: list[Fault]) -> None:
        """Add faults that are placed already."""
        self._add(faults)

    def scenarios(self) -> tuple[Located, ...]:
        """Return the scenarios, those left out that are faulty."""
        records = self.document.value.get("scenarios")
        if not isinstance(records, list):
            if "scenarios" in self.document.value:
                self.find(("scenarios",), "`scenarios` must be a list", "begin each scenario with `- name:`")
            else:
                self.find((), "no scenarios in it", "a file for `extends` alone is not run; else add `scenarios:`")
            return ()
        if not records:
            self.find(("scenarios",), "`scenarios` must not be empty", "begin each scenario with `- name:`")
        read = [self._scenario(record, ("scenarios", at)) for at, record in enumerate(records)]
        self._check_names(records)
        return tuple(each for each in read if each is not None)

    def _check_session(self, layer: Any, path: Path) -> None:
        """Find what is wrong in one layer of a session, which would be so in any; the models see to the rest."""
        if isinstance(layer, dict):
            self._add(session_faults(layer, self.document, path))

    def _check_names(self, records: list[Any]) -> None:
        seen: dict[str, int] = {}
        for at, record in enumerate(records):
            name = record.get("name") if isinstance(record, dict) else None
            if not isinstance(name, str):
                continue
            if name in seen:
                line = self.document.place(("scenarios", seen[name], "name")).line
                message = f"the name {shown_name(name)} stands twice, first on line {line}"
                self.find(("scenarios", at, "name"), message, "names are unique in a file: change one")
            else:
                seen[name] = at

    def _scenario(self, record: Any, path: Path) -> Located | None:
        if not isinstance(record, dict):
            self.find(path, "a scenario must be a mapping", "write `- name: ...` with what it does below")
            return None
        known, spelt = self._known(record, _OF_SCENARIO | _OF_ONE_STEP, path)
        one = {name: value for name, value in known.items() if name in _OF_ONE_STEP}
        head = {name: value for name, value in known.items() if name in _OF_SCENARIO}
        steps: list[Step | None] = []
        places: list[Path] = []
        if "steps" in known:
            for name in one:
                message = f"`{name}` stands beside `steps`"
                self.find((*path, spelt[name]), message, "move it into a step, or leave `steps` out", key=True)
            at = (*path, spelt["steps"])
            records = known["steps"] if isinstance(known["steps"], list) else []
            if not records:
                self.find(at, "`steps` must be a list with at least one step", _ONE_OF)
            for position, each in enumerate(records):
                places.append((*at, position))
                if isinstance(each, dict):
                    steps.append(self._step(*self._known(each, _OF_STEP, places[-1]), places[-1]))
                else:
                    self.find(places[-1], "a step must be a mapping", _ONE_OF)
                    steps.append(None)
        else:
            places.append(path)
            steps.append(self._step(one, spelt, path))
        self._check_session(head.get("session"), (*path, spelt["session"]))
        return self._whole(head, spelt, steps, path, places)

    def _whole(
        self, head: dict[str, Any], spelt: dict[str, str], steps: list[Step | None], path: Path, places: list[Path]
    ) -> Located | None:
        sound = tuple(step for step in steps if step is not None)
        try:
            scenario = Scenario.model_validate({**head, "steps": sound})
        except ValidationError as error:
            self.add_error(error, Scenario, lambda at: (*path, spelt.get(str(at[0]), at[0]), *at[1:]))
            return None
        return Located(scenario, path, tuple(places)) if len(sound) == len(steps) else None

    def _step(self, record: dict[str, Any], spelt: dict[str, str], path: Path) -> Step | None:
        before = len(self.faults)
        actions = [name for name in ACTIONS if name in record]
        if not actions:
            self.find(path, "does nothing", _ONE_OF)
        for name in actions[1:]:
            message = f"`{name}` stands beside `{actions[0]}`"
            self.find((*path, spelt[name]), message, "a step does one thing: make two steps of it", key=True)
        self._check_session(record.get("session"), (*path, spelt["session"]))
        for name in ("approve", "deny"):
            claims = record[name].get("claims") if isinstance(record.get(name), dict) else None
            if isinstance(claims, dict):
                self._check_session({"claims": claims}, (*path, spelt[name]))
        try:
            step = Step.model_validate(record)
        except ValidationError as error:
            self.add_error(error, Step, lambda at: (*path, spelt.get(str(at[0]), at[0]), *at[1:]))
            return None
        if len(self.faults) == before:
            self._check_step(step, path, spelt)
        return step if len(self.faults) == before else None

    def _check_step(self, step: Step, path: Path, spelt: dict[str, str]) -> None:
        """Find what the step's fields only get wrong together."""
        action = step.action
        expect = (*path, spelt["expect"])
        if action == "plan":
            count = len(step.plan or ())
            if not count:
                self.find((*path, spelt["plan"]), "`plan` must not be empty", "list its proposals")
            elif not isinstance(step.expect, tuple) or len(step.expect) != count:
                self.find(expect, f"`expect` must be a list of {count}", "one for each proposal of the plan")
            if "returns" in step.model_fields_set and not (
                isinstance(step.returns, list) and len(step.returns) == count
            ):
                at = (*path, spelt["returns"])
                self.find(at, f"`returns` must be a list of {count}", "one for each proposal of the plan")
        elif isinstance(step.expect, tuple):
            self.find(expect, f"`expect` of `{action}` must be a mapping", "only a plan has a list of them")
        if "returns" in step.model_fields_set and action not in ("propose", "plan"):
            message = f"`returns` says nothing about `{action}`"
            self.find((*path, spelt["returns"]), message, "no tool is run", key=True)
        for position, each in enumerate(step.expectations):
            at = (*expect, position) if isinstance(step.expect, tuple) else expect
            for name in sorted(each.model_fields_set - EXPECTED[action]):
                message = f"`{name}` is nothing that can be expected of `{action}`"
                self.find((*at, name), message, f"known here: {', '.join(sorted(EXPECTED[action]))}", key=True)
            self._check_codes(each, at)

    def _check_codes(self, expect: Expect, path: Path) -> None:
        """Find reasons that are told more of than `codes` lets there be."""
        if expect.codes is None:
            return
        for name in ("details", "messages"):
            for code in getattr(expect, name) or ():
                if code not in expect.codes:
                    message = f"{shown_name(code)} is not among `codes`"
                    self.find((*path, name, code), message, "name it there as well, or take it out", key=True)

    def _known(
        self, record: dict[str, Any], known: frozenset[str], path: Path
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return what has a known key, and how each key is spelt in the file.

        A misspelt key has its fault, and is read as the nearest known one: what is wrong below it shows as well, and
        nothing is said to be missing that is there.
        """
        found: dict[str, Any] = {}
        spelt: dict[str, str] = {name: name for name in known}
        for key, value in record.items():
            if key in known:
                found[key] = value
                continue
            hint = nearest(key, known)
            self.find((*path, key), f"unknown key {shown_name(key)}", hint or _list_of(known), key=True)
            near = hint.split("`")[1] if hint else ""
            if near and near not in record and near not in found:
                found[near], spelt[near] = value, key
        return found, spelt


def _list_of(known: frozenset[str]) -> str:
    return f"known here: {', '.join(sorted(known))}"
