"""Each built-in tool of a client is translated to a manifest entry and to the file paths that the call touches."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdp.hooks.call import BuiltIn, HookCall, HookLimitError, Kind, Moment
from pdp.hooks.shapes import HookCommands
from pdp.hooks.translation import Touched, Translated, shown, translate
from pdp.hooks.workspace import Workspace

COMMANDS = HookCommands(
    runs=["git status|log", "pwd", "cat <path>", "cd <path>", "grep [-r] <text> [<path>]"], once_a_run=["make test"]
).programs
GUARD = ("guard.own",)
PATCH = "*** Begin Patch\n*** Update File: {}\n@@\n a\n-b\n+*** Update File: /c\n+d\n*** End of File\n*** End Patch"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("work/.git", "work/src", ".config/hook"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "work/out").symlink_to(tmp_path)
    (tmp_path / "work/policy").symlink_to(tmp_path / ".config/hook")
    return tmp_path / "work"


def translated(work: Path, built_in: BuiltIn | None, arguments: dict[str, Any], tool: str = "Tool") -> Translated:
    call = HookCall("claude-code", Moment.BEFORE, "s1", "c1", tool, arguments, str(work), built_in)
    done = translate(call, Workspace(str(work), work.parent / ".config/hook"), COMMANDS)
    return done._replace(touched=Touched())


def entry(name: str, arguments: dict[str, Any], target: str | None, *markings: str) -> Translated:
    return Translated(name, {"tool": "Tool", "input": arguments, "target": target}, target or "", markings)


PATH = ("file_path",)
ENTRIES: list[tuple[Kind, tuple[str, ...], dict[str, Any], str, str, tuple[str, ...]]] = [
    (Kind.READ, PATH, {"file_path": "a"}, "read_file", "a", ()),
    (Kind.READ, PATH, {"file_path": ".git/config"}, "read_file", ".git/config", ()),
    (Kind.READ, PATH, {"file_path": "../a"}, "reach_outside", "../a", ()),
    (Kind.READ, PATH, {"file_path": "~/.config/hook/x"}, "reach_outside", "~/.config/hook/x", GUARD),
    (Kind.READ, ("paths",), {"paths": ["a", "b"]}, "read_file", "a\nb", ()),
    (Kind.READ, ("paths",), {"paths": ["a", "/b"]}, "reach_outside", "a\n/b", ()),
    (Kind.READ, ("paths",), {"paths": ["a", "/b", "~/.config/hook"]}, "reach_outside", "a\n/b\n~/.config/hook", GUARD),
    (Kind.WRITE, PATH, {"file_path": "a", "content": "~/.config/hook"}, "write_file", "a", ()),
    (Kind.WRITE, PATH, {"file_path": ".git/config"}, "reach_outside", ".git/config", GUARD),
    (Kind.WRITE, PATH, {"file_path": "src/../.git/hooks/x"}, "reach_outside", "src/../.git/hooks/x", GUARD),
    (Kind.SEARCH, ("path",), {"pattern": "a"}, "search_files", "CWD", ()),
    (Kind.SEARCH, ("path",), {"path": None}, "search_files", "CWD", ()),
    (Kind.SEARCH, ("path",), {"path": "src"}, "search_files", "src", ()),
    (Kind.SEARCH, ("path",), {"path": "out"}, "reach_outside", "out", GUARD),
    (Kind.SEARCH, ("path",), {"path": "/etc"}, "reach_outside", "/etc", ()),
    (Kind.SEARCH, ("path",), {"path": "/"}, "reach_outside", "/", GUARD),
    (Kind.SEARCH, ("path", "pattern"), {"pattern": "**/*.py"}, "search_files", "CWD\n**/*.py", ()),
    (Kind.SEARCH, ("path", "pattern"), {"pattern": "**/*.{py,md}"}, "search_files", "CWD\n**/*.{py,md}", ()),
    (Kind.SEARCH, ("path", "pattern"), {"pattern": "/etc/*"}, "reach_outside", "CWD\n/etc/*", ()),
    (Kind.SEARCH, ("path", "pattern"), {"pattern": "src/{a,b}/*"}, "search_files", "CWD\nsrc/{a,b}/*", ()),
    (Kind.SEARCH, ("path", "pattern"), {"pattern": "{src,a}/*"}, "search_files", "CWD\n{src,a}/*", ()),
    (Kind.SEARCH, ("path", "pattern"), {"pattern": "~/{a,b}"}, "reach_outside", "CWD\n~/{a,b}", GUARD),
    (Kind.SEARCH, ("path", "pattern"), {"pattern": "{/etc,/x}/*"}, "reach_outside", "CWD\n{/etc,/x}/*", ()),
    (Kind.SEARCH, ("path", "pattern"), {"pattern": "src/{..,a}/../*"}, "reach_outside", "CWD\nsrc/{..,a}/../*", ()),
    (Kind.SEARCH, ("path", "pattern"), {"path": "src", "pattern": "../src/*"}, "reach_outside", "src\n../src/*", ()),
    (Kind.FETCH, ("url",), {"url": "https://a.example/b?c=d#e"}, "fetch_url", "https://a.example/b?c=d#e", ()),
    (Kind.FETCH, ("url",), {"url": "HTTP://a.example:80"}, "fetch_url", "HTTP://a.example:80", ()),
    (Kind.FETCH, ("url",), {"url": "file:///etc/passwd"}, "reach_outside", "file:///etc/passwd", ()),
    (Kind.FETCH, ("url",), {"url": "file:///"}, "reach_outside", "file:///", GUARD),
    (Kind.FETCH, ("url",), {"url": "ftp://a.example/"}, "reach_outside", "ftp://a.example/", ()),
    (Kind.FETCH, ("url",), {"url": "https://u:p@a.example/"}, "reach_outside", "https://u:p@a.example/", ()),
    (Kind.FETCH, ("url",), {"url": "https://a.example/ x"}, "reach_outside", "https://a.example/ x", ()),
    (Kind.FETCH, ("url",), {"url": "https://\u0430.example/"}, "reach_outside", "https://\u0430.example/", ()),
    (Kind.FETCH, ("url",), {"url": "a"}, "reach_outside", "a", ()),
    (Kind.WEB_SEARCH, ("query",), {"query": "~/.config/hook"}, "search_web", "~/.config/hook", ()),
    (Kind.DELEGATE, (), {"prompt": "a"}, "delegate_task", "Tool", ()),
    (Kind.PLAN, (), {"todos": []}, "plan_work", "Tool", ()),
    (Kind.SHELL, ("command",), {"command": "git status"}, "run_listed_command", "git status", ()),
    (Kind.SHELL, ("command",), {"command": "pwd", "description": "x", "timeout": 9}, "run_listed_command", "pwd", ()),
    (Kind.SHELL, ("command",), {"command": "pwd", "run_in_background": True}, "run_command", "pwd", ()),
    (Kind.SHELL, ("command",), {"command": "pwd", "dangerouslyDisableSandbox": False}, "run_command", "pwd", ()),
    (Kind.SHELL, ("command",), {"command": "pwd", "timeout": True}, "run_command", "pwd", ()),
    (Kind.SHELL, ("command",), {"command": "pwd", "workdir": "src"}, "run_command", "pwd", ()),
    (Kind.SHELL, ("command",), {"command": "pwd", "workdir": "../.config/hook"}, "reach_outside", "pwd", GUARD),
    (Kind.SHELL, ("command",), {"command": ["git", "status"]}, "run_command", "git\nstatus", ()),
    (Kind.SHELL, ("command",), {"command": "git status; pwd"}, "run_listed_command", "git status; pwd", ()),
    (Kind.SHELL, ("command",), {"command": "cat a"}, "run_listed_command", "cat a", ()),
    (Kind.SHELL, ("command",), {"command": "cat .env"}, "run_command", "cat .env", ()),
    (Kind.SHELL, ("command",), {"command": "cat out/a"}, "run_command", "cat out/a", ()),
    (Kind.SHELL, ("command",), {"command": "cat policy/x"}, "reach_outside", "cat policy/x", GUARD),
    (Kind.SHELL, ("command",), {"command": "pdp"}, "reach_outside", "pdp", GUARD),
]  # fmt: skip


@pytest.mark.parametrize("row", range(len(ENTRIES)))
def test_built_in_calls_are_translated_to_manifest_entries(work: Path, row: int) -> None:
    kind, names, arguments, name, target, markings = ENTRIES[row]
    expected = entry(name, arguments, target.replace("CWD", str(work)), *markings)
    assert translated(work, BuiltIn(kind, names), arguments)._replace(shape="") == expected


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.SEARCH])
@pytest.mark.parametrize("value", [None, 1, "", [], ["a", 1], [None], {"a": "b"}, [["a"]]], ids=repr)
def test_translated_hook_call_has_a_null_target_if_the_path_is_missing(work: Path, kind: Kind, value: Any) -> None:
    done = translated(work, BuiltIn(kind, ("a", "b")), {"a": "x", "b": value})
    assert (done.arguments["target"], done.target) == (None, "")


def test_file_path_that_looks_like_a_patch_is_not_parsed_as_a_patch(work: Path) -> None:
    path = "*** Begin Patch\n*** Add File: a\n+/../../other/b\n*** End Patch"
    assert translated(work, BuiltIn(Kind.WRITE, PATH), {"file_path": path}).tool == "reach_outside"
    assert translated(work, BuiltIn(Kind.WRITE, PATH), {"file_path": ["a", "../b"]}).tool == "reach_outside"


def test_git_command_is_not_listed_in_a_folder_that_looks_like_a_repository(work: Path) -> None:
    (work / "HEAD").touch()
    arguments = {"command": "git status"}
    assert translated(work, BuiltIn(Kind.SHELL, ("command",)), arguments) == entry(
        "run_command", arguments, "git status"
    )


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("make test", "make test"),
        ("git status -x", None),
        ("git log | grep 'a' && make test", "git log | grep [-r] <text> [<path>] && make test"),
        ("cd 'src' && make test 2>&1", "cd src && make test"),
        ("make test && cat a", None),
        ("cd src; make test", None),
    ],
)
def test_command_that_needs_one_approval_in_a_run_has_its_shape_and_folder(
    work: Path, line: str, shape: str | None
) -> None:
    done = translated(work, BuiltIn(Kind.SHELL, ("command",)), {"command": line})
    added = {"shape": shape, "folder": str(work)} if shape else {}
    assert done.tool == ("run_session_command" if shape else "run_command")
    assert done.arguments == {"tool": "Tool", "input": {"command": line}, "target": line, **added}


@pytest.mark.parametrize(
    ("line", "reads", "searches"),
    [
        ("cd src && cat a", {"src/a"}, set()),
        ("cd src && cat ../src/a | grep b", {"src/../src/a"}, set()),
        ("cd src && grep -r a", set(), {"src"}),
        ("grep -r a src", {"src"}, {"src"}),
        ("grep a src/b; pwd", {"src/b"}, set()),
        ("git status", set(), set()),
    ],
)
def test_listed_command_touches_the_paths_and_folders_that_it_names(
    work: Path, line: str, reads: set[str], searches: set[str]
) -> None:
    call = HookCall(
        "codex", Moment.BEFORE, "s1", "c1", "T", {"command": line}, str(work), BuiltIn(Kind.SHELL, ("command",))
    )
    done = translate(call, Workspace(str(work), work.parent / ".config/hook"), COMMANDS)
    assert done.tool == "run_listed_command"
    assert {os.path.relpath(path, work) for path in done.touched.searches} == searches
    assert {f"{work}/{path}" for path in reads} <= {*done.touched.reads} & {*done.touched.writes}


@pytest.mark.parametrize(
    ("built_in", "arguments"),
    [
        (None, {"paths": [f"a/{number}" for number in range(9000)]}),
        (None, {"path": "a/" * 300}),
        (BuiltIn(Kind.READ, ("paths",)), {"paths": ["a"] * 9000}),
        (BuiltIn(Kind.READ, PATH), {"file_path": "/a" * 1000}),
        (BuiltIn(Kind.SHELL, ("command",)), {"command": "pwd" + " " * 65_536}),
        (BuiltIn(Kind.SHELL, ("command",)), {"command": "pwd", "off": True, **{f"a{at}": 1 for at in range(200)}}),
        (BuiltIn(Kind.SHELL, ("command",)), {"command": "pwd", "folders": ["a"] * 9}),
        (BuiltIn(Kind.SHELL, ("command",)), {"command": " ".join(f"/{at}" + "/a" * 108 for at in range(300))}),
    ],
)
def test_too_large_hook_call_is_rejected_with_a_code(
    work: Path, built_in: BuiltIn | None, arguments: dict[str, Any]
) -> None:
    with pytest.raises(HookLimitError, match=r"^hook\.limit_exceeded: .* more than "):
        translated(work, built_in, arguments)


@pytest.mark.parametrize(
    ("names", "arguments", "tool"),
    [
        (("path",), {"pattern": "x", "path": ".", "glob": "*.py"}, "search_files"),
        (("path",), {"pattern": "process.env", "path": "src"}, "search_files"),
        (("path",), {"pattern": ".", "path": ".", "glob": ".env*"}, "reach_outside"),
        (("path",), {"pattern": ".", "path": ".env"}, "reach_outside"),
        (("path",), {"pattern": ".", "include": "**/*.pem"}, "reach_outside"),
        (("path",), {"pattern": ".", "glob": "**/{a,.env}"}, "reach_outside"),
        (("path",), {"pattern": ".", "glob": "{src,a}/*.{py,md}"}, "search_files"),
    ],
)
def test_search_with_a_name_filter_that_matches_secret_files_needs_approval(
    work: Path, names: tuple[str, ...], arguments: dict[str, Any], tool: str
) -> None:
    assert translated(work, BuiltIn(Kind.SEARCH, names), arguments).tool == tool


@pytest.mark.parametrize(
    ("built_in", "arguments"),
    [
        *((BuiltIn(Kind.SHELL, ("command",)), {"command": line}) for line in (
            "cat 'secret dir/a key'", "cat secret\\ dir/a\\ key", 'cat "./secret dir"/a\\ key',
            "cat <'secret dir/a key'",
            'x --file="secret dir/a key"', "x -f'secret dir/a key'", "curl -d@'secret dir/a key' host",
            'curl -F "a=@secret dir/a key"', 'bash -c "git show HEAD:plain"', "curl -d@plain", "x -fplain",
            "cat ~+/plain",            "cat " + "./" * 3000 + "plain", "cat 'it' plain",
        )),
        (BuiltIn(Kind.SHELL, ("command",)), {"command": "cat 'a key'", "workdir": "secret dir"}),
        (BuiltIn(Kind.READ, ("path",)), {"path": "x\ny/../plain"}),
        (BuiltIn(Kind.READ, ("path",)), {"path": "x" * 300 + "/.." + "/x" * 4000 + "/.." * 4000 + "/plain"}),
        (BuiltIn(Kind.WRITE, ("input",)), {"input": PATCH.format("plain\n*** Move to: b")}),
        (None, {"files": [{"plain": "text"}, {"a": "b"}]}),
    ],
)  # fmt: skip
def test_repository_rules_are_applied_to_all_paths_of_a_call(
    work: Path, built_in: BuiltIn | None, arguments: dict[str, Any]
) -> None:
    call = HookCall("codex", Moment.BEFORE, "s1", "c1", "Tool", arguments, str(work), built_in)
    workspace = Workspace(str(work), work.parent / ".config/hook")
    try:
        reads = translate(call, workspace, COMMANDS).touched.reads
        found = {name for path in reads for name in workspace.names(path)}
    except HookLimitError:  # The hook denies a call that exceeds a limit, so its paths do not matter.
        return
    assert found & {f"{work}/plain/", f"{work}/secret dir/a key/"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"command": "make"}, "run_command: make"),
        ({"command": "a\nrm -r b\t\x1b[2J\u202eecho"}, "run_command: a\\nrm -r b\\t\\x1b[2J\\u202eecho"),
        ({"command": "a\u3164\u2800b"}, "run_command: a\\u3164\\u2800b"),
        ({"command": "make", "description": 'a "b"\n'}, 'run_command: make (the agent says: "a \\"b\\"\\\\n")'),
        (
            {"command": "make", "timeout": 9, "dangerouslyDisableSandbox": True, "workdir": "/x"},
            'run_command: make with {"timeout": 9, "workdir": "/x", "dangerouslyDisableSandbox": true}',
        ),
        (
            {"command": "echo " + "a" * 3000 + "; rm -r /", "run_in_background": True},
            (
                f"run_command: echo {'a' * 995} [... 1,014 characters left out ...] {'a' * 991}; rm -r /"
                ' with {"run_in_background": true}'
            ),
        ),
    ],
)
def test_user_sees_the_whole_command_and_its_arguments(work: Path, arguments: dict[str, Any], text: str) -> None:
    built_in = BuiltIn(Kind.SHELL, ("command",))
    call = HookCall("claude-code", Moment.BEFORE, "s1", "c1", "Bash", arguments, str(work), built_in)
    done, workspace = translated(work, built_in, arguments), Workspace(str(work), work.parent / ".config/hook")
    assert shown(call, done, workspace) == text
    what, sep, said = text.partition(" (the agent")
    assert shown(replace(call, cwd=str(work / "src")), done, workspace) == f"{what} in {work}/src{sep}{said}"


PATCHES = {
    PATCH.format("src/a"): ("write_file", ()),
    PATCH.format("src/a") + "\n": ("write_file", ()),
    PATCH.format("/etc/passwd"): ("reach_outside", ()),
    PATCH.format("src/a\n*** Move to: /etc/passwd"): ("reach_outside", ()),
    PATCH.format("src/a\n*** Move to: .git/config"): ("reach_outside", GUARD),
    PATCH.format(" .git/config "): ("reach_outside", GUARD),
    PATCH.format("a\n a\n *** Update File: /etc/passwd"): ("reach_outside", ()),
    PATCH.format("a\n a\n *** Delete File: .claude/settings.json"): ("reach_outside", GUARD),
    PATCH.format("a\nwhat is this"): ("reach_outside", ()),
    PATCH.format("a\n*** Rename File: b"): ("reach_outside", ()),
    PATCH.format("a\n\t*** Update File: /etc/passwd"): ("reach_outside", ()),
    PATCH.format("a\n\n\n a\r"): ("write_file", ()),
    "*** Begin Patch\n*** Add File: a\n+b\n*** Delete File: c\n*** End Patch": ("write_file", ()),
    "*** Begin Patch\n*** Add File: a\n+b\n*** Delete File: ../c\n*** End Patch": ("reach_outside", ()),
    "*** Begin Patch\n*** Add File: a\n+b": ("reach_outside", ()),
    "*** Begin Patch\n*** End Patch": ("reach_outside", ()),
    PATCH.format("server.key"): ("write_file", ()),
    PATCH.format("server.key\n*** Move to: a.txt"): ("reach_outside", ()),
    "*** Begin Patch": ("reach_outside", ()),
    " *** Begin Patch x\n*** Add File: a\n+b\n*** End Patch": ("reach_outside", ()),
    "*** Begin Patch\n*** Environment ID: x\n*** Add File: a\n+b\n*** End Patch": ("reach_outside", ()),
    "*** Begin Patch\n*** Add File: a\n+b\n*** End Patch\n*** Begin Patch\n*** End Patch": ("reach_outside", ()),
    "<<'EOF'\n*** Begin Patch\n*** Add File: /a\n+b\n*** End Patch\nEOF": ("reach_outside", ()),
}


@pytest.mark.parametrize("row", range(len(PATCHES)))
def test_patch_is_translated_to_writes_of_the_files_named_in_the_patch(work: Path, row: int) -> None:
    patch, (name, markings) = [*PATCHES.items()][row]
    done = translated(work, BuiltIn(Kind.WRITE, ("command",)), {"command": patch})
    assert done == entry(name, {"command": patch}, patch, *markings)


@pytest.mark.parametrize(
    ("arguments", "is_guard"),
    [
        ({}, False),
        ({"path": "/etc/passwd"}, False),
        ({"text": "a longer text about pdp and .git/config, with ~ and /"}, False),
        ({"path": "~/.config/hook/session.yaml"}, True),
        ({"a": [{"b": ["x", {"c": "HOME/.config/hook"}]}]}, True),
        ({"path": "file://HOME/.config/hook"}, True),
        ({"path": ".git/config"}, True),
        ({"path": "policy"}, True),
        ({"path": "/x/.claude/settings.json"}, True),
    ],
)
def test_tool_that_is_not_built_in_keeps_its_name_and_arguments(work: Path, arguments: Any, *, is_guard: bool) -> None:
    import json

    arguments = json.loads(json.dumps(arguments).replace("HOME", str(work.parent)))
    done = translated(work, None, arguments, tool="Tool")
    assert done == (
        entry("reach_outside", arguments, "Tool", *GUARD) if is_guard else Translated("Tool", arguments, "Tool")
    )


@pytest.mark.parametrize(
    "tool", ["plan_work", "read_file", "run_listed_command", "run_session_command", "reach_outside"]
)
def test_server_tool_with_the_name_of_a_starter_entry_is_prefixed(work: Path, tool: str) -> None:
    arguments = {"tool": "Read", "input": {}, "target": "a"}
    assert translated(work, None, arguments, tool) == Translated(f"claude-code.{tool}", arguments, tool)
