"""The difference of two bundles: in their structure, on requests that are known, and on a grid of those that are not."""
