# METADATA
# title: The tool's entry
# description: |
#   The effective manifest that the request names by its digest, and the entry of the tool in it. Both come from the
#   bundle, so a caller cannot describe its own tool.
# schemas:
#   - input: schema.request
package authz.lib.manifest

# METADATA
# title: Manifest
# description: The effective manifest; undefined when the bundle has none of that digest.
manifest := data.manifests[input.action.properties.manifest_digest]

# METADATA
# title: Entry
# description: The tool's effective entry; undefined when there is none, which the concern `manifest` denies.
entry := manifest.tools[input.action.properties.tool]
