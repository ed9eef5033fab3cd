"""Tools for those who make and release bundles.

inspect  show the content of a bundle
sign     generate and load private keys, and sign bundles
publish  publish bundles in a repository of releases and channels, and roll back
"""
