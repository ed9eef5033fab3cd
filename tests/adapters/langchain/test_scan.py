"""`pdp scan app` and `pdp manifest import app` read real LangChain tools."""

from typing import Annotated

from langchain_core.tools import InjectedToolArg, tool

from pdp.scan.exposed import ExposedTool, Exposure, application_tools


@tool
def find_order(order_id: str, who: Annotated[str, InjectedToolArg] = "nobody") -> str:
    """Find an order."""
    return f"{order_id} of {who}"


@tool
async def refund_order(order_id: str, amount: float) -> str:
    """Pay an order back."""
    return f"{amount} of {order_id}"


TOOLS = [find_order, refund_order]


def test_scan_reads_the_arguments_that_the_model_sees() -> None:
    where, of_id = f"{__name__}:TOOLS", {"title": "Order Id", "type": "string"}
    find = {"properties": {"order_id": of_id}, "required": ["order_id"]}
    amount = {"title": "Amount", "type": "number"}
    refund = {"properties": {"order_id": of_id, "amount": amount}, "required": ["order_id", "amount"]}

    assert application_tools(where) == Exposure(
        [
            ExposedTool(name, where, text, {"description": text, "title": name, "type": "object", **schema})
            for name, text, schema in (
                ("find_order", "Find an order.", find),
                ("refund_order", "Pay an order back.", refund),
            )
        ],
        [],
    )
