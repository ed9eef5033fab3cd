"""Each path belongs to a region, such as inside or outside of the workspace, however the path is written."""

import os
import shutil
import sys
from pathlib import Path

import pytest

import pdp
from pdp.hooks.call import HookLimitError
from pdp.hooks.home import default_home
from pdp.hooks.workspace import Region, Workspace


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the home folder of a user, with a repository, a hook's HOME, and links between these folders."""
    person = tmp_path / "person"
    monkeypatch.setenv("HOME", str(person))
    for folder in (".config/guard/hook/state", "work/.git/hooks", "work/src/deep", "work2", "other"):
        (person / folder).mkdir(parents=True)
    (person / ".config/guard/hook/session.yaml").touch()
    links = {
        "work/out": person / "other",
        "work/policy": person / ".config/guard/hook",
        "work/file": person / ".config/guard/hook/session.yaml",
        "work/up": Path("src/.."),
        "work/loop": Path("loop"),
        "work/gone": person / "not there",
        "work/git": Path(".git"),
        "work/src/deep/far": person / "other",
        "work/self": Path("/proc/self/cwd"),
        "into": person / "work",
        "hooked": person / ".config",
    }
    for name, target in links.items():
        (person / name).symlink_to(target)
    return person


def region(person: Path, path: str, cwd: str = "work", *, writes: bool = False, below: bool = False) -> Region:
    workspace = Workspace(str(person / cwd), person / ".config/guard/hook")
    return workspace.region(path.replace("PERSON", str(person)), writes=writes, below=below)


INSIDE = [
    "a.txt", "src/new/file", ".", "./", "src/../a", "PERSON/work/a", "PERSON/work", "//PERSON/work/a", "up/a", " a ",
    "~x",
    "file:src/a", "file://PERSON/work/a", "FILE:///PERSON/work/a", "src/deep/../../a", "a/./b//c", "...",
    "out/../work/a", "-rf", "$x", "*",
    "PERSON/into/a", "~/work/a",
    "git", "\u00e4", "a\u202fb", ".gitignore", ".git", ".git/config", ".claude/settings.json",
]  # fmt: skip
OUTSIDE = [
    "..", "../", "../work2/a", "PERSON/work2/a", "PERSON", "/", "/etc/passwd", "~", "~/other", "~root/x",
    "src/../../other",
    "out", "out/a", "out/../other/a", "src/deep/far/x", "gone", "/proc/self/cwd/a", "/dev/fd/3", "self/a", "", "\0",
    "a\0b", "a\nb", "a\x7f",
    "a" * 5000, "PERSON/worker", "PERSON/wor", "PERSON/work/../other", "file:///etc/passwd",
    "file://localhost/etc/passwd",
    "file:/etc/passwd", " /etc/passwd", "/etc/passwd\n", "file:///%65tc/passwd", "\t~/other", "PERSON/WORK/a",
    "\ufeff/etc/passwd", "\ufeffa", "a\ufeff", "\u00a0a", "\x1ca", "file\u200b\ufeff/a\u200b", "\ufeff",
    "\u2003~/other",
]  # fmt: skip
GUARD = [
    "PERSON/.config/guard/hook", "PERSON/.config/guard/hook/session.yaml", "~/.config/guard/hook/state/store.db",
    "policy",
    "policy/new", "file", "../.config/guard/hook/x", "src/../../.config/guard/hook/x", "out/../.config/guard/hook/x",
    "file://PERSON/.config/guard/hook/x", " ~/.config/guard/hook/x", "~/hooked/guard/hook",
    "PERSON/.CONFIG/GUARD/HOOK/x", "PERSON/.config/guard/hook/not/there/yet",
    "/proc/self/root/PERSON/.config/guard/hook",
    "PERSON/.config/\u200bguard/hook/x", "PERSON/.config/\uff47uard/hook/x", "file:///PERSON/.config/%67uard/hook/x",
    "src/deep/far/../.config/guard/hook", "x\ny/../policy", "x" * 5000 + "/../policy",
"\ufeffPERSON/.config/guard/hook/x", "policy\ufeff", "\u2029~/.config/guard/hook/state",
]  # fmt: skip
WRITE_GUARD = [
    ".git", ".git/config", ".git/hooks/pre-commit", "sub/.git/config", ".GIT/config", ".gi\u200bt/config", "git/config",
    ".claude/settings.json", ".claude/settings.local.json", ".Claude/settings.json", "~/.claude.json", "~/.claude/x",
    ".codex/hooks.json", ".cursor/hooks.json", ".gemini/settings.json", ".copilot/x", ".github/hooks/x.json",
    ".github//hooks/x", ".mcp.json", ".pdp-hook.yaml", "src/.pdp-hook.yaml", str(Path(pdp.__file__).parent / "pep.py"),
    ".claude/worktrees/a/.claude/settings.json", "src/../.git/config", "out/../.claude/x", ".vscode/settings.json",
    ".vscode/mcp.json",
    ".gitconfig", ".github/copilot/settings.json", ".github/lsp.json", ".github/mcp.json", "\ufeff.git/config",
    *([f"{sys.prefix}/bin/python"] if sys.prefix != sys.base_prefix else []),
]  # fmt: skip
WRITE_INSIDE = [
    ".gitignore", "src/.gitkeep", ".editorconfig", ".claude/worktrees/a/x", "claude/x", "a.git/config", "Makefile",
    "conftest.py", "package.json", "src/jenkins.py", "env", "server.key", "mise.py", "shells.json",
]  # fmt: skip
WRITE_ASKS = [
    ".github/workflows/x.yml", ".github/actions/a/action.yml", ".github/agents/a.md", ".gitlab-ci.yml", ".gitmodules",
    ".circleci/config.yml", ".travis.yml", ".drone.yml", ".woodpecker/x.yml", ".buildkite/x", ".cirrus.yml",
    ".teamcity/x", ".semaphore/semaphore.yml", "azure-pipelines.yml", "bitbucket-pipelines.yml", "Jenkinsfile",
    "ci/Jenkinsfile.release", "appveyor.yml", "cloudbuild.yaml", "buildspec.yml", "zuul.yaml", "netlify.toml",
    ".husky/pre-commit", ".githooks/pre-commit", "githooks/x", ".pre-commit-config.yaml", "lefthook.yml", ".envrc",
    ".env", ".env.local", "sub/.env", ".ENV", "mise.toml",
    "flake.nix", "shell.nix", "devbox.json", "captainhook.json", ".vscode/tasks.json",
    ".tool-versions", ".devcontainer/devcontainer.json",
    ".devcontainer.json", "devfile.yaml", ".idea/workspace.xml", "a.code-workspace", ".zed/tasks.json", ".npmrc",
    ".yarnrc.yml", ".cargo/config.toml", ".venv/bin/bash", "node_modules/.bin/bash", ".gitattributes", ".exrc",
    "src/../.env", "work/../.env", ".claude/worktrees/a/.env", "PERSON/work/.env", "PERSON/into/.env", ".\u200benv",
]  # fmt: skip
READ_ASKS = [
    ".env", ".env.production", "sub/.env", ".ENV", "prod.env", ".envrc", "tls/server.key", "cert.pem", "id_ed25519",
    ".netrc", ".npmrc", ".pypirc", ".aws/credentials", ".ssh/config", "infra/x.tfvars", "credentials.json",
    "config/secrets.yml", "my-service-account-1.json", "release.jks",
    "kubeconfig.yaml", ".vault-token", "file:.env", "\ufeff.env",
]  # fmt: skip
READ_INSIDE = [
    ".env.example", ".env.sample", "id_rsa.pub", "environment.py", "keys.py", "credentials/store.py", "secrets.py",
    "src/env", ".github/workflows/x.yml",
]  # fmt: skip


@pytest.mark.parametrize("path", INSIDE, ids=ascii)
def test_path_in_the_workspace_has_the_region_inside(person: Path, path: str) -> None:
    assert region(person, path) is Region.INSIDE


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: ascii(path[:40]))
def test_path_outside_of_the_workspace_has_the_region_outside(person: Path, path: str) -> None:
    assert region(person, path) is Region.OUTSIDE


@pytest.mark.parametrize("path", GUARD, ids=ascii)
def test_policy_files_and_links_to_policy_files_are_guarded(person: Path, path: str) -> None:
    assert region(person, path) is Region.GUARD


@pytest.mark.parametrize("path", range(len(WRITE_GUARD)))
def test_writing_files_that_select_programs_to_run_is_guarded(person: Path, path: int) -> None:
    assert region(person, WRITE_GUARD[path], writes=True) is Region.GUARD


@pytest.mark.parametrize("path", WRITE_INSIDE)
def test_files_with_names_similar_to_guarded_ones_can_be_written(person: Path, path: str) -> None:
    assert region(person, path, writes=True) is Region.INSIDE


def test_writing_files_that_run_automatically_needs_approval(person: Path) -> None:
    found = {path: region(person, path, writes=True) for path in WRITE_ASKS}
    assert {path for path, each in found.items() if each is not Region.OUTSIDE} == set()


def test_reading_secret_files_needs_approval(person: Path) -> None:
    assert {path for path in READ_ASKS if region(person, path) is not Region.OUTSIDE} == set()
    assert {path for path in READ_INSIDE if region(person, path) is not Region.INSIDE} == set()
    (person / "work/plain.txt").symlink_to(".env")
    workspace = Workspace(str(person / "work"), person / ".config/guard/hook")
    for path in (*READ_ASKS, "plain.txt", "~/.ssh/known_hosts", "/etc/x.key", ".docker/config.json", "~/.kube/config"):
        assert workspace.is_secret(path), path
    assert {path for path in (*READ_INSIDE, "/etc/passwd", "", "..", "~") if workspace.is_secret(path)} == set()
    assert region(person, "plain.txt") is Region.OUTSIDE
    assert region(person, "plain.txt", writes=True) is Region.OUTSIDE


def test_too_long_paths_and_commands_are_rejected(person: Path) -> None:
    workspace = Workspace(str(person / "work"), person / ".config/guard/hook")
    for call in (
        lambda: workspace.region("a/" * 300),
        lambda: workspace.words(" ".join(f"a/{number}" for number in range(5000))),
        lambda: [workspace.region("a/" * 200) for _ in range(500)],
        lambda: Workspace("/a" * 300, person),
    ):
        with pytest.raises(HookLimitError, match=r"^hook\.limit_exceeded: "):
            call()


@pytest.mark.parametrize("path", ["~", "/", "..", "~/.config", "~/.config/guard", "out/..", "../.CONFIG"])
def test_search_in_a_folder_that_contains_the_policy_is_guarded(person: Path, path: str) -> None:
    assert region(person, path, below=True) is Region.GUARD
    assert region(person, "..", cwd="other", below=True) is Region.GUARD
    assert region(person, "src", below=True) is Region.INSIDE


@pytest.mark.parametrize(
    ("cwd", "path", "found"),
    [
        # The workspace is the whole repository, not only the working folder.
        ("work/src/deep", "../../a", Region.INSIDE),
        ("into", "a", Region.INSIDE),
        ("into/src", "../a", Region.INSIDE),
        ("work2", "a", Region.INSIDE),  # Outside of a repository, the workspace is the working folder.
        ("work2", "../work/a", Region.OUTSIDE),
        # The home folder or a folder above it is no workspace.
        (".", "work/a", Region.OUTSIDE),
        ("..", "person/work/a", Region.OUTSIDE),
        ("/", "etc/passwd", Region.OUTSIDE),
        ("not there", "a", Region.OUTSIDE),
        ("work/file", "a", Region.GUARD),
        ("work/loop", "a", Region.OUTSIDE),
        ("work/out", "a", Region.INSIDE),  # `work/out` is the working folder of the client.
        (".config/guard/hook/state", "a", Region.GUARD),
    ],
)
def test_workspace_is_found_from_each_working_folder(person: Path, cwd: str, path: str, found: Region) -> None:
    assert region(person, path, cwd) is found


def test_policy_files_of_the_mcp_gateway_are_guarded(person: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    policies = default_home().parent
    (policies.parent / ".git").mkdir(parents=True, exist_ok=True)
    cwd = str(policies.parent.relative_to(person))
    assert region(person, "other", cwd, writes=True) is Region.INSIDE
    assert region(person, "pdp/gateway/x/governance.yaml", cwd, writes=True) is Region.GUARD


def test_removed_working_folder_has_no_workspace(person: Path) -> None:
    shutil.rmtree(person / "work2")
    assert region(person, "a", "work2") is Region.OUTSIDE


def test_home_folder_that_is_a_repository_is_not_a_workspace(person: Path) -> None:
    (person / ".git").mkdir()
    assert region(person, "../other", "work2") is Region.OUTSIDE
    assert region(person, "other", ".") is Region.OUTSIDE


NAMING = [
    "pdp", "pdp approvals grant x", "/usr/bin/pdp x", "python -m pdp x", "python3 -mpdp.cli", "python -Impdp",
    "p''dp x", 'p"d"p x', "p\\dp x",
    "'pdp' x", "$'pdp' x", "p\\\ndp x", "x=pdp; $x", "echo | pdp", "$(pdp)", "`pdp`", "PDP x", "env pdp", "(pdp)",
    "a&&pdp", "\uff50dp",
    "cat ~/.config/guard/hook/session.yaml", "cat $HOME/.config/guard/hook/x", "cat ${HOME}/.config/guard/hook",
    "cat policy/x", "cat 'policy'/x",
    "cat PERSON/hooked/guard/hook/x", "rm -r .claude", "vi .claude/settings.json", "echo x >.git/hooks/pre-commit",
    "cat .git//config",
    "sed -i s/a/b/ .codex/hooks.json", "cp x .github/hooks/", "rm .pdp-hook.yaml", "tee .mcp.json", "cat <file",
    "ls file",
    "python /INSTALLED/hooks/ask.py", "cat --file=PERSON/.config/GUARD/hook/x", "cd ~/.config && rm -r pdp",
    "rm -r .CLAUDE",
]  # fmt: skip
NOT_NAMING = [
    "git status", "make", "grep -r --exclude-dir=.git x", "find . -not -path './.git/*'", "echo tool-pdp",
    "cat pdpx", "ls ~", "",
    "cd / && ls", "cat .gitignore", "git clone https://x/y.git", "ls .claudeignore", "cat a.claude",
    "python -m http.server", "\0",
    "cat " + "a" * 9000, "cat ~/.config/other", "ls .github/workflows", "cat .claude/worktrees/a/b",
    "cat pdp-notes.txt", "'", "\\",
]  # fmt: skip


@pytest.mark.parametrize("line", range(len(NAMING)))
def test_command_line_that_names_a_guarded_path_is_recognised(person: Path, line: int) -> None:
    workspace = Workspace(str(person / "work"), person / ".config/guard/hook")
    text = NAMING[line].replace("PERSON", str(person)).replace("/INSTALLED", str(Path(pdp.__file__).parent))
    assert workspace.names_guard(text, workspace.words(text))


@pytest.mark.parametrize("line", range(len(NOT_NAMING)))
def test_command_line_without_a_guarded_path_is_not_reported(person: Path, line: int) -> None:
    workspace = Workspace(str(person / "work"), person / ".config/guard/hook")
    assert not workspace.names_guard(NOT_NAMING[line], workspace.words(NOT_NAMING[line]))


def test_git_settings_are_guarded_in_a_git_folder_of_any_name(person: Path) -> None:
    shutil.rmtree(person / "work/.git")
    (person / "work/.git").write_text("gitdir: ./bare\n")
    (person / "work/bare/objects").mkdir(parents=True)
    assert region(person, "bare/config", writes=True) is Region.INSIDE
    (person / "work/bare/HEAD").touch()
    assert region(person, "bare/config", writes=True) is Region.GUARD
    assert region(person, "src/../bare/worktrees/a/config.worktree", writes=True) is Region.GUARD
    assert region(person, "bare/config") is Region.INSIDE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_repository_of_another_user_does_not_widen_the_workspace(person: Path) -> None:
    (person / "shared/work").mkdir(parents=True)
    (person / "shared/.git").mkdir()
    assert region(person, "../a", "shared/work") is Region.INSIDE
    os.chown(person / "shared/.git", 65534, 65534)
    assert region(person, "../a", "shared/work") is Region.OUTSIDE


def test_folder_that_git_treats_as_a_repository_is_recognised(person: Path) -> None:
    def found(cwd: str) -> bool:
        return Workspace(str(person / cwd), person / ".config/guard/hook").has_foreign_repository()

    (person / "HEAD").touch()
    assert [found("work"), found("work/src/deep")] == [False, False]
    (person / "work/src/HEAD").symlink_to("gone")
    assert [found("work"), found("work/src/deep"), found("work/src")] == [False, True, True]
