"""Translate bodies and expressions to terms."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import combinations, takewhile
from typing import Any, Final, Protocol, cast

from pdp.opa.syntax import COMPREHENSIONS, Node, declared, is_every, is_not, is_some, operator, variables
from pdp.workbench.proof import builtins
from pdp.workbench.proof import terms as t
from pdp.workbench.proof import values as v
from pdp.workbench.proof.rules import PolicyRule, Rules
from pdp.workbench.proof.terms import NO, NULL, UNDEF, YES, Term

Env = Mapping[str, Term | None]
"""Local variables. A variable that is declared and has no value yet has None. Others have to be declared."""

_NUMBER: Final = re.compile(r"-?\d{1,400}(\.\d{1,400})?([eE][+-]?\d{1,3})?")
_KINDS: Final = {"arraycomprehension": "arr", "setcomprehension": "set", "objectcomprehension": "obj"}
_METADATA: Final = frozenset(("title", "description", "scope", "custom"))
_TRUE: Final = {"type": "boolean", "value": True}
_SAME_KEYS: Final = "an object whose keys may be equal"
_TERM: Final = "term"  # the type of a node that is translated already


class RuleValues(Protocol):
    """The values of all rules of a policy."""

    rules: Rules
    data: Term

    def rule(self, name: str, args: tuple[Term, ...] = ()) -> Term:
        """Return a rule's value, or a function's value for arguments."""


class RuleBody:
    """Translates bodies and expressions of one rule.

    With `ordered`, a body is that of an array: order and repetition are kept, and iterations are not unrolled.
    """

    def __init__(self, policy: RuleValues, rule: PolicyRule, *, ordered: bool = False) -> None:
        self._policy = policy
        self._rule = rule
        self._ordered = ordered

    # Rules

    def items(self) -> Term:
        """Return the body of a partial rule."""
        head = self._rule.node["head"]
        return self.body(self._rule.node["body"], {}, [head[part] for part in ("key", "value") if part in head])

    def branch(self, branch: Node, args: tuple[Term, ...]) -> Term:
        """Return a body with the value of a rule, or of one of its `else` branches, as its item."""
        patterns = branch["head"].get("args") or []
        if len(patterns) != len(args):
            raise self._rule.outside("another number of arguments")
        env: Env = dict.fromkeys(variables(patterns))
        conditions = []
        for pattern, value in zip(patterns, args, strict=True):
            fits, env = self._unified(pattern, value, env)
            conditions.append(fits)
        if t.conj(*conditions) == NO:
            return NO
        return t.conj(*conditions, self.body(branch["body"], env, [branch["head"].get("value") or _TRUE]))

    # Statements

    def body(self, statements: Sequence[Node], env: Env, ends: Sequence[Node] = ()) -> Term:
        """Return a body whose item has the values of `ends`, which must be defined. Without `ends` it is a formula."""
        conditions: list[Term] = []
        waiting = list(statements)
        while waiting:
            statement = waiting.pop(self._first(waiting, env))
            loop = None if is_not(statement) or statement.get("negated") else self._loop(statement["terms"], env)
            if loop:
                return self._joined(conditions, self._looped(loop, statement, waiting, env, ends))
            if is_some(statement) and statement["terms"]["symbols"][0]["type"] == "call":
                return self._joined(conditions, self._some(statement, waiting, env, ends))
            condition, env = self._statement(statement, env)
            if condition == NO:
                return NO
            conditions.append(condition)
        return self._joined(conditions, self._end(ends, env))

    def _end(self, ends: Sequence[Node], env: Env) -> Term:
        loop = self._loop(ends, env)
        if loop:
            name, collection, filled = loop
            return self._iterate(name, collection, env, lambda element, env: self._end(filled(element), env))
        values = [self.value(end, env) for end in ends]
        item = Term("item", NULL if self._ordered else values[0], values[-1]) if values else YES
        return self._joined(map(t.defined, values), item)

    def _first(self, statements: Sequence[Node], env: Env) -> int:
        # As in OPA, a statement waits for the variables that another one declares.
        brought = [declared(statement) for statement in statements]
        for at, statement in enumerate(statements):
            others = {name for place, names in enumerate(brought) if place != at for name in names}
            open_names = {name for name in others if env.get(name) is None}
            if open_names.isdisjoint(variables(statement["terms"]).keys() - brought[at]):
                return at
        return 0

    def _statement(self, statement: Node, env: Env) -> tuple[Term, Env]:
        """Return the formula for a statement that does not iterate, and the variables after it."""
        if statement.get("with"):
            raise self._rule.outside("`with`", statement)
        terms = statement["terms"]
        if is_not(statement) or statement.get("negated"):
            return self._negation(statement, env), env
        if is_some(statement):
            return YES, self._declared(statement, env)
        if is_every(statement):
            return self._every(terms, env), env
        if isinstance(terms, list) and operator(terms) in ("assign", "eq"):
            _, left, right = terms
            if operator(terms) == "assign":
                env = self._declared(statement, env)
            elif not self._is_open(left, env):
                left, right = right, left
            return self._unified(left, self.value(right, env), env)
        return t.holds(self.value({"type": "call", "value": terms} if isinstance(terms, list) else terms, env)), env

    def _negation(self, statement: Node, env: Env) -> Term:
        plain, env = RuleBody(self._policy, self._rule), _closed(env)
        if statement.get("with") or (is_not(statement) and not self._rule.scoped_not):
            raise self._rule.outside("a negation of this form", statement)
        if is_not(statement):
            return t.neg(plain.body(statement["terms"]["body"], env))
        inner = t.neg(plain.body([{**statement, "negated": False}], env))
        if self._rule.scoped_not:
            return inner
        return t.conj(inner, *(t.defined(self.value(part, env)) for part in _hoisted(statement["terms"])))

    def _every(self, terms: Node, env: Env) -> Term:
        plain, domain = RuleBody(self._policy, self._rule), self.value(terms["domain"], env)
        names = [part["value"] for part in (terms.get("key"), terms["value"]) if part]

        def fails(key: Term, element: Term) -> Term:
            inner = {**_closed(env), **dict(zip(names, (key, element)[-len(names) :], strict=True))}
            return t.neg(plain.body(terms["body"], inner))

        return t.conj(t.is_collection(domain), t.neg(v.over(domain, fails, keyed=len(names) > 1)))

    def _declared(self, statement: Node, env: Env) -> Env:
        for name in declared(statement):
            if self._is_rule(name) or env.get(name) is not None:
                raise self._rule.outside(f"`{name}`, which has two meanings", statement)
        return {**env, **dict.fromkeys(declared(statement))}

    def _unified(self, pattern: Node, value: Term, env: Env) -> tuple[Term, Env]:
        """Return the formula for when a value has a pattern, and the variables that the pattern brings."""
        if self._is_free(pattern, env):
            wild = pattern["value"].startswith("$")
            return t.defined(value), env if wild else {**env, pattern["value"]: value}
        if not self._is_open(pattern, env):
            return v.eq(self.value(pattern, env), value), env
        if pattern["type"] != "array":
            raise self._rule.outside("an object as a pattern", pattern)
        parts = pattern["value"]
        conditions = [t.is_kind("arr", value), v.eq(v.size(value), t.number(len(parts)))]
        for at, part in enumerate(parts):
            fits, env = self._unified(part, v.get(value, t.number(at)), env)
            conditions.append(fits)
        return t.conj(*conditions), env

    def _is_free(self, part: Node, env: Env) -> bool:
        """Return whether a part is a variable without a value."""
        name = part.get("value")
        if part["type"] != "var" or not isinstance(name, str) or name in ("input", "data"):
            return False
        return (name in env and env[name] is None) or name.startswith("$")

    def _is_open(self, pattern: Node, env: Env) -> bool:
        return any(self._is_free({"type": "var", "value": name}, env) for name in variables(pattern))

    def _is_rule(self, name: str) -> bool:
        return name in self._rule.imports or f"{self._rule.package}.{name}" in self._policy.rules

    def _joined(self, conditions: Iterable[Term], rest: Term) -> Term:
        condition = t.conj(*conditions)
        return v.seq(condition, rest) if self._ordered else t.conj(condition, rest)

    # Iterations

    def _some(self, statement: Node, rest: Sequence[Node], env: Env, ends: Sequence[Node]) -> Term:
        """Return `some KEY, VALUE in COLLECTION` with the rest of its body inside."""
        if len(statement["terms"]["symbols"]) > 1 or statement.get("with"):
            raise self._rule.outside("`some` of this form", statement)
        *patterns, source = statement["terms"]["symbols"][0]["value"][1:]
        keyed = len(patterns) > 1 and not str(patterns[0].get("value")).startswith("$")
        collection = self.value(source, env)
        env = self._declared(statement, env)

        def element(key: Term, value: Term) -> Term:
            fits, inner = self._unified(patterns[0], key, env) if keyed else (YES, env)
            also, inner = self._unified(patterns[-1], value, inner)
            condition = t.conj(fits, also)
            return NO if condition == NO else self._joined([condition], self.body(rest, inner, ends))

        return self._over(collection, element, keyed=keyed)

    def _looped(self, loop: "_Loop", statement: Node, rest: Sequence[Node], env: Env, ends: Sequence[Node]) -> Term:
        name, collection, filled = loop

        def inside(element: Term, env: Env) -> Term:
            return self.body([{**statement, "terms": filled(element)}, *rest], env, ends)

        return self._iterate(name, collection, env, inside)

    def _iterate(self, name: str, collection: Term, env: Env, inside: Callable[[Term, Env], Term]) -> Term:
        wild = name.startswith("$")
        return self._over(
            collection, lambda key, element: inside(element, env if wild else {**env, name: key}), keyed=not wild
        )

    def _over(self, collection: Term, finding: v.Finding, *, keyed: bool) -> Term:
        return (v.in_order if self._ordered else v.over)(collection, finding, keyed=keyed)

    def _loop(self, node: Any, env: Env) -> "_Loop | None":
        """Return the first reference that iterates, such as `input.list[_]`: variable, collection, and what follows."""
        for reference in _references(node):
            for at, part in enumerate(reference["value"]):
                if at and self._is_free(part, env):
                    collection = self.value({**reference, "value": reference["value"][:at]}, env)
                    return part["value"], collection, partial(_filled, node, reference, at)
        return None

    # Expressions

    def value(self, node: Node, env: Env) -> Term:
        """Return the value of an expression that does not iterate. It may be undefined."""
        if node["type"] not in _VALUES:
            raise self._rule.outside(f"`{node['type']}`", node)
        return _VALUES[node["type"]](self, node, env)

    def template(self, node: Node, env: Env) -> Term:
        """Return the value of a template string, which is defined even if its parts are not."""
        parts = [part.get("terms", part) for part in node["value"]["parts"]]
        calls = ({"type": "call", "value": part} if isinstance(part, list) else part for part in parts)
        return v.called("template", *(self.value(part, env) for part in calls))

    def built(self, build: Callable[[list[Term]], Term], nodes: Sequence[Node], env: Env) -> Term:
        """Return a value that is built from others. It is undefined if one of them is undefined."""
        values = [self.value(part, env) for part in nodes]
        condition = t.conj(*map(t.defined, values))
        return UNDEF if condition == NO else v.ite(condition, build(values), UNDEF)

    def number(self, node: Node) -> Term:
        """Return a number."""
        # A fraction is read from the text, because its value in the tree may be rounded.
        written = str(node["value"]) if isinstance(node["value"], int) else self._rule.source.written(node)
        if not _NUMBER.fullmatch(written):
            raise self._rule.outside("a number of this form", node)
        return Term("num", Fraction(written))

    def object(self, node: Node, env: Env) -> Term:
        """Return an object. Its keys have to be different for certain."""

        def build(parts: list[Term]) -> Term:
            pairs = dict(zip(parts[::2], parts[1::2], strict=True))
            if len(node["value"]) > 1 and not (all(map(t.is_constant, pairs)) and len(pairs) == len(node["value"])):
                raise self._rule.outside(_SAME_KEYS, node)
            return v.object_of(pairs)

        return self.built(build, [part for pair in node["value"] for part in pair], env)

    def comprehension(self, node: Node, env: Env) -> Term:
        """Return the collection that a comprehension describes."""
        kind, parts = _KINDS[node["type"]], node["value"]
        ends = [parts["key"], parts["value"]] if kind == "obj" else [parts["term"]]
        body = RuleBody(self._policy, self._rule, ordered=kind == "arr").body(parts["body"], _closed(env), ends)
        if kind == "obj":
            check_keys(self._rule, node, body)
        return v.collection(kind, body)

    def reference(self, node: Node, env: Env) -> Term:
        """Return the value at a path."""
        head, *rest = node["value"]
        name = head.get("value")
        if head["type"] != "var":
            value = self.value(head, env)
        elif name in env or not (name in ("input", "data") or self._is_rule(name)):
            found = env.get(name)
            if found is None:
                raise self._rule.outside(f"`{name}`, which has no value here", node)
            value = found
        else:
            path = self._path(name)
            known = takewhile(lambda part: part["type"] == "string", rest)
            value, used = self._document(node, [*path, *(str(part["value"]) for part in known)])
            rest = [{"type": "string", "value": part} for part in path[used:]] + rest[max(used - len(path), 0) :]
        for part in rest:
            value = v.get(value, self.value(part, env))
        return value

    def _path(self, name: str) -> tuple[str, ...]:
        if name in self._rule.imports:
            return self._rule.imports[name]
        return (name,) if name in ("input", "data") else ("data", *self._rule.package.split("."), name)

    def _document(self, node: Node, path: Sequence[str]) -> tuple[Term, int]:
        """Return the rule at a path in `data` and the length of the path to it, or the whole document."""
        if path[0] == "input":
            return t.INPUT, 1
        if path[0] != "data":
            raise self._rule.outside(f"`{path[0]}`", node)
        for end in range(2, len(path) + 1):
            name = ".".join(path[1:end])
            if name in self._policy.rules:
                if self._policy.rules[name][0].node["head"].get("args"):
                    raise self._rule.outside("a function as a value", node)
                return self._policy.rule(name), end
        above = "".join(f"{part}." for part in path[1:])
        if any(f"{name}.".startswith(above) for name in self._policy.rules):
            raise self._rule.outside("rules that are found by a path", node)
        return self._policy.data, 1

    def call(self, node: Node, env: Env) -> Term:
        """Return what a function returns, which is undefined if an argument is."""
        function, *args = node["value"]
        name = operator(node["value"])
        if name == "rego.metadata.rule":
            return constant(self._metadata(node))
        first, _, more = name.partition(".")
        path = self._path(first)[1:] if first == "data" or self._is_rule(first) else ()
        rule = ".".join((*path, more) if more else path)
        if rule in self._policy.rules:
            return self.built(lambda values: self._policy.rule(rule, tuple(values)), args, env)
        if path or first in env or function["type"] != "ref" or name in builtins.RELATIONS:
            raise self._rule.outside(f"a call of `{name}`", node)
        return self.built(partial(builtins.builtin, name), args, env)

    def _metadata(self, node: Node) -> Mapping[str, Any]:
        notes = self._rule.metadata
        if not notes.keys() <= _METADATA or notes.get("scope", "rule") != "rule":
            raise self._rule.outside("METADATA with other fields", node)
        return {**notes, "scope": "rule"}


_VALUES: Final[Mapping[str, Callable[[RuleBody, Node, Env], Term]]] = {
    _TERM: lambda _body, node, _env: cast("Term", node["value"]),
    "null": lambda _body, _node, _env: NULL,
    "boolean": lambda _body, node, _env: t.TRUE if node["value"] else t.FALSE,
    "string": lambda _body, node, _env: t.string(node["value"]),
    "number": lambda body, node, _env: body.number(node),
    "array": lambda body, node, env: body.built(v.array, node["value"], env),
    "set": lambda body, node, env: body.built(v.set_of, node["value"], env),
    "object": RuleBody.object,
    "var": lambda body, node, env: body.reference({**node, "value": [node]}, env),
    "ref": RuleBody.reference,
    "call": RuleBody.call,
    "templatestring": RuleBody.template,
    **dict.fromkeys(COMPREHENSIONS, RuleBody.comprehension),
}

_Loop = tuple[str, Term, Callable[[Term], Any]]


def check_keys(rule: PolicyRule, node: Node, body: Term) -> None:
    """Raise an error unless it is certain that an object has one value for each key."""
    cases = v.cases_of(body)
    for case in cases:
        varies = case.value.free & case.inner
        if not (varies <= (case.key.free if case.key.op == "var" else frozenset())):
            raise rule.outside(_SAME_KEYS, node)
    for one, other in combinations(cases, 2):
        if one.value != other.value and v.eq(one.key, other.key) != NO and t.conj(one.when, other.when) != NO:
            raise rule.outside(_SAME_KEYS, node)


def _references(node: Any) -> Iterator[Node]:
    """Yield the references in an expression that belong to its own body, inner references first."""
    if isinstance(node, list):
        for part in node:
            yield from _references(part)
    elif isinstance(node, dict) and node.get("type") not in (*COMPREHENSIONS, "templatestring", _TERM):
        inner = [node["domain"]] if "domain" in node else [part for key, part in node.items() if key != "location"]
        yield from _references(inner)
        if node.get("type") == "ref":
            yield node


def _filled(node: Any, reference: Node, at: int, element: Term) -> Any:
    """Return an expression in which the start of a reference, up to the part `at`, is replaced by its value."""
    if node is reference:
        return {**reference, "value": [{"type": _TERM, "value": element}, *reference["value"][at + 1 :]]}
    if isinstance(node, dict):
        return {key: _filled(part, reference, at, element) for key, part in node.items()}
    return [_filled(part, reference, at, element) for part in node] if isinstance(node, list) else node


def _closed(env: Env) -> Env:
    # A body inside another one may use a variable that the outer one assigns later. Without a name it is outside.
    return {name: value for name, value in env.items() if value is not None}


def constant(value: Any) -> Term:
    """Return a JSON value as a term."""
    match value:
        case dict():
            return v.object_of({t.string(str(key)): constant(item) for key, item in value.items()})
        case list():
            return v.array(map(constant, value))
        case bool():
            return t.TRUE if value else t.FALSE
        case int() | float():
            return Term("num", Fraction(str(value)))
        case None:
            return NULL
    return t.string(str(value))


def _hoisted(terms: Any) -> Iterator[Node]:
    """Yield what OPA looks up outside of a `not` without `rego.v2`: the negation is undefined if it is undefined.

    These are all calls and references inside of the negated expression. Only the negated call or reference itself, and
    references that `==` compares, may be undefined.
    """
    if isinstance(terms, list):
        for part in terms[1:]:
            yield from _keys(part) if operator(terms) in ("equal", "eq") and part["type"] == "ref" else _lookups(part)
    else:
        yield from _keys(terms)


def _keys(reference: Node) -> Iterator[Node]:
    if reference["type"] == "ref":
        head, *keys = reference["value"]
        for part in [*keys, *([] if head["type"] == "var" else [head])]:
            yield from _lookups(part)


def _lookups(node: Node) -> Iterator[Node]:
    match node["type"]:
        case "ref" | "var" | "call" | "templatestring":
            yield node
        case "array" | "set":
            for part in node["value"]:
                yield from _lookups(part)
        case "object":
            for pair in node["value"]:
                for part in pair:
                    yield from _lookups(part)
