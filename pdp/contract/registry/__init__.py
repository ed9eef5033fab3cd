"""The registry: an application's tools with their functions, from a manifest and from contracts in Python.

* registry: `Registry`, what holds tools, functions and capabilities, and says what can run and why not
* tool_contract: `ToolContract` and its parts
* entry: the manifest entry of a contract; the shorthand of its schema
"""
