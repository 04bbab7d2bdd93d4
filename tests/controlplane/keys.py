"""Keys and identities of a cluster of ours: a CA, the certificates it signs, and tokens for everybody who logs in."""

import datetime
import ipaddress
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey


class Authority:
    """A CA that lives in `directory`; certificates are valid for a week."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("fallow-test-ca")
        self._cert = _sign(self._name, self._name, self._key, self._key, ca=True)
        self.path = directory / "ca.crt"
        self.path.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, group: str = "", hosts: Sequence[str] = ()) -> tuple[Path, Path]:
        """Certificate and key files for this common name."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert = _sign(_name(name, group), self._name, key, self._key, hosts=hosts)
        slug = name.replace(":", "-")
        paths = self._directory / f"{slug}.crt", self._directory / f"{slug}.key"
        paths[0].write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        _write_key(paths[1], key)
        return paths


def service_account_keys(directory: Path) -> tuple[Path, Path]:
    """Private and public key for service-account tokens."""
    key = rsa.generate_private_key(65537, 2048)
    private, public = directory / "sa.key", directory / "sa.pub"
    _write_key(private, key)
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


class Tokens:
    """The token file of the API server, which reads it only at start: everybody must be in it beforehand."""

    def __init__(self, path: Path, users: dict[str, Sequence[str]]) -> None:
        self.path = path
        self._tokens = {user: secrets.token_hex(16) for user in users}
        lines = [f'{self._tokens[u]},"{u}",{n},"{",".join(groups)}"' for n, (u, groups) in enumerate(users.items())]
        write_private(path, ("\n".join(lines) + "\n").encode())

    def of(self, user: str) -> str:
        return self._tokens[user]


def write_private(path: Path, data: bytes) -> None:
    """Whole or not at all, and never for a moment readable by anybody else."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    temporary.replace(path)


def _write_key(path: Path, key: Key | rsa.RSAPrivateKey) -> None:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    write_private(path, key.private_bytes(encoding, form, serialization.NoEncryption()))


def _name(common: str, group: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if group:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(parts)


def _sign(
    subject: x509.Name, issuer: x509.Name, key: Key, signer: Key, *, hosts: Sequence[str] = (), ca: bool = False
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=7))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
