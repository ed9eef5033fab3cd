"""The stages of the flow that `pdp.pep` puts together."""
