"""The tests of the package, one module for each subject."""
