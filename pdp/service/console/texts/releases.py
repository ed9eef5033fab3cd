"""The texts of the page about the bundle that decides."""

from typing import Final

TEXTS: Final = {
    "page.releases": "Releases",
    "help.page.releases": "The bundle that decides: release, signature, age and source.",
    "releases.title": "Releases",
    "releases.decides": "The bundle that decides",
    "releases.none": "The engine does not decide now. The log of the service says why.",
    "releases.not_ready": "The engine is not ready.",
    "releases.number": "Release",
    "releases.revision": "Revision",
    "releases.unknown": "not known",
    "releases.engine": "Engine",
    "releases.source": "Source",
    "releases.from_file": "the file {file}",
    "releases.from_baseline": "the baseline that is part of tool-pdp, {file}",
    "releases.from_policies": "built from the folders {folders} when the service started; it is no file",
    "releases.from_opa": "the OPA at {url}, which loads its own bundle; its file and signature are not known here",
    "releases.changed": "File changed",
    "releases.size": "Size",
    "releases.bytes": "{n:,} bytes",
    "releases.signature": "Signature",
    "releases.unsigned": "not signed",
    "releases.claimed": "names the key {key}, but it is not verified: {variable} is not set",
    "releases.not_verified": "names the key {key}, but it is not valid: {why}",
    "releases.verified": "made with the key {key}, verified with {variable}",
    "releases.concerns": "Concerns",
    "releases.other_file": (
        "The file now holds another bundle than the one that decides. Restart the service to decide with the file."
    ),
    "releases.manifest": "The manifest",
    "releases.version": "Version",
    "releases.digest": "Digest",
    "releases.tools": "Tools",
    "releases.history": "Earlier releases of this channel",
    "releases.no_history": (
        "Earlier releases are not known: the bundle is not a channel of a repository. `pdp bundle publish` makes one."
    ),
    "releases.when": "When",
    "releases.action": "Change",
    "releases.by": "By",
    "releases.why": "Why",
    "releases.figures": "Tests",
    "releases.no_figures": (
        "Bundles carry no figures about coverage and mutation, so they are not known here. "
        "`pdp release check` measures them, and `pdp bundle diff OLD NEW` says what a release changes."
    ),
}
