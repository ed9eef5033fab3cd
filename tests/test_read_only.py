"""Sessions, decisions and manifests cannot be changed, not even through references to objects inside of them."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pdp import Pep, Session, ToolDeniedError
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.flow import guard
from pdp.json import FrozenList, FrozenObject, frozen, thawed
from tests.support import payments
from tests.support.payments import Hub

DICT_METHODS: list[Callable[[Any], Any]] = [
    lambda value: value.__setitem__("x", 1),
    lambda value: value.__delitem__("a"),
    lambda value: value.__ior__({"x": 1}),
    lambda value: value.update(x=1),
    lambda value: value.setdefault("x", 1),
    lambda value: value.pop("a"),
    lambda value: value.popitem(),
    lambda value: value.clear(),
]
LIST_METHODS: list[Callable[[Any], Any]] = [
    lambda value: value.__setitem__(0, 1),
    lambda value: value.__delitem__(0),
    lambda value: value.__iadd__([1]),
    lambda value: value.__imul__(2),
    lambda value: value.append(1),
    lambda value: value.extend([1]),
    lambda value: value.insert(0, 1),
    lambda value: value.remove(3),
    lambda value: value.pop(),
    lambda value: value.clear(),
    lambda value: value.sort(),
    lambda value: value.reverse(),
]


READING_METHODS = {
    "__add__", "__class_getitem__", "__contains__", "__getitem__", "__iter__", "__len__", "__mul__", "__or__",
    "__reversed__", "__rmul__", "__ror__", "copy", "count", "fromkeys", "get", "index", "items", "keys", "values",
}  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with payments.engine() as opened:
        yield opened


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def pep(engine: EmbeddedEngine, hub: Hub) -> Pep:
    return Pep(payments.effective(), engine, tools={"initiate_wire": hub.initiate_wire})


@pytest.mark.parametrize("kind", [dict, list])
def test_frozen_value_rejects_every_mutating_method(kind: type) -> None:
    value: Any = {"a": [{"b": 1}]} if kind is dict else [3, [{"b": 1}]]
    methods, frozen_kind = (DICT_METHODS, FrozenObject) if kind is dict else (LIST_METHODS, FrozenList)
    reading = {name for name in vars(kind) if name not in vars(frozen_kind)}
    made = frozen(value)

    for change in methods:
        with pytest.raises(TypeError, match="read-only"):
            change(made)
    made.__init__([])
    made.__init__([("x", 1)])
    assert made == value
    # The methods of dict and list that are not overridden change nothing. If Python adds a method, this assertion
    # fails.
    assert reading - set(dir(object)) <= READING_METHODS


@pytest.mark.parametrize("copied", [copy.deepcopy, thawed, lambda value: pickle.loads(pickle.dumps(value))])  # noqa: S301
def test_copies_of_a_frozen_value_contain_only_plain_dicts_and_lists(copied: Callable[[Any], Any]) -> None:
    value = {"a": [{"b": [1]}]}

    plain = copied(frozen(value))
    plain["a"][0]["b"].append(2)

    assert plain == {"a": [{"b": [1, 2]}]}
    assert type(plain) is dict


CHANGES: dict[str, Callable[[Session], Any]] = {
    "__init__": lambda session: Session.__init__(session, claims={"sub": "root"}),
    "__setstate__": lambda session: session.__setstate__({"__dict__": {"claims": {"sub": "root"}}}),
    "assignment to a field": lambda session: setattr(session, "claims", {"sub": "root"}),
    "a cached property": lambda session: setattr(session, "subject", b""),
    "deletion of a cached property": lambda session: delattr(session, "subject"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_session_rejects_changes_to_its_claims_and_subject(change: Callable[[Session], Any]) -> None:
    session = payments.session()
    before = session.subject, session.claims

    with pytest.raises(TypeError, match="read-only"):
        change(session)

    assert (session.subject, session.claims) == before


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])  # noqa: S301
def test_copies_of_a_session_are_read_only(copied: Callable[[Session], Session]) -> None:
    session = payments.session(plan=[payments.wire()])
    assert session.subject
    assert session.variables

    own = copied(session)

    assert (type(own), own.variables) == (Session, session.variables)
    assert own.claims is not session.claims
    with pytest.raises(TypeError, match="read-only"):
        own.claims["sub"] = "root"


REACHED: dict[str, Callable[[Pep, Session], Any]] = {
    "claims": lambda _, session: session.claims,
    "limits": lambda _, session: session.claims["limits"],
    "facts": lambda _, session: session.facts,
    "state": lambda _, session: session.state,
    "config": lambda _, session: session.config,
    "default facts": lambda *_: Session(claims={}).facts,
    "a plan's step": lambda _, session: session.plan[0]["arguments"],
    "the subject's properties": lambda _, session: session.subject.properties["limits"],
    "variables of expressions": lambda _, session: session.variables,
    "a reason's details": lambda pep, session: pep.decide(payments.wire(), session).reasons[0].details,
    "the manifest's tools": lambda pep, _: pep.manifest.tools,
    "the policy's document": lambda pep, _: pep.manifest.document["tools"]["initiate_wire"]["approval"],
    "a schema": lambda pep, _: pep.manifest.tools["initiate_wire"].schema_["properties"],
    "a mapping": lambda pep, _: pep.manifest.tools["initiate_wire"].context,
}


@pytest.mark.parametrize("reach", REACHED.values(), ids=REACHED.keys())
def test_evaluation_and_all_objects_reachable_from_it_are_read_only(
    pep: Pep, reach: Callable[[Pep, Session], Any]
) -> None:
    session = payments.session(plan=[payments.wire()])

    reached = reach(pep, session)

    with pytest.raises(TypeError):
        reached["wire.auto_approved"] = 10**9


def test_guarded_tool_cannot_change_the_limits_of_its_session(pep: Pep) -> None:
    tried = []

    def validate_payment(beneficiary_id: str, amount: float, source_account: str, reference: str) -> dict[str, Any]:
        session = guard._session.get()
        assert session is not None
        try:
            session.claims["limits"]["wire.auto_approved"] = 10**9
        except TypeError as error:
            tried.append(str(error))
        return {"valid": True}

    validate, wire = pep.with_changes(tools={}).tool(validate_payment), payments.wire()
    with pep.using(payments.session()) as session:
        try:
            validate(**wire["arguments"])
        except ToolDeniedError as error:  # pragma: no cover - explains a failure of the example
            pytest.fail(str(error))

        assert pep.call(wire, session).codes == ("limits.exceeded",)
    assert tried == ["this value is read-only: change a copy of it"]


def test_evaluation_stores_a_copy_of_its_proposal(pep: Pep, hub: Hub) -> None:
    evaluation = pep.call(payments.wire(amount=100), payments.session())
    first = evaluation.outcome.proposal
    assert first is not None

    first.arguments["amount"] = 10**9

    second = evaluation.outcome.proposal
    assert second is not None
    assert (second.arguments["amount"], hub.wires[0]["amount"]) == (100, 100)
