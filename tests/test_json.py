"""JSON values are written in canonical form, and error messages say where an invalid value is."""

import math
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.json import MAX_BYTES, MAX_DEPTH, JsonTooLargeError, JsonValueError, canonical, check_json, digest, parse_json

_numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-(2.0**53), 2.0**53, allow_nan=False).filter(
    lambda number: abs(number) <= 2**53 - 1
)
# Include characters around the surrogates. There, the order of code points differs from the order of UTF-16 units.
_text = st.text(st.characters(exclude_categories=["Cs"])) | st.text(
    '\ud7ff\ue000\uffff\U00010000\U0010ffff.0-1e,[]:"\\', max_size=8
)
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | _numbers | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=12,
)


@given(_json)
@settings(max_examples=60)
def test_canonical_json_matches_an_rfc_8785_implementation(value: Any) -> None:
    check_json(value)

    assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param({"b": 1, "a": [True, None]}, b'{"a":[true,null],"b":1}', id="sorted keys"),
        pytest.param(47500.0, b"47500", id="integral float alone"),
        pytest.param(
            {"a": 47500.0, "v": "2026.07.1"}, b'{"a":47500,"v":"2026.07.1"}', id="integral float in an object"
        ),
        pytest.param([1.0, -0.0, 1e-7], b"[1,0,1e-7]", id="integral floats in a list"),
        pytest.param({"a": 1.5e-6}, b'{"a":0.0000015}', id="no exponent before 1e-7"),
        pytest.param({"v": "1.0,2.0"}, b'{"v":"1.0,2.0"}', id="the same in a text"),
        pytest.param({"\ue000": 1, "\U00010000": 2}, '{"\U00010000":2,"\ue000":1}'.encode(), id="UTF-16 order"),
    ],
)
def test_canonical_json_of_example_values_has_the_expected_bytes(value: Any, text: bytes) -> None:
    assert canonical(value) == text


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param({"a": [1, math.nan]}, "a[1]: nan is not a number of JSON", id="NaN"),
        pytest.param(math.inf, "value: inf is not a number of JSON", id="infinity"),
        pytest.param({"a": 2**53}, "a: number beyond 2^53-1", id="integer beyond"),
        pytest.param({"a": -1e300}, "a: number beyond 2^53-1", id="float beyond"),
        pytest.param({"a": {"b": "\ud800"}}, "a.b: lone surrogate in a string", id="lone surrogate"),
        pytest.param({"\udfff": 1}, "value: lone surrogate in a string", id="lone surrogate in a key"),
        pytest.param({1: 2}, "value: a key is not a string", id="key"),
        pytest.param({"a": (1,)}, "a: tuple is not a type of JSON", id="tuple"),
        pytest.param({"a": b"x"}, "a: bytes is not a type of JSON", id="bytes"),
        pytest.param(nested(MAX_DEPTH + 1), "[0]" * MAX_DEPTH + ": nested deeper than 32 levels", id="depth"),
    ],
)
def test_error_names_the_path_of_the_invalid_value(value: Any, message: str) -> None:
    with pytest.raises(JsonValueError) as caught:
        check_json(value)

    assert str(caught.value) == message


def test_parser_accepts_32_nested_levels() -> None:
    check_json(nested(MAX_DEPTH))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('{"a": 1, "a": 2}', "value: duplicate key in an object", id="duplicate key"),
        pytest.param("[NaN]", "[0]: nan is not a number of JSON", id="NaN"),
        pytest.param("[-Infinity]", "[0]: -inf is not a number of JSON", id="Infinity"),
        pytest.param("1e400", "value: inf is not a number of JSON", id="overflow"),
        pytest.param("9007199254740992", "value: number beyond 2^53-1", id="large integer"),
        pytest.param('"\\ud800"', "value: lone surrogate in a string", id="escaped surrogate"),
        pytest.param("[" * 10_000 + "]" * 10_000, "value: nested deeper than 32 levels", id="10,000 levels"),
        pytest.param("", "value: the text is empty", id="empty"),
        pytest.param(b"\xff\xfe\x00", "value: not UTF-8 text", id="binary"),
        pytest.param('{"a": 1} x', "value: not JSON: Extra data: line 1 column 10 (char 9)", id="trailing"),
    ],
)
def test_parser_rejects_invalid_json_text(text: str | bytes, message: str) -> None:
    with pytest.raises(JsonValueError) as caught:
        parse_json(text)

    assert str(caught.value) == message


def test_parser_rejects_an_integer_with_5000_digits() -> None:
    with pytest.raises(JsonValueError, match=r"^value: "):
        parse_json("1" * 5000)


def test_parser_rejects_a_too_long_text_without_copying_it() -> None:
    class Text(str):
        __slots__ = ()

        def encode(self, *_: Any, **__: Any) -> bytes:
            raise AssertionError("a long text must not be copied")

    with pytest.raises(JsonTooLargeError):
        parse_json(Text("é" * (MAX_BYTES + 1)), most=1)


def test_parser_accepts_valid_json_text() -> None:
    assert parse_json('{"__proto__": {"x": 1.5}, "b": [null, "é"]}') == {"__proto__": {"x": 1.5}, "b": [None, "é"]}


@pytest.mark.parametrize("number", ["9007199254740992", "-9999999999999999", "1e400", "-1E17", "12345678901234567.5"])
@pytest.mark.parametrize("text", ["%s", '{"a":%s}', "[1, \n%s]", '{"a": {"b": [%s]}}', '["sha256:4e5", %s]'])
def test_parser_rejects_numbers_out_of_range_in_objects_and_arrays(text: str, number: str) -> None:
    with pytest.raises(JsonValueError):
        parse_json(text % number)


@pytest.mark.parametrize("text", ['["\\ud800"]', '{"\\udfff": 1}', '["\\u0041\\ud83d"]', "[NaN]", "[1, -Infinity]"])
def test_parser_rejects_escaped_surrogates_and_nan(text: str) -> None:
    with pytest.raises(JsonValueError):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        pytest.param('{"a":[1,-0.5,null,"é",true],"b":{}}', None, id="as orjson writes it"),
        pytest.param('{"a": 1}', None, id="with blanks"),
        pytest.param('{"a":1,"a":1}', None, id="a key twice"),
        pytest.param("[9007199254740992]", None, id="integer"),
        pytest.param("[9007199254740994.0]", None, id="float"),
        pytest.param("[1e+16]", None, id="exponent"),
        pytest.param("[1e300]", None, id="another exponent"),
        pytest.param("[" * 33 + "]" * 33, None, id="33 levels"),
        pytest.param("[" + "[[]]," * 40 + "1]", None, id="many levels beside each other"),
        pytest.param("[1,2,3,4]", 3, id="too many values"),
        pytest.param("[1,2,3]", 3, id="as many values as may be"),
    ],
)
def test_parser_gives_the_same_result_for_bytes_and_text(text: str, most: int | None) -> None:
    assert _read(text.encode(), most) == _read(text, most)


def _read(text: str | bytes, most: int | None) -> Any:
    try:
        return parse_json(text, most=most)
    except JsonValueError as error:
        return type(error), str(error)


def test_digest_starts_with_the_name_of_the_hash_algorithm() -> None:
    assert digest(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_canonical_json_sorts_keys_of_objects_in_a_tuple() -> None:
    assert canonical([({"b": "\U0001f600", "a": 1},)]) == '[[{"a":1,"b":"\U0001f600"}]]'.encode()
