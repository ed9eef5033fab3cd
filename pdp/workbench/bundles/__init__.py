"""Bundles, by those who make and release them.

build      from policies, data and manifests to one file
admission  which Rego is admitted: packages, concerns, and the conventions of `policies/checks`
names      what a user's concern may name: the request, contexts and arguments of tools, the data
inspect    what is in a bundle, for people
sign       private keys, and signing
publish    a repository: releases, channels, history; publish and roll back
"""
