"""The texts of the frame around every page, of signing in and of errors."""

from typing import Final

TEXTS: Final = {
    "language": "en",
    "product": "tool-pdp",
    "skip": "Skip to the content",
    "menu": "Pages",
    "signed_in": "Signed in as {name}",
    "none": "none",
    # The menu
    "page.inbox": "Inbox",
    "page.help": "Help",
    # Times
    "time.ago": "{duration} ago",
    "time.days": "{n} days",
    "time.h": "{n} h",
    "time.min": "{n} min",
    "time.s": "{n} s",
    "value.cut": "… {n:,} more characters",
    # Signing in and out
    "sign_in.title": "Sign in",
    "sign_in.local": "To get another link that signs you in, run `pdp console` again.",
    "sign_in.token": "Access token",
    "sign_in.token_hint": "Paste a token, for example of `pdp token create`. The page keeps no copy of it.",
    "sign_in.with_token": "Sign in with the token",
    "sign_in.refused": "The token is invalid, expired or revoked.",
    "sign_in.with": "Sign in with {name}",
    "sign_in.again": "Sign in again",
    "sign_in.not_begun": "this sign-in did not begin in this browser, or it took longer than ten minutes",
    "sign_in.not_begun_hint": "sign in again, at the same address of the console",
    "sign_in.not_again": "{name} did not ask you to sign in again",
    "sign_in.not_again_hint": "sign out at the identity provider first",
    "sign_in.no_provider": "your session is not from an identity provider of this service",
    "sign_in.no_provider_hint": "sign in with one of the buttons of the sign-in page",
    "sign_in.link_used": "the link has been used or has expired",
    "sign_in.link_hint": "run pdp console again; it prints a new link",
    "sign_out": "Sign out",
    "continue.title": "Continue to the console",
    "continue.link": "Continue",
    # Errors
    "error.title": "This did not work",
    "error.code": "Code",
    "error.next": "Next step",
    "error.back": "Back to the console",
    "error.csrf": "the form is not from a page of this session",
    "error.csrf_hint": "go back, reload the page, and send the form again",
    "error.origin": "the form is not from a page of this service",
    "error.origin_hint": "open the console at {url}; set public_url if this is another address",
    "error.form": "the form cannot be read",
    "error.other_user": "this console answers only the user of this machine who started it",
    "error.session": "the session has ended",
    "error.scope": "your session lacks the scope {scope}",
    "error.scope_hint": "ask an administrator for a token with this scope",
    # Help
    "help.pages": "The pages",
    "help.page.inbox": "The approvals that wait for you and for others, and the history. Open a row to decide on it.",
    "help.words": "Words and marks",
    "help.ALLOW": "The policy lets the call run.",
    "help.STEP_UP": "A person must approve the call before it runs.",
    "help.DENY": "The policy forbids the call.",
    "help.REJECTED": "A check found the call malformed before the policy was asked.",
    "help.marks": "A character that shows nothing or changes the order of a text, marked by its code point.",
    "help.keys": "Keys",
    "help.key": "Key",
    "help.does": "Effect",
    "help.key.j": "go to the next row",
    "help.key.k": "go to the previous row",
    "help.key.Enter": "open the row, or press the button",
    "help.key.a": "go to the button Approve once; Enter presses it",
    "help.key.d": "go to the button Deny; Enter presses it",
    "help.key./": "go to the filters",
    "help.key.i": "open the inbox",
    "help.key.?": "open this page",
    "help.keys_on": "Use these keys",
    "help.keys_hint": "Everything also works with Tab, Enter and Space. Single keys need JavaScript.",
    "help.accessibility": "Accessibility",
    "help.accessibility.target": (
        "The pages aim at WCAG 2.2, level AA: headings, labels and table heads for screen readers, visible focus, "
        "and no meaning by colour alone. Light and dark colours follow your system."
    ),
    "help.accessibility.tested": (
        "The tests use axe-core, the keyboard alone, pages without JavaScript, and a width of 360 pixels."
    ),
    "help.accessibility.known": (
        "Known limits: the texts are in English only. No person who depends on a screen reader has tried the pages yet."
    ),
}
