"""Tests of reading YAML and JSON files: values, locations and faults."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, StrictInt, StrictStr, ValidationError

from pdp.documents import MAX_FILE_BYTES, FieldError, faults_of, nearest, parse, read_document, shown_name
from pdp.errors import Fault, FileFaultsError, UsageError
from pdp.json import MAX_NUMBER

TAB = "2:1 not YAML: found a tab character that violates indentation while scanning a plain scalar"


def faults(text: str | bytes, name: str = "file.yaml") -> list[str]:
    with pytest.raises(FileFaultsError) as caught:
        read_document(name, text=text)
    return [f"{fault.place.line}:{fault.place.column} {fault.message}" for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("null", None), ("~", None), ("", None), ("true", True), ("False", False),
        ("12", 12), ("-0", 0), ("+7", 7), ("1.50", 1.5), ("1e3", 1000.0), (".5", 0.5), (str(MAX_NUMBER), MAX_NUMBER),
        ("no", "no"), ("on", "on"), ("y", "y"), ("1_000", "1_000"), ("1:30", "1:30"), ("2026-07-01", "2026-07-01"),
        ("010", "010"), ("0x1F", "0x1F"), ("0o17", "0o17"), ("=", "="), ("2026.07.1", "2026.07.1"),
        ("'true'", "true"), ('"12"', "12"), ("|\n  a\n  b\n", "a\nb\n"), ("tRue", "tRue"), ("e5", "e5"),
    ],
)  # fmt: skip
def test_yaml_scalars_are_parsed_only_to_types_that_json_has(scalar: str, value: object) -> None:
    found = read_document("file.yaml", text=f"key: {scalar}").value["key"]

    assert found == value
    assert type(found) is type(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-MAX_NUMBER, MAX_NUMBER) | st.text(max_size=8)
        | st.floats(-1e15, 1e15),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=20,
    ).filter(lambda value: isinstance(value, dict | list))
)  # fmt: skip
@settings(max_examples=60)
def test_json_file_is_parsed_to_the_same_value_as_by_the_json_module(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, indent="\t", ensure_ascii=False)):
        assert read_document("file.json", text=text).value == value


def test_every_value_and_key_of_a_document_has_a_line_and_column() -> None:
    yaml = read_document("a.yaml", text="tools:\n  - name: é\n    list: [1, 22]\n")
    compact = read_document("a.json", text='{"tools": [{"name": "é",\n "list": [1, 22]}]}')

    assert str(yaml.place(("tools", 0, "list", 1))) == "a.yaml:3:15"
    assert str(yaml.place(("tools", 0, "list"), key=True)) == "a.yaml:3:5"
    assert str(compact.place(("tools", 0, "list", 1))) == "a.json:2:14"
    assert str(compact.place(("tools", 0, "list"), key=True)) == "a.json:2:2"
    assert str(compact.place(())) == "a.json:1:1"


def test_document_path_that_does_not_exist_has_the_location_of_its_nearest_parent() -> None:
    document = read_document("a.yaml", text="a:\n  b: 1\n")

    assert str(document.place(("a", "missing", 3))) == "a.yaml:2:3"
    assert str(document.place(("a", 0))) == "a.yaml:2:3"
    assert str(document.place(("a", "missing"), key=True)) == "a.yaml:2:3"


def test_document_fault_shows_the_source_line_and_a_caret() -> None:
    document = read_document("a.yaml", text="a: 1\nlist: [x, \u202ey]\n")

    assert str(document.fault(("list", 1), "is wrong", "right it", warning=True)) == (
        "a.yaml:2:11: warning: is wrong\n    list: [x,  y]\n              ^\n    hint: right it"
    )


def test_fault_in_a_long_line_shows_the_text_around_it() -> None:
    document = read_document("a.json", text='{"a": 1, "b": "' + "x" * 500 + '", "c": 2}')

    assert str(document.fault(("a",), "")) == f'a.json:1:7: \n    {{"a": 1, "b": "{"x" * 145}\n          ^'
    assert str(document.fault(("c",), "")) == f'a.json:1:524: \n    {"x" * 91}", "c": 2}}\n    {" " * 99}^'


def test_all_recoverable_yaml_faults_are_reported_at_once() -> None:
    text = (
        "a: 1\na: 2\n1: x\n? [q]\n: z\nb: .nan\nc: 1e400\nd: 9007199254740992\n<<: {x: 1}\n"
        "e: !!str 1\nnull: 3\nf: {g: 1, g: 2}\nh: -.inf\n"
    )

    assert faults(text) == [
        "2:1 key `a` is a duplicate, first on line 1",
        "3:1 key `1` is not a string",
        "4:3 a mapping's key must be a string",
        "6:4 `.nan` is not a finite number",
        "7:4 number `1e400` is beyond 2^53-1",
        "8:4 number `9007199254740992` is beyond 2^53-1",
        "9:1 merge keys (`<<`) are not supported",
        "10:4 tags (`!…`) are not supported",
        "11:1 key `null` is not a string",
        "12:11 key `g` is a duplicate, first on line 12",
        "13:4 `-.inf` is not a finite number",
    ]


def test_all_recoverable_json_faults_are_reported_at_once() -> None:
    text = '{"a": NaN, "b": 1e400, "c": "\\ud800",\n "a": -Infinity, "d": ' + "9" * 6000 + ', "\\udfff": 1}'

    assert [fault.split(" ", 1)[0] for fault in faults(text, "file.json")] == [
        "1:7", "1:17", "1:29", "2:2", "2:7", "2:23", "2:6025",
    ]  # fmt: skip
    assert faults('{"a": NaN}', "file.json") == ["1:7 `NaN` is not a JSON value"]


def test_document_parser_continues_after_a_fault_if_a_list_for_faults_is_given() -> None:
    collected: list[Fault] = []

    document = read_document("a.yaml", text="a: 1\na: 2\nb: .nan\nc: 3", faults=collected)

    assert document.value == {"a": 1, "b": None, "c": 3}
    assert [fault.place.line for fault in collected] == [2, 3]


@pytest.mark.parametrize(
    ("text", "name", "fault"),
    [
        ("", "a.yaml", "1:1 the file is empty"),
        ("# nothing\n", "a.yaml", "1:1 the file is empty"),
        (" \n", "a.json", "1:1 the file is empty"),
        ("a: [1, 2", "a.yaml", "1:4 not YAML: did not find expected ',' or ']' while parsing a flow sequence"),
        ("a: 'b\n\n", "a.yaml", "1:4 not YAML: found unexpected end of stream while scanning a quoted scalar"),
        ("a:\r\r b: [,", "a.yaml", "3:6 not YAML: did not find expected node content while parsing a flow node"),
        ("a: 1\n<<<<<<< HEAD\nb: 1\n=======\nb: 2\n>>>>>>> x\n", "a.yaml", "2:1 a merge conflict is not resolved"),
        ('{"a":\n<<<<<<< HEAD\n1\n=======\n2\n>>>>>>> x\n}', "a.json", "2:1 a merge conflict is not resolved"),
        ("a: b: c", "a.yaml", "1:5 not YAML: mapping values are not allowed in this context"),
        ("a: b\n\tc: d", "a.yaml", TAB),
        ("a: 1\n---\nb: 2", "a.yaml", "2:1 a second document begins here"),
        ("a: &a [*a]", "a.yaml", "1:8 alias `*a` is inside its own anchor"),
        ("a: *nope", "a.yaml", "1:4 alias `*nope` has no anchor above it"),
        ("a: \x07", "a.yaml", "1:4 character U+0007 is not allowed in YAML"),
        ("a: 1\nb: \x00", "a.yaml", "2:4 character U+0000 is not allowed in YAML"),
        ("{'a': 1}", "a.json", "1:2 not JSON: expecting property name enclosed in double quotes"),
        ('{"a": 1,\n}', "a.json", None),
        ('{"a": 1} x', "a.json", "1:10 not JSON: extra data"),
        ("a: 1", "a.json", "1:1 not JSON: expecting value"),
        (b"\x89PNG\r\n", "a.yaml", "1:1 not text: byte 0x89 is not UTF-8"),
        (b"a: 1\nb: \xff", "a.yaml", "2:4 not text: byte 0xff is not UTF-8"),
        ("\ufeffa: 1".encode("utf-16-le"), "a.yaml", "1:1 not text: byte 0xff is not UTF-8"),
        ("- " * 10_000, "a.yaml", "1:129 nested deeper than 64 levels"),
        ("[" * 10_000, "a.yaml", "1:65 nested deeper than 64 levels"),
        ("a: [1]\nb: " + "[" * 10_000, "a.yaml", "2:67 nested deeper than 64 levels"),
        ("[" * 10_000 + "]" * 10_000, "a.json", "1:65 nested deeper than 64 levels"),
        ('{"a":' * 10_000, "a.json", "1:321 nested deeper than 64 levels"),
        ("[" * 10_000, "-", "1:65 nested deeper than 64 levels"),
    ],
)  # fmt: skip
def test_document_that_cannot_be_parsed_causes_one_fault(text: str | bytes, name: str, fault: str | None) -> None:
    found = faults(text, name)

    assert len(found) == 1
    assert fault is None or found == [fault]


def test_fault_of_a_tab_has_a_hint_to_replace_tabs() -> None:
    for text in ("a: b\n\tc: d", "a:\n\tb: c"):
        with pytest.raises(FileFaultsError, match="indent with spaces, not tabs"):
            read_document("a.yaml", text=text)


def test_yaml_alias_has_the_value_of_its_anchor_but_its_own_location() -> None:
    document = read_document("a.yaml", text="a: &x {n: [1]}\nb: *x\n&k c: d\n*k : e\n", faults=[])

    assert document.value == {"a": {"n": [1]}, "b": {"n": [1]}, "c": "d"}
    assert str(document.place(("b",))) == "a.yaml:2:4"


def test_exponentially_growing_aliases_are_rejected() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{name}: &{name} [{', '.join(['*' + chr(ord(name) - 1)] * 9)}]" for name in "bcdefghi"]

    assert faults("\n".join(lines)) == ["5:28 aliases add more than 50000 values"]


def test_nesting_limit_applies_to_yaml_aliases() -> None:
    text = "\n".join(["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 100)])

    assert faults(text) == ["64:12 nested deeper than 64 levels"]


def test_parser_stops_after_500_faults() -> None:
    found = faults("a: 1\n" * 600)

    assert len(found) == 501
    assert found[-1] == "501:1 reading stops here after 500 faults"


def test_megabyte_of_random_bytes_causes_one_fault() -> None:
    assert faults(os.urandom(64) + b"\xff" * 1_000_000)[0].split(" ", 1)[1].startswith("not text: byte 0x")
    assert faults("{" * 1_000_000, "a.json") == ["1:2 not JSON: expecting property name enclosed in double quotes"]
    assert faults("[1,\n" * 250_000) == ["65:1 nested deeper than 64 levels"]


@pytest.mark.parametrize("name", ["many.json", "many.yaml"])
def test_document_with_too_many_values_is_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MOST_VALUES", 1000)

    assert read_document(name, text="[" + "0," * 998 + "0]").value == [0] * 999
    assert faults("[" + "0," * 999 + "0]", name) == ["1:2000 more than 1000 values in one file"]


def test_parsed_document_has_the_name_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")

    document = read_document(path)

    assert document.value == {"a": 1, "b": 2}
    assert document.file == str(path)
    assert read_document("-", text=b"a: 1").file == "<stdin>"


@pytest.mark.parametrize(("name", "value"), [("-", {"a": 1}), ("session", {"a": 1}), ("x.yml", {"a": 1})])
def test_file_with_another_extension_may_contain_json_or_yaml(name: str, value: object) -> None:
    assert read_document(name, text="{a: 1}").value == value
    assert read_document(name, text='{"a": 1}').value == value


def test_path_that_cannot_be_read_raises_an_error_with_a_hint(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    for path, message in (
        (missing, f"{missing}: no such file (check the path)"),
        (tmp_path, f"{tmp_path}: is a folder, not a file (pass a file in the folder)"),
        ("a\0b", "'a\\x00b': cannot be read: embedded null byte (check the path)"),
        (missing / "x", f"{missing / 'x'}: no such file (check the path)"),
        ('{"tool": 1}', '{"tool": 1}: no such file (write it to a file and pass the path, or pipe it in and pass -)'),
    ):
        with pytest.raises(UsageError) as caught:
            read_document(path)
        assert str(caught.value) == message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_read_permission_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1")
    path.chmod(0)

    with pytest.raises(UsageError, match="no permission to read it"):
        read_document(path)


def test_file_larger_than_32_mib_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)

    with pytest.raises(UsageError) as caught:
        read_document(path)

    assert str(caught.value) == f"{path}: larger than 32 MiB (check that this is the right file, or split it)"


class _Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    amount: StrictInt


class _Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: StrictStr
    inner: tuple[_Inner, ...] | None = None
    by_name: dict[str, _Inner] | None = None


def test_validation_errors_of_models_become_faults_with_locations_and_hints() -> None:
    document = read_document(
        "a.yaml",
        text="name: 1.0\ninner:\n  - {amount: x}\n  - {amunt: 1}\n  - [1]\n"
        "by_name: {x: {amount: true, zzz: 1}}\nnam: 2\n",
    )
    with pytest.raises(ValidationError) as caught:
        _Outer.model_validate(document.value)

    found = [
        f"{fault.place.line}:{fault.place.column} {fault.message} | {fault.hint}"
        for fault in faults_of(caught.value, document, _Outer)
    ]

    assert sorted(found) == [
        "1:7 `name` must be a string, not `1.0` | write it in quotes",
        "3:14 `inner[0].amount` must be a whole number, not `x` | None",
        "4:5 `inner[1].amount` is missing | None",
        "4:6 unknown key `amunt` | did you mean `amount`?",
        "5:5 `inner[2]` must be a mapping, not a list | None",
        "6:23 `by_name.x.amount` must be a whole number, not true | None",
        "6:29 unknown key `zzz` | known keys: amount",
        "7:1 unknown key `nam` | did you mean `name`?",
    ]


def test_names_in_messages_are_shortened_and_printable() -> None:
    assert shown_name("a\x1b[31m\nb") == "`a\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}b`"
    fault = read_document("a.yaml", text="a: 1").fault((), "\x1b[2Jgone", "\x07")
    assert str(fault) == (
        "a.yaml:1:1: \N{REPLACEMENT CHARACTER}[2Jgone\n    a: 1\n    ^\n    hint: \N{REPLACEMENT CHARACTER}"
    )
    assert shown_name("x" * 100) == "`" + "x" * 57 + "...`"
    assert nearest("scpoes", ["scopes", "markings"]) == "did you mean `scopes`?"
    assert nearest("zzz", ["scopes"]) is None
    assert FieldError("must be", "do").hint == "do"
