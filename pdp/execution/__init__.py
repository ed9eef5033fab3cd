"""Execution: an allowed call runs its tool, and whatever happens is a result or a failure with a fixed code.

* runner: `ToolRunner`, one tool with its time-out, attempts and result contract; `run_once`, one run in bounded time
* program: the function of a tool of type `cli`, and its process
* failures: the errors that tools raise, and what the model sees of them
* events: observers of an application
* telemetry: spans and metrics
"""
