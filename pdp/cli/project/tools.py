"""Example tools of a support desk; replace them with your own clients. `pdp test` runs them, and nothing is sent."""


def search_tickets(query: str) -> list[str]:
    """Find tickets by words in them."""
    tickets = {"T-1042": "The parcel came broken", "T-1043": "Where is my invoice?"}
    return [ticket for ticket, text in tickets.items() if query.lower() in text.lower()]


def reply_to_customer(ticket_id: str, recipient: str, text: str) -> str:
    """Send an answer to the customer who opened a ticket."""
    return f"{ticket_id}: {len(text)} characters sent to {recipient}"


def refund_order(order_id: str, amount: float) -> str:
    """Pay an order back to the customer."""
    return f"{amount:.2f} paid back for {order_id}"
