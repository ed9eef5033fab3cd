"""Read a scenario file: its scenarios as models, and every fault with its location.

A scenario with one step may leave out `steps`. Faults are located where the author wrote the faulty field.
"""

import pathlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import ValidationError

from pdp.documents import nearest, shown_name
from pdp.documents.document import Path
from pdp.documents.validation import FaultyFile, Finding, Model
from pdp.errors import FileFaultsError, UsageError
from pdp.session import Session
from pdp.workbench.scenarios.files.scenario import ACTIONS, Scenario, ScenarioSettings, Step

_OF_SCENARIO: Final = frozenset(Scenario.model_fields)
# Scenarios and steps both have `session`. In a scenario without `steps`, it belongs to the scenario.
_OF_STEP: Final = frozenset(Step.model_fields) - _OF_SCENARIO

_Read = TypeVar("_Read")


class Located(NamedTuple):
    """A scenario, its path in the document, and the paths of its steps."""

    scenario: Scenario
    path: Path
    steps: tuple[Path, ...]


class ScenarioSource(FaultyFile):
    """A scenario file and its `faults`. `settings` are all valid fields of the file except its scenarios."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__(path, None, "scenario file")
        self.path = path
        self.settings = self.read(ScenarioSettings, self.document.value, lambda at: at)[0] or ScenarioSettings()
        self._check_session(self.document.value, ())

    def find(self, path: Path, message: str, hint: str | None = None) -> None:
        """Add a fault located at `path`."""
        self.add_findings([Finding(path, message, hint)])

    def result_of(self, path: Path, read: Callable[[], _Read]) -> _Read | None:
        """Return the result of `read`. If `read` fails, add its errors to the faults of this file, and return None."""
        try:
            return read()
        except FileFaultsError as error:
            self._add(error.faults)
        except UsageError as error:
            self.find(path, error.message, error.hint)
        return None

    def scenarios(self) -> tuple[Located, ...]:
        """Return the scenarios that have no faults, and add the faults of all others."""
        records = self.document.value.get("scenarios")
        if not isinstance(records, list) or not records:
            hint = "begin each scenario with `- name:`; a file without scenarios can only be extended"
            self.find(("scenarios",), "`scenarios` must be a list with at least one scenario", hint)
            return ()
        names: dict[str, int] = {}
        located = []
        for at, record in enumerate(records):
            path = ("scenarios", at)
            name = record.get("name") if isinstance(record, dict) else None
            if isinstance(name, str) and names.setdefault(name, at) != at:
                line = self.document.place(("scenarios", names[name], "name")).line
                message = f"the name {shown_name(name)} is used twice, first on line {line}"
                self.find((*path, "name"), message, "change one: names are unique in a file")
            located.append(self._scenario(record, path))
        return tuple(scenario for scenario in located if scenario is not None)

    def _scenario(self, record: Any, path: Path) -> Located | None:
        if not isinstance(record, dict):
            self.find(path, "a scenario must be a mapping", "write `- name: ...`, with its fields below")
            return None
        if "steps" in record:
            head, steps = record, record["steps"]
            if not isinstance(steps, list) or not steps:
                self.find((*path, "steps"), "`steps` must be a list with at least one step")
                steps = []
            paths: list[Path] = [(*path, "steps", at) for at in range(len(steps))]
        else:
            head = {key: value for key, value in record.items() if _is_of_scenario(key)}
            steps, paths = [{key: value for key, value in record.items() if key not in head}], [path]
        sound = [step for step in map(self._step, steps, paths) if step is not None]
        self._check_session(head, path)
        scenario = self._model(Scenario, {**head, "steps": sound}, path)
        return Located(scenario, path, tuple(paths)) if scenario and len(sound) == len(paths) else None

    def _step(self, record: Any, path: Path) -> Step | None:
        if not isinstance(record, dict):
            self.find(path, "a step must be a mapping", f"it needs one of {', '.join(ACTIONS)}")
            return None
        self._check_session(record, path)
        return self._model(Step, record, path)

    def _check_session(self, record: Any, path: Path) -> None:
        """Add the faults of one session layer. Missing fields are no faults, because another layer may have them."""
        layer = record.get("session")
        if isinstance(layer, dict):
            stated = {name: item for name, item in layer.items() if item is not None}
            self._model(Session, {"claims": {}, **stated}, (*path, "session"))

    def _model(self, model: type[Model], value: Any, path: Path) -> Model | None:
        try:
            return model.model_validate(value)
        except ValidationError as error:
            self.add_error(error, model, lambda at: (*path, *at))
        return None


def _is_of_scenario(key: str) -> bool:
    """Return whether a key, correct or misspelled, is a field of a scenario. Other keys are fields of the only step."""
    return key in _OF_SCENARIO or (key not in _OF_STEP and nearest(key, _OF_SCENARIO) is not None)
