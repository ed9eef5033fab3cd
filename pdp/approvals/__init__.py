"""People who allow one call that the policy wants a person for: what is bound to what, kept where, used once."""
