"""Read the tools that a server, document or application exposes, and compare them with the manifest.

- exposed: the tools of MCP servers, OpenAPI documents and Python applications, and those named by permission rules and
  by manifests of the Agent Governance Toolkit
- findings: the differences between the exposed tools and the manifest
- draft: a first manifest of the exposed tools, for review
"""
