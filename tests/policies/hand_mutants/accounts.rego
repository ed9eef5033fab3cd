# METADATA
# title: Accounts
# description: Accounts from which no money goes.
package custom.concerns.accounts

import data.authz.lib.reason

# METADATA
# title: Account closed
# description: No money goes from this account.
# custom:
#   code: accounts.closed
deny contains reason.new(rego.metadata.rule(), {}) if _closed
