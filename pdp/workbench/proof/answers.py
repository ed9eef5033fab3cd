"""Answers about the findings of a concern in two versions of the policies."""

from dataclasses import dataclass
from typing import Literal

Word = Literal["equal", "narrower", "wider", "bounded", "not proved"]


@dataclass(frozen=True, slots=True)
class HeadAnswer:
    """The answer for one head of a concern, such as `deny` of `authz.concerns.limits`.

    Attributes:
        concern: the package.
        head: `deny`, `step_up`, `allow` or `obligations`.
        word: `equal` if the head does the same for the decision in all calls. `narrower` if the new version admits no
            call that the old version does not admit. `wider` if `request` is a call that shows it; `bounded` if no call
            with small collections shows it.
        items: whether the findings are proved to be equal with all of their details and texts.
        codes: reason codes, or ids of obligations, that are not proved to be found in the same calls. `*` stands for
            computed codes.
        term: for `not proved`: the text and place of the construct that cannot be translated, or `time`.
        request: for `wider`, a request that the engine confirmed, as canonical JSON.
        data: for `wider`, the data on which the engine confirmed it, if it is other data than that of the policies.
        verdict: for `wider`, whether the verdict on the request differs. If not, another rule decides in both.

    Examples:
        >>> answer = HeadAnswer("authz.concerns.limits", "deny", "equal", items=True, codes=())
        >>> answer.word
        'equal'
    """

    concern: str
    head: str
    word: Word
    items: bool
    codes: tuple[str, ...]
    term: str = ""
    request: bytes | None = None
    data: bytes | None = None
    verdict: bool = False
