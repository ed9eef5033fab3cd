"""The registry: an application's tools with their functions, from manifest files and from contracts in Python.

* registry: `Registry`, what holds tools, functions and capabilities, and lists what is available
* tool_contract: `ToolContract` and its parts
* entry: the manifest entry of a contract; the shorthand of its schema
* inputs: what a function gets of state and config beside its arguments
* availability: whether a tool can run now, and why not
"""
