"""The project file `pdp.yaml`: its fields, how it is found, when it is trusted, and how the files it names are opened.

The file selects the policy, so a file that is found by search is trusted only if no other user can write it. A file
that the user names explicitly is always trusted.
"""

import grp
import os
import pwd
import re
import shlex
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StrictBool, StrictStr, ValidationInfo

from pdp.documents import FieldError, read_record
from pdp.engine.protocol import Engine, EngineName
from pdp.errors import UsageError
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.project.resources import engine_of_files
from pdp.stores.url import with_file_in

PROJECT_FILE: Final = "pdp.yaml"
PROJECT_VARIABLE: Final = "PDP_PROJECT"
"""The environment variable with the path of the project file. If it is set but empty, no project file is used."""
# the approver's session file, in the same folder as the project file of a user's own agents
APPROVER_FILE: Final = "approver.yaml"
_PUBLIC_URL: Final = re.compile(
    r"(https://([a-z0-9][a-z0-9.-]*|\[[0-9a-f:.]+\])|http://(localhost|127(\.[0-9]{1,3}){3}|\[::1\]))"
    r"(:[0-9]{1,5})?(/[\w.~-]+)*/?",
    re.ASCII | re.IGNORECASE,
)


def _path(value: Any, info: ValidationInfo) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value or "\0" in value:
        raise FieldError("must be the path of a file or folder")
    return Path(info.context or ".") / value


def _store(value: Any, info: ValidationInfo) -> Any:
    """Return a store's URL. A relative file path in the URL becomes relative to the project file's folder."""
    return with_file_in(Path(info.context or "."), value) if isinstance(value, str) else value


def _public(value: str) -> str:
    if not _PUBLIC_URL.fullmatch(value):
        raise FieldError("must be https://HOST[:PORT][/PATH]; http is enough for a service on this machine")
    return value


PublicUrl = Annotated[StrictStr, AfterValidator(_public)]
ProjectPath = Annotated[Path, BeforeValidator(_path)]
ProjectStore = Annotated[StrictStr, BeforeValidator(_store)]


class Project(BaseModel):
    """The content of a project file, or defaults. All paths already include the file's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: ProjectPath | None = None
    governance: ProjectPath | None = None
    data: tuple[ProjectPath, ...] = ()
    policies: tuple[ProjectPath, ...] = ()
    scenarios: tuple[ProjectPath, ...] = ()
    properties: ProjectPath | None = None
    bundle: ProjectPath | None = None
    session: ProjectPath | None = None
    store: ProjectStore | None = None
    engine: EngineName = "embedded"
    opa_url: StrictStr | None = None
    accept_unknown_opa: StrictBool = False
    public_url: PublicUrl | None = None

    def unbuilt(self) -> Self:
        """Return the project; if it has policies, without its bundle, so that the current policies are used."""
        return self.model_copy(update={"bundle": None}) if self.policies else self


def read_project(file: Path) -> Project:
    """Read a project file that the user has named, without checking who can write it."""
    return read_record(file, Project)


def manifest_of_project(file: Path, project: Project) -> EffectiveManifest:
    """Return the effective manifest of a project. The error for a project without a manifest names `file`."""
    if project.manifest is None:
        raise UsageError(f"{file}: names no manifest", hint="add `manifest: FILE`")
    return load_effective(project.manifest, project.governance)


def engine_of_project(
    project: Project,
    manifest: EffectiveManifest,
    owned: ExitStack,
    engine: EngineName | Engine | None = None,
    opa_token: str | None = None,
) -> Engine:
    """Return an engine for a project and its manifest; see `engine_of_files`. `engine` overrides the project's engine.

    A new engine decides with the project's bundle, or else its policies. A running engine or OPA keeps its own bundle.
    """
    named = project.engine if engine is None else engine
    opa_url = project.opa_url if named == "sidecar" else None
    if isinstance(named, Engine) or opa_url is not None:
        unknown = project.accept_unknown_opa
        return engine_of_files(
            manifest, owned, engine=named, opa_url=opa_url, opa_token=opa_token, accept_unknown_opa=unknown
        )
    policies = () if project.bundle else project.policies
    return engine_of_files(manifest, owned, engine=named, bundle=project.bundle, policies=policies, data=project.data)


def chosen_project() -> Path | None:
    """Return the project file that PDP_PROJECT names. Without PDP_PROJECT, search as `find_project` does."""
    named = os.environ.get(PROJECT_VARIABLE)
    return find_project(Path.cwd()) if named is None else Path(named) if named else None


def find_project(folder: Path) -> Path | None:
    """Return the project file of a folder or of the nearest folder above it, relative to `folder`, or None.

    The search ends at the repository (a folder with `.git`) and at the home folder. Raises `UsageError` if the nearest
    file is not trusted, because skipping it would silently use another project, or none.
    """
    try:
        home = Path.home().resolve()
    except RuntimeError:  # in a container, the user may have no home folder
        home = None
    for above in (folder, *folder.parents):
        file = above / PROJECT_FILE
        if os.path.lexists(file):
            distrust = _distrust(file)
            if distrust is not None:
                raise UsageError(
                    f"{file}: not trusted: {distrust}",
                    hint="correct the owner or the permissions, or set PDP_PROJECT to the file",
                )
            return Path(os.path.relpath(file, folder))
        if above == home or os.path.lexists(above / ".git"):
            return None
    return None


def _distrust(file: Path) -> str | None:
    """Return how another user could have written a file, or None if no other user could have written it."""
    status, folder = file.lstat(), file.parent.stat()
    if not stat.S_ISREG(status.st_mode):
        return "the file is not a regular file"
    if status.st_uid != os.geteuid():
        return "the file belongs to another user"
    if folder.st_uid not in (0, os.geteuid()):
        return "the file's folder belongs to another user"
    for path, checked in ((file, status), (file.parent, folder)):
        if checked.st_mode & stat.S_IWOTH or (checked.st_mode & stat.S_IWGRP and not _is_private(checked.st_gid)):
            return f"other users can write to {path}"
    return None


def _is_private(group: int) -> bool:
    """Return whether a group belongs to the current user alone. Many systems create such a group for every user."""
    try:
        user, members = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and members.gr_name == user.pw_name and set(members.gr_mem) <= {user.pw_name}


def grant_command(file: Path, approval_id: str) -> str:
    """Return the command line that grants an approval of the project in `file`."""
    line, approver = f"pdp approvals grant {approval_id}", file.parent / APPROVER_FILE
    if not approver.is_file():
        return line
    return f"{PROJECT_VARIABLE}={shlex.quote(str(file))} {line} --session {shlex.quote(str(approver))}"
