"""Bodies of the AuthZEN Authorization API 1.0: evaluations (sections 6 and 7), searches (8), metadata (9)."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from pdp.service.models import Body, JsonObject

Properties = JsonObject
Name = Annotated[str, Field(min_length=1)]
Semantic = Literal["execute_all", "deny_on_first_deny", "permit_on_first_permit"]


class AuthzenBody(BaseModel):
    """A body of an AuthZEN request. Unknown fields are ignored; a value of the wrong type is an error."""

    model_config = ConfigDict(strict=True)


class AccessEntity(AuthzenBody):
    """A subject or a resource."""

    type: Name
    id: Name
    properties: Properties = {}


class SearchedEntity(AuthzenBody):
    """The type of the subjects or resources to search for."""

    type: Name


class AccessAction(AuthzenBody):
    """The action that the subject wants to perform."""

    name: Name
    properties: Properties = {}


class Context(AuthzenBody):
    """Additional input for the policy.

    The service itself sets `approval`, `call_digest`, `flow`, `spent` and `time`. A request that sets one of these
    fields gets status 400.
    """

    model_config = ConfigDict(extra="allow")


class EvaluationRequest(AuthzenBody):
    """One evaluation request: may the subject perform the action on the resource?"""

    subject: AccessEntity
    action: AccessAction
    resource: AccessEntity
    context: Context = Context()


class EvaluationOptions(AuthzenBody):
    """Options of a batch of evaluations."""

    evaluations_semantic: Semantic = "execute_all"


class EvaluationsRequest(AuthzenBody):
    """A batch of evaluations. `subject`, `action`, `resource` and `context` are defaults for each evaluation.

    Without `evaluations`, the body is a single evaluation request. A malformed evaluation gets the decision false.
    """

    subject: Properties = {}
    action: Properties = {}
    resource: Properties = {}
    context: Properties = {}
    evaluations: list[Properties] = []
    options: EvaluationOptions = EvaluationOptions()


class AccessDecision(Body):
    """One decision. `context` has the reasons of a denial or the obligations of a permit."""

    decision: bool
    context: Properties = Field(default_factory=dict)


class AccessDecisions(Body):
    """The decisions of a batch, in the order of its evaluations."""

    evaluations: list[AccessDecision]


class Page(AuthzenBody):
    """The requested page. `token` is `next_token` of the previous page; `limit` is the maximum number of results."""

    token: str = ""
    limit: Annotated[StrictInt, Field(ge=0)] | None = None


class SearchRequest(AuthzenBody):
    """The context of a search, and the requested page."""

    context: Properties = {}
    page: Page = Page()


class SubjectSearch(SearchRequest):
    """A search for the subjects of a type that may perform the action on the resource."""

    subject: SearchedEntity
    action: AccessAction
    resource: AccessEntity


class ResourceSearch(SearchRequest):
    """A search for the resources of a type on which the subject may perform the action."""

    subject: AccessEntity
    action: AccessAction
    resource: SearchedEntity


class ActionSearch(SearchRequest):
    """A search for the actions that the subject may perform on the resource."""

    subject: AccessEntity
    resource: AccessEntity


class NextPage(Body):
    """The token of the next page. `next_token` is empty on the last page."""

    next_token: str


class FoundEntity(Body):
    """A subject or a resource in a search result."""

    type: str
    id: str


class FoundAction(Body):
    """An action in a search result."""

    name: str


class SearchAnswer(Body):
    """A page of search results. `context.unchecked` names the inputs that the service did not verify."""

    page: NextPage = NextPage(next_token="")
    results: list[FoundEntity | FoundAction]
    context: Properties = Field(default_factory=dict)


class Metadata(Body):
    """The URLs of the AuthZEN endpoints. A search that the tenant does not support has no URL."""

    policy_decision_point: str
    access_evaluation_endpoint: str
    access_evaluations_endpoint: str
    search_subject_endpoint: str = ""
    search_resource_endpoint: str = ""
    search_action_endpoint: str = ""
