"""The pages of docs/ and README: what they show is what happens."""
