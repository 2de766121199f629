"""What a time-stamping authority (RFC 3161) says of when a policy existed."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from attacks.gate.lock import lock_file
from attacks.runtime.extras import extra
from attacks.runtime.untrusted import contents


@dataclass(frozen=True)
class Witness:
    """The `time` from which a policy has existed, who says so, and what speaks against it."""

    time: datetime
    text: str
    problem: str = ""


def stamp_files(policy: Path) -> tuple[Path, Path]:
    """The RFC 3161 response beside a policy's file, and the certificates that its authority is checked against:
    policy.yaml has policy.tsr and policy.roots.pem."""
    return policy.with_suffix(".tsr"), policy.with_suffix(".roots.pem")


def timestamp(file: Path) -> Witness | None:
    """The timestamp of a policy's file, or of its lock; None without one. Raises ValueError where it is of another
    file, or where its signature does not lead to the certificates."""
    path, roots = stamp_files(file)
    if not path.exists():
        return None
    library, x509 = extra("rfc3161_client"), extra("cryptography.x509")
    hashes = extra("cryptography.hazmat.primitives.hashes")
    try:
        response = library.decode_timestamp_response(contents(path))
        info, (signer,) = response.tst_info, response.signed_data.signer_infos
    except ValueError as error:
        raise ValueError(f"`{path}` is no RFC 3161 response: {' '.join(str(error).split())}") from None
    data = [part.read_bytes() for part in (file, lock_file(file)) if part.exists()]
    imprints = [hashlib.new(name, part).digest() for name in ("sha256", "sha384", "sha512") for part in data]
    if info.message_imprint.message not in imprints:
        raise ValueError(f"`{path}` must be a timestamp of {file.name} or of its lock; it is one of another file")
    text = f"{info.gen_time:%Y-%m-%d %H:%M:%S} UTC, RFC 3161, certificate {signer.serial_number} of "
    text += signer.issuer.rfc4514_string()
    if not roots.exists():
        problem = f"nobody checked the signature of {path.name}: {roots.name} is missing, anybody can have made it"
        return Witness(info.gen_time, f"{text}; neither signature nor chain was checked", problem)
    certificates = x509.load_pem_x509_certificates(contents(roots))
    try:
        library.VerifierBuilder(roots=certificates).build().verify(response, info.message_imprint.message)
    except library.VerificationError as error:
        raise ValueError(f"`{path}`: its signature does not lead to {roots.name}: {error}") from None
    marks = ", ".join(certificate.fingerprint(hashes.SHA256()).hex() for certificate in certificates)
    return Witness(info.gen_time, f"{text}; signature and chain checked against the certificates of SHA-256 {marks}")
