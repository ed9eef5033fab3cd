"""The shapes of commands.yaml. A shape describes commands by their words, optional words and placeholders.

A placeholder matches a part of a word. A word that begins with `-` matches only a word of the shape that begins
with the same letters, so a command has no option that its shape does not name.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, PlainValidator, ValidationInfo, model_validator

from pdp.documents import FieldError, nearest, read_document
from pdp.errors import Place

Accepts = Callable[[str, str], bool]
"""A function that returns whether a text is a valid value of a placeholder. Its arguments are placeholder and text."""

PLAIN: Final = r"(?:[\w,./:@%+-]|(?<=[\w.-])=(?!=)|(?<=[\w~^])[~^](?![A-Za-z_/]))"
"""The characters of a word without quotes. bash, dash and zsh expand none of these."""

_NAME: Final = r"(?![-+])(?:[\w.@+/-]|(?<=[\w~^])[~^])+"
PLACEHOLDERS: Final = {
    "<path>": (_PATH := "(?!-)[^*?:=\0-\x1f\x7f]+"),
    "<file>": _PATH,
    "<glob>": "(?!-)[^\0-\x1f\x7f]+",
    "<name>": _NAME,
    "<number>": "[0-9]{1,9}",
    "<text>": r"(?!-)[\s\S]*",
}
_PIECE: Final = re.compile(rf"(<[^<>]*>)|\{{([A-Za-z0-9]+)\}}|({PLAIN}+)", re.ASCII)
_ITEM: Final = re.compile(r"\s*(?:\[([^\[\]]*)\]|([^\s\[\]]+))(?=\s|\Z)")
_MOST: Final = 256  # The maximum number of shapes that alternatives expand to.
# Programs and words of shells that start what their arguments name, or change how a line is read.
RUNNERS: Final = """
- . alias bash builtin busybox case chdir chroot command coproc csh dash do doas done elif else enable end entr env esac
eval exec export fi fish flock for foreach function gdb hash if in ionice ksh ltrace nice nocorrect noglob nohup nsenter
parallel popd pushd pwsh repeat script select set setsid sh shopt source ssh stdbuf strace su sudo tcsh then time
timeout toybox trap typeset unalias unset unshare until watch while xargs zsh
"""
_INTERPRETERS: Final = re.compile(
    r"((g|m|n)?awk|g?sed|bun|deno|lua|node|osascript|perl|php|python|pypy|Rscript|ruby|tclsh)[0-9.]*"
)
# Options whose value is a program, or with which git starts one that its configuration names.
_STARTING: Final = (
    "-exec -execdir -ok -okdir --exec --exec-batch --pre --ext-diff --textconv --upload-pack --config-env"
)
_FREE: Final = {"<text>", "<name>", "<glob>"}


class _Word(NamedTuple):
    """A word of a shape as a pattern, with a group for each placeholder."""

    text: str
    pattern: re.Pattern[str]
    kinds: tuple[str, ...]

    def fits(self, word: str, accepts: Accepts) -> bool:
        match = self.pattern.fullmatch(word)
        pairs = zip(self.kinds, match.groups(), strict=True) if match else ()
        return match is not None and all(value is None or accepts(kind, value) for kind, value in pairs)


class _Option(NamedTuple):
    """An optional word that begins with `-`, perhaps with a value. It may follow the operand at `after`."""

    word: _Word
    value: _Word | None
    after: int


class CommandShape(NamedTuple):
    """A shape of the `program` with no alternatives in its `text`, in the list `once_a_run` if `once` is true."""

    text: str
    program: str
    once: bool
    operands: tuple[tuple[_Word, bool], ...]  # with true if the word may be repeated
    optional: dict[int, int]  # from the first operand of an optional group to the operand after the group
    options: tuple[_Option, ...]

    def matches(self, words: Sequence[str], accepts: Accepts) -> bool:
        """Return whether the words after the program have this shape. The time is linear in the number of words."""
        states: set[tuple[int, _Word | None]] = {(0, None)}
        is_open = True  # Options end at `--`.
        for word in words:
            is_option = is_open and word.startswith("-")
            options = [each for each in self.options if is_option and each.word.fits(word, accepts)]
            found: set[tuple[int, _Word | None]] = set()
            for at, value in self._reached(states):
                if value is not None:
                    found |= {(at, None)} if value.fits(word, accepts) else set()
                    continue
                found |= {(at, option.value) for option in options if option.after <= at}
                if at < len(self.operands) and self.operands[at][0].fits(word, accepts):
                    found |= {(at + 1, None), *([(at, None)] if self.operands[at][1] else [])}
            states, is_open = found, is_open and word != "--"
            if not states:
                return False
        return (len(self.operands), None) in self._reached(states)

    def _reached(self, states: set[tuple[int, _Word | None]]) -> set[tuple[int, _Word | None]]:
        for start, end in self.optional.items():
            states = states | {(end, None)} if (start, None) in states else states
        return states


@lru_cache(4096)
def shapes(line: str, *, once: bool = False) -> tuple[CommandShape, ...]:
    """Return the shapes of a line in commands.yaml, one for each choice among its alternatives.

    Raises:
        FieldError: the shape can match nothing, or its program starts what its arguments name.

    Examples:
        >>> [shape.text for shape in shapes("make [-s] test|lint")]
        ['make [-s] test', 'make [-s] lint']
        >>> shapes("ls [-{la}] [<path>...]")[0].matches(["-al", "src"], lambda placeholder, value: True)
        True
    """
    items = [match[0].strip() for match in _ITEM.finditer(line)]
    if items != re.findall(r"\[[^\[\]]*\]|\S+", line):
        raise FieldError("is not a shape, because of its brackets", "write them like `ls [-l -a] [<path>...]`")
    choices = [[text] if text.startswith("[") else text.split("|") for text in items]
    if sum(1 for _ in zip(range(_MOST + 1), product(*choices), strict=False)) > _MOST:
        raise FieldError(f"has more than {_MOST} alternatives", "write several shapes")
    return tuple(_shape(chosen, once) for chosen in product(*choices))


def _shape(items: Sequence[str], once: bool) -> CommandShape:  # noqa: FBT001 - private
    program = _word(items[0] if items else "").text
    operands: list[tuple[_Word, bool]] = []
    optional: dict[int, int] = {}
    options: list[_Option] = []
    for item in items[1:]:
        words = item.strip("[]").split() or [""]
        if item.startswith("[-") and words[0] != "--":
            if any(word.text == "--" for word, _ in operands):
                raise FieldError("matches nothing, because no option follows `--`", "write the options before `--`")
            options += _options(words, len(operands))
            continue
        start = len(operands)
        # In a word such as `./...`, the dots are a part of the word.
        operands += [
            (_word(re.sub(r"(?<!/)\.{3}$", "", word)), bool(re.search(r"(?<!/)\.{3}$", word))) for word in words
        ]
        if item.startswith("["):
            optional[start] = len(operands)
            if len(words) > 1 and operands[start][1]:
                raise FieldError(f"repeats `{words[0]}` before other optional words", "write it in separate brackets")
    _check(program, [word for word, _ in operands], options)
    return CommandShape(" ".join(items), program, once, tuple(operands), optional, tuple(options))


def _options(words: Sequence[str], after: int) -> Iterator[_Option]:
    for at, word in enumerate(words):
        value = next((_word(each) for each in words[at + 1 : at + 2] if not each.startswith("-")), None)
        if word.startswith("-"):
            yield _Option(_word(word), value, after)
        elif not words[at - 1].startswith("-"):
            raise FieldError(f"has two values after an option, `{words[at - 1]} {word}`", "write one value")


def _word(text: str) -> _Word:
    patterns: list[str] = []
    kinds: list[str] = []
    for choice in text.split("|"):
        at, pattern = 0, ""
        while match := _PIECE.match(choice, at):
            known = PLACEHOLDERS.get(match[1] or "")
            if match[1] and known is None:
                raise FieldError(f"has the unknown placeholder `{match[1]}`", nearest(match[1], PLACEHOLDERS))
            # After other letters of the word, a text may begin with `-`.
            known = r"[\s\S]+" if at and match[1] == "<text>" else known
            pattern += f"({known})" if known else f"[{match[2]}]+" if match[2] else re.escape(match[3])
            kinds += [match[1]] if known else []
            at = match.end()
        if at < len(choice) or not choice or re.search(r"(?<!/)\.{3}$", choice):
            raise FieldError(
                f"matches nothing, because no command has the word `{text}`",
                "write plain words and placeholders; `*` and `$` are not patterns"
                if text.strip("|")
                else "write `|` and `...` right after a word, and a shape for each command of a line",
            )
        patterns.append(pattern)
    return _Word(text, re.compile("|".join(patterns), re.ASCII), tuple(kinds))


def _check(program: str, operands: Sequence[_Word], options: Sequence[_Option]) -> None:
    """Raise `FieldError` if the program starts what its arguments name, or options are ambiguous."""
    words = [*operands, *(word for option in options for word in (option.word, option.value) if word is not None)]
    texts = [text for word in words for text in word.text.split("|")]
    kinds = {kind for word in words for kind in word.kinds}
    name = program.rpartition("/")[2]
    if "<" in program or "{" in program:
        raise FieldError("does not begin with the name of a program", "write the program's name first")
    plain = [word for word in words if not word.kinds]
    runs = next((each for each in _STARTING.split() if any(word.fits(each, lambda *_: True) for word in plain)), None)
    runs = runs or next((text for text in texts if text.partition("=")[0] in _STARTING.split()), None)
    if name == "git" and not runs:
        before = [option.word.text for option in options if not option.after]
        runs = next((text for text in [*before, *texts[:1]] if re.match("-[cC]|--exec-path|<", text)), None)
    is_module = name.startswith("python") and texts[:1] == ["-m"] and not any(word.kinds for word in operands[1:2])
    is_module = is_module and all(option.after > 1 for option in options)
    if name in RUNNERS.split() or runs or (_INTERPRETERS.fullmatch(name) and kinds & _FREE and not is_module):
        raise FieldError(
            f"has `{runs or program}`, which runs what its arguments name, or changes how a shell reads the line",
            "remove it, and approve each such command",
        )
    if name == "cd" and texts != ["<path>"]:
        raise FieldError("is not a known form of `cd`", "write `cd <path>`")
    for option in options:
        same = [each for each in options if each.word.fits(option.word.text, lambda *_: True)]
        if any(each.value != option.value for each in same):
            raise FieldError(f"has the option `{option.word.text}` both with and without a value", "keep one of them")


def _read(given: Any, info: ValidationInfo) -> tuple[CommandShape, ...]:
    if not isinstance(given, str):
        raise FieldError("must be a string")
    found = shapes(given, once=info.field_name == "once_a_run")
    listed = {shape.text for each in info.data.get("runs", ()) for shape in each}
    if twice := next((shape.text for shape in found if shape.text in listed), None):
        raise FieldError(f"matches nothing, because `runs` has the shape `{twice}`", "remove one of them")
    return found


_Shapes = Annotated[tuple[CommandShape, ...], PlainValidator(_read)]


class HookCommands(BaseModel, frozen=True, extra="forbid"):
    """The content of commands.yaml: shapes of commands that run, and of commands that need one approval in a run."""

    runs: tuple[_Shapes, ...] = ()
    once_a_run: tuple[_Shapes, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _reject_old_form(cls, given: Any) -> Any:
        if isinstance(given, dict) and given and not given.keys() & cls.model_fields.keys():
            program, words = next(iter(given.items()))
            options = " ".join(map(str, words)) if isinstance(words, list) else ""
            line = f"runs: ['{program}{f' [{options}]' if options else ''}']"
            raise FieldError("has programs as keys, but must have the lists `runs` and `once_a_run`", f"write {line}")
        return given

    @property
    def programs(self) -> dict[str, tuple[CommandShape, ...]]:
        """The shapes of each program, those that run without a question first."""
        found: dict[str, tuple[CommandShape, ...]] = {}
        for shape in (shape for each in (*self.runs, *self.once_a_run) for shape in each):
            found[shape.program] = (*found.get(shape.program, ()), shape)
        return found


def shape_place(file: Path, text: str) -> Place | None:
    """Return the place in commands.yaml of the shape with this text, or None if the file has no such shape."""
    document = read_document(file)
    for name in HookCommands.model_fields:
        for at, line in enumerate(document.value.get(name) or ()):
            if any(shape.text == text for shape in shapes(line)):
                return document.place((name, at))
    return None
