"""Bundles: files with the policy and the data that engines decide with.

file       the bundle file and its format
signature  OPA's signature, and the public keys that verify it
trust      which bundles an engine accepts, and the audit events about bundles
follow     an engine that follows one file, by path or URL, and never decides with an invalid bundle
"""

from typing import Final

SIGNATURES: Final = ".signatures.json"  # the bundle's member file with the signature
