from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import tarfile
import tracemalloc
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.engine.bundle.file import (
    MAX_BUNDLE,
    ROOTS,
    Bundle,
    baseline_bundle_path,
    pack_bundle,
    read_bundle,
)
from pdp.errors import BundleError
from pdp.json import canonical, digest

if TYPE_CHECKING:
    from pathlib import Path

WASM = b"\0asm\x01\0\0\0"
MODULES = {"authz/decision.rego": "package authz\n", "custom/mine/x.rego": "package custom.concerns.x\n# ä\n"}
DATA = {
    "config": {"required_concerns": ["x"]},
    "settings": {"a": 1},
    "manifests": {digest(canonical({"tools": {}})): {"tools": {}}},
}
PACKED = pack_bundle(release=3, wasm=WASM, data=DATA, modules=MODULES)

REBUILD = "build the bundle again with `pdp bundle build`"
COPY = "copy the file again, or build it with `pdp bundle build`"
VERSIONS = "bundle and program must be of the same version: update the one or build the other again"


def members(packed: bytes = PACKED) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        return {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]


def tarred(files: list[tuple[str, bytes]], form: int = tarfile.USTAR_FORMAT, **changes: Any) -> bytes:
    """A tar of these files; `changes` are attributes of the last one's header."""
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


def changed(**replaced: bytes | None) -> bytes:
    """The good bundle with some members replaced, or left out; `_` in a name is a dot."""
    files = members() | {name.replace("_", "."): content for name, content in replaced.items()}
    return gzip.compress(tarred([(name, content) for name, content in files.items() if content is not None]))


def manifest(**replaced: Any) -> bytes:
    return canonical(json.loads(members()[".manifest"]) | replaced)


def data(**replaced: Any) -> bytes:
    return canonical(json.loads(members()["data.json"]) | replaced)


def refusal(content: bytes) -> tuple[str, str | None]:
    with pytest.raises(BundleError) as caught:
        read_bundle(content)
    return caught.value.message, caught.value.hint


# What is written is read


def test_a_bundle_is_read_as_it_was_packed(tmp_path: Path) -> None:
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
    assert json.loads(members()[".manifest"]) == {
        "revision": revision,
        "roots": ["authz", "config", "custom", "directory", "manifests", "settings"],
        "rego_version": 1,
        "metadata": {"format": 1, "release": 3},
    }


def test_the_revision_names_the_content_and_not_the_release() -> None:
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
def test_any_other_content_has_another_revision(other: dict[str, Any]) -> None:
    parts = {"wasm": WASM, "data": DATA, "modules": MODULES} | other

    assert read_bundle(pack_bundle(release=3, **parts)).revision != read_bundle(PACKED).revision


def test_the_file_is_the_same_on_every_machine() -> None:
    """Order of what is given means nothing, and no clock, user or build of zlib leaves a trace."""
    again = pack_bundle(
        release=3, wasm=WASM, data=dict(reversed(DATA.items())), modules=dict(reversed(MODULES.items()))
    )
    content = gzip.decompress(PACKED)
    blocks = [content[start : start + 65535] for start in range(0, len(content), 65535)]

    expected = [
        bytes.fromhex("1f8b08000000000000ff"),
        *(
            struct.pack("<BHH", index == len(blocks) - 1, len(block), 65535 - len(block)) + block
            for index, block in enumerate(blocks)
        ),
        struct.pack("<II", zlib.crc32(content), len(content)),
    ]

    assert again == b"".join(expected) == PACKED
    assert digest(PACKED) == "sha256:f6f4eeddaf142397c6bdcd15efbd2e890d9bf2f4ec89e276117466a825a9ac03"
    with tarfile.open(fileobj=io.BytesIO(PACKED)) as tar:
        headers = [(one.name, one.mtime, one.uid, one.gid, one.uname, one.gname, one.mode) for one in tar]
    assert headers == [
        (name, 0, 0, 0, "", "", 0o644)
        for name in (".manifest", "authz/decision.rego", "custom/mine/x.rego", "data.json", "policy.wasm")
    ]


@pytest.mark.parametrize("size", [0, 1, 65534, 65535, 65536, 131070, 200_000])
def test_contents_of_any_size_are_read_whole(size: int) -> None:
    wasm = bytes(range(256)) * (size // 256) + b"x" * (size % 256)

    assert read_bundle(pack_bundle(release=1, wasm=wasm, data={}, modules={})).wasm == wasm


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"data": {"authz": {}}},
            "bundle: data.json: the root 'authz' is not admitted, only config, directory, manifests, settings are",
        ),
        ({"modules": {"/etc/x.rego": ""}}, "bundle: '/etc/x.rego' is not a relative path of plain names"),
        ({"modules": {"other/x.rego": ""}}, "bundle: 'other/x.rego' has no place in a bundle"),
        ({"modules": {f"authz/{'x' * 300}.rego": ""}}, f"authz/{'x' * 300}.rego: the path is too long for a bundle"),
        ({"wasm": b"x" * MAX_BUNDLE}, f"bundle: larger than {MAX_BUNDLE} bytes"),
        ({"release": 0}, "bundle: .manifest: metadata.release is not a number from 1 upwards"),
    ],
)
def test_what_could_not_be_read_is_not_packed(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError) as caught:
        pack_bundle(**({"release": 1, "wasm": WASM, "data": {}, "modules": {}} | parts))  # type: ignore[arg-type]

    assert caught.value.message == message


# Files that are no bundle


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError) as caught:
        read_bundle(tmp_path / "none.tar.gz")

    assert (
        str(caught.value) == f"{tmp_path}/none.tar.gz: cannot be read: No such file or directory (name a bundle file)"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "cut off", id="empty"),
        pytest.param(b"\x1f\x8b", "cut off", id="header only"),
        pytest.param(PACKED[:1000], "cut off", id="half"),
        pytest.param(PACKED[:-1], "cut off", id="last byte missing"),
        pytest.param(b"nope", "not a gzip file, or a damaged one", id="text"),
        pytest.param(bytes(range(256)) * 40_000, "not a gzip file, or a damaged one", id="10 MB of binary"),
        pytest.param(b"[" * 10_000, "not a gzip file, or a damaged one", id="nested"),
        pytest.param(gzip.decompress(PACKED), "not a gzip file, or a damaged one", id="tar only"),
        pytest.param(
            PACKED[:2000] + bytes([PACKED[2000] ^ 1]) + PACKED[2001:], "not a gzip file, or a damaged one", id="one bit"
        ),
        pytest.param(PACKED + b"x", "something follows the end of the gzip file", id="tail"),
        pytest.param(PACKED + PACKED, "something follows the end of the gzip file", id="twice"),
        pytest.param(gzip.compress(b""), "not a tar file inside, or a damaged one", id="nothing inside"),
        pytest.param(gzip.compress(b"nope"), "not a tar file inside, or a damaged one", id="text inside"),
        pytest.param(gzip.compress(b"x" * 10_000), "not a tar file inside, or a damaged one", id="no tar inside"),
        pytest.param(
            gzip.compress(gzip.decompress(PACKED)[:600]),
            "not a tar file inside, or a damaged one",
            id="tar cut in a file",
        ),
        pytest.param(
            gzip.compress(gzip.decompress(PACKED)[:2500]),
            "the tar file inside is damaged, or something follows its end",
            id="tar cut in a header",
        ),
        pytest.param(
            gzip.compress(gzip.decompress(PACKED) + b"x" * 512),
            "the tar file inside is damaged, or something follows its end",
            id="tail of the tar",
        ),
    ],
)
def test_a_file_that_is_damaged_or_something_else_is_refused(content: bytes, message: str) -> None:
    assert refusal(content) == (f"bundle: {message}", COPY)


def test_a_file_that_unpacks_without_end_is_refused() -> None:
    bomb = gzip.compress(b"\0" * (MAX_BUNDLE + 1))

    assert refusal(bomb) == (f"bundle: unpacks to more than {MAX_BUNDLE} bytes", "is this a bundle?")


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "large"
    with file.open("wb") as large:
        large.truncate(MAX_BUNDLE + 2)

    with pytest.raises(BundleError) as caught:
        read_bundle(file)

    assert str(caught.value) == f"{file}: larger than {MAX_BUNDLE} bytes (is this a bundle?)"


NO_PLACE = "has no place in a bundle"
NO_PATH = "is not a relative path of plain names"


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
        ("data.json", "'data.json' stands twice in the bundle"),
        ("authz/decision.rego", "'authz/decision.rego' stands twice in the bundle"),
    ],
)
def test_members_that_have_no_place_are_refused(name: str, message: str) -> None:
    packed = gzip.compress(tarred([*members().items(), (name, b"package authz")]))

    assert refusal(packed) == (f"bundle: {message}", REBUILD)


@pytest.mark.parametrize(
    "changes",
    [
        {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0},
        {"type": tarfile.LNKTYPE, "linkname": "data.json", "size": 0},
        {"type": tarfile.DIRTYPE, "size": 0},
        {"type": tarfile.CHRTYPE, "size": 0},
        {"type": tarfile.FIFOTYPE, "size": 0},
        {"type": tarfile.CONTTYPE},
    ],
)
def test_members_that_are_no_files_are_refused(changes: dict[str, Any]) -> None:
    packed = gzip.compress(tarred([*members().items(), ("authz/x.rego", b"package authz")], **changes))

    assert refusal(packed) == (
        "bundle: 'authz/x.rego' is a link, a folder or a device; a bundle has files only",
        REBUILD,
    )


# Tars that obey more than their headers


SPARSE = str(200 * 1024 * 1024)
NEEDS_NONE = "is an extension of tar (PAX, GNU); a bundle needs none"


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(
            tarred([("data.json", b"{}")], tarfile.PAX_FORMAT, pax_headers={"GNU.sparse.size": SPARSE}), id="size"
        ),
        pytest.param(
            tarred(
                [("data.json", b"{}")],
                tarfile.PAX_FORMAT,
                pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.realsize": SPARSE},
            ),
            id="realsize and map",
        ),
        pytest.param(
            tarred(
                [("data.json", b"1\n0\n1\n".ljust(512, b"\0") + b"{")],
                tarfile.PAX_FORMAT,
                pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": SPARSE},
            ),
            id="map in the file",
        ),
        pytest.param(tarred([("x", b"")], tarfile.PAX_FORMAT, pax_headers={"path": "data.json"}), id="another name"),
        pytest.param(tarred([("data.json", b"{}")], tarfile.PAX_FORMAT, pax_headers={"comment": "x"}), id="a comment"),
        pytest.param(tarred([(f"authz/{'x' * 300}.rego", b"")], tarfile.GNU_FORMAT), id="long name"),
        pytest.param(tarred([("data.json", b"{}")], tarfile.GNU_FORMAT, linkname="x" * 300), id="long link"),
        *(
            pytest.param(tarred([("data.json", b"{}")], type=kind), id=repr(kind))
            for kind in (tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_SPARSE)
        ),
    ],
)
def test_extensions_of_tar_are_refused_and_take_no_memory(packed: bytes) -> None:
    tracemalloc.start()
    try:
        message, hint = refusal(gzip.compress(packed))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (message.endswith(NEEDS_NONE), hint) == (True, REBUILD), message
    assert most < 1024 * 1024


def test_headers_for_the_whole_tar_are_refused() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", pax_headers={"GNU.sparse.size": SPARSE}) as tar:
        tar.addfile(tarfile.TarInfo("data.json"))

    assert refusal(gzip.compress(packed.getvalue())) == (f"bundle: '././@PaxHeader' {NEEDS_NONE}", REBUILD)


@pytest.mark.parametrize("size", [3 * 1024, 8**11 - 1, 2**60, -512])
def test_a_size_that_the_tar_does_not_have_is_refused(size: int) -> None:
    """Before anything is read: sizes of all members together are within the tar."""
    member = tarfile.TarInfo("authz/x.rego")
    member.size = size
    header = member.tobuf(tarfile.GNU_FORMAT)
    content = tarred(list(members().items()))[: -tarfile.RECORDSIZE] + header + b"\0" * 2048

    assert refusal(gzip.compress(content)) == ("bundle: not a tar file inside, or a damaged one", COPY)


def test_a_tar_without_its_end_is_refused() -> None:
    content = gzip.decompress(PACKED).rstrip(b"\0")
    content += b"\0" * (-len(content) % tarfile.BLOCKSIZE)

    assert refusal(gzip.compress(content)) == (
        "bundle: the tar file inside is damaged, or something follows its end",
        COPY,
    )


@pytest.mark.opa
def test_what_opa_builds_has_no_extensions(opa: Path, tmp_path: Path) -> None:
    """Its bundles have absolute paths, which ours have not; everything else of their container is read."""
    folder = tmp_path / "policies"
    name = f"authz/{'x' * 60}/{'y' * 60}.rego"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("package authz\n")
    (folder / "data.json").write_text("{}")
    out = tmp_path / "b.tar.gz"
    subprocess.run([opa, "build", "-b", ".", "-o", out], cwd=folder, check=True, capture_output=True)
    with tarfile.open(out) as tar:
        headers = {one.name.lstrip("/"): (one.type, one.pax_headers) for one in tar}

    assert headers == {each: (tarfile.REGTYPE, {}) for each in ("data.json", name, ".manifest")}
    assert refusal(out.read_bytes()) == ("bundle: '/data.json' is not a relative path of plain names", REBUILD)


# Bundles that are whole, and not ours


MUST_BE = (
    "bundle: .manifest: it must be "
    '{"metadata":{"format":1,"release":3},"rego_version":1,"revision":"sha256:...",'
    '"roots":["authz","config","custom","directory","manifests","settings"]}'
)


@pytest.mark.parametrize(
    ("packed", "message", "hint"),
    [
        pytest.param(changed(_manifest=None), "bundle: .manifest is missing", REBUILD, id="no manifest"),
        pytest.param(changed(data_json=None), "bundle: data.json is missing", REBUILD, id="no data"),
        pytest.param(changed(policy_wasm=None), "bundle: policy.wasm is missing", REBUILD, id="no module"),
        pytest.param(
            changed(_manifest=manifest(metadata={"format": 2, "release": 3, "later": True}, more=1)),
            "bundle: .manifest: format 2, this program reads format 1",
            VERSIONS,
            id="later format",
        ),
        pytest.param(
            changed(_manifest=b'{"revision":"","roots":[""]}'),
            "bundle: .manifest: no format that is known, this program reads format 1",
            VERSIONS,
            id="a bundle of OPA's own",
        ),
        pytest.param(
            changed(_manifest=manifest(metadata={"format": True, "release": 3})),
            "bundle: .manifest: no format that is known, this program reads format 1",
            VERSIONS,
            id="format no number",
        ),
        pytest.param(changed(_manifest=manifest(wasm=[])), MUST_BE, VERSIONS, id="names the module"),
        pytest.param(changed(_manifest=manifest(roots=[""])), MUST_BE, VERSIONS, id="all roots"),
        pytest.param(changed(_manifest=manifest(roots=[*ROOTS, "system"])), MUST_BE, VERSIONS, id="another root"),
        pytest.param(changed(_manifest=manifest(rego_version=0)), MUST_BE, VERSIONS, id="old Rego"),
        pytest.param(changed(_manifest=manifest(rego_version=True)), MUST_BE, VERSIONS, id="Rego version no number"),
        pytest.param(
            changed(_manifest=manifest(revision=5)),
            MUST_BE,
            VERSIONS,
            id="revision no text",
        ),
        *(
            pytest.param(
                changed(_manifest=manifest(metadata={"format": 1, "release": release})),
                "bundle: .manifest: metadata.release is not a number from 1 upwards",
                REBUILD,
                id=f"release {release!r}",
            )
            for release in (None, "3", 0, -1, True, 1.5)
        ),
        pytest.param(
            changed(_manifest=b"nope"),
            "bundle: .manifest: value: not JSON: Expecting value: line 1 column 1 (char 0)",
            REBUILD,
            id="manifest no JSON",
        ),
        pytest.param(changed(_manifest=b"[]"), "bundle: .manifest: not an object", REBUILD, id="manifest a list"),
        pytest.param(
            changed(_manifest=b"[" * 100_000),
            "bundle: .manifest: value: nested deeper than 32 levels",
            REBUILD,
            id="manifest nested",
        ),
        pytest.param(
            changed(data_json=data(authz={"concerns": {}})),
            "bundle: data.json: the root 'authz' is not admitted, only config, directory, manifests, settings are",
            REBUILD,
            id="data poses as policy",
        ),
        pytest.param(
            changed(data_json=data(settings=[])),
            "bundle: data.json: settings is not an object",
            REBUILD,
            id="root a list",
        ),
        pytest.param(
            changed(data_json=b'{"config":{},"config":{}}'),
            "bundle: data.json: value: key 'config' stands twice in one object",
            REBUILD,
            id="duplicate keys",
        ),
        pytest.param(
            changed(data_json=data(config={"bundle": {"revision": "sha256:x", "release": 3}})),
            "bundle: data.json: config.bundle is not the revision and release of .manifest",
            REBUILD,
            id="another name in the data",
        ),
        pytest.param(
            changed(_manifest=manifest(metadata={"format": 1, "release": 4})),
            "bundle: data.json: config.bundle is not the revision and release of .manifest",
            REBUILD,
            id="another release",
        ),
        pytest.param(
            changed(policy_wasm=WASM + b"x"),
            "bundle: the content is not what its revision names: it was changed",
            COPY,
            id="another module",
        ),
        pytest.param(
            changed(data_json=data(settings={"a": 2})),
            "bundle: the content is not what its revision names: it was changed",
            COPY,
            id="other data",
        ),
        pytest.param(
            gzip.compress(tarred([*members().items(), ("authz/more.rego", b"package authz")])),
            "bundle: the content is not what its revision names: it was changed",
            COPY,
            id="one module more",
        ),
        pytest.param(
            gzip.compress(tarred([*members().items(), ("authz/more.rego", b"\xff")])),
            "bundle: authz/more.rego: not UTF-8 text",
            REBUILD,
            id="module no text",
        ),
    ],
)
def test_a_bundle_that_is_incomplete_changed_or_of_another_version_is_refused(
    packed: bytes, message: str, hint: str
) -> None:
    assert refusal(packed) == (message, hint)


def test_what_says_the_same_in_other_bytes_is_read() -> None:
    """White space, order of members and headers are not what a revision names."""
    spaced = json.dumps(json.loads(members()["data.json"]), indent=2).encode()
    files = members() | {"data.json": spaced}

    bundle = read_bundle(gzip.compress(tarred(sorted(files.items(), reverse=True), mtime=5, uid=1000)))

    assert (bundle.revision, bundle.data) == (read_bundle(PACKED).revision, read_bundle(PACKED).data)


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, len(gzip.decompress(PACKED)) - 1), st.integers(0, 255)), max_size=4))
def test_any_change_of_the_content_is_an_error_or_changes_nothing(changes: list[tuple[int, int]]) -> None:
    content = bytearray(gzip.decompress(PACKED))
    for at, byte in changes:
        content[at] = byte
    try:
        bundle = read_bundle(gzip.compress(bytes(content), compresslevel=1))
    except BundleError:
        return

    expected = read_bundle(PACKED)
    assert (bundle.revision, bundle.release, bundle.wasm, bundle.data, bundle.modules) == (
        expected.revision,
        expected.release,
        expected.wasm,
        expected.data,
        expected.modules,
    )


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=2000))
def test_no_bytes_make_it_fail_in_another_way(content: bytes) -> None:
    for packed in (content, gzip.compress(content)):
        with pytest.raises(BundleError):
            read_bundle(packed)


# Where the baseline is


def test_the_baseline_stands_beside_the_code_or_in_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lookup starts at the module's own file, which stands elsewhere here."""
    monkeypatch.setattr("pdp.installed.__file__", str(tmp_path / "pdp/installed.py"))
    packaged, checkout = tmp_path / "pdp/data/bundles/baseline.tar.gz", tmp_path / "bundles/baseline.tar.gz"

    with pytest.raises(BundleError) as caught:
        baseline_bundle_path()
    assert str(caught.value) == (
        "the baseline bundle is not installed (install tool-pdp again, or build it in the checkout:"
        " scripts/release-bundles)"
    )

    for place in (checkout, packaged):
        place.parent.mkdir(parents=True)
        place.write_bytes(PACKED)
        assert baseline_bundle_path() == place
