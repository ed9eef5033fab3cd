"""Decide recorded requests again: with the bundle of then, or as a backtest with another bundle.

With the bundle of then, each answer must be equal to the recorded one, byte for byte. In a backtest, decisions are
compared and grouped as `pdp bundle diff` does. Two threads decide, because the engine releases Python's global lock.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final

import orjson

from pdp.audit.requests import Requests, plain_answer
from pdp.contract.sensitive import MASK, Mask
from pdp.decision import Decision, denied, parse_decision
from pdp.engine.bundle.file import Bundle, baseline_bundle_path, read_bundle
from pdp.engine.data import merged_data
from pdp.engine.protocol import parse_answer
from pdp.errors import AuditError, BundleError, EngineError, PdpError, UsageError
from pdp.json import canonical
from pdp.opa.build import policy_bundle
from pdp.opa.program import needed_opa
from pdp.project.file import Project
from pdp.workbench.diff.causes.attribution import Attribution
from pdp.workbench.diff.causes.changes import changes_between
from pdp.workbench.diff.comparison import ComparedCall, Difference, anonymous_engine, change_of, in_chunks
from pdp.workbench.diff.groups import Attribute, CollectedCalls, Group, collected, grouped
from pdp.workbench.diff.manifests import Manifests
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.diff.review import Description, description_of
from pdp.workbench.diff.structure import Structure, structure_of
from pdp.workbench.engines import ENGINE_TIMEOUT, OPA_SHARE

Record = tuple[str | bytes, bytes | None]
"""The line of an event, and its recorded request in encrypted form, if there is one."""

_CHUNK: Final = 500
_LISTED: Final = 20
_KNOWN: Final = 10_000


class BundleEngine:
    """An engine of one bundle, whose answers name no bundle. `bundle` has all data with which the engine decides."""

    def __init__(self, bundle: Bundle, manifests: Mapping[str, Any], data: Mapping[str, Any], owned: ExitStack) -> None:
        whole = canonical(merged_data(bundle.data, manifests=manifests, data=data))
        self.bundle = replace(bundle, data=orjson.loads(whole))
        self.manifests: Mapping[str, Any] = self.bundle.data.get("manifests", {})
        self._engine = owned.enter_context(anonymous_engine(bundle, manifests, data, ENGINE_TIMEOUT))
        self._known: dict[bytes, bytes] = {}

    def answer(self, body: bytes, request_id: str | None) -> bytes:
        """Return the answer to a request in the form of `plain_answer`. `request_id` is the id that the event names."""
        try:
            answer = self._engine.evaluate(body)
            # Most answers differ from an earlier one in the request's id only. The replacement is not JSON, so two
            # answers are equal afterwards only if they are equal but for an id that each of them names once.
            named = f'"request_id":"{request_id}"'.encode()
            key = answer.replace(named, b"?") if request_id and request_id.isalnum() else answer
            if key in self._known:
                return self._known[key]
            form = plain_answer(parse_answer(answer, body))
        except (EngineError, BundleError) as error:
            return plain_answer(denied(error.code, error.message))
        if len(self._known) < _KNOWN and answer.count(named) == 1:
            self._known[key] = form
        return form


class _NotReplayedError(Exception):
    """A request cannot be decided again, for a reason that is no fault."""


@dataclass(slots=True)
class ReplayResult:
    """What became of the recorded requests.

    `counts` has the requests that were decided again: by tool, and the verdict and codes of the recorded and the new
    decision. `equal` is the number of equal answers. `faults` are requests that cannot be opened and, without another
    bundle, answers that differ. `left_out` counts, by reason, the requests that were not decided again. The causes of
    `groups` are numbers of `changes`. `no_causes` says why some groups have no cause.
    """

    equal: int = 0
    faults: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    counts: Counter[tuple[str, str, tuple[str, ...], str, tuple[str, ...]]] = field(default_factory=Counter)
    groups: tuple[Group, ...] = ()
    changes: Sequence[Description] = ()
    no_causes: str = ""

    @property
    def decided(self) -> int:
        """The number of requests that were decided again."""
        return self.counts.total()

    def add(self, part: "ReplayResult") -> None:
        """Add the result of a part of the requests."""
        self.equal += part.equal
        self.faults += part.faults
        self.left_out.update(part.left_out)
        self.counts.update(part.counts)

    def as_json(self) -> dict[str, Any]:
        """Return the result as it appears in the JSON of `pdp audit replay --json`, which is a stable interface."""
        verdicts: Counter[tuple[str, str, str]] = Counter()
        codes: dict[str, dict[str, int]] = {}
        for (tool, old, before, new, after), count in self.counts.items():
            verdicts[tool, old, new] += count
            for side, code in (*(("old", code) for code in before), *(("new", code) for code in after)):
                codes.setdefault(code, {"old": 0, "new": 0})[side] += count
        return {
            "decided": self.decided, "equal": self.equal, "faults": self.faults, "left_out": dict(self.left_out),
            "tools": [
                {"tool": tool, "old": old, "new": new, "count": count}
                for (tool, old, new), count in sorted(verdicts.items())
            ],
            "codes": dict(sorted(codes.items())),
            "groups": [
                {"call": group.call, "change": asdict(group.change), "count": group.count, "tools": group.tools,
                 "direction": group.change.direction.value, "events": group.sources,
                 "causes": [[self.changes[number]._asdict() for number in sorted(cause)] for cause in group.causes]}
                for group in self.groups
            ],
            "no_causes": self.no_causes,
        }  # fmt: skip


class Replay:
    """Decides recorded requests again. Closing `owned` closes the engines.

    `sensitive` has the names of the sensitive arguments by tool. Of other tools, all arguments count as sensitive.
    """

    def __init__(
        self,
        requests: Requests,
        bundles: Iterable[Bundle],
        *,
        new: Bundle | None,
        manifests: Mapping[str, Any],
        data: Mapping[str, Any],
        sensitive: Mapping[str, Collection[str]],
        owned: ExitStack,
    ) -> None:
        self._sensitive, self._requests = sensitive, requests
        self._bundles = {bundle.revision: bundle for bundle in bundles}
        self._engines: dict[str, BundleEngine] = {}
        self._lock = Lock()
        self._beside = manifests, data, owned
        # If the new bundle has manifests, it decides with these alone, because they may be what has changed.
        added = manifests if new is None or not new.data.get("manifests") else {}
        self._new = None if new is None else BundleEngine(new, added, data, owned)
        # Each manifest of then has its own pair, because several of them may have become the same new manifest.
        self._pairs: dict[str, Manifests] = {}
        if self._new is not None:
            for known in (manifests, *(each.data.get("manifests", {}) for each in self._bundles.values())):
                self._pairs |= {name: Manifests({name: stated}, self._new.manifests) for name, stated in known.items()}

    def run(self, records: Iterable[Record]) -> ReplayResult:
        """Decide all records again; `records` is read lazily."""
        total = ReplayResult()
        kinds = collected(self._differences(records, total))
        with ExitStack() as owned:
            structure, attribute = self._attribution(kinds, total, owned)
            groups = grouped(kinds, structure=structure, decide=self._decide, attribute=attribute)[0]
        total.groups = tuple(replace(group, call=self._shown(group)) for group in groups)
        return total

    def _differences(self, records: Iterable[Record], total: ReplayResult) -> Iterator[Difference]:
        for part, found in in_chunks(self._chunk, records, _CHUNK):
            total.add(part)
            yield from found

    def _attribution(
        self, kinds: Sequence[CollectedCalls], total: ReplayResult, owned: ExitStack
    ) -> tuple[Structure, Attribute]:
        """Return how to find the causes of the calls that one bundle decided, which is the one that decided most."""
        nothing: tuple[Structure, Attribute] = Structure((), (), ()), lambda each: [()] * len(each)
        if self._new is None or not kinds:
            return nothing
        decided: Counter[str] = Counter()
        for calls in kinds:
            decided.update({calls.smallest.call.variant[0]: calls.count})
        [(revision, most)] = decided.most_common(1)
        old = self._engine_of(revision)
        if old is None:
            total.no_causes = f"no bundle has the revision {revision}"
            return nothing
        if most < decided.total():
            total.no_causes = f"only for the {most} calls that the bundle {revision} decided, not for those of others"
        try:
            pair = BundlePair.of(needed_opa("finding causes"), old.bundle, self._new.bundle, names=("old", "new"))
            structure = structure_of(pair)
            changes = changes_between(pair, structure)
            data = [side.bundle.data for side in (old, self._new)]
            found = owned.enter_context(Attribution(pair, data, changes, timeout=OPA_SHARE * ENGINE_TIMEOUT))
            total.changes = [description_of(pair, change, ()) for change in changes]
        except PdpError as error:
            total.no_causes = error.message
            return nothing

        def attribute(differences: Sequence[Difference]) -> list[Any]:
            calls = [each.call for each in differences]
            whole = [
                replace(each, call=replace(call, request=orjson.loads(call.old)))
                for each, call in zip(differences, calls, strict=True)
                if call.variant == (revision,)
            ]
            causes = iter(found.causes(whole))
            total.no_causes = "; ".join(found.unfinished) or total.no_causes
            return [next(causes) if call.variant == (revision,) else () for call in calls]

        return structure, attribute

    def _shown(self, group: Group) -> str:
        """Return the call of a group as text, without the values of sensitive arguments, which the record contains."""
        call = group.smallest.call
        arguments = orjson.loads(call.old)["context"]["arguments"]
        return Mask(self._sensitive.get(call.tool, arguments), arguments).text(group.call)

    def _chunk(self, records: Sequence[Record]) -> tuple[ReplayResult, list[Difference]]:
        result, found = ReplayResult(), []
        for line, sealed in records:
            try:
                difference = self._decided(orjson.loads(line), sealed, result)
                found += [] if difference is None else [difference]
            except _NotReplayedError as reason:
                result.left_out[str(reason)] += 1
            except AuditError as error:
                result.faults.append(error.message)
            except (ValueError, KeyError, TypeError):
                result.faults.append(f"not an event: {line[:60]!r}")
        return result, found

    def _decided(self, event: dict[str, Any], sealed: bytes | None, result: ReplayResult) -> Difference | None:
        """Decide a record again, count the answer, and return how it differs from the recorded one."""
        if "request_digest" not in event:
            raise _NotReplayedError("a check rejected the call" if event["verdict"] is None else "not recorded")
        if sealed is None:
            raise _NotReplayedError("the recorded request was deleted")
        body, recorded = self._requests.open(event, sealed)
        tool, revision, where = event["tool_name"], event["bundle_revision"], f"event {event['seq']}"
        if revision is None:
            raise _NotReplayedError("the enforcement point decided, not the policy")
        engine = self._new or self._engine_of(revision)
        if engine is None:
            raise _NotReplayedError(f"no bundle has the revision {revision}")
        sent = self._sent(body, event["manifest_digest"], engine)
        answer = engine.answer(sent, event["request_id"])
        before = after = event["verdict"], tuple(event["codes"])
        difference = None
        if answer == recorded:
            result.equal += 1
        else:
            old, new = parse_decision(recorded), parse_decision(answer)
            after, change = (new.verdict.value, new.codes), change_of(old, new)
            if self._new is None:
                what = "the text of messages" if change is None else ", ".join(change.names)
                result.faults.append(f"{where}: {tool}: {old.verdict} -> {new.verdict}: differs in {what}")
            if change is not None:
                # Calls of different bundles are never alike.
                call = ComparedCall(tool, body, sent, variant=(revision,), source=where)
                difference = Difference(call, change, old, new)
        result.counts[tool, *before, *after] += 1
        return difference

    def _sent(self, body: bytes, manifest: str, engine: BundleEngine) -> bytes:
        """Return the request as the enforcement point of the engine's release would send it."""
        if manifest in engine.manifests:
            return body
        pair = self._pairs.get(manifest)
        sent = body if pair is None else pair.requests(orjson.loads(body))[1]
        if sent == body:
            raise _NotReplayedError(f"neither bundle nor project has the manifest {manifest}")
        return sent

    def _engine_of(self, revision: str) -> BundleEngine | None:
        with self._lock:
            if revision not in self._engines and revision in self._bundles:
                self._engines[revision] = BundleEngine(self._bundles[revision], *self._beside)
            return self._engines.get(revision)

    def _decide(self, call: ComparedCall) -> tuple[Decision, Decision]:
        """Return both decisions on a shortened call. Without the bundle of then, they are equal, so none is shown."""
        old = self._engine_of(call.variant[0])
        if old is None:
            return (nothing := denied("engine.unavailable", "no bundle")), nothing
        new = self._new or old
        return parse_decision(old.answer(call.old, None)), parse_decision(new.answer(call.new, None))


def known_bundles(paths: Sequence[Path], project: Project) -> Iterator[Bundle]:
    """Yield the bundles in files and folders; without any, the project's bundle and the released baseline."""
    for path in paths:
        files = sorted(path.rglob("*.tar.gz")) if path.is_dir() else [path]
        if not files:
            raise UsageError(f"{path}: the folder has no bundle (*.tar.gz)")
        yield from map(read_bundle, files)
    if not paths:
        yield read_bundle(project.bundle) if project.bundle else policy_bundle(project.policies)
        yield read_bundle(baseline_bundle_path())


def replay_lines(result: ReplayResult) -> Iterator[str]:
    """Yield the lines of the report for a terminal. The caller escapes unprintable characters."""
    shown = result.as_json()
    yield f"{result.decided} decided again: {result.equal} equal, {result.decided - result.equal} different"
    yield from (f"left out: {count}: {reason}" for reason, count in sorted(result.left_out.items()))
    for each in shown["tools"]:
        verdicts = each["old"] if each["old"] == each["new"] else f"{each['old']} -> {each['new']}"
        yield f"  {each['tool']}: {verdicts}: {each['count']}"
    for code, sides in shown["codes"].items():
        if sides["old"] != sides["new"]:
            yield f"  {code}: {sides['old']} -> {sides['new']}"
    for group in shown["groups"]:
        yield f"{group['direction']:<9} {group['count']} call{'s' * (group['count'] > 1)}, such as {group['events'][0]}"
        yield f"{'':<9} {group['call']}"
        for number, cause in ((number, cause) for causes in group["causes"] for number, cause in enumerate(causes)):
            yield f"{'':<9} {'only together with: ' if number else ''}{cause['sentence']}"
            yield from (f"{'':<9} {line}" for line in cause["text"])
    if result.no_causes:
        yield f"causes: {result.no_causes}"
    if any(MASK in group.call for group in result.groups):
        yield f"note: {MASK} stands for sensitive arguments, which the recorded requests contain"
    yield from _fault_lines(result.faults)


def _fault_lines(found: Iterable[str]) -> Iterator[str]:
    faults: dict[str, list[str]] = {}
    for event, _, fault in (each.partition(": ") for each in found):
        faults.setdefault(fault, []).append(event)
    for fault, events in islice(faults.items(), _LISTED):
        yield f"fault: {events[0]}{f' and {len(events) - 1} more' if events[1:] else ''}: {fault}"
    if len(faults) > _LISTED:
        yield f"and {len(faults) - _LISTED} other faults; use --json to list all of them"
