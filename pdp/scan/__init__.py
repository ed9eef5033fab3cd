"""What an application, a server or a configuration really exposes, beside what the manifest says of it.

- exposed: a tool as its source says it; those of MCP servers, OpenAPI documents and Python applications;
  those that permission rules, and manifests of the Agent Governance Toolkit, name
- findings: what is not as the manifest says
- draft: a first manifest, to be reviewed
"""
