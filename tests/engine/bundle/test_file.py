import gzip
import io
import json
import struct
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.engine.bundle.file import (
    MAX_BUNDLE,
    ROOTS,
    Bundle,
    baseline_bundle_path,
    pack_bundle,
    pack_members,
    read_bundle,
    unpack_bundle,
)
from pdp.errors import BundleError
from pdp.json import canonical, digest

WASM = b"\0asm\x01\0\0\0"
MODULES = {"authz/decision.rego": "package authz\n", "custom/mine/x.rego": "package custom.concerns.x\n# ä\n"}
DATA = {
    "config": {"required_concerns": ["x"]},
    "settings": {"a": 1},
    "manifests": {digest(canonical({"tools": {}})): {"tools": {}}},
}
PACKED = pack_bundle(release=3, wasm=WASM, data=DATA, modules=MODULES)
MEMBERS = unpack_bundle(PACKED)

REBUILD = "build the bundle again with `pdp bundle build`"
COPY = "copy the file again, or build the bundle with `pdp bundle build`"
LAYOUT = "the file's layout is not that of `pdp bundle build`: the file was changed"
VERSIONS = "bundle and program have different versions: update the program, or build the bundle again"


def tarred(files: list[tuple[str, bytes]], form: int = tarfile.USTAR_FORMAT, **changes: Any) -> bytes:
    """Return a tar file with these files. `changes` sets attributes in the header of the last file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form, encoding="utf-8") as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if (name, content) == files[-1]:
                for attribute, value in changes.items():
                    setattr(member, attribute, value)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def stored(content: bytes) -> bytes:
    """Return a gzip file that contains the content uncompressed."""
    blocks = [content[start : start + 65535] for start in range(0, len(content), 65535)]
    return b"".join(
        [
            bytes.fromhex("1f8b08000000000000ff"),
            *(
                struct.pack("<BHH", index == len(blocks) - 1, len(block), 65535 - len(block)) + block
                for index, block in enumerate(blocks)
            ),
            struct.pack("<II", zlib.crc32(content), len(content)),
        ]
    )


def changed(**replaced: bytes | None) -> bytes:
    """Return a valid bundle with some files replaced, or removed if None. `_` in a keyword stands for a dot."""
    files = MEMBERS | {name.replace("_", "."): content for name, content in replaced.items()}
    return pack_members({name: content for name, content in files.items() if content is not None})


def manifest(**replaced: Any) -> bytes:
    return canonical(json.loads(MEMBERS[".manifest"]) | replaced)


def data(**replaced: Any) -> bytes:
    return canonical(json.loads(MEMBERS["data.json"]) | replaced)


def refusal(content: bytes) -> tuple[str, str | None]:
    with pytest.raises(BundleError) as caught:
        read_bundle(content)
    return caught.value.message, caught.value.hint


# Packing and reading bundles


def test_packed_bundle_can_be_read_without_changes(tmp_path: Path) -> None:
    file = tmp_path / "b.tar.gz"
    file.write_bytes(PACKED)

    bundle = read_bundle(file)

    revision = bundle.revision
    assert bundle == read_bundle(PACKED)
    assert bundle == Bundle(
        revision=revision,
        release=3,
        wasm=WASM,
        data=DATA | {"config": {"required_concerns": ["x"], "bundle": {"revision": revision, "release": 3}}},
        modules=MODULES,
        size=len(PACKED),
    )
    assert json.loads(MEMBERS[".manifest"]) == {
        "revision": revision,
        "roots": ["authz", "config", "custom", "directory", "manifests", "settings"],
        "rego_version": 1,
        "metadata": {"format": 1, "release": 3},
    }


def test_bundle_revision_depends_on_the_content_and_not_on_the_release_number() -> None:
    contents = {
        "data.json": canonical(DATA),
        "policy.wasm": WASM,
        **{path: text.encode() for path, text in MODULES.items()},
    }
    expected = digest(canonical({path: digest(content) for path, content in contents.items()}))

    assert read_bundle(PACKED).revision == expected
    assert read_bundle(pack_bundle(release=9, wasm=WASM, data=DATA, modules=MODULES)).revision == expected


@pytest.mark.parametrize(
    "other",
    [
        {"wasm": WASM + b"\0\1\0"},
        {"data": DATA | {"settings": {"a": 2}}},
        {"modules": MODULES | {"authz/decision.rego": "package authz\n\n"}},
        {"modules": {"authz/decided.rego": "package authz\n", "custom/mine/x.rego": MODULES["custom/mine/x.rego"]}},
    ],
)
def test_bundles_with_different_content_have_different_revisions(other: dict[str, Any]) -> None:
    parts = {"wasm": WASM, "data": DATA, "modules": MODULES} | other

    assert read_bundle(pack_bundle(release=3, **parts)).revision != read_bundle(PACKED).revision


def test_packing_the_same_bundle_gives_the_same_bytes() -> None:
    """The bytes do not depend on the order of the arguments, the clock, the user or the version of zlib."""
    again = pack_bundle(
        release=3, wasm=WASM, data=dict(reversed(DATA.items())), modules=dict(reversed(MODULES.items()))
    )

    assert again == PACKED == stored(gzip.decompress(PACKED))
    assert digest(PACKED) == "sha256:f6f4eeddaf142397c6bdcd15efbd2e890d9bf2f4ec89e276117466a825a9ac03"
    with tarfile.open(fileobj=io.BytesIO(PACKED)) as tar:
        headers = [(each.name, each.mtime, each.uid, each.gid, each.uname, each.gname, each.mode) for each in tar]
    assert headers == [
        (name, 0, 0, 0, "", "", 0o644)
        for name in (".manifest", "authz/decision.rego", "custom/mine/x.rego", "data.json", "policy.wasm")
    ]


@pytest.mark.parametrize("size", [0, 1, 65534, 65535, 65536, 131070, 200_000])
def test_bundle_contents_of_any_size_are_read_completely(size: int) -> None:
    wasm = bytes(range(256)) * (size // 256) + b"x" * (size % 256)

    assert read_bundle(pack_bundle(release=1, wasm=wasm, data={}, modules={})).wasm == wasm


MUST_BE = (
    ".manifest: must be "
    '{"metadata":{"format":1,"release":1},"rego_version":1,"revision":"sha256:...",'
    '"roots":["authz","config","custom","directory","manifests","settings"]}, with a release of at least 1'
)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"data": {"authz": {}}},
            "bundle: data.json: the root 'authz' is not allowed; use config, directory, manifests, settings",
        ),
        ({"modules": {"/etc/x.rego": ""}}, "bundle: '/etc/x.rego' is not a valid path in a bundle"),
        ({"modules": {"other/x.rego": ""}}, "bundle: 'other/x.rego' is not allowed in a bundle"),
        ({"modules": {f"authz/{'x' * 300}.rego": ""}}, f"authz/{'x' * 300}.rego: the path is too long for a bundle"),
        ({"wasm": b"x" * MAX_BUNDLE}, f"bundle: larger than {MAX_BUNDLE} bytes"),
        ({"release": 0}, f"bundle: {MUST_BE}"),
    ],
)
def test_pack_bundle_rejects_parts_that_cannot_be_read_back(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError) as caught:
        pack_bundle(**({"release": 1, "wasm": WASM, "data": {}, "modules": {}} | parts))  # type: ignore[arg-type]

    assert caught.value.message == message


# Files that are not bundles


def test_error_names_a_missing_bundle_file(tmp_path: Path) -> None:
    with pytest.raises(BundleError) as caught:
        read_bundle(tmp_path / "none.tar.gz")

    assert (
        str(caught.value)
        == f"{tmp_path}/none.tar.gz: cannot be read: No such file or directory (give the path of a bundle file)"
    )


NO_GZIP, NO_TAR = "damaged, or not a gzip file", "damaged, or no tar file inside the gzip file"
TAR = gzip.decompress(PACKED)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([b""], "the file is empty"),
        ([b"\x1f\x8b", PACKED[:1000], PACKED[:-1]], "the file is truncated"),
        ([b"nope", bytes(range(256)) * 40_000, b"[" * 10_000, TAR,
          PACKED[:2000] + bytes([PACKED[2000] ^ 1]) + PACKED[2001:]], NO_GZIP),
        ([gzip.compress(content) for content in (b"nope", b"x" * 10_000, TAR[:600], TAR[:2500])], NO_TAR),
        ([PACKED + b"x", PACKED + PACKED, gzip.compress(b""), gzip.compress(TAR), gzip.compress(TAR + b"x" * 512),
          gzip.compress(TAR[:-512]), gzip.compress(tarred([*MEMBERS.items()], mtime=5)),
          gzip.compress(tarred([*reversed(MEMBERS.items())])),
          gzip.compress(tarred([*MEMBERS.items(), ("data.json", b"{}")]))], LAYOUT),
    ],
    ids=["empty", "cut off", "not gzip", "not tar", "laid out otherwise"],
)  # fmt: skip
def test_damaged_bundle_or_file_of_another_format_is_rejected(contents: list[bytes], message: str) -> None:
    assert [refusal(content) for content in contents] == [(f"bundle: {message}", COPY)] * len(contents)


def test_decompression_bomb_is_rejected() -> None:
    bomb = gzip.compress(b"\0" * (MAX_BUNDLE + 1))

    assert refusal(bomb) == (f"bundle: unpacks to more than {MAX_BUNDLE} bytes", "check that this is a bundle")


def test_too_large_file_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "large"
    with file.open("wb") as large:
        large.truncate(MAX_BUNDLE + 2)

    with pytest.raises(BundleError) as caught:
        read_bundle(file)

    assert str(caught.value) == f"{file}: larger than {MAX_BUNDLE} bytes (check that this is a bundle)"


NO_PLACE = "is not allowed in a bundle"
NO_PATH = "is not a valid path in a bundle"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/data.json", f"'/data.json' {NO_PATH}"),
        ("../x.rego", f"'../x.rego' {NO_PATH}"),
        ("authz/../../x.rego", f"'authz/../../x.rego' {NO_PATH}"),
        ("authz//x.rego", f"'authz//x.rego' {NO_PATH}"),
        ("./data.json", f"'./data.json' {NO_PATH}"),
        ("authz/a\\b.rego", f"'authz/a\\\\b.rego' {NO_PATH}"),
        ("authz/\N{FULLWIDTH FULL STOP}.rego", f"'authz/\N{FULLWIDTH FULL STOP}.rego' {NO_PATH}"),
        ("authz/.hidden.rego", f"'authz/.hidden.rego' {NO_PATH}"),
        ("authz/data.json", f"'authz/data.json' {NO_PLACE}"),
        ("authz/concerns/data.yaml", f"'authz/concerns/data.yaml' {NO_PLACE}"),
        ("x.rego", f"'x.rego' {NO_PLACE}"),
        ("settings/x.rego", f"'settings/x.rego' {NO_PLACE}"),
        ("other.wasm", f"'other.wasm' {NO_PLACE}"),
    ],
)
def test_bundle_with_unexpected_files_is_rejected(name: str, message: str) -> None:
    packed = gzip.compress(tarred([*MEMBERS.items(), (name, b"package authz")]))

    assert refusal(packed) == (f"bundle: {message}", REBUILD)


SPARSE = str(200 * 1024 * 1024)


@pytest.mark.parametrize(
    "packed",
    [
        *(
            pytest.param(tarred([*MEMBERS.items(), ("authz/x.rego", b"")], type=kind, linkname="/etc"), id=repr(kind))
            for kind in (
                tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE,
                tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_SPARSE,
            )
        ),
        *(
            pytest.param(tarred([("data.json", b"{}")], tarfile.PAX_FORMAT, pax_headers=headers), id=repr(headers))
            for headers in (
                {"GNU.sparse.size": SPARSE}, {"GNU.sparse.map": "0,1", "GNU.sparse.realsize": SPARSE},
                {"path": "data.json"}, {"comment": "x"},
            )
        ),
        pytest.param(tarred([(f"authz/{'x' * 300}.rego", b"")], tarfile.GNU_FORMAT), id="long name"),
        pytest.param(tarred([("data.json", b"{}")], tarfile.GNU_FORMAT, linkname="x" * 300), id="long link"),
    ],
)  # fmt: skip
def test_tar_links_and_extensions_are_rejected_without_using_memory(packed: bytes) -> None:
    tracemalloc.start()
    try:
        message, _ = refusal(gzip.compress(packed))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert message == f"bundle: {LAYOUT}" or message.endswith(NO_PATH)
    assert most < 1024 * 1024


@pytest.mark.parametrize("size", [3 * 1024, 8**11 - 1, 2**60, -512])
def test_file_size_in_a_tar_header_beyond_the_tar_file_is_rejected(size: int) -> None:
    """The reader checks the size in the header before it reads the content."""
    member = tarfile.TarInfo("authz/x.rego")
    member.size = size
    header = member.tobuf(tarfile.GNU_FORMAT)
    content = tarred(list(MEMBERS.items()))[: -tarfile.RECORDSIZE] + header + b"\0" * 2048

    assert refusal(gzip.compress(content)) == ("bundle: damaged, or no tar file inside the gzip file", COPY)


# Bundles that have all files, some with wrong content


CHANGED = "the content does not match its revision: the file was changed"
OTHER_MANIFESTS: list[dict[str, Any]] = [
    {"wasm": []}, {"roots": [""]}, {"roots": [*ROOTS, "system"]}, {"rego_version": 0}, {"rego_version": True},
    {"revision": 5},
]  # fmt: skip
OTHER_IDENTITY = "data.json: config.bundle does not match revision and release in .manifest"


@pytest.mark.parametrize(
    ("packed", "message", "hint"),
    [
        (changed(_manifest=None), ".manifest is missing", REBUILD),
        (changed(data_json=None), "data.json is missing", REBUILD),
        (changed(policy_wasm=None), "policy.wasm is missing", REBUILD),
        (changed(_manifest=manifest(metadata={"format": 2, "release": 3, "later": True}, more=1)),
         ".manifest: format 2 is not supported, only 1", VERSIONS),
        (changed(_manifest=b'{"revision":"","roots":[""]}'),
         ".manifest: format None is not supported, only 1", VERSIONS),
        (changed(_manifest=manifest(metadata={"format": True, "release": 3})),
         ".manifest: format True is not supported, only 1", VERSIONS),
        *(
            (changed(_manifest=manifest(**other)), MUST_BE, VERSIONS)
            for other in OTHER_MANIFESTS
        ),
        *(
            (changed(_manifest=manifest(metadata={"format": 1, "release": release})), MUST_BE, VERSIONS)
            for release in (None, "3", 0, -1, True, 1.5)
        ),
        (changed(_manifest=b"nope"),
         ".manifest: value: not JSON: Expecting value: line 1 column 1 (char 0)", REBUILD),
        (changed(_manifest=b"[]"), ".manifest: must be a JSON object", REBUILD),
        (changed(_manifest=b"[" * 100_000), ".manifest: value: nested deeper than 32 levels", REBUILD),
        (changed(data_json=data(authz={"concerns": {}})),
         "data.json: the root 'authz' is not allowed; use config, directory, manifests, settings", REBUILD),
        (changed(data_json=data(settings=[])), "data.json: settings must be a JSON object", REBUILD),
        (changed(data_json=b'{"config":{},"config":{}}'),
         "data.json: value: duplicate key in an object", REBUILD),
        (changed(data_json=data(config={"bundle": {"revision": "sha256:x", "release": 3}})), OTHER_IDENTITY, REBUILD),
        (changed(_manifest=manifest(metadata={"format": 1, "release": 4})), OTHER_IDENTITY, REBUILD),
        (changed(policy_wasm=WASM + b"x"), CHANGED, COPY),
        (changed(data_json=data(settings={"a": 2})), CHANGED, COPY),
        (pack_members(MEMBERS | {"authz/more.rego": b"package authz"}), CHANGED, COPY),
        (pack_members(MEMBERS | {"authz/more.rego": b"\xff"}), "authz/more.rego: not UTF-8 text", REBUILD),
    ],
)  # fmt: skip
def test_incomplete_modified_or_unsupported_bundle_is_rejected(packed: bytes, message: str, hint: str) -> None:
    assert refusal(packed) == (f"bundle: {message}", hint)


@pytest.mark.parametrize("name", [".manifest", "data.json"])
@pytest.mark.parametrize(
    "spelled",
    [
        lambda content: json.dumps(json.loads(content), indent=2).encode(),
        lambda content: content + b"\n",
        lambda content: content.replace(b":1", b":1e0", 1),
        lambda content: content.replace(b'"config"', b'"conf\\u0069g"'),
        lambda content: json.dumps(dict(reversed(json.loads(content).items())), separators=(",", ":")).encode(),
    ],
    ids=["indented", "a line feed", "a number", "an escape", "the order of keys"],
)
def test_non_canonical_json_is_rejected(name: str, spelled: Callable[[bytes], bytes]) -> None:
    other = spelled(MEMBERS[name])

    assert other != MEMBERS[name]
    assert json.loads(other) == json.loads(MEMBERS[name])
    assert refusal(pack_members(MEMBERS | {name: other})) == (
        f"bundle: {name}: not in canonical form (RFC 8785)", REBUILD,
    )  # fmt: skip


@settings(max_examples=100)
@given(changes=st.lists(st.tuples(st.integers(0, len(PACKED) - 1), st.integers(0, 255)), max_size=4))
def test_bundle_with_any_changed_byte_is_rejected(changes: list[tuple[int, int]]) -> None:
    content = bytearray(gzip.decompress(PACKED))
    for at, byte in changes:
        content[at % len(content)] = byte
    try:
        bundle = read_bundle(stored(bytes(content)))
    except BundleError:
        return

    assert bundle == read_bundle(PACKED)


@settings(max_examples=100)
@given(content=st.binary(max_size=2000))
def test_reading_arbitrary_bytes_raises_only_bundle_error(content: bytes) -> None:
    for packed in (content, gzip.compress(content)):
        with pytest.raises(BundleError):
            read_bundle(packed)


# The path of the baseline's bundle


def test_baseline_bundle_is_found_in_the_package_or_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle's path is relative to the file of a module, so the test pretends that this module is elsewhere."""
    monkeypatch.setattr("pdp.installed.__file__", str(tmp_path / "pdp/installed.py"))
    packaged, checkout = tmp_path / "pdp/data/bundles/baseline.tar.gz", tmp_path / "bundles/baseline.tar.gz"

    with pytest.raises(BundleError, match=f"^{checkout}: cannot be read: No such file or directory"):
        read_bundle(baseline_bundle_path())

    for place in (checkout, packaged):
        place.parent.mkdir(parents=True)
        place.write_bytes(PACKED)
        assert baseline_bundle_path() == place
