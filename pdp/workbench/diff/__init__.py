"""Two bundles compared: in structure, on requests that are known, and on a grid of those that are not."""
