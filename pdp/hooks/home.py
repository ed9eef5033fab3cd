"""Open HOME, the folder with the policy for a user's agents.

HOME contains pdp.yaml, the files named there, commands.yaml, and the folder `state` with store, sockets, locks and log.
No environment variable can move this folder, because files in the workspace could set such a variable.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platformdirs import user_config_path

from pdp.documents import read_record
from pdp.errors import UsageError
from pdp.hooks.ask import NoAnswerError, policy_digest
from pdp.hooks.shapes import CommandShape, HookCommands
from pdp.pep import Pep
from pdp.project.file import PROJECT_FILE, engine_of_project, manifest_of_project, read_project
from pdp.project.resources import open_stores, stores_of_pep
from pdp.session import Session

COMMANDS_FILE: Final = "commands.yaml"


@dataclass(frozen=True, slots=True)
class HookPolicy:
    """The policy that decides hook calls. `commands` are the shapes of commands.yaml by program.

    `digest` identifies the files in HOME. Denials name the file `manifest_file`, if any.
    """

    home: Path
    pep: Pep
    session: Session
    commands: Mapping[str, tuple[CommandShape, ...]]
    digest: str = ""
    manifest_file: Path | None = None


def default_home() -> Path:
    """Return the folder that `pdp hook install` creates.

    Examples:
        >>> default_home().name
        'hook'
    """
    return user_config_path("pdp") / "hook"


def open_policy(home: Path, owned: ExitStack) -> HookPolicy:
    """Open the policy in HOME, and create or migrate its store.

    Args:
        home: the folder HOME.
        owned: the stack that later closes the policy's engine, stores and audit.

    Raises:
        UsageError: a file is missing, faulty or outside `home`, or other users can write the file.
        BundleError, EngineError, StoreError: the bundle, engine or store cannot be used.

    Examples:
        >>> with ExitStack() as owned:  # doctest: +SKIP
        ...     policy = open_policy(default_home(), owned)
        ...     evaluation = policy.pep.decide({"tool": "Read", "arguments": {"file_path": "a"}}, policy.session)
    """
    file = home / PROJECT_FILE
    try:
        owned.callback(os.close, folder := os.open(home, os.O_RDONLY))
        digest = policy_digest(folder)
    except (NoAnswerError, OSError) as error:
        raise UsageError(f"{home}: {error}") from None
    project = read_project(file)
    # The policy's files must be in this folder, because each call compares only the digest of this folder. Other
    # changes would go unnoticed.
    for path in (project.manifest, project.governance, project.session, project.bundle, *project.data):
        if path is not None and path.parent != home:
            raise UsageError(f"{file}: {path} is not in {home}", hint="keep the files of the policy in this folder")
    if project.policies or project.session is None or project.store is None:
        raise UsageError(f"{file}: has `policies`, or no `session` or `store`", hint="name bundle, session and store")
    manifest = manifest_of_project(file, project)
    stores = open_stores(project.store, owned)
    audit = stores.open_audit(None)
    owned.callback(audit.close)
    kept = stores_of_pep(stores, project.public_url)
    pep = Pep(manifest, engine_of_project(project, manifest, owned), audit=audit, **kept)
    session, commands = read_record(project.session, Session), read_record(home / COMMANDS_FILE, HookCommands).programs
    if policy_digest(folder) != digest:
        raise UsageError(f"{home}: the policy's files are being written", hint="try again")
    return HookPolicy(home, pep, session, commands, digest, project.manifest)
