"""The way of one call, from a proposal to its result; `pdp.pep` puts it in motion.

stages: one frozen record for each stage
decide: read, check, prepare, decide, conclude
record: the audit events of a call
run: from ALLOW to a result: reserve, run, settle, deliver; what runs the tool here
settle: what is stored of a call's outcome, and what its caller gets
reserve: what a call reads and reserves of the stores before its tool runs: budgets, approval, key, action
evaluation: what the caller gets back
reasons: what is added to the reasons of a call that is not allowed: ignored claims, malformed fields
drive: doing what the flow asks for, waiting or asynchronously
parts: what an enforcement point is made of: tools, stores, options
guard: functions whose every call goes through an enforcement point
remote: a folder: calls whose tool another enforcement point runs
preview: what is asked ahead of any call: which tools a subject's model may see, a whole plan
"""
