"""`fallow certs`: the certificates between kube-scheduler and extender, made by the install step.

A CA of its own, a server certificate for loopback and a client certificate for kube-scheduler; the CA's key is thrown
away, so nobody can issue a third. Where cert-manager runs, the overlay `cert-manager` does this instead.
"""

import argparse
import base64
import datetime
import ipaddress
import sys
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cluster import names

SECRET = "fallow-scheduler-tls"  # noqa: S105 - the name of a Secret object, not a secret
FILES = ("ca.crt", "tls.crt", "tls.key", "client.crt", "client.key")
Key = ec.EllipticCurvePrivateKey


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, default=Path("certs"), help="where the files are written")
    parser.add_argument("--days", type=int, default=365, help="how long they are valid")
    parser.add_argument("--renew-days", type=int, default=30, help="leave files alone that are valid longer than this")
    parser.add_argument(
        "--secret", action="store_true", help="print a Secret manifest: pipe it into `kubectl apply -f -`"
    )
    parser.add_argument("--namespace", default=names.NAMESPACE, help="namespace of that Secret")


def run(args: argparse.Namespace) -> int:
    if args.days <= args.renew_days:
        print(f"fallow certs: --days {args.days} must be more than --renew-days {args.renew_days}", file=sys.stderr)
        return 2
    now = datetime.datetime.now(datetime.UTC)
    try:
        args.dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _good_until(args.dir) - now < datetime.timedelta(days=args.renew_days):
            make(args.dir, now, args.days)
            print(f"written to {args.dir}: {', '.join(FILES)}", file=sys.stderr)
        if args.secret:
            print(secret(args.dir, args.namespace), end="")
    except OSError as error:
        print(f"fallow certs: {error}", file=sys.stderr)
        return 1
    return 0


def make(directory: Path, now: datetime.datetime, days: int) -> None:
    """Writes FILES anew. Keys are readable by their owner alone."""
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = _name("fallow-scheduler-ca")
    until = now + datetime.timedelta(days=days)
    ca = _builder(issuer, issuer, authority, now, until).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    loopback = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server_key, client_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    server = _leaf("fallow-scheduler", issuer, server_key, ExtendedKeyUsageOID.SERVER_AUTH, now, until)
    server = server.add_extension(x509.SubjectAlternativeName(loopback), critical=False)
    client = _leaf("kube-scheduler", issuer, client_key, ExtendedKeyUsageOID.CLIENT_AUTH, now, until)
    for name, builder in (("ca.crt", ca), ("tls.crt", server), ("client.crt", client)):
        cert = builder.sign(authority, hashes.SHA256())
        (directory / name).write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    for name, key in (("tls.key", server_key), ("client.key", client_key)):
        _write_key(directory / name, key)


def secret(directory: Path, namespace: str) -> str:
    """The Secret that the scheduler's pod mounts."""
    data = {name: base64.b64encode((directory / name).read_bytes()).decode() for name in FILES}
    meta = {"name": SECRET, "namespace": namespace}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": data})


def _good_until(directory: Path) -> datetime.datetime:
    """The end of the certificate that ends first; long ago when one is missing or unreadable."""
    try:
        certs = [x509.load_pem_x509_certificate((directory / n).read_bytes()) for n in FILES if n.endswith(".crt")]
        keys = all((directory / n).is_file() for n in FILES)
    except (OSError, ValueError):
        return datetime.datetime.min.replace(tzinfo=datetime.UTC)
    return min(c.not_valid_after_utc for c in certs) if keys else datetime.datetime.min.replace(tzinfo=datetime.UTC)


def _leaf(
    common: str,
    issuer: x509.Name,
    key: Key,
    usage: x509.ObjectIdentifier,
    now: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    builder = _builder(_name(common), issuer, key, now, until)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    return builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, now: datetime.datetime, until: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(until)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _write_key(path: Path, key: Key) -> None:
    path.unlink(missing_ok=True)
    path.touch(0o600)
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(*pem))
