"""Certificates of a test's own: an authority, what it signed for a server and for a client."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority whose own certificate lies in `ca`; its files go to `directory`."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.ca = directory / f"{name}.pem"
        basic = x509.BasicConstraints(ca=True, path_length=None)
        built = _builder(self._name, self._key).issuer_name(self._name)
        built = built.add_extension(basic, critical=True)
        self.ca.write_bytes(_pem(built.sign(self._key, hashes.SHA256())))

    def sign(self, name: str, *alternatives: x509.GeneralName) -> Pair:
        """A certificate for this name, good for these alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        built = _builder(_name(name), key).issuer_name(self._name)
        if alternatives:
            built = built.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}-key.pem")
        pair.cert.write_bytes(_pem(built.sign(self._key, hashes.SHA256())))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        pair.key.chmod(0o600)
        return pair


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
