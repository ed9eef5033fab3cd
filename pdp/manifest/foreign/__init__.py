"""Tools as servers, OpenAPI documents and frameworks declare them. They are read leniently; manifest files stay strict.

dialects: a schema of draft-04 to 2020-12, or of OpenAPI, as a manifest writes it
openapi: the operations of an OpenAPI document
"""
