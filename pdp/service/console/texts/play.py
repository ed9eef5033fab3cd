"""The texts of the playground."""

from typing import Final

TEXTS: Final = {
    "page.play": "Playground",
    "help.page.play": "Try a call against the policies, with your own manifest entry or concern. Nothing is executed.",
    "play.title": "Playground",
    "play.intro": (
        "Try a call against the policies of this project. Nothing is executed, stored or audited, "
        "and nothing leaves this machine."
    ),
    "play.call": "The call",
    "play.tool": "Tool",
    "play.load_tool": "Load this tool",
    "play.load_hint": (
        "Fills in its manifest entry and example arguments. If you choose another tool, Decide loads its entry."
    ),
    "play.switched": "You chose another tool, so the entry of {tool} was loaded.",
    "play.arguments": "Arguments (JSON)",
    "play.session": "Session (YAML or JSON)",
    "play.session_hint": (
        "At first the project's example session, or your own claims. "
        "Without `time` and `run_id`, the call happens now, in a new run."
    ),
    "play.entry": "Manifest entry (YAML or JSON)",
    "play.entry_hint": "As declared in the manifest. The governance file is merged into it. Empty: no change.",
    "play.concern": "A concern of your own (Rego)",
    "play.concern_hint": (
        "The project's policies decide together with this concern. It replaces a concern of the same name. "
        "Leave it empty to decide with the project's policies alone."
    ),
    "play.concern_scope": "your session needs the scope audit to try a concern, which can read all policy data",
    "play.no_opa": "OPA is not installed here, so no concern can be tried or traced. Get it with: pdp opa install",
    "play.start": "Start from",
    "play.new": "a new concern",
    "play.load_concern": "Load this concern",
    "play.decide": "Decide",
    "play.lines": "Lines",
    "play.line": "line {n}",
    "play.result": "Result",
    "play.nothing": "Press Decide to see the verdict here.",
    "play.problems": "These texts have faults, so there is no decision:",
    "play.other_manifest": "The service decides with another manifest: the entry here or the file differs.",
    "play.reasons": "Reasons",
    "play.details": "Details",
    "play.trace": "Which concern gave what",
    "play.fired": "Fired",
    "play.rest": "Did not fire: {n} rules, and why",
    "play.more": "and {n} more, see `pdp explain --all`",
    "play.none_fired": "No rule fired.",
    "play.not_asked": "not evaluated",
    "play.because": "because",
    "play.undefined": "undefined",
    "play.unknown": "The trace is not known{why}",
    "play.checks": "Checks before the policy",
    "play.check": "Check",
    "play.outcome": "Result",
    "play.request": "The request as JSON",
    "play.scenario": "Save as scenario",
    "play.scenario_hint": "It expects this answer. Save it beside pdp.yaml, and run: pdp test played.scenarios.yaml",
    "play.concern_at": "The scenario expects your concern. Save the concern as {path}, in the folder of pdp.yaml.",
    "play.entry_at": "The scenario expects your entry. Replace the entry of {tool} in {path} by it.",
    "play.download": "Download the scenario",
    "play.no_scenario": "The policy made no decision, so there is nothing to expect.",
    "play.too_long": "the text has more than {kib} KiB",
    "play.busy": "another evaluation is running; try again in a moment",
    "play.late": "the evaluation was stopped after {seconds} s; look for a rule that does not end",
    "play.broken": "the evaluation ended without an answer, perhaps for lack of memory; see the service's log",
    "field.arguments": "Arguments",
    "field.session": "Session",
    "field.entry": "Manifest entry",
    "field.concern": "Concern",
    "play.skeleton": """# METADATA
# title: My concern
# description: Say what it is about.
package custom.concerns.mine

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Never
# description: Say why the call is denied.
# custom:
#   code: mine.never
deny contains reason.new(rego.metadata.rule(), {{}}) if {{
\tinput.action.name == "..."
}}
""",
}
