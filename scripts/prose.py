"""Check that texts are plain English: docstrings, comments, messages, names of tests and scenarios, METADATA, commits.

Each kind of text has a bound: the share of texts that may carry a mark of unclear prose. A bound holds for the whole
tree and for each folder that has 20 texts of the kind. Run by `scripts/lint`; `python -m scripts.prose --worst 50`
shows where to begin. The marks are a rough measure: a text without one can still be unclear.
"""

import argparse
import ast
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
BOUNDS: Final = {
    "docstrings": 3,
    "comments": 3,
    "messages": 1,
    "test names": 4,
    "METADATA": 3,
    "scenario names": 3,
    "pages": 3,
    "commit subjects": 5,
}
"""The kinds of texts, and how many percent of each may have a mark."""
FEW: Final = 20
"""A folder with fewer texts of a kind counts in the whole tree only."""
TREES: Final = ("pdp", "tests", "scripts", "benchmarks", "examples", "policies", "deploy")
PAGES: Final = ("README.md", "CONTRIBUTING.md", "pdp/**/*.md", "docs/**/*.md", "deploy/**/*.md")
LONGEST_LINE: Final = 160
MOST_SENTENCES: Final = 5
"""The limits of a line and of a paragraph in pages."""
MOST_WORDS: Final = {"docs/how-to": 500}
"""The limit of a page's words, without its snippets."""
FIRST_COMMIT: Final = "9a29c4a0"
"""Subjects of commits after this one are checked."""
LONGEST_SUBJECT: Final = 72

MARKS: Final = {
    "name the thing that the sentence is about": r"""
        (?:^|[.:;]\s+)(?:what(?:ever)?|who(?:ever|se)?|nor|to\ what|that\ which
        |of\ (?:an?|the|each|every|all|any|many|what|those|whom)|whether\ somebody)\b(?![^.]*\?)""",
    "say who acts": r"\b(?:nobody|somebody|whoever|whatever)\b",
    "say which thing": r"""
        \b(?:of|to|by|with|from|in|for)\ what\b
        |\bwhat\ (?:is|was|are|were|has|have|had|came|comes|others|no)\b(?![^.]*\?)""",
    "use an everyday word": r"""
        \b(?:anew|likewise|thereof|thereby|therein|wherein|whereof|naught)\b|\bbut\ for\b|\bas\ of\ `
        |\bof\ (?:its|their|his|one's)\ own\b|\b(?:so\ many|so\ long|not\ so)\b""",
    "write what is true instead of what is not": r"""
        \b(?:is|are)\ (?-i:none)\b
        |\bis\ no\ (?:longer\ )?(?:answer|call|decision|list|number|object|person|proposal|such|text|tool|valid)\b""",
    "use the field's word": r"""
        \bstands?\ (?:above|alone|below|beside|for|in|there|twice|where)\b
        |\b(?:is|are|was)\ (?:asked|had|taken|told)\ (?:anew|away|for|up)\b|\bis\ late\b|\bcannot\ be\ had\b""",
}
"""Advice, and the pattern of the texts that need it."""
_MARKS: Final = {advice: re.compile(pattern, re.VERBOSE | re.IGNORECASE) for advice, pattern in MARKS.items()}
_FENCED: Final = re.compile(r"(?ms)^(```|~~~).*?^\1")
_SENTENCE: Final = re.compile(r"(?<=[.:;])\s+(?=[A-Z`])")
_STOP: Final = re.compile(r"[.?!:]\s+(?=[A-Z`*\[]|$)")
_SCENARIO: Final = re.compile(r"""^\s*(?:- )?name: ["']?(.+?)["']?$""")
_WORDS: Final = 3
"""A shorter text has no sentence that could be unclear."""


class Text(NamedTuple):
    """A text of the tree: its kind, the file and line where it begins, and its words."""

    kind: str
    file: str
    line: int
    words: str


def mark_of(text: str) -> str | None:
    """Return the advice for the first mark of unclear prose in a text, or None."""
    plain = " ".join(text.split())
    return next((advice for advice, pattern in _MARKS.items() if pattern.search(plain)), None)


def texts(root: Path) -> Iterator[Text]:
    """Yield every text of the tree that is checked."""
    for tree in TREES:
        for file in sorted((root / tree).rglob("*")):
            name = str(file.relative_to(root))
            if file.suffix == ".py":
                yield from _python_texts(file, name)
            elif file.suffix == ".rego":
                yield from _rego_texts(file, name)
            elif file.suffix == ".yaml" and tree != "deploy":
                yield from _scenario_names(file, name)
    for pattern in PAGES:
        for file in sorted(root.glob(pattern)):
            yield from _sentences(file, str(file.relative_to(root)))
    yield from _subjects(root)


def _python_texts(file: Path, name: str) -> Iterator[Text]:
    tree = ast.parse(file.read_text())
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            inner.add(id(node.value))
            yield Text("docstrings", name, node.lineno, node.value.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Text("test names", name, node.lineno, node.name.removeprefix("test_").replace("_", " "))
        elif isinstance(node, ast.JoinedStr):
            inner.update(map(id, node.values))
            if name.startswith("pdp/"):
                yield Text("messages", name, node.lineno, " ".join(map(_constant, node.values)))
        elif isinstance(node, ast.Constant) and id(node) not in inner and name.startswith("pdp/"):
            yield Text("messages", name, node.lineno, _constant(node))
    with file.open("rb") as opened:
        for token in tokenize.tokenize(opened.readline):
            if token.type == tokenize.COMMENT:
                yield Text("comments", name, token.start[0], token.string.lstrip("# "))


def _constant(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _rego_texts(file: Path, name: str) -> Iterator[Text]:
    lines = file.read_text().splitlines()
    for at, line in enumerate(lines):
        if line == "# METADATA":
            block = list(_comment_lines(lines[at + 1 :]))
            try:
                metadata = yaml.safe_load("\n".join(block))
            except yaml.YAMLError:  # the tests have broken METADATA
                continue
            for key in ("title", "description", "remedy", "unreached"):
                words = metadata.get(key) or (metadata.get("custom") or {}).get(key)
                if isinstance(words, str):
                    yield Text("METADATA", name, at + 1, words)
        elif line.lstrip().startswith("# ") and not re.match(r"# *(?:\w+:|- )|#  ", line):
            yield Text("comments", name, at + 1, line.lstrip("\t# "))


def _comment_lines(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("#"):
            return
        yield line.removeprefix("#").removeprefix(" ")


def _scenario_names(file: Path, name: str) -> Iterator[Text]:
    if "scenarios" in name:
        for at, line in enumerate(file.read_text().splitlines(), 1):
            if match := _SCENARIO.match(line):
                yield Text("scenario names", name, at, match[1])


def _sentences(file: Path, name: str) -> Iterator[Text]:
    prose = _FENCED.sub(lambda block: "\n" * block[0].count("\n"), file.read_text())
    for at, line in enumerate(prose.splitlines(), 1):
        if not line.startswith("    "):
            for cell in line.strip("| ").split("|"):
                for sentence in _SENTENCE.split(cell):
                    yield Text("pages", name, at, sentence)


def page_faults(file: Path, name: str) -> Iterator[str]:
    """Yield the lines and paragraphs of a page that are too long, and the page if it is."""
    text = file.read_text()
    for at, line in enumerate(text.splitlines(), 1):
        if len(line) > LONGEST_LINE and not line.startswith("|"):
            yield f"{name}:{at}: the line has {len(line)} characters, at most {LONGEST_LINE}"
    prose = _FENCED.sub("", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )", prose):
        if (count := len(_STOP.findall(f"{paragraph} "))) > MOST_SENTENCES:
            yield f"{name}: {count} sentences, at most {MOST_SENTENCES}: {' '.join(paragraph.split())[:60]}"
    words, most = len(re.sub(r"<!--.*?-->", "", prose).split()), MOST_WORDS.get(str(Path(name).parent))
    if most and words > most:
        yield f"{name}: {words} words without its snippets, at most {most}"


def _subjects(root: Path) -> Iterator[Text]:
    """Yield the subjects of the commits after `FIRST_COMMIT`; none where the history is not there."""
    command = ["git", "log", "--format=%h %s", f"{FIRST_COMMIT}..HEAD"]
    log = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    for line in log.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        yield Text("commit subjects", commit, 0, subject)


def faults(found: list[Text], worst: int) -> Iterator[str]:
    """Yield the groups above their bounds, each with its first `worst` marked texts."""
    groups = defaultdict(list)
    for text in found:
        folder = "/".join(Path(text.file).parts[:2]) if "/" in text.file else ""
        groups[text.kind, ""].append(text)
        if folder:
            groups[text.kind, folder].append(text)
    for (kind, folder), members in sorted(groups.items()):
        marked = [(text, advice) for text in members if (advice := _advice(text))]
        share = 100 * len(marked) / len(members)
        if share > BOUNDS[kind] and (len(members) >= FEW or not folder):
            where = folder or "the tree"
            yield f"{kind} in {where}: {share:.1f} % of {len(members)} are marked, at most {BOUNDS[kind]} %"
            for text, advice in marked[:worst]:
                yield f"  {text.file}:{text.line}: {advice}: {' '.join(text.words.split())[:150]}"


def _advice(text: Text) -> str | None:
    if text.kind == "commit subjects" and len(text.words) > LONGEST_SUBJECT:
        return f"at most {LONGEST_SUBJECT} characters"
    return mark_of(text.words)


def main() -> int:
    """Print the groups above their bounds; return 1 if there is one."""
    parser = argparse.ArgumentParser(description="Check that texts are plain English.")
    parser.add_argument("--worst", type=int, default=5, metavar="N", help="show N marked texts of each group")
    parser.add_argument("pages", nargs="*", type=Path, help="check only these pages, and allow no mark")
    options = parser.parse_args()
    found = [text for page in options.pages for text in _sentences(page, str(page))] if options.pages else texts(ROOT)
    checked = [text for text in found if len(text.words.split()) >= _WORDS]
    if options.pages:
        lines = [f"{text.file}:{text.line}: {advice}" for text in checked if (advice := _advice(text))]
    else:
        lines = list(faults(checked, options.worst))
    files = options.pages or sorted(file for pattern in PAGES for file in ROOT.glob(pattern))
    lines += [line for file in files for line in page_faults(file, str(file.resolve().relative_to(ROOT)))]
    print("\n".join(lines) or f"prose: {len(checked)} texts, every group within its bound")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
