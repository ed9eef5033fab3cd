"""The suite for enforcement points, run on each way in; a target stands in a file of its own."""
