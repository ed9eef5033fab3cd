"""Both engines agree on allowed builtins, exact calculations, upper and lower case, and negations.

Each case is evaluated by the WebAssembly of a bundle and by an OPA server, in batches. `PDP_PARITY=200000` makes
200,000 comparisons instead of 2,000 (CONTRIBUTING.md).
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import ROUND_HALF_UP, Decimal, localcontext
from pathlib import Path
from typing import Any

import orjson
import pytest

from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.engine.opa.client import OpaClient, parse_address
from pdp.engine.protocol import DECISION
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import canonical
from pdp.opa.local import local_opa
from pdp.opa.modules import Module, baseline_policies_path
from pdp.opa.tool import OpaTool

pytestmark = pytest.mark.opa

COMPARISONS = int(os.environ.get("PDP_PARITY", "2000"))
SEED = 28
BATCH = 250

Ask = Callable[[list[Any]], list[tuple[Any, Any]]]


@contextmanager
def both_engines(opa: Path, folder: Path, rego: str, *, strict: bool = True) -> Iterator[Ask]:
    """Yield a function that evaluates `decision` of a module for a list of cases, with the embedded engine and OPA.

    The function asks OPA directly, because `SidecarEngine` reads numbers as floats and would hide differences.
    """
    policies = baseline_policies_path()
    libraries = {f"authz/lib/{name}/{name}.rego" for name in ("decimal", "number", "text")}
    modules = {path: Module(policies / path, (policies / path).read_text(), custom=False) for path in libraries}
    modules["authz/decision.rego"] = Module(Path("decision.rego"), rego, custom=False)
    compiled = OpaTool(opa, folder / "staged", modules, capabilities=policies / "capabilities.json").compile([DECISION])
    texts = {path: module.text for path, module in modules.items()}
    file = folder / "bundle.tar.gz"
    file.write_bytes(pack_bundle(release=1, wasm=compiled, data={}, modules=texts))
    bundle = read_bundle(file)
    path = f"/v1/data/authz/decision?strict-builtin-errors={str(strict).lower()}"
    with (
        local_opa(opa, bundle=bundle) as local,
        EmbeddedEngine(bundle, deadline=30) as embedded,
        closing(OpaClient(parse_address(local.url), connect_timeout=5, connections=1)) as client,
    ):

        def ask(cases: list[Any]) -> list[tuple[Any, Any]]:
            pairs: list[tuple[Any, Any]] = []
            for start in range(0, len(cases), BATCH):
                body = canonical({"cases": cases[start : start + BATCH]})
                theirs = client.exchange("POST", path, b'{"input":' + body + b"}", 30)
                assert theirs.status == 200, theirs.body
                ours = json.loads(embedded.evaluate(body), parse_float=Decimal)
                answers = [ours, json.loads(theirs.body, parse_float=Decimal)["result"]]
                assert [len(answer) for answer in answers] == [len(cases[start : start + BATCH])] * 2
                pairs += zip(*answers, strict=True)
            return pairs

        yield ask


# Values on which the engines might differ

BLANKS = "\u00a0\u2003\u0085\u200b\u3000\ufeff\u2028\u1680 \t\n\x0b\x0c\x1f\x00\r"
LETTERS = (
    'abAZ10.-/{"\\e\u00df\u0130\u0131\u00e9\u00c9\ufb01\u03a9\u03c2\u03a3\u03c3\u01c6\u01c5\u01c4\u0301\u212a\u017f'
)
LETTERS += "\u2c2f\u2c5f\ua7c0\U00010400\U00010428\U0001f600"
NUMBERS = [
    0.1, 0.5, 1.5, 2.5, -0.5, -0.1, 0.05, 1.005, 1e-7, 5e-324, 1000000.1, 1.0000001e6, 0.30000000000000004,
    4503599627370497.5, 0.9999999999999999, 2**31, 2**31 - 1, -(2**31), 2**32, 2**53 - 1, 1 - 2**53, 10**15,
]  # fmt: skip


class Values:
    """Random values with a fixed seed. A set is represented as `{"set": [...]}`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - repeatable test data

    def text(self) -> str:
        pick = self.random.choice
        return "".join(
            pick(BLANKS if self.random.random() < 0.35 else LETTERS) for _ in range(self.random.randint(0, 5))
        )

    def whole(self) -> int:
        return self.random.choice([self.random.randint(-5, 12), self.random.randint(1 - 2**53, 2**53 - 1)])

    def number(self) -> float:
        rounded = round(self.random.uniform(-1000, 1000), self.random.randint(1, 6))
        tiny = self.random.uniform(-1, 1) * 10.0 ** self.random.randint(-30, -1)
        return self.random.choice(
            [
                self.whole(),
                rounded,
                rounded,
                self.random.uniform(-(2.0**53), 2.0**53),
                tiny,
                self.random.choice(NUMBERS),
            ]
        )

    def any(self, depth: int = 0) -> Any:
        kinds: list[Callable[[], Any]] = [self.number, self.text, lambda: self.random.choice([None, True, False])]
        if depth < 3:
            kinds += [lambda: self.list_of(depth), lambda: {self.text(): item for item in self.list_of(depth)}]
        return self.random.choice(kinds)()

    def list_of(self, depth: int) -> list[Any]:
        return [self.any(depth + 1) for _ in range(self.random.randint(0, 3))]

    def of(self, declared: dict[str, Any]) -> Any:
        """Return a random value of a type, which is declared as in OPA's capabilities."""
        kind = declared["type"]
        if kind == "any":
            return self.of(self.random.choice(declared["of"])) if "of" in declared else self.any()
        size = range(self.random.randint(0, 4))
        if kind == "array":
            return [self.of(declared["dynamic"]) for _ in size]
        if kind == "set":
            return {"set": [self.of(declared["of"]) for _ in size]}
        if kind == "object":
            return {self.text(): self.list_of(2) if "of" in declared["dynamic"]["value"] else self.any() for _ in size}
        return {"string": self.text, "number": self.number}[kind]()


# `pdp check` accepts these builtins only with whole numbers, so they are called only with whole numbers.
WHOLE = {"abs", "array.slice", "minus", "mul", "plus", "product", "rem", "substring", "sum"}
FORMS = {"internal.member_2": "{} in {}", "internal.member_3": "({}, {} in {})", "walk": "[x | walk({}, x)]"}
NOT_CALLED = {"assign", "eq", "rego.metadata.chain", "rego.metadata.rule", "internal.template_string"}
# Concerns may not call these builtins. Only the libraries call these builtins, and other tests in this file cover the
# libraries.
OF_LIBRARIES = {"lower", "upper", "to_number"}

ANSWERS = Path(__file__).with_name("answers.rego").read_text()


def _arguments(values: Values, name: str, declared: list[dict[str, Any]]) -> list[Any]:
    """Return arguments of the declared types. `pdp check` accepts a call of the builtin with these arguments."""
    if name in ("sum", "product"):
        return [[values.whole() for _ in range(values.random.randint(0, 4))]]
    made = [values.whole() if name in WHOLE and "number" in str(kind) else values.of(kind) for kind in declared]
    if name == "rem":
        made[1] = made[1] or 7
    elif name == "substring":
        made[1] = abs(made[1])
    elif name == "indexof":
        made[1] = made[1] or "x"
    elif name == "concat":
        made[1] = [values.text() for _ in range(values.random.randint(0, 4))]
    return made


def _comparable(name: str, answers: list[Any]) -> Any:
    """Return the answers with sets and results of `walk` sorted, because the engines may return different orders."""
    unordered = [kind == "set" or name == "walk" for _, kind in answers]
    return [
        (sorted(json.dumps(item, sort_keys=True, default=str) for item in value) if loose else value, kind)
        for (value, kind), loose in zip(answers, unordered, strict=True)
    ]


def test_engines_agree_on_admitted_builtins(opa: Path, tmp_path: Path) -> None:
    listed = orjson.loads((baseline_policies_path() / "capabilities.json").read_bytes())["builtins"]
    asked = {item["name"]: item for item in listed if item["name"] not in NOT_CALLED | OF_LIBRARIES}
    rules, values, cases = [], Values(SEED), []
    for name, item in asked.items():
        places = [f"_of(case.arguments[{at}])" for at in range(len(item["decl"]["args"]))]
        call = f"({{}} {item['infix']} {{}})" if "infix" in item else f"{name}({', '.join(['{}'] * len(places))})"
        call = FORMS.get(name, call).format(*places)
        rules.append(
            f'_answer(case) := [value, type_name(value)] if {{\n\tcase.name == "{name}"\n\tvalue := {call}\n}}\n'
        )
    names = list(asked)
    for at in range(max(COMPARISONS // 2, len(names))):
        name = names[at % len(names)]
        cases.append({"name": name, "arguments": _arguments(values, name, asked[name]["decl"]["args"])})
    with both_engines(opa, tmp_path, ANSWERS + "\n".join(rules)) as ask:
        answers = ask(cases)
    for case, (ours, theirs) in zip(cases, answers, strict=True):
        assert _comparable(case["name"], ours) == _comparable(case["name"], theirs), case
    assert {case["name"] for case, (ours, _) in zip(cases, answers, strict=True) if ours} == set(names)


CALCULATIONS = {
    "sum": "number.sum([case.a, case.b, case.c])",
    "difference": "number.difference(case.a, case.b)",
    "product": "number.product([case.a, case.b])",
    "percentage": "number.percentage(case.a, case.b)",
    "rounded": "number.rounded(case.a, case.decimals)",
    "whole": "{true | number.whole(case.a)}",
    "at_most": "{true | number.at_most(number.sum([case.a, case.b]), case.c)}",
    "equal": "{true | number.equals(number.difference(number.sum([case.a, case.b]), case.b), case.a)}",
}


def _expected(a: Decimal, b: Decimal, c: Decimal, decimals: int) -> dict[str, Any]:
    with localcontext() as context:
        context.prec = 2000
        unit = Decimal(1).scaleb(-decimals)
        return {
            "sum": a + b + c,
            "difference": a - b,
            "product": a * b,
            "percentage": a * b / 100,
            "rounded": a.quantize(unit, ROUND_HALF_UP) if a.as_tuple().exponent < -decimals else a,  # type: ignore[operator]
            "whole": [True] if a == a.to_integral_value() else [],
            "at_most": [True] if a + b <= c else [],
            "equal": [True],
        }


def test_engines_agree_on_exact_arithmetic(opa: Path, tmp_path: Path) -> None:
    members = ", ".join(f'"{name}": {call}' for name, call in CALCULATIONS.items())
    values, cases = Values(SEED + 1), []
    for _ in range(COMPARISONS // 40):
        numbers = {name: values.number() for name in "abc"}
        cases.append({**numbers, "decimals": values.random.randint(0, 6)})
    with both_engines(opa, tmp_path, f"{ANSWERS}_answer(case) := {{{members}}}\n") as ask:
        for case, pair in zip(cases, ask(cases), strict=True):
            a, b, c = (Decimal(canonical(case[name]).decode()) for name in "abc")
            expected = [_expected(a, b, c, int(case["decimals"]))]
            assert pair == (expected, expected), case


def test_engines_agree_on_case_and_formatting_of_texts(opa: Path, tmp_path: Path) -> None:
    values = Values(SEED + 2)
    letters = [chr(at) for at in range(1, 0x20000) if not 0xD800 <= at < 0xE000]
    cases: list[Any] = ["".join(letters[at : at + 100]) for at in range(0, len(letters), 100)]
    cases += [values.random.choice([values.text, values.whole])() for _ in range(200)] + [True, None]
    answer = """\
_answer(case) := [text.lowercase(case), text.uppercase(case), $"<{case}>", trim_space(case)] if is_string(case)
_answer(case) := $"<{case}>" if not is_string(case)
"""
    with both_engines(opa, tmp_path, ANSWERS + answer) as ask:
        for case, (ours, theirs) in zip(cases, ask(cases), strict=True):
            assert ours == theirs != [], case


NEGATED = [
    '"x" in input.a.b', 'startswith(input.a, "x")', "_f(input.a)", "_f(lower(input.a))", "_f(u)", "_f(_g(input.a))",
    "input.c[input.a]", "input.a != 1", "input.a == 1", 'lower(input.a) == "x"', "input.a - 1 == 0", "input.a * 2 > 1",
    '({"k": input.a} == {"k": 1})', "[input.a] == [1]", "count([x | x := input.a]) == 1", '$"{input.a}" == "x"',
    'object.get(input.a, "k", false)', "input.a.b", "m[input.a]", "m[lower(input.a)]", "s[input.a]", "o[input.a]",
    "count(input.a) == 1", "is_string(input.a)", '"k", 1 in input.a', 'input.a in {1, "x"}', "input.a < 5",
    "input.a in {1, input.c}", "_every(input.a)", "input.f", "1 = input.a", 'input.a.b with input as {"a": {"c": 1}}',
    "data.settings.x.y == input.a", '_f({"p": [lower(input.a.b.c)]})', "_else(input.a)", "_default(input.a)", "d",
    "min(input.a) == 1", "(input.a.b or input.f)", "(input.a and _f(input.c))", "(input.a == input.c)",
    "_f([z, input.a])", "z in input.a", "z == input.c", "m[z] == input.a", "_f(lower(z))", "lower(z) in input.a",
]  # fmt: skip
HELPERS = Path(__file__).with_name("helpers.rego").read_text()
AROUND = [
    'some z in ["x", 1, "X"]; not {}', 'some z in ["X", "y"]; some w in [1, 2]; not {}; w == 2',
    'count([z | some z in ["x", 1, "X"]; not {}]) == 2', 'every z in ["x", "X"] {{ z != null; not {} }}',
]  # fmt: skip


def test_engines_agree_on_negated_conditions_in_rego(opa: Path, tmp_path: Path) -> None:
    bodies = [around.format(negated) for negated in NEGATED for around in AROUND]
    rules = "".join(f"hits contains {at} if {{ {body} }}\n" for at, body in enumerate(bodies))
    held: list[Any] = [
        "x",
        "X",
        1,
        None,
        True,
        False,
        [],
        ["x"],
        ["x", 1, "y"],
        {"x": 1},
        {"b": ["x"]},
        [1],
        {"b": {"c": "X"}},
    ]
    chance = random.Random(SEED)  # noqa: S311 - repeatable test data
    cases = [
        {name: chance.choice(held) for name in "abcf" if chance.random() < 0.7}
        for _ in range(max(10, COMPARISONS * 3 // 10 // len(bodies)))
    ]
    # Some calls have arguments of the wrong type, for which OPA would return no answer with strict errors.
    with both_engines(opa, tmp_path, HELPERS + rules, strict=False) as ask:
        seen: Counter[int] = Counter()
        for case, (ours, theirs) in zip(cases, ask(cases), strict=True):
            assert sorted(ours) == sorted(theirs), case
            seen.update(ours)
    assert len(seen) > len(bodies) // 2
