"""Names by OpenTelemetry's conventions for GenAI and MCP, whose version is pinned here.

Source: https://github.com/open-telemetry/semantic-conventions-genai, release 0.1.0, where all names are still in
development. The release has no span for guardrails yet: `GUARDRAIL` and `VERDICT` are those of its pull request 427.
"""

from typing import Any, Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/1.42.0"
OPERATION: Final = "gen_ai.operation.name"
TOOL_NAME: Final = "gen_ai.tool.name"
NAMES: Final = {"pdp.tool_call_id": "gen_ai.tool.call.id", "pdp.agent": "gen_ai.agent.name"}
ERROR_TYPE: Final = "error.type"
DURATION: Final = "gen_ai.execute_tool.duration"
GUARDRAIL: Final[dict[str, Any]] = {
    OPERATION: "run_guardrail",
    "gen_ai.guardrail.component.name": "pdp",
    "gen_ai.guardrail.target.type": "input",
    "gen_ai.guardrail.target.subtype": "tool_call",
}
VERDICT: Final = "gen_ai.guardrail.verdict.type"
VERDICTS: Final = {"ALLOW": "allow", "STEP_UP": "escalate"}  # Anything else is `deny`.
