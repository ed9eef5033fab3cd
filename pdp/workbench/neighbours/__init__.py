"""Generate calls that differ little from a known call, for mutation, the bundle diff and proposed scenarios.

values: read and edit JSON values by path.
vocabulary: the request attributes and constants in policies; attributes in differing rules come first.
variants: requests with one change and with two changes, in a fixed order; changes of approvals and agents.
runs: changes of the data flow in a request, and the same flow with the labels of another manifest.
conditions: the conditions of rules, and requests that meet all conditions, or all but one.
bases: a complete call for each tool, to which changes are applied.
entries: manifest entries of synthetic tools.
proposals: example arguments from a tool's schema.
"""
