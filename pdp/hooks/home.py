"""HOME, the folder of a user that says what their agents may do, and what is opened of it to decide calls.

It has pdp.yaml with what that names, commands.yaml, and the folder `state` for what is written as calls are decided:
store, sockets and their locks, log. Nothing in the environment says where HOME is: that may be the workspace's word.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from platformdirs import user_config_path
from pydantic import AfterValidator, RootModel, StrictStr

from pdp.documents import FieldError, read_record
from pdp.errors import UsageError
from pdp.hooks.ask import NoAnswerError, policy_digest
from pdp.pep import Pep
from pdp.project.file import PROJECT_FILE, engine_of_project, manifest_of_project, read_project
from pdp.project.resources import open_stores, stores_of_pep
from pdp.session import Session

COMMANDS_FILE: Final = "commands.yaml"


def _word(word: str, *lines: str) -> str:
    """Return a word if a shell reads it as the last word of one of the lines. FieldError: it does not."""
    from pdp.hooks.shell import literal_words  # noqa: PLC0415 - it needs an extra, and `pdp scan` loads this module

    if all((literal_words(line) or ())[-1:] != (word,) for line in lines):
        raise FieldError(
            "can match nothing: it is not one word as a shell reads it", "`*` and `$` are no patterns here"
        )
    return word


_Program = Annotated[StrictStr, AfterValidator(lambda word: _word(word, word))]
_Word = Annotated[StrictStr, AfterValidator(lambda word: _word(word, f"x '{word}'", f'x "{word}"'))]


class HookCommands(RootModel[dict[_Program, tuple[_Word, ...]]]):
    """As of `HookPolicy`."""


@dataclass(frozen=True, slots=True)
class HookPolicy:
    """What decides calls. `commands`: programs, and words that a shell may give them; `digest`: of HOME's files."""

    home: Path
    pep: Pep
    session: Session
    commands: Mapping[str, tuple[str, ...]]
    digest: str = ""


def default_home() -> Path:
    """Return the HOME that `pdp hook install` makes."""
    return user_config_path("pdp") / "hook"


def open_policy(home: Path, owned: ExitStack) -> HookPolicy:
    """Open what decides by the files of HOME, closed with `owned`. The store is made or brought up to date.

    UsageError: a file is missing or faulty, lies elsewhere, or others can write to it; BundleError, EngineError,
    StoreError: what they name cannot be used.
    """
    file = home / PROJECT_FILE
    try:
        owned.callback(os.close, folder := os.open(home, os.O_RDONLY))
        digest = policy_digest(folder)
    except (NoAnswerError, OSError) as error:
        raise UsageError(f"{home}: {error}") from None
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
    session, commands = read_record(project.session, Session), read_record(home / COMMANDS_FILE, HookCommands).root
    if policy_digest(folder) != digest:
        raise UsageError(f"{home}: its files are being written", hint="try again")
    return HookPolicy(home, pep, session, commands, digest)
