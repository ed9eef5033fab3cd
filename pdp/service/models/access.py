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
    """Further input of the policy.

    The service itself sets `approval`, `call_digest`, `flow`, `spent` and `time`; a request with one of them is a 400.
    """

    model_config = ConfigDict(extra="allow")


class EvaluationRequest(AuthzenBody):
    """One evaluation request: may this subject do this action on this resource?"""

    subject: AccessEntity
    action: AccessAction
    resource: AccessEntity
    context: Context = Context()


class EvaluationOptions(AuthzenBody):
    """Options of a batch of evaluations."""

    evaluations_semantic: Semantic = "execute_all"


class EvaluationsRequest(AuthzenBody):
    """A batch. `subject`, `action`, `resource` and `context` are the defaults of its evaluations.

    Without `evaluations` the body is a single request. The decision of a malformed evaluation is false.
    """

    subject: Properties = {}
    action: Properties = {}
    resource: Properties = {}
    context: Properties = {}
    evaluations: list[Properties] = []
    options: EvaluationOptions = EvaluationOptions()


class AccessDecision(Body):
    """One decision. `context` has the reasons of a denial, and the obligations of a permit."""

    decision: bool
    context: Properties = Field(default_factory=dict)


class AccessDecisions(Body):
    """The decisions of a batch, in the order of its evaluations."""

    evaluations: list[AccessDecision]


class Page(AuthzenBody):
    """The page that is requested. `token` is the `next_token` of the page before; `limit` is the maximum of results."""

    token: str = ""
    limit: Annotated[StrictInt, Field(ge=0)] | None = None


class SearchRequest(AuthzenBody):
    """The context of a search, and the page of its result."""

    context: Properties = {}
    page: Page = Page()


class SubjectSearch(SearchRequest):
    """A search for the subjects of a type that are permitted."""

    subject: SearchedEntity
    action: AccessAction
    resource: AccessEntity


class ResourceSearch(SearchRequest):
    """A search for the resources of a type that the subject is permitted."""

    subject: AccessEntity
    action: AccessAction
    resource: SearchedEntity


class ActionSearch(SearchRequest):
    """A search for the actions that the subject is permitted."""

    subject: AccessEntity
    resource: AccessEntity


class NextPage(Body):
    """The token of the next page; `next_token` is empty on the last page."""

    next_token: str


class FoundEntity(Body):
    """A subject or a resource that was found."""

    type: str
    id: str


class FoundAction(Body):
    """An action that was found."""

    name: str


class SearchAnswer(Body):
    """A page of results. `context.unchecked` names the inputs that the service did not verify."""

    page: NextPage = NextPage(next_token="")
    results: list[FoundEntity | FoundAction]
    context: Properties = Field(default_factory=dict)


class Metadata(Body):
    """The URLs of the endpoints. A search that the tenant does not support is left out."""

    policy_decision_point: str
    access_evaluation_endpoint: str
    access_evaluations_endpoint: str
    search_subject_endpoint: str = ""
    search_resource_endpoint: str = ""
    search_action_endpoint: str = ""
