"""What the policy demands of whoever enforces its decision, and who fulfils it."""
