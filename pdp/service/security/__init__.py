"""Authentication: every request needs a token, except for health checks and metadata.

- principal: the holder of a token: tenant, scopes, verified claims
- tokens: creates, stores, looks up and revokes the service's own tokens
- oidc: access tokens of an OpenID Connect provider
- authorization_code: sign-in of people at an OpenID Connect provider
- routes: tokens and browser sessions over HTTP
"""
