"""Bundles, by those who make and release them.

build        from policies, data and manifests to one file
packages     which module may define what, and where
conventions  the checks of `policies/checks`, which are Rego about Rego
inspect      what is in a bundle, for people
sign         private keys, and signing
publish      a repository: releases, channels, history; publish and roll back
"""
