"""Sign-in and sign-out of the console.

* session: the form for a token, and the begin and end of a session
* provider: sign-in at an identity provider
* link: the one-time link of `pdp console`
"""
