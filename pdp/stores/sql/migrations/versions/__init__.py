"""One module for each revision: r0001_keys_actions_approvals, r0002_run_ledger, r0003_service."""
