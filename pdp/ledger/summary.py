"""Computes `context.flow` of a call, and updates the ledger after the call's result.

Every text or result that contains a value is a source of the value. The user's words, the application's facts and the
endorsements of approvals are known without the ledger. A value that no source contains was made up by the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from pdp.json import MAX_BYTES, JsonValueError, canonical
from pdp.ledger.labels import LABELS, UNTRUSTED, ResultReader
from pdp.ledger.ledger import LedgerStore, Origin, RunIds, RunLabels, run_of
from pdp.ledger.roles import TARGETS, Roles
from pdp.ledger.values import (
    SHORTEST,
    WORD,
    Leaf,
    Prompt,
    domain_of,
    host_of,
    is_numeric,
    leaf_values,
    links,
    names_something,
    normal,
    site_of,
)
from pdp.manifest.fields import EffectClass
from pdp.manifest.model import Tool
from pdp.session import Session

MOST_ARGUMENTS: Final = 64
"""The maximum number of labelled arguments in a request. All others count together as one untrusted argument."""

_MOST_LEAVES: Final = 1_000
"""The maximum number of argument values whose sources are looked up, and of values removed from a write's answer."""

GOOD: Final = frozenset(("prompt", "fact", "trusted", "created", "named", "endorsed"))
"""Sources that the policy accepts as trustworthy."""

_MODEL: Final = ("model",)
_NO_LEAF: Final = Leaf("", "")
_ANCHORING: Final = 0.75
"""The share of an argument's words that must be the user's for the argument to count as anchored."""
_ADDRESSES: Final = ("url", "address")
_SHORT_STATUS: Final = 64
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_VERBS: Final = tuple(
    frozenset(stems.split())
    for stems in (
        "add append arrang book creat insert mak new plan schedul set",
        "answer email forward mail messag post publish repli reply send shar tell writ",
        "cancel clear delet discard drop eras remov revok",
        "adjust alter amend chang edit modifi modify mov renam reschedul set updat",
        "buy order pay purchas reserv transfer wir",
        "activat begin enabl initiat launch start",
    )
)
"""Stems of verbs that users and tool names use as synonyms."""

_KNOWN_VERB: Final = re.compile(
    "accept|approv|assign|clos|confirm|copy|deny|disabl|follow|get|invit|join|list|lock|merg|open|push|read|reject|"
    f"releas|resolv|return|run|search|stop|submit|subscrib|upload|{'|'.join(map('|'.join, _VERBS))}"
)

_ENDINGS: Final = ("ing", "es", "ed", "s", "e")


class _Query(NamedTuple):
    """A value in the arguments, its ids in the ledger, its id as an endorsed value, a query for its host, and its site.

    Only a value with the role `url` has a site.
    """

    value: str
    ids: tuple[str, ...] = ()
    endorsed: str | None = None
    host: _Query | None = None
    site: str = ""


class _Argument(NamedTuple):
    """A text or number in the arguments with its role, the query for its value, and the queries for links in it."""

    leaf: Leaf
    role: str | None
    query: _Query
    links: tuple[_Query, ...] = ()


class CallFlow(NamedTuple):
    """The data that the run ledger has about one call."""

    context: dict[str, Any]  # `context.flow` of the request.
    digested: dict[str, Any]  # The sources of the arguments without the run's history, for the call's digest.
    prompt: Prompt
    home: list[str]
    run: str
    ids: RunIds
    labels: RunLabels  # The labels of the run before the call.
    lowered: bool  # An argument is untrusted, so the result is untrusted too.
    unknown: set[str]  # The argument values whose only source is the model.
    arguments: list[_Argument]  # If a person approves the call, the arguments with a role count as endorsed.


@lru_cache(64)
def prompt_of(texts: tuple[str, ...]) -> Prompt:
    """Return the user's words, prepared for searches."""
    return Prompt(texts)


class Tracker:
    """Finds the sources of one tool's arguments. `names` are the property names of the tool's schema. Immutable."""

    __slots__ = ("_entry", "_is_pure", "_own_words", "_reader", "_roles", "_stems")

    def __init__(self, entry: Tool, names: frozenset[str]) -> None:
        self._entry, self._roles = entry, Roles(entry, names)
        self._reader, self._is_pure = ResultReader(entry), entry.effect_class is EffectClass.PURE
        self._stems = _stems(entry.name)
        documented = f"{entry.name} {entry.description} {canonical(entry.schema_).decode()}"
        self._own_words = frozenset(_LETTERS.findall(documented.casefold()))

    def call_flow(self, arguments: Mapping[str, Any], session: Session, store: LedgerStore, now: float) -> CallFlow:
        """Return the ledger's data about a call of a run. Raises the errors of `LedgerStore.read`."""
        run, ids = _run(store.key, session.caller, session.run_id or "")
        lookup = _SourceLookup(ids, session, self._stems, self._own_words, self._entry)
        leaves = self._roles.placed(arguments)
        listed = list(islice(leaves, _MOST_LEAVES))
        beside = self._roles.beside(listed, MOST_ARGUMENTS)
        queried = [lookup.argument(placed.leaf, placed.role, beside(placed)) for placed in listed]
        labels, lookup.sources = store.read(run, lookup.ids, now)
        sites = {self._site(query.site, ids, labels.markings): query.site for _, _, query, _ in queried if query.site}
        if sites and labels.tainted:
            lookup.sites = frozenset(sites[name] for name in store.read(run, list(sites), now).sources)
        lookup.unknown = (*_MODEL, UNTRUSTED) if labels.full else _MODEL
        if session.plan and labels.plan is None and not labels.tainted:
            pinned = RunLabels(plan=tuple(_planned(session.plan)))
            store.write(run, pinned, {}, now)
            labels = labels.joined(pinned)
        labelled: list[dict[str, Any]] = []
        unknown: set[str] = set()
        lowered, anchored = next(leaves, None) is not None, False
        for argument in queried:
            value = argument.query.value
            sources, calls = lookup.origin(argument.query, argument.role, argument.leaf)
            if (argument.role in TARGETS or len(value) >= SHORTEST or not lookup.is_setting(value)) and GOOD.isdisjoint(
                sources
            ):
                is_model = "model" in sources
                # In a tainted run, untrusted text may influence the words of the model, and a pure tool may decode such
                # text.
                is_steered = self._is_pure or (is_model and lookup.steers(argument))
                lowered = lowered or UNTRUSTED in sources or (labels.tainted and is_steered)
                if is_model:
                    unknown.add(value)
            anchored = anchored or lookup.anchors(argument, sources)
            if argument.role is not None:
                labelled.append(lookup.entry(argument, sources, calls))
        labelled.sort(key=lambda entry: str(entry["path"]))
        if len(labelled) > MOST_ARGUMENTS or len(queried) == _MOST_LEAVES:
            rest = {"path": "", "role": "destination", "sources": [UNTRUSTED], "from": [], "home": False, "links": []}
            rests = [rest]
            if not self._roles.used.isdisjoint(_ADDRESSES):
                # The model may also have composed the addresses that are left out of the list.
                rests.append({**rest, "role": "url", "sources": ["model", UNTRUSTED]})
            labelled = [*rests, *labelled[: MOST_ARGUMENTS - len(rests)]]
        context = {
            "tainted": labels.tainted,
            "untrusted": sorted(labels.untrusted),
            "markings": sorted(labels.markings),
            "plan": None if labels.plan is None else list(labels.plan),
            "anchored": anchored,
            "intended": _is_intended(self._stems, lookup.prompt),
            "arguments": labelled,
        }
        digested = {"arguments": [_digested(entry) for entry in labelled]}
        return CallFlow(
            context, digested, lookup.prompt, session.home_domains, run, ids, labels, lowered, unknown, queried
        )

    def learned(
        self, flow: CallFlow, arguments: Mapping[str, Any], result: Any, call: str, *, failed: bool = False
    ) -> tuple[RunLabels, dict[str, Origin]]:
        """Return the labels and the value sources that a result, or the text of a failure, adds to the run."""
        name, reader = self._entry.name, self._reader
        try:
            labels, prose = reader.read(result, flow.prompt, failed=failed, lowered=flow.lowered)
        # A result that is not JSON is treated as untrusted text, because it may contain anything.
        except JsonValueError:
            return RunLabels(frozenset((name,)), reader.markings), {}
        echoes = [leaf.value for leaf in leaf_values(arguments)] if reader.is_write else []
        for echo in map(normal, echoes) if reader.is_write else flow.unknown:
            labels.pop(echo, None)
        origins = {label: Origin(label, name, call) for label in set(labels.values())}
        sources = {flow.ids.known_as(value, label): origins[label] for value, label in labels.items()}
        tainted = bool(prose)
        if prose and reader.is_write:
            tainted = _says_more_than_its_state(prose, echoes) or _leads_on(prose, echoes, flow)
        return RunLabels(frozenset((name,) if tainted else ()), reader.markings), sources

    def endorsed(self, flow: CallFlow, call: str, markings: Iterable[str] | None = None) -> dict[str, Origin]:
        """Return the sources that the call's approval adds, by id. A source holds for its value, tool and role only.

        With `markings`, the approval reaches to other pages of the same site, until the run reads other markings.
        """
        endorsed = [query.endorsed for argument in flow.arguments for query in (argument.query, *argument.links)]
        if markings is not None:
            sites = {argument.query.site for argument in flow.arguments if argument.query.site}
            endorsed += [self._site(site, flow.ids, markings) for site in sites]
        return {name: Origin("endorsed", self._entry.name, call) for name in endorsed if name}

    def _site(self, site: str, ids: RunIds, markings: Iterable[str]) -> str:
        return ids.of(site, self._entry.name, "site", *sorted({*markings}.difference(self._entry.admits or ())))


def _says_more_than_its_state(prose: Iterable[str], echoes: Iterable[str | float]) -> bool:
    """Return whether the answer of a write contains more text than the call's arguments and a short status."""
    rest = "".join(prose)
    if len(rest) > MAX_BYTES:  # The text is longer than all arguments of a call can be, so it contains more than them.
        return True
    for text in sorted((str(echo) for echo in echoes), key=len, reverse=True)[:_MOST_LEAVES]:
        rest = rest.replace(text, "")
    return len(rest) > _SHORT_STATUS


def _leads_on(prose: Iterable[str], echoes: Iterable[str | float], flow: CallFlow) -> bool:
    """Return whether a write's answer has an address or account that neither the call nor the user mentions."""
    new = {normal(link) for text in prose for link in links(text)}
    if new:
        new -= {normal(link) for echo in echoes for link in links(str(echo))}
    return any(not flow.prompt.says(link) and domain_of(link) not in flow.home for link in new)


class _SourceLookup:
    """Finds the sources of one call's values. Values whose ids are not in the ledger have the sources `unknown`."""

    __slots__ = (
        "_destroys", "_facts", "_home", "_run_ids", "_stems", "_tool", "_tool_words", "ids", "prompt", "sites",
        "sources", "unknown",
    )  # fmt: skip

    def __init__(
        self, ids: RunIds, session: Session, stems: tuple[str, ...], words: frozenset[str], entry: Tool
    ) -> None:
        self.prompt = prompt_of(tuple(session.prompt))
        self.ids: list[str] = []
        self.sources: Mapping[str, Origin] = {}
        self.sites: frozenset[str] = frozenset()
        self.unknown: tuple[str, ...] = _MODEL
        self._run_ids, self._tool, self._stems, self._tool_words = ids, entry.name, stems, words
        self._destroys = bool(entry.destructive)
        self._home = session.home_domains
        self._facts = {normal(leaf.value) for leaf in leaf_values(session.facts)}

    def argument(self, leaf: Leaf, role: str | None, beside: Iterable[str]) -> _Argument:
        """Return the query for a text or number, which an approval endorses together with `beside`."""
        value = leaf.value
        if role != "body" or not isinstance(value, str):
            query = self._query(normal(value), role, beside, is_address=role in _ADDRESSES)
            return _Argument(leaf, role, query._replace(site=site_of(str(value))) if role == "url" else query)
        # Mail to an address in a home domain stays inside, so it does not count as a destination.
        leading = (link for link in map(normal, links(value)) if "@" not in link or domain_of(link) not in self._home)
        in_body = tuple(self._query(link, role, beside, is_address=True) for link in leading)
        return _Argument(leaf, role, self._query(normal(value), None), in_body)

    def _query(self, value: str, role: str | None, beside: Iterable[str] = (), *, is_address: bool = False) -> _Query:
        if not value:
            return _Query("")
        known_as = self._run_ids.known_as
        ids = tuple([known_as(value, label) for label in (LABELS if len(value) < SHORTEST else LABELS[:1])])
        self.ids += ids
        endorsed = None
        if role is not None:
            endorsed = self._run_ids.of(value, self._tool, role, *beside)
            self.ids.append(endorsed)
        return _Query(value, ids, endorsed, self._query(host_of(value), None) if is_address else None)

    def entry(self, argument: _Argument, sources: list[str], calls: list[dict[str, str]]) -> dict[str, Any]:
        role, home, links_of = argument.role, False, []
        if argument.links:
            distinct = {str(origin): origin for origin in (self.origin(link, role) for link in argument.links)}
            links_of = [{"sources": names, "from": known} for _, (names, known) in sorted(distinct.items())]
        if self._home and role in ("destination", *_ADDRESSES):
            home = domain_of(argument.query.value) in self._home
        path = argument.leaf.path
        return {"path": path, "role": role, "sources": sources, "from": calls, "home": home, "links": links_of}

    def origin(self, query: _Query, role: str | None, leaf: Leaf = _NO_LEAF) -> tuple[list[str], list[dict[str, str]]]:
        """Return the sorted sources of a value, and the earlier calls whose results contained the value."""
        sources, calls = self._known(query, role, leaf)
        if query.endorsed in self.sources:
            sources.add("endorsed")
        if not sources and query.host is not None:
            # No source contains the whole address, so the source of its host counts. The rest comes from the model.
            sources, calls = self._known(query.host, role)
            sources.update(self.unknown)
            if query.site in self.sites:
                sources.add("endorsed")
        return sorted(sources or self.unknown), [{"tool": tool, "call": call} for tool, call in sorted(calls)]

    def _known(self, query: _Query, role: str | None, leaf: Leaf = _NO_LEAF) -> tuple[set[str], set[tuple[str, str]]]:
        sources, calls = set(), set()
        value = query.value
        if self.prompt.says(value) and self._can_name(value, role, leaf):
            sources.add("prompt")
        if value and value in self._facts:
            sources.add("fact")
        for name in query.ids:
            if (source := self.sources.get(name)) is not None:
                # A number such as 13 can be both the id of a file and the id of a meeting, so a prompt that names one
                # does not name the other.
                is_other = source.label == "named" and not names_something(value) and not self._is_of_kind(source.tool)
                sources.add("trusted" if is_other else source.label)
                calls.add((source.tool, source.call))
        return sources, calls

    def _can_name(self, value: str, role: str | None, leaf: Leaf) -> bool:
        """Return whether the user's words can mean this value. A small number must follow a noun such as `file`."""
        if role == "value":
            # A new password must not be an ordinary word that happens to occur in the prompt.
            return not self._destroys or self.prompt.spells(str(leaf.value))
        if names_something(value):
            return True
        nouns = {*_stems(leaf.path), *self._stems[1:]} - {"number"}
        return role in TARGETS and is_numeric(value) and self.prompt.numbers(value, nouns)

    def _is_of_kind(self, tool: str) -> bool:
        """Return whether the names of two tools share a noun, such as `file`, so both tools use such records."""
        return not set(self._stems[1:]).isdisjoint(_stems(tool)[1:])

    def steers(self, argument: _Argument) -> bool:
        """Return whether the model may have chosen this value because untrusted text told the model what to read."""
        is_setting = argument.role not in TARGETS and self.is_setting(argument.query.value)
        return not is_setting and not self.prompt.has_words_of(str(argument.leaf.value))

    def is_setting(self, value: str) -> bool:
        """Return whether a value is a setting such as a page size: a small number, or a word of the manifest entry."""
        return value in self._tool_words or (is_numeric(value) and not names_something(value))

    def anchors(self, argument: _Argument, sources: list[str]) -> bool:
        """Return whether an argument is tied to the user's words, which contain the argument or most of its words."""
        value = argument.query.value
        # Words that belong to the tool, such as a kind of attachment, do not count, because they occur in many prompts.
        if "named" in sources or ("prompt" in sources and names_something(value) and value not in self._tool_words):
            return True
        if not isinstance(argument.leaf.value, str) or argument.leaf.value.isalnum():
            return False
        words = {word for word in WORD.findall(argument.leaf.value.casefold()) if len(word) > SHORTEST}
        return len(words) > 1 and len(words & self.prompt.words) >= _ANCHORING * len(words)


@lru_cache(1024)
def _run(key: bytes, caller: str, run_id: str) -> tuple[str, RunIds]:
    run = run_of(key, caller, run_id)
    return run, RunIds(key, run)


@lru_cache(1024)
def _is_intended(tool: tuple[str, ...], prompt: Prompt) -> bool:
    """Return whether the user's words contain the verb of the tool's name and one of the name's nouns, if any.

    Words before the verb are the name of a server, as in `slack_post_message`.
    """
    first = next((index for index, word in enumerate(tool[:-1]) if _KNOWN_VERB.fullmatch(word)), 0)
    verb, *nouns = tool[first:] or ("",)
    stems = frozenset(map(_stem, prompt.words))
    verbs = next((family for family in _VERBS if verb in family), {verb})
    return not stems.isdisjoint(verbs) and (not nouns or not stems.isdisjoint(nouns))


@lru_cache(1024)
def _stems(name: str) -> tuple[str, ...]:
    return tuple(_stem(word) for word in WORD.findall(_CAMEL.sub(" ", name).casefold()))


def _stem(word: str) -> str:
    ending = next((ending for ending in _ENDINGS if word.endswith(ending) and len(word) - len(ending) >= SHORTEST), "")
    return word[: len(word) - len(ending)]


def _planned(plan: Iterable[Any]) -> Iterator[str]:
    for step in plan:
        tool = step.get("tool") or step.get("tool_name") if isinstance(step, dict) else None
        if isinstance(tool, str):
            yield tool


def _digested(entry: Mapping[str, Any]) -> dict[str, Any]:
    sources = [source for source in entry["sources"] if source != "endorsed"] or list(_MODEL)
    links_of = [[source for source in link["sources"] if source != "endorsed"] for link in entry["links"]]
    return {"path": entry["path"], "role": entry["role"], "sources": sources, "links": links_of}
