"""The stages of one tool call, from the proposal to the result. `pdp.pep` runs them.

stages: one frozen record for each stage
decide: parses and checks a proposal, builds its request, and lets the policy decide it
record: writes the audit events of a call
run: runs an allowed call: reserves what it needs, runs the tool, stores the outcome, returns the result
settle: stores the outcome of a call and builds the result for its caller
reserve: reads and reserves budgets, approval, idempotency key and action before the tool runs
evaluation: `Evaluation`, the object that the caller of a tool gets
reasons: adds ignored claims and malformed fields to the reasons of a call that is not allowed
drive: runs the steps of a call, blocking or async
parts: the components of an enforcement point: tools, stores, options
guard: functions whose calls go through an enforcement point
remote: a folder for calls whose tool runs at another enforcement point
preview: decisions before any call: which tools the model may see, and whether a plan is acceptable
"""
