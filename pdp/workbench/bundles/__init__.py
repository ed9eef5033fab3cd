"""Bundles, by those who make and release them.

inspect    what is in a bundle, for people
sign       private keys, and signing
publish    a repository: releases, channels, history; publish and roll back
"""
