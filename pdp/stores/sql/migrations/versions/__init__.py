"""One module for each revision: r0001_keys_actions_approvals makes the tables."""
