"""One module for each revision, by its number."""
