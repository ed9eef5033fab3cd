"""The way of one call, from a proposal to its result; `pdp.pep` puts it in motion.

call: one frozen record for each stage
decide: read, check, ask, decide, conclude
record: the audit events of a call
execute: reserve, stage, run, deliver
approve: the approval of a call, found before the policy is asked and opened when it asks for a person
reserve: idempotency key and approval, both or neither, before a tool runs
stage: the action of a call with effects: staged, approved, settled, compensated
drive: doing what the flow asks for, waiting or asynchronously
parts: what an enforcement point is made of: tools, stores, options
guard: functions whose every call goes through an enforcement point
visibility: which tools a subject's model may see
plan: a whole plan before its first call
"""
