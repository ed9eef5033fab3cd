"""Guarded functions: the enforcement point decides every call of the function."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest

from pdp import Pep, ToolDeniedError, ToolFailedError
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import UsageError
from tests.support import payments
from tests.support.payments import session


@pytest.fixture
def pep(payments_engine: EmbeddedEngine) -> Pep:
    return Pep(payments.effective(), payments_engine)


def guarded(pep: Pep) -> Any:
    @pep.tool
    def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str = "INV-1") -> str:
        """Wire money."""
        return f"{amount} to {beneficiary_id} from {source_account} for {reference}"

    return initiate_wire


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        pytest.param(("bene-acme-441", 47500, "a"), {}, id="positional"),
        pytest.param((), {"beneficiary_id": "bene-acme-441", "amount": 47500, "source_account": "a"}, id="by name"),
        pytest.param(("bene-acme-441",), {"source_account": "a", "amount": 47500}, id="mixed"),
    ],
)
def test_every_call_of_a_guarded_function_is_decided(pep: Pep, args: Any, kwargs: Any) -> None:
    initiate_wire = guarded(pep)
    with pep.using(session()), pytest.raises(ToolDeniedError) as caught:
        initiate_wire(*args, **kwargs)

    assert caught.value.evaluation.codes == ("limits.exceeded",)
    assert caught.value.evaluation.request is not None
    assert caught.value.evaluation.request["context"]["arguments"] == {
        "beneficiary_id": "bene-acme-441", "amount": 47500, "source_account": "a", "reference": "INV-1",
    }  # fmt: skip


def test_guarded_function_returns_the_result(pep: Pep) -> None:
    initiate_wire = guarded(pep)
    with pep.using(session()):
        assert initiate_wire("bene-acme-441", 20000, "a", reference="r") == "20000 to bene-acme-441 from a for r"


def test_guarded_function_has_the_original_signature_and_does_not_expose_the_original_function(pep: Pep) -> None:
    initiate_wire = guarded(pep)

    assert (initiate_wire.__name__, initiate_wire.__doc__) == ("initiate_wire", "Wire money.")
    assert list(inspect.signature(initiate_wire).parameters) == [
        "beneficiary_id", "amount", "source_account", "reference",
    ]  # fmt: skip
    assert not hasattr(initiate_wire, "__wrapped__")


def test_guarded_function_without_session_is_denied(pep: Pep) -> None:
    initiate_wire = guarded(pep)
    with pytest.raises(ToolDeniedError) as caught:
        initiate_wire("bene-acme-441", 20000, "a")

    assert caught.value.evaluation.codes == ("decision.request_invalid",)


def test_session_set_by_a_with_block_ends_with_the_block(pep: Pep) -> None:
    initiate_wire = guarded(pep)
    with pep.using(session()):
        pass
    with pytest.raises(ToolDeniedError):
        initiate_wire("bene-acme-441", 20000, "a")


def in_generator(pep: Pep) -> Iterator[None]:
    with pep.using(session()):
        yield


async def in_async_generator(pep: Pep) -> AsyncIterator[None]:
    with pep.using(session()):
        yield


async def test_session_opened_by_a_context_manager_ends_with_its_block(pep: Pep) -> None:
    wire = guarded(pep)
    with ExitStack() as stack:
        stack.enter_context(contextmanager(in_generator)(pep))
        assert wire("bene-acme-441", 1, "a").startswith("1 to")
    async with asynccontextmanager(in_async_generator)(pep):
        assert wire("bene-acme-441", 1, "a").startswith("1 to")

    with pytest.raises(ToolDeniedError):
        wire("bene-acme-441", 1, "a")


def test_failing_guarded_function_raises_the_failure(pep: Pep) -> None:
    @pep.tool
    def validate_payment(beneficiary_id: str, amount: float, source_account: str, reference: str) -> None:
        raise ValueError(f"no {beneficiary_id}")

    with (
        pep.using(session()),
        pytest.raises(ToolFailedError, match=r"^TOOL_EXECUTION_FAILED: ValueError$") as caught,
    ):
        validate_payment("bene-acme-441", 1, "a", "r")
    assert isinstance(caught.value.__cause__, ValueError)


async def test_guarded_coroutine_function_is_decided_and_awaited(pep: Pep) -> None:
    @pep.tool
    async def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> float:
        await asyncio.sleep(0)
        return amount

    assert inspect.iscoroutinefunction(initiate_wire)
    with pep.using(session()):
        assert await initiate_wire("bene-acme-441", 20000, "a", "r") == 20000
        with pytest.raises(ToolDeniedError):
            await initiate_wire("bene-acme-441", 47500, "a", "r")


def test_guarded_function_called_with_wrong_parameters_raises_type_error(pep: Pep) -> None:
    initiate_wire = guarded(pep)
    with pep.using(session()), pytest.raises(TypeError, match="missing a required argument: 'amount'"):
        initiate_wire("bene-acme-441")


def test_parameter_that_the_caller_leaves_at_none_is_not_sent_as_an_argument(pep: Pep) -> None:
    @pep.tool
    def lookup_beneficiary(payee_name: str, invoice_ref: str | None = None) -> None:
        """Find a beneficiary. The tool's schema requires `invoice_ref`."""

    with pep.using(session()), pytest.raises(ToolDeniedError, match=r'"invoice_ref" is a required property'):
        lookup_beneficiary("Acme")


def test_guarded_function_rejects_an_argument_that_is_not_json(pep: Pep) -> None:
    initiate_wire = guarded(pep)
    with (
        pep.using(session()),
        pytest.raises(ToolDeniedError, match=r"arguments\.amount: complex is not a type of JSON"),
    ):
        initiate_wire("bene-acme-441", 1j, "a")


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        pytest.param("shell_exec", "a", "shell_exec is not a tool of manifest 2026.07.1", id="no such tool"),
        pytest.param("lookup_beneficiary", "*args", "*args has no argument names", id="variadic"),
        pytest.param("lookup_beneficiary", "**kwargs", "*kwargs has no argument names", id="variadic keywords"),
        pytest.param(
            "lookup_beneficiary", "payee_name, /, invoice_ref", "payee_name is positional only", id="positional"
        ),
        pytest.param(
            "lookup_beneficiary",
            "payee_name, invoice_ref, debug=0",
            "the schema has no argument debug",
            id="parameter outside the schema",
        ),
        pytest.param(
            "lookup_beneficiary", "payee_name", "the function has no parameter invoice_ref", id="missing parameter"
        ),
    ],
)
def test_function_that_does_not_fit_its_tool_is_rejected(pep: Pep, name: str, parameters: str, message: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def {name}({parameters}): pass", namespace)  # noqa: S102 - the simplest way to vary a signature

    with pytest.raises(UsageError) as caught:
        pep.tool(namespace[name])

    assert message in str(caught.value)


def test_second_function_for_a_tool_is_rejected(pep: Pep) -> None:
    guarded(pep)

    with pytest.raises(UsageError, match="initiate_wire has a function already"):
        guarded(pep)


def test_callable_without_a_name_cannot_be_a_tool(pep: Pep) -> None:
    with pytest.raises(UsageError, match="partial is not a tool of manifest"):
        pep.tool(partial(print))


def test_generator_function_cannot_be_a_tool(pep: Pep) -> None:
    with pytest.raises(UsageError, match="a generator would run after its call is recorded"):

        @pep.tool
        def lookup_beneficiary(payee_name: str, invoice_ref: str) -> Iterator[str]:
            yield payee_name


def test_parameter_that_the_caller_sets_to_none_is_sent_as_an_argument(pep: Pep) -> None:
    initiate_wire = guarded(pep)
    with pep.using(session()), pytest.raises(ToolDeniedError, match=r"arguments\.reference: null is not of type"):
        initiate_wire("bene-acme-441", 1, "a", reference=None)
