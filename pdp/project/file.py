"""The project file `pdp.yaml`: its fields, what it opens, where it is looked for, and when it is trusted.

Who writes the file decides what decides. So one that is looked for counts only where nobody but the user can have put
it there; whoever names one has looked at it.
"""

import grp
import os
import pwd
import shlex
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictBool, StrictStr, ValidationInfo

from pdp.documents import FieldError, read_record
from pdp.engine.protocol import Engine, EngineName
from pdp.errors import UsageError
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.project.resources import engine_of_files
from pdp.stores.url import with_file_in

PROJECT_FILE: Final = "pdp.yaml"
PROJECT_VARIABLE: Final = "PDP_PROJECT"
"""Names the project file, instead of looking for one; when it is empty, there is none."""
APPROVER_FILE: Final = "approver.yaml"  # the session to grant by, beside the project file of a person's own agents


def _path(value: Any, info: ValidationInfo) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value or "\0" in value:
        raise FieldError("must be the path of a file or folder")
    return Path(info.context or ".") / value


def _store(value: Any, info: ValidationInfo) -> Any:
    """Return the URL of a store; a file's path in it is relative to the project file's folder, as all paths are."""
    return with_file_in(Path(info.context or "."), value) if isinstance(value, str) else value


ProjectPath = Annotated[Path, BeforeValidator(_path)]
ProjectStore = Annotated[StrictStr, BeforeValidator(_store)]


class Project(BaseModel):
    """What a project file states; nothing of it where there is none. Paths are ready to be opened; docs/project.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: ProjectPath | None = None
    governance: ProjectPath | None = None
    data: tuple[ProjectPath, ...] = ()
    policies: tuple[ProjectPath, ...] = ()
    scenarios: tuple[ProjectPath, ...] = ()
    bundle: ProjectPath | None = None
    session: ProjectPath | None = None
    store: ProjectStore | None = None
    engine: EngineName = "embedded"
    opa_url: StrictStr | None = None
    accept_unknown_opa: StrictBool = False

    def unbuilt(self) -> Self:
        """Return the project without its bundle where it has policies: so an author's last edit decides."""
        return self.model_copy(update={"bundle": None}) if self.policies else self


def read_project(file: Path) -> Project:
    """Read a project file that somebody named."""
    return read_record(file, Project)


def manifest_of_project(file: Path, project: Project) -> EffectiveManifest:
    """Return the effective manifest of the project of a file."""
    if project.manifest is None:
        raise UsageError(f"{file}: states no manifest", hint="add `manifest: FILE`")
    return load_effective(project.manifest, project.governance)


def engine_of_project(
    project: Project, manifest: EffectiveManifest, owned: ExitStack, engine: EngineName | Engine | None = None
) -> Engine:
    """Return the engine that a project states, or `engine`, for its manifest; see `engine_of_files`.

    It decides by the bundle; by the policies where there is no bundle. An engine that runs already has its own.
    """
    named = project.engine if engine is None else engine
    opa_url = project.opa_url if named == "sidecar" else None
    if isinstance(named, Engine) or opa_url is not None:
        unknown = project.accept_unknown_opa
        return engine_of_files(manifest, owned, engine=named, opa_url=opa_url, accept_unknown_opa=unknown)
    policies = () if project.bundle else project.policies
    return engine_of_files(manifest, owned, engine=named, bundle=project.bundle, policies=policies, data=project.data)


def chosen_project() -> Path | None:
    """Return the project file that the environment names, or that is found from the current folder; None: neither."""
    named = os.environ.get(PROJECT_VARIABLE)
    return find_project(Path.cwd()) if named is None else Path(named) if named else None


def find_project(folder: Path) -> Path | None:
    """Return the project file of a folder or of the nearest one above it, as a path from `folder`; None: there is none.

    The search ends with the repository (the folder that has `.git`) and with the home folder.

    UsageError: the nearest one is not to be trusted; passed over, another one, or none, would decide silently.
    """
    try:
        home = Path.home().resolve()
    except RuntimeError:  # a user without one, as in some containers
        home = None
    for above in (folder, *folder.parents):
        file = above / PROJECT_FILE
        if os.path.lexists(file):
            distrust = _distrust(file)
            if distrust is not None:
                raise UsageError(f"{file}: not used: {distrust}", hint="mend that, or name the file in PDP_PROJECT")
            return Path(os.path.relpath(file, folder))
        if above == home or os.path.lexists(above / ".git"):
            return None
    return None


def _distrust(file: Path) -> str | None:
    """Return why somebody else may have written a file; None: nobody else can."""
    status, folder = file.lstat(), file.parent.stat()
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    if folder.st_uid not in (0, os.geteuid()):
        return "its folder belongs to another user"
    for path, checked in ((file, status), (file.parent, folder)):
        if checked.st_mode & stat.S_IWOTH or (checked.st_mode & stat.S_IWGRP and not _is_private(checked.st_gid)):
            return f"others can write to {path}"
    return None


def _is_private(group: int) -> bool:
    """Return whether a group is the user's own, as many systems give one to every user and let it write."""
    try:
        user, members = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and members.gr_name == user.pw_name and set(members.gr_mem) <= {user.pw_name}


def grant_command(file: Path, approval_id: str) -> str:
    """Return the command line by which a person grants an approval of the project of this file."""
    line, approver = f"pdp approvals grant {approval_id}", file.parent / APPROVER_FILE
    if not approver.is_file():
        return line
    return f"{PROJECT_VARIABLE}={shlex.quote(str(file))} {line} --session {shlex.quote(str(approver))}"
