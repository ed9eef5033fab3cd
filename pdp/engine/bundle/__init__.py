"""Bundles: what engines decide by.

file       the bundle file, and its container
signature  OPA's signature, and the public keys that verify it
trust      which bundles an engine accepts, and the events of it for the audit stream
follow     an engine that follows one file, by path or URL, and never decides by a bad one
"""

from typing import Final

SIGNATURES: Final = ".signatures.json"  # the member that holds the signature
