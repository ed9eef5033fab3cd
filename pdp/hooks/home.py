"""HOME, the folder of a user that says what their agents may do, and what is opened of it to decide calls.

    pdp.yaml         the project: names manifest, governance, session, and `store: sqlite:///state/store.db`
    commands.yaml    programs, and the words that a shell may give them
    state/           what is written as calls are decided: store, sockets and their locks, log

Nothing in the environment says where it is, as that may come from the agent's working folder.
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


class HookCommands(RootModel[dict[StrictStr, tuple[StrictStr, ...]]]):
    """As of `HookPolicy`."""


@dataclass(frozen=True, slots=True)
class HookPolicy:
    """What decides the calls of a user's agents. `commands`: programs, and the words that each may be given."""

    home: Path
    pep: Pep
    session: Session
    commands: Mapping[str, tuple[str, ...]]


def default_home() -> Path:
    """Return the HOME that `pdp hook install` makes."""
    return user_config_path("pdp") / "hook"


def open_policy(home: Path, owned: ExitStack) -> HookPolicy:
    """Open what decides by the files of HOME, closed with `owned`. The store is made or brought up to date.

    UsageError: a file is missing or faulty, or lies elsewhere; BundleError, EngineError, StoreError: what they name
    cannot be used.
    """
    file = home / PROJECT_FILE
    project = read_project(file)
    # Whoever asks compares the files of the folder with those that decided: what lies elsewhere would change unseen.
    for path in (project.manifest, project.governance, project.session, project.bundle, *project.data):
        if path is not None and path.parent != home:
            raise UsageError(f"{file}: {path} is not in {home}", hint="keep all that decides in this folder")
    if project.policies or project.session is None or project.store is None:
        raise UsageError(f"{file}: states policies, or no session or store", hint="name bundle, session and store")
    manifest = manifest_of_project(file, project)
    stores = open_stores(project.store, owned)
    audit = stores.open_audit(None)
    owned.callback(audit.close)
    pep = Pep(manifest, engine_of_project(project, manifest, owned), audit=audit, **stores_of_pep(stores))
    return HookPolicy(
        home, pep, read_record(project.session, Session), read_record(home / COMMANDS_FILE, HookCommands).root
    )


def read_record(file: Path, model: type[_Model]) -> _Model:
    """Return what a file holds; FileFaultsError, UsageError: not that, with every fault and its place."""
    document = read_document(file)
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, model)) from None
