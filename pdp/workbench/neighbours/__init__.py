"""Calls near a known call: one generator for mutation, the bundle diff, and scenarios that are proposed.

values: what stands at a path of a JSON value, and the value with something else there.
vocabulary: what policies name of a request, and the constants beside it; of two policies, what only one has first.
variants: requests near a request, with one change and then two, in a fixed order; who approves, and who acts.
runs: what the run of a call may have seen, and what another manifest makes of the same run.
conditions: what rules ask for, all of it at once, and the requests that meet or nearly meet it.
bases: for each tool a call that has all it needs, to begin from.
entries: entries that no manifest has.
proposals: arguments from a tool's schema.
"""
