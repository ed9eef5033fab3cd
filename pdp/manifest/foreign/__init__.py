"""Read the tools that servers, OpenAPI documents and frameworks declare, with fewer checks than for manifest files.

dialects: translates schemas of OpenAPI, draft-04 and later drafts to draft 2020-12, which manifests use
openapi: reads the operations of an OpenAPI document
"""
