"""Keyring: a participant's three private keys on disk, encrypted with a password.

Room: participant (edge: files of one folder, mode 0600). The peer key is encrypted with
argon2id and XSalsa20-Poly1305 (PyNaCl); account and hot key are Ethereum keystore
v3 files, which wallets can import. A buyer has a fourth key, encrypted like the first: ECDSA P-256,
which signs releases, because the tools that check releases accept no other.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import nacl.pwhash
import nacl.secret
import nacl.utils
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)
from eth_keyfile.keyfile import create_keyfile_json, decode_keyfile_json
from eth_keys.datatypes import PrivateKey
from nacl.exceptions import CryptoError
from nacl.signing import SigningKey

from assay.protocol.errors import ConfigError

RELEASE = "release.key"
_FILES = ("peer.key", "account.json", "hot.json")
_SCRYPT_N = 1 << 13  # keystore work factor; wallets re-encrypt on import, a devnet starts many


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Peer key (Ed25519), account and hot key (secp256k1, 32 bytes each)."""

    peer: SigningKey
    account: bytes
    hot: bytes

    @property
    def account_address(self) -> bytes:
        """The account's address, 20 bytes."""
        return _address(self.account)

    @property
    def hot_address(self) -> bytes:
        """The hot key's address, 20 bytes."""
        return _address(self.hot)


def create_keys(folder: Path, password: str) -> Keys:
    """Fresh keys, written to `folder`.

    Raises:
        ConfigError: the folder already holds keys; nothing is overwritten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any((folder / name).exists() for name in _FILES):
        raise ConfigError(f"{folder} already holds keys; they are never overwritten")
    keys = Keys(peer=SigningKey.generate(), account=os.urandom(32), hot=os.urandom(32))
    _write_secret(folder / "peer.key", _sealed(bytes(keys.peer), password))
    for name, key in (("account", keys.account), ("hot", keys.hot)):
        keystore = create_keyfile_json(key, password.encode(), kdf="scrypt", iterations=_SCRYPT_N)
        _write_secret(folder / f"{name}.json", json.dumps(keystore).encode())
    return keys


def load_keys(folder: Path, password: str) -> Keys:
    """The keys that `create_keys` wrote.

    Raises:
        ConfigError: a file is missing or damaged, or the password is wrong.
    """
    try:
        seed = _opened((folder / "peer.key").read_bytes(), password)
        account, hot = (
            bytes(decode_keyfile_json(json.loads((folder / f"{name}.json").read_text()), password.encode()))
            for name in ("account", "hot")
        )
    except FileNotFoundError as error:
        raise ConfigError(f"keys: {error.filename} is missing") from None
    except OSError as error:
        raise ConfigError(f"keys: {error.filename} cannot be read ({error.strerror})") from None
    except (CryptoError, ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
        raise ConfigError(f"keys in {folder}: wrong password or damaged file ({error})") from None
    return Keys(peer=SigningKey(seed), account=account, hot=hot)


def release_key(folder: Path, password: str) -> ec.EllipticCurvePrivateKey:
    """The key that signs releases, created in `folder` at the first call.

    Raises:
        ConfigError: the file is damaged, or the password is wrong.
    """
    path = folder / RELEASE
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        fresh = ec.generate_private_key(ec.SECP256R1())
        der = fresh.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")  # atomic: a crash here leaves no half-written key
        partial.unlink(missing_ok=True)
        _write_secret(partial, _sealed(der, password))
        os.replace(partial, path)
        return fresh
    except OSError as error:
        raise ConfigError(f"keys: {error.filename} cannot be read ({error.strerror})") from None
    try:
        key = load_der_private_key(_opened(body, password), password=None)
    except (CryptoError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: wrong password or damaged file ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError(f"{path}: another kind of key, expected ECDSA P-256")
    return key


def _sealed(secret: bytes, password: str) -> bytes:
    salt = nacl.utils.random(nacl.pwhash.argon2id.SALTBYTES)
    return bytes(salt + nacl.secret.SecretBox(_stretch(password, salt)).encrypt(secret))


def _opened(blob: bytes, password: str) -> bytes:
    salt, committed = blob[: nacl.pwhash.argon2id.SALTBYTES], blob[nacl.pwhash.argon2id.SALTBYTES :]
    return bytes(nacl.secret.SecretBox(_stretch(password, salt)).decrypt(committed))


def _address(key: bytes) -> bytes:
    return bytes(PrivateKey(key).public_key.to_canonical_address())


def _stretch(password: str, salt: bytes) -> bytes:
    stretched: bytes = nacl.pwhash.argon2id.kdf(
        nacl.secret.SecretBox.KEY_SIZE,
        password.encode(),
        salt,
        opslimit=nacl.pwhash.argon2id.OPSLIMIT_INTERACTIVE,
        memlimit=nacl.pwhash.argon2id.MEMLIMIT_INTERACTIVE,
    )
    return stretched


def _write_secret(path: Path, body: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
