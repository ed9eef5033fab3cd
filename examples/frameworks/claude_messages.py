"""A local replacement for the messages API. It streams the message that a script returns."""

import json
from http.server import BaseHTTPRequestHandler
from typing import Any


class Script(BaseHTTPRequestHandler):
    """A scripted model: it proposes the wire of `asked` once, and then reports the result."""

    asked: float | None = None

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        asked, Script.asked = Script.asked, None
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta, stop = {"type": "text_delta", "text": "done"}, "end_turn"
        if asked:
            wire = {"beneficiary_id": "bene-acme-441", "source_account": "ops-main", "reference": "INV-8842"}
            block = {"type": "tool_use", "id": f"toolu_{id(self)}", "name": "mcp__hub__initiate_wire", "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps({**wire, "amount": asked})}
            stop = "tool_use"
        ended = {"stop_reason": None, "stop_sequence": None}
        message = {"id": "msg", "type": "message", "role": "assistant", "model": "script", "content": []}
        usage = {"input_tokens": 1, "output_tokens": 1}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**message, **ended, "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {**ended, "stop_reason": stop}, "usage": usage},
            {"type": "message_stop"},
        ]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in events:
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_: object) -> None:
        pass
