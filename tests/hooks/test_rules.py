"""A repository's `.pdp-hook.yaml` has rules that match calls. A rule that can match no call is a fault."""

import os
from pathlib import Path

import pytest

from pdp.errors import FileFaultsError, UsageError
from pdp.hooks.rules import RepositoryRules, repository_rules
from pdp.hooks.workspace import Workspace

ENTRIES = ["read_file", "run_command", "search_web", "mcp__github__create_issue", "project.mcp__mail__send"]
PROGRAMS = ["git", "ls", "pytest"]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work/.git").mkdir(parents=True)
    return tmp_path / "work"


def rules(work: Path, text: str | None = None, cwd: str = ".") -> RepositoryRules:
    if text is not None:
        (work / ".pdp-hook.yaml").write_text(text)
    return repository_rules(Workspace(str(work / cwd), work.parent / "policy").folders, ENTRIES, PROGRAMS)


FAULTS = [
    ("allow: [read_file]", "1:1: unknown key `allow`"),
    ("deny: read_file", "1:7: `deny` must be a list, not `read_file`"),
    ("deny: [1]", "1:8: `deny[0]` must be a string, not `1`"),
    ("deny: [", "2:1: "),
    ("- deny", "1:1: "),
    ("deny: [read_fiel]", "1:8: `deny[0]` matches nothing, because the manifest has no such entry", "`read_file`?"),
    ("hold: [read_file, Search_Web]", "1:19: `hold[1]` matches nothing", "did you mean `search_web`?"),
    ("deny: [Read]", "1:8: `deny[0]` matches nothing", "did you mean `read_file`?"),
    ("deny: ['Bash(rm:*)']", "1:8: `deny[0]` matches nothing", "Read(PATH)"),
    ("deny: [mcp__gihtub]", "1:8: `deny[0]` matches nothing, because the manifest has no such entry", "mcp__SERVER"),
    ("deny: ['mcp__GitHub__*']", "1:8: `deny[0]` matches nothing"),
    ("deny: [mcp__github__create_isue]", "1:8: ", "did you mean `mcp__github__create_issue`?"),
    ("deny: ['Read()']", "1:8: `deny[0]` matches nothing, because it is not a path"),
    ("deny: ['Read(/etc/passwd)']", "1:8: ", "the root (//a)"),
    ("deny: ['Read([ab].txt)']", "1:8: "),
    ("deny: ['Edit(src/*/../a)']", "1:8: "),
    ("deny: ['Edit({a,b})']", "1:8: "),
    ('deny: ["Read(a\\nb)"]', "1:8: "),
    ("deny: ['Read(.)']", "1:8: "),
    ("deny: ['Read(**/a/**/b/**)']", "1:8: "),
    ("deny: ['Read(*a*b*)']", "1:8: "),
    ("deny: ['mcp__*a*a*a*a']", "1:8: `deny[0]` has more than 3 `*`", "write several rules"),
    ("commands_without: ['git status']", "1:20: `commands_without[0]` matches nothing", "git, ls, pytest"),
    ("commands_without: ['git *']", "1:20: `commands_without[0]` matches nothing"),
    ("commands_without: [Git]", "1:20: `commands_without[0]` matches nothing", "did you mean `git`?"),
    ("commands_without: [make]", "1:20: ", "listed there: git, ls, pytest"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
def test_repository_rule_that_can_match_nothing_is_a_fault_with_a_location(work: Path, fault: tuple[str, ...]) -> None:
    text, said, *hint = fault
    with pytest.raises(FileFaultsError) as caught:
        rules(work, f"{text}\n")
    assert str(caught.value).startswith(f"{work}/.pdp-hook.yaml:{said}")
    assert all(each in str(caught.value) for each in hint)


@pytest.mark.parametrize("kind", ["link", "folder", "fifo", "lost"])
def test_repository_rules_file_that_is_not_a_regular_file_is_an_error(work: Path, kind: str) -> None:
    file = work / ".pdp-hook.yaml"
    match kind:
        case "link":
            file.symlink_to(work / ".git")
        case "folder":
            file.mkdir()
        case "fifo":
            os.mkfifo(file)
        case _:
            file.symlink_to("gone")
    with pytest.raises(UsageError, match="is not a regular file"):
        rules(work)


def test_rules_files_in_parent_folders_within_the_repository_apply(work: Path) -> None:
    assert rules(work) == RepositoryRules()
    (work / "src/deep").mkdir(parents=True)
    (work.parent / ".pdp-hook.yaml").write_text("deny: [read_file]\n")
    (work / "src/.pdp-hook.yaml").write_text("commands_without: [ls]\n")
    found = rules(work, "{hold: [run_command, mcp__github], commands_without: [git]}\n", "src/deep")
    assert (len(found.deny), len(found.hold), found.commands_without) == (1, 2, ("ls", "git"))


@pytest.mark.parametrize(
    ("rule", "tools"),
    [
        ("mcp__github", ["mcp__github__create_issue", "mcp__github__x", "project.mcp__github__x", "mcp_github_x"]),
        ("mcp__github__*", ["mcp__github__create_issue", "plugin.mcp__github__x"]),
        ("mcp__github__create_issue", ["mcp__github__create_issue", "project.mcp__github__create_issue"]),
        ("mcp__mail__send", ["mcp__mail__send", "project.mcp__mail__send", "mcp_mail_send"]),
        ("mcp__github__create_*", ["mcp__github__create_issue", "mcp__github__create_pull"]),
        ("read_file", ["read_file"]),
    ],
)
def test_repository_rule_can_name_a_server_or_a_single_tool_of_a_server(
    work: Path, rule: str, tools: list[str]
) -> None:
    (only,) = rules(work, f"deny: ['{rule}']\n").deny
    others = ["mcp__git__hub", "mcp__githubs__x", "mcp__gitlab__x", "read_files", "x.read_file", "mcp__mail__sent"]
    assert [tool for tool in (*tools, *others) if only.matches({"names": {tool}})] == tools


PATHS = {
    "./.env": ([".env", "src/../.env", "WORK/.env", ".ENV", "link", " .env ", "\ufeff.env", "file:.env", "up/.env",
                "~/work/.env", ".env/below", "in/.env"], ["env", ".envx", "src/.env", "/.env"]),
    " .env ": ([".env", "src/.env"], [".env.local"]),
    ".env": ([".env", "src/.env", "src/deep/.env"], [".env.local"]),
    "*.pem": (["a.pem", "src/b.PEM"], ["a.pem.txt", "apem"]),
    "src/**": (["src", "src/a", "src/deep/b", "to-src/a", "WORK/src/a"], ["srcs/a", "a/src/b", "."]),
    "src/*.py": (["src/a.py", "src/*.py"], ["src/deep/a.py", "src/a.pyc"]),
    "**/gen/*.py": (["gen/a.py", "src/gen/a.py", "src/deep/gen/b.py"], ["gen/deep/a.py", "gens/a.py"]),
    "src/**/a?.txt": (["src/a1.txt", "src/deep/x/ab.txt"], ["src/a.txt", "a1.txt"]),
    "to-src/a": (["to-src/a", "src/a"], ["src/b"]),
    "~/other/*": (["~/other/a", "../other/a", "HOME/other/b/c"], ["../others/a"]),
    "//etc/**": (["/etc/passwd", "//etc/passwd", "file:///etc/passwd"], ["etc/passwd"]),
    "../other": (["../other/a"], ["other"]),
    "src/**/**/x": (["src/x"], ["src/" + "a/" * 200 + "y"]),
}  # fmt: skip


@pytest.mark.parametrize("pattern", PATHS)
def test_repository_rule_matches_a_path_however_the_path_is_written(work: Path, pattern: str) -> None:
    (work / "src/deep").mkdir(parents=True)
    for name, target in {"link": ".env", "up": "src/..", "to-src": "src", "in": str(work)}.items():
        (work / name).symlink_to(target)
    matched, others = PATHS[pattern]
    places = {"WORK": str(work), "HOME": str(work.parent)}
    for place, path in places.items():
        matched = [each.replace(place, path) for each in matched]
    workspace = Workspace(str(work), work.parent / "policy")
    for kind in ("Read", "Edit", "Write"):
        (only,) = rules(work, f"deny: ['{kind}({pattern})']\n").deny
        found: dict[bool, list[str]] = {True: [], False: []}
        for path in (*matched, *others):
            paths = {"reads": workspace.names(path), "writes": set[str]()}
            turned = {"reads": paths["writes"], "writes": paths["reads"]}
            paths, other = (paths, turned) if kind == "Read" else (turned, paths)
            found[only.matches(paths)].append(path)
            assert not only.matches(other)
        assert found == {True: matched, False: others}
