"""The retrieval agent's tools: a small search over the documents of this folder.

Spans are ranked by the number of query words in them, with more weight on rare words. The snapshot id is a digest of
the corpus, so equal ids mean equal evidence. Restricted documents are not in the index, because a permission to search
does not include them. They can only be read by id.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_MOST = 3
_NAME = re.compile(r"[a-z0-9-]+")
_WORD = re.compile(r"[a-z0-9]+")


def retrieve_documents(corpus: str, query: str) -> dict[str, Any]:
    """Return `{spans, retrievalSnapshotId}`, with at most three matching lines, best match first.

    Raises:
        LookupError: the corpus does not exist.
    """
    restricted = _restricted()
    files = {document: text for document, text in _files(corpus).items() if document not in restricted}
    lines = [line for document, text in files.items() for line in _lines(document, text)]
    snapshot = "sha256:" + hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    rarity = Counter(word for *_, text in lines for word in _words(text))
    wanted = _words(query)

    def score(text: str) -> float:
        return sum(math.log(1 + len(lines) / rarity[word]) for word in wanted & _words(text))

    ranked = sorted(lines, key=lambda line: (-score(line[2]), line[0], line[1]))
    spans = [
        {
            "source": {"id": document, "kind": "document"},
            "start": start,
            "end": start + len(text),
            "text": text,
            "retrievalSnapshotId": snapshot,
        }
        for document, start, text in ranked[:_MOST]
        if score(text)
    ]
    return {"spans": spans, "retrievalSnapshotId": snapshot}


def read_document(document_id: str) -> dict[str, Any]:
    """Return `{id, text}`.

    Raises:
        LookupError: the document does not exist.
    """
    corpus, _, _ = document_id.partition("/")
    text = _files(corpus).get(document_id)
    if text is None:
        raise LookupError(f"no document {document_id}")
    return {"id": document_id, "text": text}


def tools() -> dict[str, Callable[..., Any]]:
    """Return the tools by name."""
    return {"retrieve_documents": retrieve_documents, "read_document": read_document}


def _files(corpus: str) -> dict[str, str]:
    # The name is not a path, so only files in this folder can be read.
    folder = _HERE / "documents" / corpus
    if not _NAME.fullmatch(corpus) or not folder.is_dir():
        raise LookupError(f"no corpus {corpus}")
    return {f"{corpus}/{file.stem}": file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.md"))}


def _restricted() -> set[str]:
    documents = json.loads((_HERE / "data.json").read_bytes())["directory"]["documents"]
    return {document for document, record in documents.items() if record.get("restricted")}


def _lines(document: str, text: str) -> list[tuple[str, int, str]]:
    """Return (document, offset, text) of each line."""
    return [(document, line.start(), line.group()) for line in re.finditer(r"[^\n]+", text)]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
