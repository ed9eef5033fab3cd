"""If a fault is added to a request, proposal or session that is not allowed, the result is not allowed either.

`test_parity.py` compares the decisions of the two engines on faulty requests.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdp import MemoryAudit, Pep, Session, Verdict
from pdp.engine.bundle.file import Bundle, read_bundle
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import JsonValueError, canonical
from tests.support import payments
from tests.support.generated_requests import directory, manifests, requests

Path = tuple[str | int, ...]
KINDS = ("missing", "null", "mistyped", "empty", "duplicated", "huge")

# These fields only restrict a request, so a request without such a field is valid and may be allowed
# (docs/explanation/baseline.md). The fields are an acting agent with its limits, an approval, and markings. Only the
# enforcement point writes `context.flow`.
OF_ITSELF = frozenset(("act", "approval", "markings"))
OF_AN_AGENT = frozenset(("act", "clearances", "limits", "purposes", "entitlements"))

# A longer name is the valid name of another person or resource, to whom other rules apply.
NAMES = frozenset(("id", "iss", "sub", "type"))

_OF_OTHER_TYPES: tuple[Any, ...] = (None, True, 7, -1.5, "x", ["x"], [[]], {"x": 1}, {})
_LONG = "x" * 20_000


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every field and list item, at any depth."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def spoiled(value: Any, path: Path, kind: str, number: int) -> Any:
    """Return a copy with a fault in the field at `path`, or None if no fault is possible or the copy could be valid."""
    whole = copy.deepcopy(value)
    holder, last, old = at(whole, path[:-1]), path[-1], at(whole, path)
    held = OF_ITSELF.intersection(old) if isinstance(old, dict) else ()
    if kind in ("missing", "null", "empty") and (held or is_optional(path)):
        return None
    if kind == "huge" and path[-1] in NAMES:
        return None
    if kind == "missing":
        del holder[last]
    elif kind == "null":
        holder[last] = None
    elif kind == "mistyped":
        others = [one for one in _OF_OTHER_TYPES if one is not None and family(one) != family(old)]
        holder[last] = copy.deepcopy(others[number % len(others)])
    elif kind == "empty" and isinstance(old, str | list | dict) and old:
        holder[last] = type(old)()
    elif kind == "duplicated" and isinstance(old, list) and old:
        holder[last] = old * 2
    elif kind == "huge" and isinstance(old, str | list) and old:
        holder[last] = old + _LONG if isinstance(old, str) else old + [f"{_LONG}{each}" for each in range(20)]
    else:
        return None
    return whole


def is_optional(path: Path) -> bool:
    return path[-1] in OF_ITSELF or "flow" in path or ("act" in path and path[-1] in OF_AN_AGENT)


def family(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return type(value).__name__
    return "number"


# Requests


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return read_bundle(payments.BUNDLE)


@pytest.fixture(scope="module")
def embedded(bundle: Bundle) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine(bundle, manifests=manifests(), data={"directory": directory()}) as engine:
        yield engine


@pytest.fixture(scope="module")
def refused(embedded: EmbeddedEngine) -> list[Any]:
    """Generated requests that are valid and not allowed."""
    found = []
    for request in requests(600):
        decision = embedded.decide_body(canonical(request))
        if decision.verdict is not Verdict.ALLOW and decision.codes != ("decision.request_invalid",):
            found.append(request)
    return found


drawn = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(KINDS), st.integers(0, 10**6))


def bad(refused: list[Any], chosen: tuple[int, int, str, int]) -> Any:
    request = refused[chosen[0] % len(refused)]
    where = list(places(request))
    return spoiled(request, where[chosen[1] % len(where)], chosen[2], chosen[3])


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # Hypothesis warns about very large requests.
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=st.lists(drawn, min_size=5, max_size=20))
def test_faulty_request_is_not_allowed_if_the_corrected_request_is_not_allowed(
    embedded: EmbeddedEngine, refused: list[Any], chosen: list[tuple[int, int, str, int]]
) -> None:
    for one in chosen:
        request = bad(refused, one)
        if request is not None:
            decision = embedded.decide_body(canonical(request))
            assert decision.verdict is not Verdict.ALLOW, (one[2], request)


# Proposals and sessions, decided by an enforcement point

CLAIMS: dict[str, Any] = {
    "sub": "officer-123",
    "emts": {"payments.lookup": True, "payments.validate": True, "payments.wire.initiate": True},
    "limits": {"wire.auto_approved": 25000},
    "roles": ["payments.officer"],
    "clearances": ["pii.medium"],
}
SESSION: dict[str, Any] = {
    "claims": CLAIMS,
    "facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"},
    "idempotency_key": "idm-4a2b",
    "purpose": "payments.supplier",
    "time": "2026-07-01T10:00:00Z",
}


@pytest.fixture(scope="module")
def pep(bundle: Bundle) -> Iterator[Pep]:
    with EmbeddedEngine(bundle) as engine:
        yield Pep(payments.effective(), engine)


def spoilings(value: Any) -> Iterator[tuple[str, Any]]:
    for path in places(value):
        for kind in KINDS:
            for number in range(len(_OF_OTHER_TYPES) if kind == "mistyped" else 1):
                made = spoiled(value, path, kind, number)
                if made is not None:
                    yield f"{kind} {'.'.join(map(str, path))}", made


NUMBERS = (
    math.nan, math.inf, -math.inf, 1e400, 2**53, 2**70, 10**400, -1, True, "20000", "1e3", None, [20000],
    {"amount": 1},
)  # fmt: skip


def test_faulty_proposal_is_not_allowed_if_the_corrected_proposal_needs_approval(pep: Pep) -> None:
    assert pep.decide(payments.wire(), payments.session()).verdict is Verdict.STEP_UP
    tried = 0
    for name, proposal in spoilings(payments.wire()):
        evaluation = pep.with_changes(audit=MemoryAudit()).call(proposal, payments.session())
        assert (evaluation.allowed, evaluation.executed) == (False, False), name
        tried += 1
    for number in NUMBERS:
        evaluation = pep.decide(payments.wire(amount=number), payments.session())
        assert not evaluation.allowed, number
        assert evaluation.codes != ("pep.internal_error",), number

    assert tried >= 50


def test_faulty_session_is_not_allowed_if_the_corrected_session_needs_approval(pep: Pep) -> None:
    """Some faulty sessions cannot be created. With all others, the verdict is DENY or STEP_UP, without an error."""
    refusals = decisions = 0
    for name, fields in spoilings(SESSION):
        try:
            session = Session(**fields)
        except (ValueError, TypeError, JsonValueError):
            refusals += 1
            continue
        decisions += 1
        evaluation = pep.with_changes(audit=MemoryAudit()).call(payments.wire(), session)
        assert (evaluation.allowed, evaluation.executed) == (False, False), name
        assert evaluation.codes != ("pep.internal_error",), name

    assert min(refusals, decisions) >= 20
