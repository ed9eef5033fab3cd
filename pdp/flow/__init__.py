"""The way of one call, from a proposal to its result; `pdp.pep` puts it in motion.

stages: one frozen record for each stage
decide: read, check, prepare, decide, conclude
record: the audit events of a call
execute: hold, reserve, act, before, approve; run, settle, finish, deliver
action: the agent's run that a call is held to, and its action, from its staging to its compensation
reasons: what is added to the reasons of a call that is not allowed: ignored claims, malformed fields
follow: the ledger of the call's run, read before its decision and written before its result goes out
reserve: a call's approval, found and opened; what it takes before its tool runs: budgets, key and approval
drive: doing what the flow asks for, waiting or asynchronously
parts: what an enforcement point is made of: tools, stores, options
guard: functions whose every call goes through an enforcement point
remote: a folder: calls whose tool another enforcement point runs
preview: what is asked ahead of any call: which tools a subject's model may see, a whole plan
"""
