"""AuthZEN Authorization API 1.0: evaluations (section 6 and 7), searches (section 8), metadata (section 9)."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from pdp.service.models import Body, JsonObject

Properties = JsonObject
Name = Annotated[str, Field(min_length=1)]
Semantic = Literal["execute_all", "deny_on_first_deny", "permit_on_first_permit"]


class AuthzenBody(BaseModel):
    """A body of AuthZEN. Unknown fields are ignored; a value of another type is an error."""

    model_config = ConfigDict(strict=True)


class AccessEntity(AuthzenBody):
    """A subject or a resource."""

    type: Name
    id: Name
    properties: Properties = {}


class SearchedEntity(AuthzenBody):
    """The type of the subjects or resources that are searched."""

    type: Name


class AccessAction(AuthzenBody):
    """An action."""

    name: Name
    properties: Properties = {}


class Context(AuthzenBody):
    """What the policy needs to know.

    `approval`, `call_digest`, `flow`, `spent` and `time` are the service's own: a request that states one is an error.
    """

    model_config = ConfigDict(extra="allow")


class EvaluationRequest(AuthzenBody):
    """One question."""

    subject: AccessEntity
    action: AccessAction
    resource: AccessEntity
    context: Context = Context()


class EvaluationOptions(AuthzenBody):
    """How several questions are answered."""

    evaluations_semantic: Semantic = "execute_all"


class EvaluationsRequest(AuthzenBody):
    """Several questions. `subject`, `action`, `resource` and `context` are for each that does not state its own.

    Without `evaluations` the body is one question. An evaluation that is malformed is answered false.
    """

    subject: Properties = {}
    action: Properties = {}
    resource: Properties = {}
    context: Properties = {}
    evaluations: list[Properties] = []
    options: EvaluationOptions = EvaluationOptions()


class AccessDecision(Body):
    """The answer to one question. `context` says why it is no, and what an ALLOW obliges to."""

    decision: bool
    context: Properties = Field(default_factory=dict)


class AccessDecisions(Body):
    """The answers to several questions, in their order."""

    evaluations: list[AccessDecision]


class Page(AuthzenBody):
    """Which part of a result is asked for: `limit` results at most, after the page that gave `token`."""

    token: str = ""
    limit: Annotated[StrictInt, Field(ge=0)] | None = None


class SubjectSearch(AuthzenBody):
    """Which subjects of a type are permitted."""

    subject: SearchedEntity
    action: AccessAction
    resource: AccessEntity
    context: Properties = {}
    page: Page = Page()


class ResourceSearch(AuthzenBody):
    """For which resources of a type the subject is permitted."""

    subject: AccessEntity
    action: AccessAction
    resource: SearchedEntity
    context: Properties = {}
    page: Page = Page()


class ActionSearch(AuthzenBody):
    """Which actions the subject is permitted."""

    subject: AccessEntity
    resource: AccessEntity
    context: Properties = {}
    page: Page = Page()


class NextPage(Body):
    """Where the result goes on; `next_token` is empty at its end."""

    next_token: str


class FoundEntity(Body):
    """A subject or a resource that was found."""

    type: str
    id: str


class FoundAction(Body):
    """An action that was found."""

    name: str


class SearchAnswer(Body):
    """A page of results. `context.unchecked` names what the policy took as stated."""

    page: NextPage = NextPage(next_token="")
    results: list[FoundEntity | FoundAction]
    context: Properties = Field(default_factory=dict)


class Metadata(Body):
    """The URLs of the endpoints. A search that is not offered has none."""

    policy_decision_point: str
    access_evaluation_endpoint: str
    access_evaluations_endpoint: str
    search_subject_endpoint: str = ""
    search_resource_endpoint: str = ""
    search_action_endpoint: str = ""
