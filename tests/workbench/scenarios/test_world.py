"""Side-effect probes observe what a tool touches in a recorded world, and compare this with the tool's effect class."""

from pathlib import Path
from shutil import which
from typing import Any, Final

import pytest

from pdp.errors import FileFaultsError
from pdp.manifest.programs import SEARCH_PATH
from pdp.workbench.gate.packs import pack_faults
from pdp.workbench.scenarios.files.suite import load_suite
from pdp.workbench.scenarios.running.engines import open_suite_engine
from tests.support.command_line import written
from tests.support.scenario_files import MANIFEST, NOTE, READ, SESSION, differing, loaded, one, project, ran

WORLD: Final[dict[str, Any]] = {
    "register": {"place": "internal", "state": {"n-1": {"tags": ["a"]}}},
    "bank": {"place": "external", "state": {"rate": 2}},
    "drafts": {"place": "staging"},
}
TOUCHES: Final = {
    "world['register'][id]": "read internal register/n-1",
    "list(world['register'])": "read internal register",
    "len(world['bank'])": "read external bank",
    "world['bank'].get('rate')": "read external bank/rate",
    "world['drafts'].update({id: 1})": "write staging drafts/n-1",
    "world['register'].update({id: 1})": "write internal register/n-1",
    "world['bank'].__delitem__('rate')": "write external bank/rate",
    "FOLDER.joinpath('notes.txt').read_text()": "read internal file notes.txt",
    "FOLDER.joinpath('new.txt').write_text(id)": "write internal file new.txt",
    "FOLDER.joinpath('old.txt').unlink()": "write internal file old.txt",
    "(FOLDER / 'part').write_text(id); os.replace(FOLDER / 'part', FOLDER / 'all')": "write internal file all",
    "os.link(FOLDER / 'notes.txt', FOLDER / 'linked')": "write internal file linked",
    "os.symlink('notes.txt', FOLDER / 'pointer')": "write internal file pointer",
    "(FOLDER / 'link' / 'in.txt').write_text(id)": "write internal file inner/in.txt",
    "os.fdopen(os.open(FOLDER / 'notes.txt', os.O_RDONLY)).close()": "read internal file notes.txt",
    "sqlite3.connect(FOLDER / 'new.db').close()": "write internal file new.db",
    "os.system('true')": "write external os.system true",
    "socket.getaddrinfo('localhost', 1)": "write external socket.getaddrinfo localhost",
    "socket.gethostbyname('localhost')": "write external socket.gethostbyname localhost",
    "one, two = socket.socketpair(); one.sendmsg([b'x']); one.close(); two.close()": "write external socket.sendmsg",
}
ALLOWED: Final[dict[str | None, tuple[str, ...]]] = {
    "pure": (),
    "read-internal": ("read internal",),
    "read-external": ("read internal", "read external"),
    "stage": ("read staging", "write staging"),
    "commit-low": ("read internal", "write internal"),
    None: ("read", "write"),
}


def probed(
    folder: Path, bodies: list[str], effects: str | None, expectations: list[Any], *, world: Any = WORLD, **more: Any
) -> list[list[Any]]:
    """Run a tool with this body and effect class in the recorded world, and return the mismatches."""
    entry = {**MANIFEST["tools"][0], "effect_class": effects, "purposes": ["notes"], "risk_tier": "medium", **more}
    entry["schema"] = {**NOTE, "properties": {"id": {"type": "string", "maxLength": 9}}}
    entry = {name: value for name, value in entry.items() if value is not None}
    names = [f"read_note_{number}" for number in range(len(bodies))]
    tools = [{**entry, "name": name} for name in names]
    written(folder / "manifest.json", {"manifest_version": "7", "tools": tools})
    functions = [f"    def {name}(id):\n        {body}" for name, body in zip(names, bodies, strict=True)]
    head = "import os, runpy, shutil, socket, sqlite3, tempfile, threading, time\nfrom pathlib import Path\n"
    head += "FOLDER = Path(__file__).parent\n"
    lines = [f"{head}def tools(world=None):", *functions, f"    return {{{', '.join(f'{n!r}: {n}' for n in names)}}}"]
    written(folder / "tools.py", "\n".join(lines))
    stated = {} if world is None else {"world": world}
    scenarios = [
        {"name": name, "propose": {"tool": name, "arguments": {"id": "n-1"}}, "expect": expect, **stated}
        for name, expect in zip(names, expectations, strict=True)
    ]
    whole = {"manifest": "manifest.json", "tools": "tools.py", "session": SESSION, "scenarios": scenarios}
    results = ran(written(folder / "scenarios.json", whole))
    assert [result.error for result in results] == [None] * len(bodies)
    return [differing(result) for result in results]


@pytest.mark.parametrize("effects", ALLOWED)
def test_probe_passes_if_a_tool_touches_only_what_its_effect_class_permits(tmp_path: Path, effects: str | None) -> None:
    for folder in ("notes.txt", "old.txt"):
        written(tmp_path / folder, b"a note")
    (tmp_path / "inner").mkdir()
    (tmp_path / "link").symlink_to("inner")
    expected = [{"verdict": "ALLOW", "executed": True, "touched": [touch]} for touch in TOUCHES.values()]

    found = probed(tmp_path, list(TOUCHES), effects, expected)

    allowed = f"{effects} may {', '.join(ALLOWED[effects]) or 'touch nothing'}"
    assert found == [
        [] if touch.startswith(ALLOWED[effects]) else [("effect class", allowed, f"read_note_{number}: {touch}")]
        for number, touch in enumerate(TOUCHES.values())
    ]


def test_probe_fails_if_a_tool_touches_more_than_its_effect_class_permits(tmp_path: Path) -> None:
    thread = "threading.Thread(target=world['bank'].update, kwargs={'x': 1})"
    bodies = [
        "world['bank'].update(x=1)",
        "world['bank'].update(x=1); 1 / 0",
        f"one = {thread}; one.start(); one.join()",
    ]

    found = probed(tmp_path, bodies, "read-internal", [{"verdict": "ALLOW", "executed": True}] * 3)

    assert found == [
        [("effect class", "read-internal may read internal", f"read_note_{number}: write external bank/x")]
        for number in range(3)
    ]


def test_probe_fails_if_a_tool_touches_something_that_the_scenario_does_not_expect(tmp_path: Path) -> None:
    writes = "write internal register/n-1"
    bodies = ["world['register'].update({id: 1})", "world['register'].update({id: 1, 'n-2': 1})", "pass"]

    assert probed(tmp_path, bodies, "commit-low", [{"touched": [writes]}] * 3) == [
        [],
        [("touched", [writes], [writes, "write internal register/n-2"])],
        [("touched", [writes], [])],
    ]
    # Without a recorded world, it is unknown what the tool touched. A tool that touched nothing gives another result.
    assert probed(tmp_path, ["pass"], "commit-low", [{"touched": []}], world=None) == [[("touched", [], None)]]


def test_world_values_are_copied_for_each_scenario(tmp_path: Path) -> None:
    bodies = ["world['register'][id]['tags'].append('b'); return world['register'][id]"] * 2
    bodies += ["world['register'].update({id: 1})", "return world['register'][id]"]
    kept = {"result": {"tags": ["a"]}}

    assert probed(tmp_path, bodies, None, [kept, kept, {"executed": True}, kept]) == [[]] * 4


def test_files_that_the_python_interpreter_reads_do_not_count_as_touched(tmp_path: Path) -> None:
    written(tmp_path / "beside.py", "RATES = {}")
    body = (
        "import zoneinfo, wave; runpy.run_path(FOLDER / 'beside.py'); return str(zoneinfo.ZoneInfo('Europe/Istanbul'))"
    )
    assert probed(tmp_path, [body], "pure", [{"executed": True, "touched": []}]) == [[]]


def test_temporary_files_do_not_count_as_touched(tmp_path: Path) -> None:
    bodies = [
        "sqlite3.connect(':memory:').close()",
        "read, write = os.pipe(); os.fdopen(read, 'rb').close(); os.fdopen(write, 'wb').close()",
        "folder = tempfile.mkdtemp(dir=FOLDER); Path(folder, 'a').write_text(id); shutil.rmtree(folder)",
        "open('/dev/null').close()",
    ]
    assert probed(tmp_path, bodies, "pure", [{"executed": True, "touched": []}] * 4) == [[]] * 4


def test_renaming_a_file_touches_both_names(tmp_path: Path) -> None:
    written(tmp_path / "old.txt", b"a note")
    touches = ["write internal file old.txt", "write internal file new.txt"]
    bodies = ["os.rename(FOLDER / 'old.txt', FOLDER / 'new.txt')"]
    assert probed(tmp_path, bodies, "commit-low", [{"touched": touches}]) == [[]]


def test_cli_tool_touches_the_program_that_it_starts(tmp_path: Path) -> None:
    cli: dict[str, Any] = {"type": "cli", "cli": {"argv": ["true", "--", "{id}"]}, "eval_pack": "pack"}
    entry = {**MANIFEST["tools"][0], **cli, "effect_class": "stage", "purposes": ["notes"], "risk_tier": "medium"}
    entry["schema"] = {**NOTE, "properties": {"id": {"type": "string", "maxLength": 9}}}
    written(tmp_path / "manifest.json", {"manifest_version": "7", "tools": [entry]})
    written(tmp_path / "governance.json", {"programs": {"true": {"operands": True}}})
    program = str(Path(which("true", path=SEARCH_PATH) or "").resolve())
    expect = {"executed": True, "result": "", "touched": [f"program {program}"]}
    scenario = one(propose=READ, expect=expect, world=WORLD, golden=True)
    whole = {"manifest": "manifest.json", "governance": "governance.json", "tools": "tools.py", "session": SESSION}
    written(tmp_path / "tools.py", "def tools(world=None):\n    return {}\n")
    file = written(tmp_path / "pack.json", {**whole, "scenarios": [scenario]})
    suite = load_suite(file)
    with open_suite_engine(suite, "embedded") as engine:
        assert pack_faults(suite.manifest.tools["read_note"], [suite.manifest.digest], tmp_path, engine) == []

    other = "import subprocess\ndef read_note(id):\n    subprocess.run(['false'])\n    return ''\n"
    written(tmp_path / "tools.py", f"{other}def tools(world=None):\n    return {{'read_note': read_note}}\n")
    (result,) = ran(file)
    may = f"stage may read staging, write staging, program {program}"
    assert differing(result)[0] == ("effect class", may, "read_note: write external subprocess.Popen false")


def test_write_after_the_end_of_a_call_fails_the_probe_of_only_that_call(tmp_path: Path) -> None:
    bodies = ["threading.Timer(.2, world['bank'].update, kwargs={'x': 1}).start()", "pass"]
    late = ("late write", "a tool writes only during its call", "read_note_0: write external bank/x")
    assert probed(tmp_path, bodies, None, [{"touched": []}] * 2) == [[late], []]
    bodies = ["time.sleep(.3); world['register'].update(x=1)"]
    late = (*late[:2], "read_note_0: write internal register/x")
    assert probed(tmp_path, bodies, None, [{"failure": "TOOL_TIMEOUT", "touched": []}], timeout="PT0.1S") == [[late]]


def test_scenario_world_without_a_tools_file_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(FileFaultsError) as raised:
        loaded(tmp_path, one(propose=READ, expect={"executed": True}, world=WORLD))
    (fault,) = raised.value.faults
    assert (fault.message, fault.hint) == (
        "a world needs tools that run in it",
        "add `tools: FILE`, a Python file with `def tools(world=None):`",
    )


def test_tools_file_whose_function_lacks_the_world_parameter_is_an_error(tmp_path: Path) -> None:
    written(tmp_path / "tools.py", "def tools():\n    return {'read_note': lambda id: 1}\n")
    file = project(tmp_path, one(propose=READ, expect={"touched": []}, world=WORLD), tools="tools.py")
    (result,) = ran(file)
    assert result.error is not None
    assert "no function `tools(world)` takes the scenario's world" in result.error
