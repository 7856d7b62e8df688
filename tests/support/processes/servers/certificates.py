"""Certificates of an authority that is not trusted, made by the openssl on the PATH."""

import shutil
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest


def make_certificates(folder: Path, names: Mapping[str, str]) -> Path:
    """Makes `NAME.crt` and `NAME.key` of each name, for that `subjectAltName`, signed by `authority.crt`."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on the PATH")
    new = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]

    def made(name: str, *arguments: str) -> None:
        command = [*new, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}", *arguments]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)

    made("authority")
    for name, alternative in names.items():
        made(name, "-CA", "authority.crt", "-CAkey", "authority.key", "-addext", f"subjectAltName={alternative}")
    return folder


def server_context(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context
