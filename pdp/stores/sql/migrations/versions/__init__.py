"""One module for each revision: r0001_keys_actions_approvals makes the first tables, r0002_run_ledger those of runs."""
