"""`context.flow` of a call, and what its result adds to the ledger.

A value has all sources that name it. The user's words, facts of the application and what an approval endorsed are known
without the ledger; a value that nobody knows is the model's own.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.json import JsonValueError, check_json
from pdp.ledger.labels import UNTRUSTED, ResultReader
from pdp.ledger.ledger import Origin, RunIds, RunLabels, run_of
from pdp.ledger.values import SHORTEST, Leaf, Prompt, host_of, is_numeric, leaf_values, links, names_something, normal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pdp.ledger.ledger import LedgerStore, RunView
    from pdp.manifest.model import Tool
    from pdp.session import Session

MOST_ARGUMENTS: Final = 64
"""How many labelled arguments stand in a request; the rest counts as one more, and as a stranger's."""

_MOST_LEAVES: Final = 1_000
"""Of how many values of the arguments the sources are looked up."""

_RANKS: Final = {label: rank for rank, label in enumerate(("named", "created", "trusted", "party", UNTRUSTED))}
"""The labels of results, the best first."""

GOOD: Final = frozenset(("prompt", "fact", "trusted", "created", "named", "endorsed"))
"""Sources whose word counts."""

_MODEL: Final = ("model",)
_ANCHORING: Final = 0.75
"""The share of an argument's words that are the user's where the argument holds the user's words."""
_ADDRESSES: Final = ("url", "address")
_SHORT_STATUS: Final = 64
_WORD: Final = re.compile(r"[^\W\d_]{3,}")
_VERBS: Final = tuple(
    frozenset(stems.split())
    for stems in (
        "add append arrang book creat insert mak new plan schedul set",
        "answer email forward mail messag post publish repl send shar tell writ",
        "cancel clear delet drop eras remov",
        "adjust chang edit mov renam reschedul set updat",
        "buy order pay reserv transfer wir",
    )
)
"""Stems of verbs that users and the names of tools take for each other."""

_ENDINGS: Final = ("ing", "es", "ed", "s", "e")


class CallFlow(NamedTuple):
    """What the ledger says of one call.

    Attributes:
        context: `context.flow` of the request.
        digested: what of it the call's digest covers: where its arguments came from, and nothing of the run's history.
        run: the id of the run; ids: those of its values.
        labels: what the run carried before the call.
        lowered: whether an argument is a stranger's, so that the result is one as well.
        unknown: the values of the arguments that are the model's own.
        endorsable: what an approval of the call endorses.
    """

    context: dict[str, Any]
    digested: dict[str, Any]
    run: str
    ids: RunIds
    labels: RunLabels
    lowered: bool
    unknown: frozenset[str]
    endorsable: tuple[str, ...]


@lru_cache(64)
def prompt_of(texts: tuple[str, ...]) -> Prompt:
    """Return the user's words, ready to be searched."""
    return Prompt(texts)


class Tracker:
    """Follows the values of one tool's calls. Immutable, safe to share."""

    __slots__ = ("_entry", "_noun_stems", "_reader", "_roles", "_verb_stem")

    def __init__(self, entry: Tool) -> None:
        self._entry = entry
        # As plain texts, since ids of values are made of them.
        self._roles = {name: str(role) for name, role in (entry.roles or {}).items()}
        self._reader = ResultReader(entry)
        verb, *nouns = _stems(entry.name) or ("",)
        self._verb_stem, self._noun_stems = verb, frozenset(nouns)

    def call_flow(
        self, arguments: Mapping[str, Any], session: Session, store: LedgerStore, caller: str, now: float
    ) -> CallFlow:
        """Return what the ledger says of a call; `session` has a `run_id`. Errors as of `LedgerStore.read`."""
        run = run_of(store.key, caller, session.run_id or "")
        lookup = _Lookup(RunIds(store.key, run), session, self._noun_stems)
        every = [(name, leaf) for name, value in arguments.items() for leaf in leaf_values(value, f"/{_escaped(name)}")]
        for name, leaf in every[:_MOST_LEAVES]:
            lookup.expect(leaf, self._roles.get(name), self._entry.name)
        view = store.read(run, lookup.ids, now)
        lookup.sources = view.sources
        if session.plan and view.labels.plan is None and not view.labels.tainted:
            pinned = RunLabels(plan=tuple(_planned(session.plan)))
            store.write(run, pinned, {}, now)
            view = view._replace(labels=view.labels.joined(pinned))
        return self._summary(every, lookup, view, run)

    def _summary(self, every: list[tuple[str, Leaf]], lookup: _Lookup, view: RunView, run: str) -> CallFlow:
        labelled, unknown, endorsable = [], set(), []
        lowered, anchored = len(every) > _MOST_LEAVES, False
        for name, leaf in every[:_MOST_LEAVES]:
            role = self._roles.get(name)
            entry, value = lookup.argument(leaf, role, self._entry.name), normal(leaf.value)
            sources = entry["sources"]
            if len(value) >= SHORTEST and GOOD.isdisjoint(sources):
                lowered = lowered or UNTRUSTED in sources
                if "model" in sources:
                    unknown.add(value)
            anchored = anchored or "named" in sources or lookup.anchors(leaf.value)
            if role is not None:
                labelled.append(entry)
                endorsable += lookup.endorsed_ids(leaf, role, self._entry.name)
        labelled.sort(key=lambda entry: str(entry["path"]))
        if len(labelled) > MOST_ARGUMENTS or len(every) > _MOST_LEAVES:
            rest = {"path": "", "role": "destination", "sources": [UNTRUSTED], "from": [], "home": False, "links": []}
            labelled = [rest, *labelled[: MOST_ARGUMENTS - 1]]
        run_labels = view.labels
        context = {
            "tainted": run_labels.tainted,
            "untrusted": sorted(run_labels.untrusted),
            "markings": sorted(run_labels.markings),
            "plan": None if run_labels.plan is None else list(run_labels.plan),
            "anchored": anchored,
            "intended": self._is_intended(lookup.prompt),
            "arguments": labelled,
        }
        digested = {"arguments": [_digested(entry) for entry in labelled]}
        return CallFlow(
            context, digested, run, lookup.run_ids, run_labels, lowered, frozenset(unknown), tuple(endorsable)
        )

    def _is_intended(self, prompt: Prompt) -> bool:
        """Return whether the user's words have the verb of the tool's name, and a noun of it where it has any."""
        stems = prompt_stems(prompt)
        verbs = next((family for family in _VERBS if self._verb_stem in family), {self._verb_stem})
        return not stems.isdisjoint(verbs) and (not self._noun_stems or not self._noun_stems.isdisjoint(stems))

    def learned(
        self, flow: CallFlow, arguments: Mapping[str, Any], result: Any, session: Session, *, call: str
    ) -> tuple[RunLabels, dict[str, Origin]]:
        """Return what a result adds to the run: its labels, and the sources of its values by their ids."""
        prompt = prompt_of(tuple(session.prompt))
        try:
            check_json(result)
        except JsonValueError:  # nobody knows what such a result says
            return RunLabels(frozenset((self._entry.name,)), frozenset(self._reader.markings)), {}
        echoes = [leaf.value for leaf in leaf_values(arguments)]
        echoed = frozenset(map(normal, echoes)) if self._reader.is_write else flow.unknown
        labels: dict[str, str] = {}
        prose = ""
        for value, label, text in self._reader.read(result, prompt):
            if label in _LOWERED and flow.lowered:
                label = UNTRUSTED  # noqa: PLW2901 - a directory that was asked with a stranger's words
            if label == UNTRUSTED and text and not is_numeric(value):
                prose += text
            if value and value not in echoed and _RANKS[label] <= _RANKS[labels.get(value, UNTRUSTED)]:
                labels[value] = label
        if self._reader.is_write:
            for text in sorted((str(echo) for echo in echoes), key=len, reverse=True):
                prose = prose.replace(text, "")
            prose = prose if len(prose) > _SHORT_STATUS else ""
        untrusted = frozenset((self._entry.name,)) if prose else frozenset[str]()
        origins = {label: Origin(label, self._entry.name, call) for label in _RANKS}
        sources = {flow.ids.of(*_known_as(value, label)): origins[label] for value, label in labels.items()}
        return RunLabels(untrusted, frozenset(self._reader.markings)), sources

    def endorsed(self, flow: CallFlow, call: str) -> dict[str, Origin]:
        """Return what an approval of the call endorses, by its ids: exactly its values, for this tool and role."""
        return {name: Origin("endorsed", self._entry.name, call) for name in flow.endorsable}


_LOWERED: Final = ("trusted", "party", "named")


def _known_as(value: str, label: str) -> tuple[str, ...]:
    # What is short stands everywhere: it has every source that it had, and not the first one alone.
    return (value,) if len(value) >= SHORTEST else (value, label)


class _Lookup:
    """The sources of the values of one call."""

    def __init__(self, ids: RunIds, session: Session, nouns: frozenset[str]) -> None:
        self.prompt = prompt_of(tuple(session.prompt))
        self.run_ids, self.ids = ids, set[str]()
        self._ids_of = dict[str, list[str]]()
        self.sources: Mapping[str, Origin] = {}
        self._nouns = nouns
        self._home = frozenset(session.home_domains)
        self._facts = (
            frozenset(normal(leaf.value) for leaf in leaf_values(session.facts)) if session.facts else frozenset()
        )

    def expect(self, leaf: Leaf, role: str | None, tool: str) -> None:
        """Ask for what is needed of a leaf."""
        for value in self._values(leaf, role):
            self.ids.update(self._ids(value))
        if role is not None:
            self.ids.update(self.endorsed_ids(leaf, role, tool))

    def _values(self, leaf: Leaf, role: str | None) -> Iterator[str]:
        value = normal(leaf.value)
        yield value
        if role in _ADDRESSES:
            yield host_of(value)
        elif role == "body" and isinstance(leaf.value, str):
            for link in links(leaf.value):
                yield normal(link)
                yield host_of(normal(link))

    def _ids(self, value: str) -> list[str]:
        ids = self._ids_of.get(value)
        if ids is None:
            ids = self._ids_of[value] = self._new_ids(value)
        return ids

    def _new_ids(self, value: str) -> list[str]:
        if not value:
            return []
        if len(value) >= SHORTEST:
            return [self.run_ids.of(value)]
        return [self.run_ids.of(value, label) for label in _RANKS]

    def endorsed_ids(self, leaf: Leaf, role: str, tool: str) -> list[str]:
        """Return the ids by which a leaf, or the links in it, are endorsed for a tool and a role."""
        values = [normal(leaf.value)]
        if role == "body":
            values = [normal(link) for link in links(leaf.value)] if isinstance(leaf.value, str) else []
        return [self._endorsed_id(value, role, tool) for value in values if value]

    def _endorsed_id(self, value: str, role: str, tool: str) -> str:
        return self.run_ids.of(value, tool, role)

    def argument(self, leaf: Leaf, role: str | None, tool: str) -> dict[str, Any]:
        """Return the entry of `context.flow.arguments` for a leaf."""
        value = normal(leaf.value)
        sources, known = self._origin(value, role, tool)
        home = bool(self._home) and role in ("destination", *_ADDRESSES) and _domain(value) in self._home
        return {
            "path": leaf.path, "role": role, "sources": sources, "from": known, "home": home,
            "links": self._links(leaf, role, tool),
        }  # fmt: skip

    def _links(self, leaf: Leaf, role: str | None, tool: str) -> list[dict[str, Any]]:
        if role != "body" or not isinstance(leaf.value, str):
            return []
        origins = (self._origin(normal(link), role, tool, is_address=True) for link in links(leaf.value))
        distinct = {str(origin): origin for origin in origins}
        return [{"sources": sources, "from": known} for _, (sources, known) in sorted(distinct.items())]

    def _origin(
        self, value: str, role: str | None, tool: str, *, is_address: bool = False
    ) -> tuple[list[str], list[dict[str, str]]]:
        """Return the sources of a value, sorted, and the calls that brought it."""
        sources, calls = self._known(value, role)
        if role is not None and value and self._endorsed_id(value, role, tool) in self.sources:
            sources.add("endorsed")
        if not sources and (is_address or role in _ADDRESSES):
            # An address that nobody wrote as a whole: whoever knows its host, a part of it is the model's.
            sources, calls = self._known(host_of(value), role)
            sources.add("model")
        return sorted(sources or _MODEL), [dict(zip(("tool", "call"), call, strict=True)) for call in sorted(calls)]

    def _known(self, value: str, role: str | None) -> tuple[set[str], set[tuple[str, str]]]:
        sources, calls = set(), set()
        if self.prompt.says(value) and (role == "value" or names_something(value)):
            sources.add("prompt")
        if value and value in self._facts:
            sources.add("fact")
        for name in self._ids(value):
            if (source := self.sources.get(name)) is not None:
                # A number such as 13 is the id of a file and of a meeting: who names one does not name the other.
                is_other = source.label == "named" and not names_something(value) and not self._is_of_kind(source.tool)
                sources.add("trusted" if is_other else source.label)
                calls.add((source.tool, source.call))
        return sources, calls

    def _is_of_kind(self, tool: str) -> bool:
        """Return whether a tool is about what this one is about: their names share a noun."""
        return not set(_stems(tool)[1:]).isdisjoint(self._nouns)

    def anchors(self, value: str | float) -> bool:
        """Return whether an argument holds the user's words: it is one, or most of its own words are theirs."""
        if self.prompt.names(normal(value)):
            return True
        words = {word for word in _WORD.findall(str(value).casefold()) if len(word) > SHORTEST}
        return len(words) > 1 and len(words & self.prompt.words) >= _ANCHORING * len(words)


@lru_cache(64)
def prompt_stems(prompt: Prompt) -> frozenset[str]:
    """Return the user's words without their endings."""
    return frozenset(map(_stem, prompt.words))


@lru_cache(1024)
def _stems(name: str) -> tuple[str, ...]:
    """Return the words of a tool's name without their endings; the first is its verb."""
    return tuple(_stem(word) for word in _WORD.findall(name.casefold()))


def _stem(word: str) -> str:
    ending = next((ending for ending in _ENDINGS if word.endswith(ending) and len(word) - len(ending) >= SHORTEST), "")
    return word[: len(word) - len(ending)]


def _domain(address: str) -> str:
    try:
        return host_of(address).encode("idna").decode()
    except UnicodeError:
        return ""


def _planned(plan: Iterable[Any]) -> Iterator[str]:
    for step in plan:
        tool = step.get("tool") or step.get("tool_name") if isinstance(step, dict) else None
        if isinstance(tool, str):
            yield tool


def _digested(entry: Mapping[str, Any]) -> dict[str, Any]:
    sources = [source for source in entry["sources"] if source != "endorsed"] or list(_MODEL)
    links_of = [[source for source in link["sources"] if source != "endorsed"] for link in entry["links"]]
    return {"path": entry["path"], "role": entry["role"], "sources": sources, "links": links_of}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
