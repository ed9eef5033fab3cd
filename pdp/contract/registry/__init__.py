"""The registry: the tools of an application with their functions, from a manifest and from Python contracts.

* registry: `Registry`, which holds tools, functions and capabilities and reports which tools can run.
* tool_contract: `ToolContract` and the classes of its fields.
* entry: converts a contract, with its shorthand schema, to a manifest entry.
"""
