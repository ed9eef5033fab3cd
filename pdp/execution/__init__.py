"""Run the tool of an allowed call, and turn every outcome into a result or a failure with a fixed code.

* runner: `ToolRunner` runs one tool with its time-out, retries and result schema; `run_once` makes one attempt
* program: the function of a tool of type `cli`, and its process
* failures: the errors that tools raise, and the failures that the model sees
* events: the events of each call for the application's observers
* telemetry: spans and metrics
* conventions: their names by OpenTelemetry's conventions for GenAI
"""
