"""Certificates of a federation: an authority in a folder, requests of sites, and the contents of certificates.

Keys are on the curve P-256. The private key of a site is made at the site and never leaves it; the authority only sees
a request, which contains the public key and the name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

from proxdasa import disk

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as error:  # pragma: no cover - the extra is installed where tests run
    raise ModuleNotFoundError("certificates need the package cryptography: pip install 'proxdasa[sites]'") from error

T = TypeVar("T")

AUTHORITY_DAYS, SITE_DAYS = 3650, 365
"""How many days the certificates of authorities and sites are valid."""
SOON = timedelta(days=30)
"""A certificate that expires within this time is due for a new one."""
SKEW = timedelta(minutes=10)
"""Certificates are valid from this long before they are made, because clocks of sites differ."""
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""The names that a site may have: labels of domain names, because certificates name sites in this form."""
CERTIFICATE, KEY = "authority.crt", "authority.key"
"""The files of an authority."""


class Card(NamedTuple):
    """The contents of a certificate."""

    name: str
    issuer: str
    expires: datetime

    @property
    def expired(self) -> bool:
        """Whether it is no longer valid."""
        return self.expires <= datetime.now(UTC)

    @property
    def due(self) -> bool:
        """Whether it should be replaced soon."""
        return self.expires - datetime.now(UTC) <= SOON


def check_name(name: str) -> str:
    """Return the name if a site may have it."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"the name of a site has 1 to 63 small letters, digits and hyphens, and no hyphen at its ends; got {name!r}"
        )
    if name == "authority":
        raise ValueError("authority is the name of the authority's files; choose another name for the site")
    return name


def make_authority(folder: Path) -> Path:
    """Make a certificate authority: its key, which signs requests, and its certificate, which every site gets."""
    key = ec.generate_private_key(ec.SECP256R1())
    title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.resolve().name[:64])])
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    until = datetime.now(UTC) + timedelta(days=AUTHORITY_DAYS)
    builder = _builder(title, title, key.public_key(), until).add_extension(constraints, critical=True)
    certificate = builder.add_extension(_usage(signs=True), critical=True).sign(key, hashes.SHA256())
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_existing(folder / KEY, folder / CERTIFICATE)
    _write_key(folder / KEY, key)
    return _write_new(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))


def make_request(name: str, folder: Path = Path()) -> tuple[Path, Path]:
    """Make the private key of a site, NAME.key, and the request for its certificate, NAME.csr, in this order."""
    key = ec.generate_private_key(ec.SECP256R1())
    title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, check_name(name))])
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(title).add_extension(names, critical=False)
    _refuse_existing(folder / f"{name}.key", folder / f"{name}.csr")
    private = _write_key(folder / f"{name}.key", key)
    return private, _write_new(
        folder / f"{name}.csr", request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )


def sign(authority: Path, request: Path, days: int = SITE_DAYS) -> Path:
    """Sign a request, NAME.csr, with an authority's key; writes NAME.crt beside it.

    Only the name and the public key are taken from the request. The name must be that of the file, since a site may ask
    for the name of another.
    """
    asked = _read(request, x509.load_pem_x509_csr, "a request (.csr)")
    if not asked.is_signature_valid:
        raise ValueError(f"{request}: its signature is not that of its key; ask the site for a new request")
    name = check_name(_common_name(asked.subject))
    if request.name != f"{name}.csr":
        raise ValueError(
            f"{request} asks for the certificate of {name}; if it is really from that site, rename it to {name}.csr"
        )
    issuer = _read(authority / CERTIFICATE, x509.load_pem_x509_certificate, "a certificate")
    key = _read(authority / KEY, lambda data: serialization.load_pem_private_key(data, None), "a private key")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{authority / KEY}: not a key on an elliptic curve, as `proxdasa keys authority` makes it")
    if issuer.public_key() != key.public_key():
        raise ValueError(f"{authority}: {CERTIFICATE} and {KEY} do not belong together; were two authorities made?")
    now, end = datetime.now(UTC), issuer.not_valid_after_utc
    if end <= now:
        raise ValueError(f"{authority / CERTIFICATE} expired on {end:%Y-%m-%d}; make a new authority for all sites")
    title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    until = now + timedelta(days=days) if days <= (end - now).days else end
    builder = _builder(title, issuer.subject, asked.public_key(), until)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    both_ways = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = builder.add_extension(both_ways, critical=False).sign(key, hashes.SHA256())
    path = request.with_suffix(".crt")
    disk.replace(path, certificate.public_bytes(serialization.Encoding.PEM))
    return path


def read_card(path: Path) -> Card:
    """Read a certificate; its name is what neighbours see: the alternative names or, without any, the common name."""
    return card_of(_read(path, x509.load_pem_x509_certificate, "a certificate"))


def card_of(certificate: x509.Certificate) -> Card:
    """The contents of a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        name = ", ".join(str(each.value) for each in names)
    except x509.ExtensionNotFound:
        name = _common_name(certificate.subject)
    return Card(name, certificate.issuer.rfc4514_string(), certificate.not_valid_after_utc)


def check_pair(certificate: Path, key: Path, authorities: Path) -> Card:
    """Read a site's certificate; it must be valid, belong to this key and be signed by one of these authorities."""
    own = _read(certificate, x509.load_pem_x509_certificate, "a certificate")
    private = _read(key, lambda data: serialization.load_pem_private_key(data, None), "a private key")
    if own.public_key() != private.public_key():
        raise ValueError(f"{certificate} is not the certificate of the key in {key}; were two requests made?")
    roots = _read(authorities, x509.load_pem_x509_certificates, "certificates of authorities")
    if not any(_has_signed(root, own) for root in roots):
        raise ValueError(f"{certificate} is not signed by an authority of {authorities}; all sites need the same one")
    card = card_of(own)
    if card.expired:
        raise ValueError(f"{certificate} expired on {card.expires:%Y-%m-%d}; have a new request signed")
    if datetime.now(UTC) < own.not_valid_before_utc:
        raise ValueError(
            f"{certificate} is valid from {own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; is this clock slow?"
        )
    if key.stat().st_mode & 0o077:
        raise ValueError(f"{key} can be read by others; run: chmod 600 {key}")
    return card


def _has_signed(root: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _builder(subject: x509.Name, issuer: x509.Name, key: object, until: datetime) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)  # type: ignore[arg-type]
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(datetime.now(UTC) - SKEW).not_valid_after(until)


def _usage(signs: bool) -> x509.KeyUsage:
    """A key signs either certificates or the handshakes of connections."""
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _read(path: Path, parse: Callable[[bytes], T], what: str) -> T:
    try:
        return parse(path.read_bytes())
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: not {what} in PEM format") from error


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return _write_new(path, key.private_bytes(serialization.Encoding.PEM, form, encryption))


def _refuse_existing(*paths: Path) -> None:
    """Refuse to write files of which one exists: no key is replaced by mistake, or left without its partner."""
    for path in paths:
        if path.exists():
            raise FileExistsError(f"{path} exists already; move it away to make a new one")


def _write_new(path: Path, data: bytes) -> Path:
    """Write a file that only its owner can read, and never in place of another."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    return path
