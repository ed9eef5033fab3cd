"""Bundles: policies, data and manifests as one file that an engine decides by."""
