"""What whoever keeps a reference can change of a call, its session, its decision and its manifest: nothing."""

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


READING = {
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
def test_every_method_that_changes_a_plain_value_is_refused_by_a_frozen_one(kind: type) -> None:
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
    # What is inherited reads; what a later Python adds is to be looked at.
    assert reading - set(dir(object)) <= READING


@pytest.mark.parametrize("copied", [copy.deepcopy, thawed, lambda value: pickle.loads(pickle.dumps(value))])  # noqa: S301
def test_copies_of_a_frozen_value_are_plain_all_the_way(copied: Callable[[Any], Any]) -> None:
    value = {"a": [{"b": [1]}]}

    plain = copied(frozen(value))
    plain["a"][0]["b"].append(2)

    assert plain == {"a": [{"b": [1, 2]}]}
    assert type(plain) is dict


ANEW: dict[str, Callable[[Session], Any]] = {
    "its fields": lambda session: Session.__init__(session, claims={"sub": "root"}),
    "its state": lambda session: session.__setstate__({"__dict__": {"claims": {"sub": "root"}}}),
    "a field": lambda session: setattr(session, "claims", {"sub": "root"}),
    "what is made of them": lambda session: setattr(session, "subject", b""),
    "what was made of them": lambda session: delattr(session, "subject"),
}


@pytest.mark.parametrize("change", ANEW.values(), ids=ANEW.keys())
def test_a_session_is_not_initialised_anew(change: Callable[[Session], Any]) -> None:
    session = payments.session()
    before = session.subject, session.claims

    with pytest.raises(TypeError, match="read-only"):
        change(session)

    assert (session.subject, session.claims) == before


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])  # noqa: S301
def test_copies_of_a_session_in_use_are_read_only_sessions(copied: Callable[[Session], Session]) -> None:
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
    "facts that nobody stated": lambda *_: Session(claims={}).facts,
    "a plan's step": lambda _, session: session.plan[0]["arguments"],
    "the subject's properties": lambda _, session: session.subject.properties["limits"],
    "what expressions see": lambda _, session: session.variables,
    "a reason's details": lambda pep, session: pep.decide(payments.wire(), session).reasons[0].details,
    "the manifest's tools": lambda pep, _: pep.manifest.tools,
    "the policy's document": lambda pep, _: pep.manifest.document["tools"]["initiate_wire"]["approval"],
    "a schema": lambda pep, _: pep.manifest.tools["initiate_wire"].schema_["properties"],
    "a mapping": lambda pep, _: pep.manifest.tools["initiate_wire"].context,
}


@pytest.mark.parametrize("reach", REACHED.values(), ids=REACHED.keys())
def test_nothing_that_can_be_reached_can_be_written_to(pep: Pep, reach: Callable[[Pep, Session], Any]) -> None:
    session = payments.session(plan=[payments.wire()])

    reached = reach(pep, session)

    with pytest.raises(TypeError):
        reached["wire.auto_approved"] = 10**9


def test_a_guarded_tool_cannot_raise_the_limits_of_the_session_it_is_called_in(pep: Pep) -> None:
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
        except ToolDeniedError as error:  # pragma: no cover - it says what the example changed
            pytest.fail(str(error))

        assert pep.call(wire, session).codes == ("limits.exceeded",)
    assert tried == ["this is read-only: change a copy, and pass that on"]


def test_the_proposal_of_an_evaluation_is_a_copy(pep: Pep, hub: Hub) -> None:
    evaluation = pep.call(payments.wire(amount=100), payments.session())
    first = evaluation.outcome.proposal
    assert first is not None

    first.arguments["amount"] = 10**9

    second = evaluation.outcome.proposal
    assert second is not None
    assert (second.arguments["amount"], hub.wires[0]["amount"]) == (100, 100)
