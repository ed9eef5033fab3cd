"""What the policy engine answered, parsed once at the boundary.

Source: the document `authz/decision` (policies/authz/decision.rego). An answer that is absent or malformed is an error
here, and the enforcement point denies on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pdp.errors import AnswerInvalidError


class Verdict(StrEnum):
    """The outcome. Only ALLOW executes; STEP_UP means that a person must approve first."""

    ALLOW = "ALLOW"
    STEP_UP = "STEP_UP"
    DENY = "DENY"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Reason(_Frozen):
    """One finding of one concern. `code` is `<concern>.<finding>` and never renamed."""

    code: str
    message: str
    details: dict[str, Any]


class Obligation(_Frozen):
    """A duty on the enforcement point; one that it cannot fulfil turns ALLOW into DENY.

    `on` is the verdict that it belongs to, `parameters` what the handler of `id` needs.
    """

    id: str
    on: Verdict
    parameters: dict[str, Any]


class BundleIdentity(_Frozen):
    """Which policy decided: `revision` is a digest of the bundle's content, `release` counts upwards from 1."""

    revision: str
    release: int


class Answer(_Frozen):
    """The document `authz/decision` as the policy makes it; `bundle` is None for policies that no build has named."""

    verdict: Verdict
    reasons: tuple[Reason, ...]
    obligations: tuple[Obligation, ...]
    bundle: BundleIdentity | None


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with its reasons (of that verdict alone, sorted by code) and obligations.

    `decision_id` is unique; `bundle_revision` and `release` name the policy that decided, and are None when none did.
    """

    verdict: Verdict
    reasons: tuple[Reason, ...]
    obligations: tuple[Obligation, ...]
    decision_id: str
    bundle_revision: str | None
    release: int | None

    @property
    def codes(self) -> tuple[str, ...]:
        """The reasons' codes, each once, sorted."""
        return tuple(sorted({reason.code for reason in self.reasons}))


def parse_answer(body: bytes) -> Answer:
    """Parse the canonical JSON of the document `authz/decision`.

    Raises:
        AnswerInvalidError: not a decision: policy and program are of different versions, or the policy is broken.
    """
    try:
        answer = Answer.model_validate_json(body)
    except ValidationError as error:
        raise AnswerInvalidError(
            f"the policy engine's answer is not a decision: {error.errors()[0]['msg']}",
            hint="check that the bundle and this program are of the same release",
        ) from error
    if not answer.reasons:
        raise AnswerInvalidError("the policy engine's answer gives no reason for its verdict")
    return answer
