"""Generate calls that differ little from an allowed call of each tool, and from known calls that both bundles allow.

The calls are for the tools of the bundles, and for synthetic tools, which test policies beyond today's tools. Calls
with one change come before calls with two changes. Attributes that a changed rule reads come first, and tools take
turns. Every run generates the same calls.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice, product, zip_longest
from types import MappingProxyType
from typing import Any, Final

from pdp.decision import Verdict
from pdp.engine.bundle.file import Bundle
from pdp.engine.data import merged_data
from pdp.json import JsonValueError, canonical
from pdp.manifest.effective import EffectiveManifest
from pdp.opa.modules import DECISION
from pdp.workbench.diff.comparison import ComparedCall, Comparison
from pdp.workbench.diff.manifests import named_manifest
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.engines import ENGINE_TIMEOUT, OPA_SHARE
from pdp.workbench.neighbours.bases import (
    CalledTool,
    allowed_call,
    approved_call,
    called_tools,
    complete_call,
    pinned_agents,
    tool_of,
)
from pdp.workbench.neighbours.conditions import Alternative, alternatives, meeting
from pdp.workbench.neighbours.entries import DIRECTORY, synthetic_manifests
from pdp.workbench.neighbours.runs import reads_between
from pdp.workbench.neighbours.values import as_dict, at, edited, texts
from pdp.workbench.neighbours.variants import Change, changes, dotted, pairs
from pdp.workbench.neighbours.vocabulary import Policy, Vocabulary, vocabulary

_READ: Final = ("directory", "settings")
_KNOWN_BASES: Final = 2
_FEW: Final = 60
_NEAR: Final = 12

_PAIRED: Final = ("_plain", "_low")
"""Suffixes of the names of synthetic tools that are also called with two changes."""


@dataclass(slots=True)
class Extent:
    """Counts of tools, synthetic tools (`entries`) and requests in generated calls, and the parts that they leave out.

    `cut`: the limit left out calls. `never_allowed`: tools of which no call is ALLOW or STEP_UP. `dropped`: attributes
    that were not varied because of the limit; `dropped_changed`: the dropped attributes that a changed rule reads;
    `no_conditions`: rules near a change that have too many alternatives for OPA to compute their conditions.
    """

    tools: int = 0
    entries: int = 0
    requests: int = 0
    cut: bool = False
    never_allowed: list[str] = field(default_factory=list)
    dropped: tuple[str, ...] = ()
    dropped_changed: tuple[str, ...] = ()
    no_conditions: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """A sentence with the counts, which also says whether the limit left out calls."""
        rest = "the limit left out more calls" if self.cut else "no call was left out"
        return (
            f"covered: {self.tools} tools of the bundles and {self.entries} generated entries of every tier, effect "
            f"class and pattern; conditions of changed rules, and up to two changes of a complete call; "
            f"{rest}"
        )


@dataclass(frozen=True)
class _Base:
    """A call to vary. `fixed` attributes are not varied, because their values meet the conditions of a changed rule."""

    tool: CalledTool
    request: dict[str, Any]
    known_tool: bool
    variant: tuple[str, ...] = ()
    fixed: frozenset[str] = frozenset()


class GeneratedCalls:
    """The generated calls for two bundles. Use `calls` once. Close `comparison`, which decides the calls, after use.

    `manifests` are complete manifests by digest, from scenario files. `beside` is data for both bundles, under roots
    that neither bundle has. `data` is the complete data of the old and new bundle; `extent` counts the yielded calls.
    """

    def __init__(
        self,
        pair: BundlePair,
        manifests: Mapping[str, EffectiveManifest] = MappingProxyType({}),
        *,
        beside: Mapping[str, Any] = MappingProxyType({}),
        engine_timeout: float = ENGINE_TIMEOUT,
    ) -> None:
        self.extent = Extent()
        self._timeout = OPA_SHARE * engine_timeout
        self._pair, self._known = pair, manifests
        self._made_up = synthetic_manifests()
        documents = {name: manifest.document for name, manifest in manifests.items()} | self._made_up
        given = [_with_synthetic_data(bundle, beside) for bundle in pair.bundles]
        self._directory: dict[str, Any] = {}
        for bundle, data in zip(pair.bundles, given, strict=True):
            for name, part in as_dict(merged_data(bundle.data, data=data).get("directory")).items():
                self._directory[name] = {**self._directory.get(name, {}), **as_dict(part)}
        self._allowed: list[Any] = []
        self._seen: set[int] = set()
        self._asked: set[str] = set()
        self._stuck: set[frozenset[str]] = set()
        self._made: dict[bytes, list[Change]] = {}
        between = (reads_between(old, new) for _, old, new in pair.manifests.documents())
        self._reads = list(dict.fromkeys(chain.from_iterable(between)))
        self.data = tuple(
            merged_data(bundle.data, manifests=documents, data=data)
            for bundle, data in zip(pair.bundles, given, strict=True)
        )
        self.comparison = Comparison(
            *pair.bundles, manifests=documents, old_data=given[0], new_data=given[1], engine_timeout=engine_timeout
        )

    def calls(self, most: int, *, allowed: Iterable[Any] = (), solved: bool = True) -> Iterator[ComparedCall]:
        """Yield at most `most` calls. `allowed` are known requests that both bundles allow.

        With `solved`, OPA computes the conditions of changed rules, which takes seconds.
        """
        self._allowed = list(allowed)
        conditions = self._changed_conditions() if solved else []
        tools = list(self._tools())
        made = [tool for digest, document in self._made_up.items() for tool in called_tools(document, digest)]
        paired = [tool for tool in made if tool.name.endswith(_PAIRED)]
        self.extent.tools, self.extent.entries = len(tools), len(made)
        clearances = self._clearances((*tools, *made))
        known = [base for tool in tools for base in self._bases(tool, clearances, known_tool=True)]

        def bases(tools: Sequence[CalledTool]) -> Iterator[_Base]:
            return (base for tool in tools for base in self._bases(tool, clearances, known_tool=False))

        # If the bundles have no manifests, generated entries are used in place of the bundles' tools.
        varied = known or list(bases(paired))
        met = self._singles(_meeting(varied, conditions, whole=True), _FEW)
        nearly = self._singles(_meeting(varied, conditions, whole=False), _NEAR)
        for share, calls in (
            (0.3, _in_turn((met, nearly))),
            (0.5, self._singles(known)),
            (0.7, self._pairs(varied, changed=True)),
            (0.85, self._singles(bases(made))),
            (1.0, self._pairs(chain(known, bases(paired)))),
        ):
            for call in islice(self._unasked(calls), max(0, int(most * share) - self.extent.requests)):
                self.extent.requests += 1
                yield call
        self.extent.cut = self.extent.requests >= most
        self._count(known)

    @cached_property
    def _policies(self) -> list[Policy]:
        return [
            Policy(side.trees, {root: side.bundle.data[root] for root in _READ if root in side.bundle.data})
            for side in (self._pair.new, self._pair.old)
        ]

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        differing = ((after, before) for before, after in self._pair.differing.values())
        return vocabulary(*self._policies, differing=differing)

    def _changed_conditions(self) -> list[Alternative]:
        """Return the conditions that only one of the policies has, from the rules of modules near a change."""
        near = self._vocabulary.near
        if len({bundle.modules.get(DECISION) for bundle in self._pair.bundles}) == 1:
            # This module joins the findings of all concerns, so partial evaluation of its rules does not end. The
            # modules of the concerns give the same conditions.
            near -= {DECISION}
        sides = [
            alternatives(side.opa, policy, side.bundle.modules, sorted(near & policy.trees.keys()), self._timeout)
            for side, policy in zip((self._pair.new, self._pair.old), self._policies, strict=True)
        ]
        self.extent.no_conditions = tuple(dict.fromkeys(name for side in sides for name in side.left_out))
        new, old = (side.alternatives for side in sides)
        own = new.keys() ^ old.keys()
        return [known[form] for known in (new, old) for form in known if form in own]

    def _bases(self, tool: CalledTool, clearances: Sequence[str], *, known_tool: bool) -> Iterator[_Base]:
        def denials(request: Any) -> frozenset[str]:
            return self._decided(tool, request)[0]

        request = complete_call(tool, self._vocabulary, clearances, self._directory)
        codes = denials(request)
        # If the generator could not resolve a denial for one generated entry, it does not try the denial again for
        # other entries, because each attempt takes seconds.
        if codes and (known_tool or codes not in self._stuck):
            request = allowed_call(request, self._vocabulary, denials, self._directory)
            self._stuck |= {codes} if denials(request) else set()
        _, verdicts = self._decided(tool, request)
        yield _Base(tool, request, known_tool)
        if Verdict.STEP_UP in verdicts:
            # If a call is STEP_UP, a changed denial or grant may show only after the approval, so the call is also
            # approved.
            yield _Base(tool, approved_call(request, tool), known_tool, ("approval",))
        known = [
            request
            for request in self._allowed
            if known_tool and (named_manifest(request), tool_of(request)) == (tool.digest, tool.name)
        ]
        yield from (_Base(tool, request, known_tool) for request in known[:_KNOWN_BASES])
        if known_tool and not known and not {Verdict.ALLOW, Verdict.STEP_UP} & verdicts:
            self.extent.never_allowed.append(tool.name)

    def _decided(self, tool: CalledTool, request: Any) -> tuple[frozenset[str], frozenset[Verdict]]:
        call = self._call(_Base(tool, request, known_tool=True))
        if call is None:
            return frozenset(("not JSON",)), frozenset()
        decisions = self.comparison.decide(call)
        denials = {
            f"{side} {code}"
            for side, decision in zip(("old", "new"), decisions, strict=True)
            if decision.verdict is Verdict.DENY
            for code in decision.codes
        }
        return frozenset(denials), frozenset(decision.verdict for decision in decisions)

    def _singles(self, bases: Iterable[_Base], most: int | None = None) -> Iterator[ComparedCall | None]:
        """Yield each base call, then one change of each base call in turn. A base call is built when it is yielded.

        Changes of attributes that a changed rule reads come first. The order of the other changes starts at a different
        change for each synthetic tool, so that a few calls of each tool together cover nearly all changes.
        """
        yielded: list[_Base] = []
        for base in bases:
            yielded.append(base)
            yield self._call(base)

        def changed(number: int, base: _Base) -> Iterator[ComparedCall | None]:
            every = [change for change in self._changes(base) if change.dimension not in base.fixed]
            first = sum(change.rank == 0 for change in every)
            if base.fixed:
                # The base call already meets all conditions of a changed rule, so changes of nearby attributes are
                # mixed in.
                turns = zip_longest(every[first:], every[:first])
                every = [change for turn in turns for change in turn if change is not None]
            every = every[:most]
            first = min(first, len(every))
            start = first if base.known_tool else first + (len(every) - first) * number // len(yielded)
            return (self._call(base, change) for change in (*every[:first], *every[start:], *every[first:start]))

        yield from _in_turn(changed(number, base) for number, base in enumerate(yielded))

    def _pairs(self, bases: Iterable[_Base], *, changed: bool = False) -> Iterator[ComparedCall | None]:
        """Yield calls with two changes, for each base call in turn; with `changed`, only pairs about changed rules."""

        def of(base: _Base) -> Iterator[ComparedCall | None]:
            for pair in pairs(self._changes(base)):
                if changed and not any(change.rank == 0 or change.new for change in pair):
                    return
                yield self._call(base, *pair)

        yield from _in_turn(of(base) for base in bases)

    def _changes(self, base: _Base) -> list[Change]:
        """Return the changes to try on a call. Calls of synthetic tools that differ only in the name share a list."""
        request = base.request
        if not base.known_tool:
            resource = {**as_dict(request.get("resource")), "id": None}
            request = {**request, "action": None, "resource": resource}
        key = canonical(request)
        if key not in self._made:
            self._made[key] = changes(base.request, self._vocabulary, self._directory, self._reads)
        return self._made[key]

    def _call(self, base: _Base, *changed: Change) -> ComparedCall | None:
        edits = [edit for change in changed for edit in change.edits]
        request = edited(base.request, *edits)
        try:
            old, new = self._pair.manifests.requests(request)
        except JsonValueError:
            return None
        variant = (*base.variant, *(change.dimension for change in changed))
        return ComparedCall(base.tool.name, old, new, variant, known_tool=base.known_tool, request=request)

    def _unasked(self, calls: Iterable[ComparedCall | None]) -> Iterator[ComparedCall]:
        for call in calls:
            if call is not None and (key := hash((call.old, call.new))) not in self._seen:
                self._seen.add(key)
                self._asked.update(call.variant)
                yield call

    def _count(self, bases: Sequence[_Base]) -> None:
        ranks: dict[str, int] = {}
        for change in (change for base in bases for change in self._changes(base)):
            ranks[change.dimension] = min(change.rank, ranks.get(change.dimension, change.rank))
        self.extent.dropped = tuple(name for name in ranks if name not in self._asked)
        self.extent.dropped_changed = tuple(name for name in self.extent.dropped if ranks[name] == 0)

    def _tools(self) -> Iterator[CalledTool]:
        """Yield the tools of the bundles' manifests. A tool that is equal in several manifests is yielded once."""
        seen: set[bytes] = set()
        for pair, before, after in self._pair.manifests.documents():
            newest = after or before
            for name in dict.fromkeys((*as_dict(after.get("tools")), *as_dict(before.get("tools")))):
                entries = tuple(
                    entry
                    for manifest in (before, after)
                    if isinstance(entry := as_dict(manifest.get("tools")).get(name), dict)
                )
                key = canonical([name, [*entries], before.get("agents"), after.get("agents")])
                if key in seen or not entries:
                    continue
                seen.add(key)
                whole = self._known.get(pair.new or "") or self._known.get(pair.old or "")
                version = str(newest.get("manifest_version", ""))
                declared = whole.tools.get(name) if whole else None
                agents = pinned_agents(as_dict(newest.get("agents")), name)
                yield CalledTool(name, str(pair.new or pair.old), version, entries, declared, agents)

    def _clearances(self, tools: Iterable[CalledTool]) -> list[str]:
        stated = [name for tool in tools for name in tool.names("markings")]
        for kind in ("corpora", "documents"):
            for record in as_dict(self._directory.get(kind)).values():
                stated += texts(as_dict(record).get("markings"))
        return list(dict.fromkeys(stated))


def _with_synthetic_data(bundle: Bundle, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data `beside`, with corpora and documents for synthetic tools if the bundle's types match."""
    own = bundle.data.get("directory", {})
    made = {"directory": {name: part for name, part in DIRECTORY.items() if isinstance(own.get(name, {}), dict)}}
    return {**beside, **made}


def _meeting(bases: Iterable[_Base], conditions: Sequence[Alternative], *, whole: bool) -> Iterator[_Base]:
    for base, alternative in product(bases, conditions):
        for met, edits in meeting(base.request, alternative):
            if whole == met:
                fixed = frozenset(dotted(path) for path, _ in edits)
                changed = [dotted(path) for path, value in edits if value != at(base.request, path)]
                variant = (*base.variant, *dict.fromkeys(changed))
                yield _Base(base.tool, edited(base.request, *edits), base.known_tool, variant, fixed)


def _in_turn(iterators: Iterable[Iterator[ComparedCall | None]]) -> Iterator[ComparedCall | None]:
    turns = iterators
    while turns:
        left: list[Iterator[ComparedCall | None]] = []
        for turn in turns:
            for call in turn:
                left.append(turn)
                yield call
                break
        turns = left
