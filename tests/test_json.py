"""One form for each JSON value, and what is not JSON is refused with its place."""

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
# Characters on either side of the surrogates, where the orders of code points and of UTF-16 units part.
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
def test_canonical_is_rfc_8785(value: Any) -> None:
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
def test_canonical_bytes(value: Any, text: bytes) -> None:
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
def test_what_is_not_json_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(JsonValueError) as caught:
        check_json(value)

    assert str(caught.value) == message


def test_the_deepest_nesting_that_is_admitted() -> None:
    check_json(nested(MAX_DEPTH))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('{"a": 1, "a": 2}', "value: a key stands twice in one object", id="duplicate key"),
        pytest.param("[NaN]", "[0]: nan is not a number of JSON", id="NaN"),
        pytest.param("[-Infinity]", "[0]: -inf is not a number of JSON", id="Infinity"),
        pytest.param("1e400", "value: inf is not a number of JSON", id="overflow"),
        pytest.param("9007199254740992", "value: number beyond 2^53-1", id="large integer"),
        pytest.param('"\\ud800"', "value: lone surrogate in a string", id="escaped surrogate"),
        pytest.param("[" * 10_000 + "]" * 10_000, "value: nested deeper than 32 levels", id="10,000 levels"),
        pytest.param("", "value: it is empty", id="empty"),
        pytest.param(b"\xff\xfe\x00", "value: not UTF-8 text", id="binary"),
        pytest.param('{"a": 1} x', "value: not JSON: Extra data: line 1 column 10 (char 9)", id="trailing"),
    ],
)
def test_text_is_parsed_strictly(text: str | bytes, message: str) -> None:
    with pytest.raises(JsonValueError) as caught:
        parse_json(text)

    assert str(caught.value) == message


def test_an_integer_of_5000_digits_is_refused() -> None:
    with pytest.raises(JsonValueError, match=r"^value: "):
        parse_json("1" * 5000)


def test_a_text_that_is_too_long_is_not_copied() -> None:
    class Text(str):
        __slots__ = ()

        def encode(self, *_: Any, **__: Any) -> bytes:
            raise AssertionError("this takes as long as the text is")

    with pytest.raises(JsonTooLargeError):
        parse_json(Text("é" * (MAX_BYTES + 1)), most=1)


def test_text_that_is_json_is_parsed() -> None:
    assert parse_json('{"__proto__": {"x": 1.5}, "b": [null, "é"]}') == {"__proto__": {"x": 1.5}, "b": [None, "é"]}


@pytest.mark.parametrize("number", ["9007199254740992", "-9999999999999999", "1e400", "-1E17", "12345678901234567.5"])
@pytest.mark.parametrize("text", ["%s", '{"a":%s}', "[1, \n%s]", '{"a": {"b": [%s]}}', '["sha256:4e5", %s]'])
def test_a_number_out_of_bounds_is_found_wherever_it_stands(text: str, number: str) -> None:
    with pytest.raises(JsonValueError):
        parse_json(text % number)


@pytest.mark.parametrize("text", ['["\\ud800"]', '{"\\udfff": 1}', '["\\u0041\\ud83d"]', "[NaN]", "[1, -Infinity]"])
def test_an_escape_is_no_way_around_the_bounds(text: str) -> None:
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
def test_bytes_are_read_as_the_text_that_they_are(text: str, most: int | None) -> None:
    assert _read(text.encode(), most) == _read(text, most)


def _read(text: str | bytes, most: int | None) -> Any:
    try:
        return parse_json(text, most=most)
    except JsonValueError as error:
        return type(error), str(error)


def test_digest_names_its_algorithm() -> None:
    assert digest(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_objects_in_a_tuple_are_sorted_as_well() -> None:
    assert canonical([({"b": "\U0001f600", "a": 1},)]) == '[[{"a":1,"b":"\U0001f600"}]]'.encode()
