"""The pages of the console, one module for each.

* approvals: the inbox, and one approval with its decision bar
* shown: what the page of one approval shows
* tools: tools of the manifest, one tool, and the matrix of subjects and tools
* grants: lasting grants; budgets: the budgets of cumulative limits
* decisions: the decisions, and one event of the audit stream
* recorded: the recorded request of a decision, and the form that decides it again
* runs: one run, with its calls in order
* live: the event stream that keeps open pages up to date
* play: the playground, which decides a typed call in another process
* releases: the bundle that decides
"""
