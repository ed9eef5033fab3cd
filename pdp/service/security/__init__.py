"""Who calls, and how much they may: every request but health and metadata comes with a token.

principal  who calls: tenant, scopes, verified claims
tokens     tokens of our own: made, hashed, stored, looked up, revoked
oidc       access tokens of an OpenID Connect provider
routes     tokens and browser sessions over HTTP
"""
