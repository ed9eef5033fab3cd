"""The folder of a user that says what their agents may do, and what is opened of it to decide calls.

    HOME/pdp.yaml         the project: names manifest, governance, session and `store: sqlite:///state/store.db`
    HOME/commands.yaml    programs with their words that a shell may be given
    HOME/state/           what is written while calls are decided: store, socket, lock, log

Its place is stated where it is used. A variable could come from the agent's working folder, so none counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from platformdirs import user_config_path
from pydantic import BaseModel, RootModel, StrictStr, ValidationError

from pdp.documents import faults_of, read_document
from pdp.errors import FileFaultsError, UsageError
from pdp.pep import Pep
from pdp.project.file import PROJECT_FILE, engine_of_project, manifest_of_project, read_project
from pdp.project.resources import open_stores, stores_of_pep
from pdp.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack
    from pathlib import Path

COMMANDS_FILE: Final = "commands.yaml"
_Model = TypeVar("_Model", bound=BaseModel)


class _Commands(RootModel[dict[StrictStr, tuple[StrictStr, ...]]]):
    """Programs with the words that each may be given."""


@dataclass(frozen=True, slots=True)
class HookPolicy:
    """What decides the calls of a user's agents, opened by `open_policy`.

    Attributes:
        home: the folder, absolute.
        session: the user's; a call adds its run, agent and facts.
        commands: programs with the words that each may be given.
    """

    home: Path
    pep: Pep
    session: Session
    commands: Mapping[str, tuple[str, ...]]


def default_home() -> Path:
    """Return the folder that the program `pdp hook` makes."""
    return user_config_path("pdp") / "hook"


def open_policy(home: Path, owned: ExitStack) -> HookPolicy:
    """Open what decides by the files of a folder, closed with `owned`. The store is made or brought up to date.

    UsageError: a file is missing or faulty, or lies elsewhere; BundleError, EngineError, StoreError: what they name
    cannot be used.
    """
    file = home / PROJECT_FILE
    project = read_project(file)
    # Whoever asks compares the files of the folder with those that decided: what lies elsewhere would change unseen.
    elsewhere = {path for path in (project.manifest, project.governance, project.session, project.bundle) if path}
    for path in sorted(elsewhere.union(project.data, project.policies)):
        if path.parent != home:
            raise UsageError(f"{file}: {path} is not in {home}", hint="keep all that decides in this folder itself")
    if project.policies or project.session is None or project.store is None:
        raise UsageError(f"{file}: states policies, or no session or store", hint="name a bundle, a session, a store")
    manifest = manifest_of_project(file, project)
    stores = open_stores(project.store, owned)
    audit = stores.open_audit(None)
    owned.callback(audit.close)
    pep = Pep(manifest, engine_of_project(project, manifest, owned), audit=audit, **stores_of_pep(stores))
    return HookPolicy(home, pep, _read(project.session, Session), _read(home / COMMANDS_FILE, _Commands).root)


def _read(file: Path, model: type[_Model]) -> _Model:
    document = read_document(file)
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, model)) from None
