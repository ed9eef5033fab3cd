"""Tools that configurations name: permission rules of Claude Code, manifests of the Agent Governance Toolkit."""

from pathlib import Path
from typing import Final

from pdp.documents import read_document
from pdp.errors import UsageError
from pdp.hooks.dialects import DIALECTS
from pdp.hooks.install.check import SWITCHES, settings_files
from pdp.hooks.install.clients import CLIENTS
from pdp.hooks.install.installation import read_configuration
from pdp.scan.exposed import ExposedTool, Exposure

# With the last two, calls or whole servers pass without a question [Claude Code 2.1.330: read in its program].
_SHOWING: Final = (*SWITCHES, "enableAllProjectMcpServers", "skipDangerousModePermissionPrompt")


def configured_tools(client: str) -> Exposure:
    """Return the tools that permission rules name in a client's settings for the working folder (Claude Code's alone).

    A built-in tool has the name by which hooks propose it. A rule may deny a tool as a whole; one about arguments is a
    note. UsageError: no such client, or a file that cannot be read or is none of its.
    """
    if client not in CLIENTS:
        raise UsageError(f"{client}: no such client", hint=f"known: {', '.join(CLIENTS)}")
    exposure, built_in = Exposure([], []), DIALECTS[client].built_in
    rules: dict[str, list[tuple[str, str, bool]]] = {}  # by entry: rule, the client's tool, whether all of it is denied
    for file in settings_files(CLIENTS[client]):
        _, _, value = read_configuration(Path(file))
        try:
            stated = value.get("permissions", {})
            switches = [f"{name} is on" for name in _SHOWING if value.get(name, False) is not False]
            switches += ["bypassPermissions is the defaultMode"] * (stated.get("defaultMode") == "bypassPermissions")
            exposure.switches.extend((file, switch) for switch in switches)
            for kind, rule in ((of, rule) for of in ("deny", "ask", "allow") for rule in list.copy(stated.get(of, []))):
                name = rule.partition("(")[0].strip()
                entry = built_in[name].kind.value if name in built_in else name
                is_denied = kind == "deny" and rule in (name, f"{name}(*)")
                rules.setdefault(entry, []).append((f"{kind} {rule} in {file}", name, is_denied))
        except (AttributeError, TypeError) as error:
            raise UsageError(f"{file}: not settings of {client}: {error}", hint="mend it") from None
    for entry, found in rules.items():
        is_denied = {name for _, name, _ in found} == {name for _, name, all_denied in found if all_denied}
        notes = tuple(rule for rule, _, _ in found)
        exposure.tools.append(ExposedTool(entry, f"rules of {client}", notes=notes, denied=is_denied))
    return exposure


def toolkit_tools(file: str) -> Exposure:
    """Return the catalog of a manifest of Microsoft's Agent Governance Toolkit. UsageError: it is no such, or in parts.

    Agent Control Specification 0.3 to 0.4 (`policy-engine/spec/SPECIFICATION.md` of microsoft/agent-governance-toolkit)
    and AGT-MANIFEST-1.0: `tools` is keyed by name and says nothing of arguments (9), `clearance` and `security_labels`
    say what data a tool may take (11). Its policies, Rego or Cedar of their own, are not read.
    """
    value = read_document(file).value
    tools = value.get("tools", {}) if isinstance(value, dict) else None
    if not isinstance(tools, dict) or "agent_control_specification_version" not in value or value.get("extends"):
        message = f"{file}: no manifest of the Agent Governance Toolkit, or one that `extends` others"
        raise UsageError(message, hint="name the whole manifest, as its engine gets it")
    if "tools" not in value:
        raise UsageError(
            f"{file}: states no `tools`: nothing can be imported", hint="name the tools there, each by a key"
        )
    return Exposure([ExposedTool(name, file, notes=(f"declared with {at}",)) for name, at in tools.items()], [])
