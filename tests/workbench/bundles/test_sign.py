"""Bundles are signed with keys of this program or of OpenSSL. OPA also verifies them, and rejects wrong signatures."""

import base64
import contextlib
import gzip
import json
import os
import random
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import RSAKey

from pdp.engine.bundle import SIGNATURES
from pdp.engine.bundle.file import pack_bundle, pack_members, read_bundle, unpack_bundle
from pdp.engine.bundle.signature import (
    Signature,
    load_public_keys,
    public_keys,
    signatures_file,
    signed_files,
)
from pdp.errors import BundleError, UsageError
from pdp.json import canonical
from pdp.workbench.bundles.sign import generate_key, load_signing_key, sign_bundle, signing_key
from tests.support import payments
from tests.support.bundle_releases import bundle, key, key_file
from tests.support.command_line import pdp

SIGN = "sign the bundle with `pdp bundle sign`, and verify it with the public key of the same pair"
TAMPERED = "the bundle was changed after it was signed: get it from its publisher again"
COPY = "copy the file again, or build the bundle with `pdp bundle build`"
MAKE_ONE = "make a pair with `pdp bundle keygen`"


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def refusal(packed: bytes, *names: str) -> tuple[str, str | None]:
    with pytest.raises(BundleError) as caught:
        read_bundle(packed, keys=[key(name).public for name in names])
    return caught.value.message, caught.value.hint


def complaint(read: Callable[..., object], *arguments: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(*arguments)
    return caught.value


def members(packed: bytes, **changes: bytes | None) -> bytes:
    """Return the bundle with some members replaced, or removed if None. `_` in an argument name stands for a dot."""
    files: dict[str, Any] = unpack_bundle(packed) | {name.replace("_", "."): value for name, value in changes.items()}
    return pack_members({name: content for name, content in files.items() if content is not None})


def with_token(packed: bytes, token: str) -> bytes:
    return pack_members({**unpack_bundle(packed), SIGNATURES: signatures_file(token)})


def token_of(packed: bytes) -> str:
    return str(json.loads(unpack_bundle(packed)[SIGNATURES])["signatures"][0])


def signed_as(header: dict[str, Any], payload: bytes, signer: Any = None) -> bytes:
    """Return the unsigned bundle with a signature from this signer. The signature's header names the algorithm."""
    jwk = key().jwk if signer is None else signer
    token = jws.serialize_compact(header, payload, jwk, algorithms=[header["alg"]])
    return with_token(PLAIN, token)


PLAIN = bundle(3, signed=None, limit=5)
SIGNED = sign_bundle(PLAIN, key())
LISTED = canonical({"files": signed_files(unpack_bundle(PLAIN))})


# Signing


def test_signing_a_bundle_only_adds_a_signature() -> None:
    signer = key("any")

    signed = sign_bundle(PLAIN, signer)

    assert members(signed, _signatures_json=None) == PLAIN
    assert read_bundle(signed, keys=[signer.public]).signature == Signature(signer.public.id, "ES256", verified=True)
    assert read_bundle(signed).signature == Signature(signer.public.id, "ES256", verified=False)
    assert read_bundle(PLAIN).signature is None


def test_signing_a_signed_bundle_again_replaces_the_signature() -> None:
    again = sign_bundle(SIGNED, key("two"))

    assert len(json.loads(unpack_bundle(again)[SIGNATURES])["signatures"]) == 1
    assert read_bundle(again, keys=[key("two").public]).release == 3
    assert refusal(again, "one")[0] == f"bundle: signed with the key {key('two').public.id}, not with {key().public.id}"


def test_bundle_signed_with_the_old_or_new_key_is_valid_during_rotation() -> None:
    both = [key("one").public, key("two").public]

    assert [read_bundle(sign_bundle(PLAIN, key(name)), keys=both).release for name in ("one", "two")] == [3, 3]
    known = " or ".join(sorted(public.id for public in both))
    assert refusal(sign_bundle(PLAIN, key("three")), "one", "two") == (
        f"bundle: signed with the key {key('three').public.id}, not with {known}",
        SIGN,
    )


def test_sign_rejects_an_invalid_bundle() -> None:
    with pytest.raises(BundleError, match="not a gzip file"):
        sign_bundle(b"nope", key())


@pytest.mark.opa
def test_file_hashes_in_a_signature_equal_the_hashes_that_opa_computes(opa: Path, tmp_path: Path) -> None:
    """Compare the hashes with `opa sign` for values that JSON can write in several ways."""
    odd = {
        "\u2028": '\u2029\u007f\u0000\b\f\n"\\/<>&',
        "\U0001f600": 1,
        "\uffff": [],
        "a": {"b": [None, True, 1.5, 1e-7]},
    }
    files = unpack_bundle(pack_bundle(release=1, wasm=b"", data={"settings": odd}, modules={})) | {
        "authz/é.rego": b"package authz\n"
    }
    source = tmp_path / "source"
    for name, content in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    command = [str(opa), "sign", "-b", ".", "--signing-key", str(key_file(tmp_path)), "--signing-alg", "ES256"]
    subprocess.run([*command, "-o", str(tmp_path)], cwd=source, check=True, capture_output=True)

    token = json.loads((tmp_path / SIGNATURES).read_text())["signatures"][0]
    payload = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))

    assert sorted(payload["files"], key=lambda each: str(each["name"])) == signed_files(files)


# Rejected bundles


OTHER_DATA = unpack_bundle(bundle(3, limit=6))["data.json"]
HEADER = {"alg": "ES256", "kid": key().public.id}
NOT_LISTED = (f"the files differ from those in {SIGNATURES}", TAMPERED)
NOT_OF_THE_KEY = (f"the signature was not made with the key {key().public.id}", TAMPERED)
OTHER_USE = ("the signature lists no files, or has a scope", SIGN)
NO_KEY = (f"{SIGNATURES}: the signature names no key (kid) or no algorithm (alg)", SIGN)
NO_JWT = (f"{SIGNATURES}: must hold exactly one JWT in OPA's format", SIGN)
NOT_JSON = ("data.json: not JSON", TAMPERED)
CUT_OFF = ("the file is truncated", COPY)
LAYOUT = ("the file's layout is not that of `pdp bundle build`: the file was changed", COPY)
TAMPERED_BUNDLES: dict[str, tuple[Callable[[], bytes], tuple[str, str]]] = {
    "unsigned": (lambda: PLAIN, ("not signed", SIGN)),
    "other data": (lambda: members(SIGNED, data_json=OTHER_DATA), NOT_LISTED),
    "other policy": (lambda: members(SIGNED, **{"authz/decision_rego": b"package authz\n"}), NOT_LISTED),
    "other module": (lambda: members(SIGNED, policy_wasm=b"\0asm\x01\0\0\0"), NOT_LISTED),
    "a file more": (lambda: members(SIGNED, **{"custom/x_rego": b"package custom.concerns.x\n"}), NOT_LISTED),
    "a file less": (lambda: members(SIGNED, **{"authz/decision_rego": None}), NOT_LISTED),
    "data not JSON": (lambda: members(SIGNED, data_json=b"{"), NOT_JSON),
    "data nested": (lambda: members(SIGNED, data_json=b"[" * 100_000), NOT_JSON),
    "another bundle's signature": (lambda: with_token(PLAIN, token_of(bundle(4))), NOT_LISTED),
    "packed otherwise": (lambda: gzip.compress(gzip.decompress(SIGNED)), LAYOUT),
    "last byte missing": (lambda: SIGNED[:-1], CUT_OFF),
    "truncated": (lambda: SIGNED[:5000], CUT_OFF),
    "tail": (lambda: SIGNED + b"\0", LAYOUT),
    "nothing listed": (lambda: signed_as(HEADER, b'{"files":[]}'), NOT_LISTED),
    "payload not JSON": (lambda: signed_as(HEADER, b'{"files":{},"x":1e999}'), NOT_OF_THE_KEY),
    "another scope": (lambda: signed_as(HEADER, LISTED[:-1] + b',"scope":"write"}'), OTHER_USE),
    "payload a list": (lambda: signed_as(HEADER, b"[]"), OTHER_USE),
    "another key under this id": (lambda: signed_as(HEADER, LISTED, key("two").jwk), NOT_OF_THE_KEY),
    "another algorithm under this id": (
        lambda: signed_as({**HEADER, "alg": "RS256"}, LISTED, RSAKey.generate_key(2048)), NOT_OF_THE_KEY,
    ),
    "no key id": (lambda: signed_as({"alg": "ES256"}, LISTED), NO_KEY),
    "no token": (lambda: members(PLAIN, _signatures_json=canonical({"signatures": []})), NO_JWT),
    "two tokens": (
        lambda: members(PLAIN, _signatures_json=canonical({"signatures": [token_of(SIGNED)] * 2})), NO_JWT,
    ),
    "white space": (lambda: members(SIGNED, _signatures_json=unpack_bundle(SIGNED)[SIGNATURES] + b" "), NO_JWT),
    "bits that mean nothing": (lambda: with_token(PLAIN, token_of(SIGNED)[:-1] + "B"), NO_JWT),
    "not a JWT": (lambda: with_token(PLAIN, "a.b"), NO_JWT),
    "not JSON": (lambda: members(PLAIN, _signatures_json=b"nope"), NO_JWT),
}  # fmt: skip


@pytest.mark.parametrize("name", list(TAMPERED_BUNDLES))
def test_changed_bundle_is_rejected(name: str) -> None:
    packed, (message, hint) = TAMPERED_BUNDLES[name]
    assert refusal(packed(), "one") == (f"bundle: {message}", hint)


def unverifiable(algorithm: str, secret: bytes) -> str:
    """Return a forged signature whose header asks for a weak check: `none`, or HMAC with the public key as secret."""
    import hashlib
    import hmac

    head = base64.urlsafe_b64encode(canonical({"alg": algorithm, "kid": key().public.id})).rstrip(b"=")
    body = base64.urlsafe_b64encode(LISTED).rstrip(b"=")
    mark = b"" if algorithm == "none" else hmac.digest(secret, head + b"." + body, hashlib.sha256)
    return (head + b"." + body + b"." + base64.urlsafe_b64encode(mark).rstrip(b"=")).decode()


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_token_header_cannot_choose_the_verification_algorithm(algorithm: str) -> None:
    packed = with_token(PLAIN, unverifiable(algorithm, key().public.pem.encode()))

    assert refusal(packed, "one") == (f"bundle: {NOT_OF_THE_KEY[0]}", TAMPERED)


def test_bundle_with_a_flipped_bit_is_rejected() -> None:
    """The test flips one bit at each of a thousand positions, also in the container and in the signature."""
    draw = random.Random(6)  # noqa: S311 - draws the same places each time
    places = {*range(64), *range(len(SIGNED) - 64, len(SIGNED)), *draw.sample(range(len(SIGNED)), 700)}
    start = SIGNED.index(b"eyJ")
    places |= {*range(start - 20, start + 200)}
    loaded = []
    for place in sorted(places):
        flipped = bytearray(SIGNED)
        flipped[place] ^= 1 << draw.randrange(8)
        with contextlib.suppress(BundleError):
            read_bundle(bytes(flipped), keys=[key().public])
            loaded.append(place)

    assert len(places) > 900
    assert loaded == []


@settings(max_examples=50)
@given(st.binary(max_size=300))
def test_bundle_with_a_random_signature_is_rejected(content: bytes) -> None:
    packed = members(PLAIN, _signatures_json=content)

    assert refusal(packed, "one")[0].startswith("bundle: .signatures.json: ")


# Keys


@pytest.mark.process
@pytest.mark.parametrize(
    "command",
    ["ecparam -name prime256v1 -genkey", "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"],
    ids=["ec", "pkcs8"],
)
def test_keys_from_openssl_are_accepted(tmp_path: Path, command: str) -> None:
    openssl(tmp_path, *command.split(), "-out", "key")
    openssl(tmp_path, "pkey", "-in", "key", "-pubout", "-out", "key.pub")
    (tmp_path / "key").chmod(0o600)

    private = load_signing_key(tmp_path / "key")
    (public,) = load_public_keys([tmp_path / "key.pub"])

    assert private.public == public
    assert read_bundle(sign_bundle(PLAIN, private), keys=[public]).release == 3


def test_generated_key_file_is_readable_only_by_its_owner_and_never_overwritten(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        public = generate_key(tmp_path / "k")
    finally:
        os.umask(before)

    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("k", "k.pub")] == ["0o600", "0o644"]
    assert load_signing_key(tmp_path / "k").public == public
    content = (tmp_path / "k").read_bytes()
    with pytest.raises(UsageError) as caught:
        generate_key(tmp_path / "k")
    assert (
        str(caught.value) == f"{tmp_path}/k: the file exists (choose another file, because a key is never overwritten)"
    )
    assert (tmp_path / "k").read_bytes() == content
    (tmp_path / "other.pub").write_text("mine")
    with pytest.raises(UsageError, match=r"other\.pub: the file exists"):
        generate_key(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_key_generation_keeps_an_existing_key_if_no_file_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("mine")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(tmp_path, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        with pytest.raises(UsageError, match="Too many open files"):
            generate_key(tmp_path / "k")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (tmp_path / "k").read_text() == "mine"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o777])
def test_private_key_readable_by_others_is_rejected(tmp_path: Path, mode: int) -> None:
    file = key_file(tmp_path)
    file.chmod(mode)

    with pytest.raises(UsageError) as caught:
        load_signing_key(file)

    message = f"{file}: other users may read this private key (mode {mode:04o})"
    assert (caught.value.message, caught.value.hint) == (message, f"run: chmod 600 {file}")


def test_only_error_messages_about_private_key_files_suggest_chmod(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(UsageError) as folder:
        load_signing_key(tmp_path)
    public = key_file(tmp_path).with_name("public")
    public.write_text(key().public.pem)
    public.chmod(0o644)
    with pytest.raises(UsageError) as file:
        load_signing_key(public)

    assert folder.value.message == f"{tmp_path}: is a folder, not a file"
    assert file.value.message == f"{public}: expected one private key in PEM form, found none"


def test_private_key_does_not_appear_in_repr_or_messages() -> None:
    shown = f"{key()!r} {key().public!r}"

    assert "PRIVATE" not in shown
    assert str(key().jwk.as_dict(private=True)["d"]) not in shown


NOT_P_256 = "the key is damaged or of another type, expected a P-256 key (ES256) in PEM form"
NO_PUBLIC = "K: no public key found, expected PEM text (BEGIN PUBLIC KEY)"


@pytest.mark.process
@pytest.mark.parametrize(
    ("commands", "message", "hint"),
    [
        ([], NO_PUBLIC, MAKE_ONE),
        (["genrsa 2048"], f"K: {NOT_P_256}", MAKE_ONE),
        (["ecparam -name secp384r1 -genkey"], f"K: {NOT_P_256}", MAKE_ONE),
        (["genpkey -algorithm ed25519"], f"K: {NOT_P_256}", MAKE_ONE),
    ],
    ids=["empty", "RSA", "another curve", "another kind"],
)
def test_unsupported_keys_are_rejected(tmp_path: Path, commands: list[str], message: str, hint: str) -> None:
    text = ""
    for command in commands:
        made = subprocess.run(["openssl", *command.split()], check=True, capture_output=True).stdout
        text = subprocess.run(
            ["openssl", "pkey", "-pubout"], input=made, check=True, capture_output=True
        ).stdout.decode()
        with pytest.raises(UsageError) as caught:
            signing_key(made.decode(), "K")
        assert (caught.value.message, caught.value.hint) == (message, hint)
    with pytest.raises(UsageError) as caught:
        public_keys(text, "K")
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.process
def test_text_that_is_not_exactly_one_private_key_is_rejected(tmp_path: Path) -> None:
    pem = key_file(tmp_path).read_text()
    broken = key().public.pem.replace("M", "!", 1)
    encrypted = subprocess.run(
        ["openssl", "pkey", "-aes256", "-passout", "pass:x"], input=pem.encode(), check=True, capture_output=True
    ).stdout.decode()

    assert [complaint(public_keys, text, "K").message for text in (pem, broken, "\0")] == [
        "K: is a private key, expected a public key",
        f"K: {NOT_P_256}",
        NO_PUBLIC,
    ]
    assert [
        complaint(signing_key, text, "K").message
        for text in (key().public.pem, pem + pem, encrypted, pem.replace("\nM", "\n!", 1))
    ] == [
        "K: expected one private key in PEM form, found none",
        "K: expected one private key in PEM form, found 2",
        "K: the private key is encrypted",
        f"K: {NOT_P_256}",
    ]


def test_file_that_contains_no_key_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "large").write_bytes(b"-----BEGIN PUBLIC KEY-----\n" * 100_000)

    assert [str(complaint(load_public_keys, [tmp_path / name])) for name in ("none", "binary", "large")] == [
        f"{tmp_path}/none: no such file (check the path)",
        f"{tmp_path}/binary: no public key found, expected PEM text (BEGIN PUBLIC KEY) ({MAKE_ONE})",
        f"{tmp_path}/large: larger than 65536 bytes, expected a key (give a PEM file)",
    ]


# OPA


@pytest.mark.opa
@pytest.mark.process
@pytest.mark.parametrize(
    ("packed", "complaint"),
    [
        pytest.param(lambda: SIGNED, None, id="signed"),
        pytest.param(lambda: PLAIN, "bundle missing .signatures.json file", id="unsigned"),
        pytest.param(lambda: members(SIGNED, data_json=OTHER_DATA), "data.json: digest mismatch", id="other data"),
        pytest.param(
            lambda: members(SIGNED, **{"custom/x_rego": b"package custom.concerns.x\n"}),
            "file custom/x.rego not included in bundle signature", id="additional file",
        ),
    ],
)  # fmt: skip
def test_opa_accepts_correctly_signed_bundles_and_rejects_all_other_bundles(
    opa: Path, tmp_path: Path, packed: Callable[[], bytes], complaint: str | None
) -> None:
    (tmp_path / "b.tar.gz").write_bytes(packed())
    (tmp_path / "k.pub").write_text(key().public.pem)
    verified = ["--bundle", "b.tar.gz", "--verification-key", "k.pub", "--signing-alg", "ES256"]

    done = subprocess.run(
        [opa, "build", *verified, "-o", "o.tar.gz"], cwd=tmp_path, check=False, capture_output=True, text=True
    )

    assert (done.returncode == 0) is (complaint is None)
    assert (complaint or "") in done.stdout


# The command line


def test_command_line_generates_keys_and_signs_bundles(tmp_path: Path) -> None:
    made = pdp("bundle", "keygen", "-o", tmp_path / "k", "--json").json
    (tmp_path / "b").write_bytes(payments.BUNDLE.read_bytes())

    signed = pdp("bundle", "sign", tmp_path / "b", "--private-key", tmp_path / "k", "--json").json
    verified = pdp("bundle", "verify", tmp_path / "b", "--public-key", tmp_path / "k.pub", "--json").json

    (public,) = load_public_keys([tmp_path / "k.pub"])
    bundle = read_bundle(tmp_path / "b", keys=[public])
    assert made == {
        "private": f"{tmp_path}/k", "public": f"{tmp_path}/k.pub", "key_id": public.id, "algorithm": "ES256",
    }  # fmt: skip
    assert signed == verified == {
        "file": f"{tmp_path}/b", "revision": bundle.revision, "release": bundle.release, "digest": bundle.digest,
        "key_id": public.id, "algorithm": "ES256",
    }  # fmt: skip


def test_signing_keys_are_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").write_bytes(PLAIN)
    monkeypatch.setenv("PDP_SIGNING_KEY", key_file(tmp_path).read_text())
    monkeypatch.setenv("PDP_VERIFICATION_KEYS", key("two").public.pem + key().public.pem)

    signed = pdp("bundle", "sign", tmp_path / "b", "-o", tmp_path / "s")

    assert (signed.code, read_bundle(tmp_path / "b"), (tmp_path / "b").read_bytes()) == (0, read_bundle(PLAIN), PLAIN)
    assert pdp("bundle", "verify", tmp_path / "s").code == 0
    monkeypatch.setenv("PDP_VERIFICATION_KEYS", key("two").public.pem)
    message = f"{tmp_path}/s: signed with the key {key().public.id}, not with {key('two').public.id}"
    assert pdp("bundle", "verify", tmp_path / "s") == (
        2, "", f"error: {message}\n    hint: {SIGN}\n    more: pdp explain bundle.invalid\n",
    )  # fmt: skip


def test_signing_command_rejects_missing_or_invalid_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PDP_SIGNING_KEY", "PDP_VERIFICATION_KEYS"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "b"
    key_file(tmp_path)
    file.write_bytes(SIGNED)
    (tmp_path / "nope").write_bytes(b"nope")

    with_key = ("--private-key", tmp_path / "one")
    no_file = "No such file or directory"
    private, public = (
        f"give its PEM file with --{half}-key, or its text in the variable" for half in ("private", "public")
    )
    for arguments, message, hint in (
        (["sign", file], "no private key to sign with", f"{private} PDP_SIGNING_KEY"),
        (["verify", file], "no public key to verify with", f"{public} PDP_VERIFICATION_KEYS"),
        (["sign", tmp_path / "nope", *with_key], f"{tmp_path}/nope: damaged, or not a gzip file", COPY),
        (["sign", tmp_path / "none", *with_key], f"{tmp_path}/none: cannot be read: {no_file}",
             "give the path of a bundle file"),
        (["sign", file, "-o", tmp_path / "none/b", *with_key],
         f"{tmp_path}/none/b: cannot be written: {no_file}", "choose a folder you can write to"),
    ):  # fmt: skip
        done = pdp("bundle", *arguments)
        assert (done.code, done.out, done.err.splitlines()[:2]) == (2, "", [f"error: {message}", f"    hint: {hint}"])
