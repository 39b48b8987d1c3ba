"""Keyring: a participant's three private keys on disk, encrypted with a password.

The account's key may be elsewhere: then the folder names the signer that has it, or the folder of the files
through which it signs.

Room: participant (edge: files of one folder, mode 0600 in a folder of mode 0700, checked at every reading).
Peer key and backups are encrypted with argon2id and XSalsa20-Poly1305 (PyNaCl); account and hot key are
Ethereum keystore v3 files (scrypt), which wallets can import. A buyer has a fourth key, encrypted like the
first: ECDSA P-256, which signs releases, because the tools that check releases accept no other.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

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
from eth_keys.datatypes import PrivateKey
from nacl.exceptions import CryptoError
from nacl.signing import SigningKey

from assay.chain.commit_statement import evm_address
from assay.chain.statements import Address
from assay.participant.keys.private_files import (
    check_private_folder,
    make_private_folder,
    read_private,
    replace_private,
    write_private,
)
from assay.protocol.encoding.codec import Later, Max, decode, encode
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import ConfigError, MalformedMessage
from assay.protocol.types import Digest

if TYPE_CHECKING:  # it takes a while to import
    from assay.chain.signing.signer import Signer

PEER, ACCOUNT, HOT, RELEASE = "peer.key", "account.json", "hot.json", "release.key"
SIGNER = "signer.json"  # in place of ACCOUNT
URL_CHARS_MAX = 2048  # in JSON, which backups hold
RETIRED_MAX = 256  # of hot keys in a backup
_RETIRED_HOT = "retired-hot-{}.json"
_FILE = "file:"
PASSWORD = "password"  # the usual name of the file beside the folder
_SALT = nacl.pwhash.argon2id.SALTBYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What it costs to try one password: scrypt's N (r = 8, p = 1), argon2id's passes and memory."""

    scrypt_n: int
    passes: int
    memory_bytes: int


# 64 MiB each, a quarter of a second: 16 times geth's light keystores, and libsodium's "interactive".
STRONG = Work(
    scrypt_n=1 << 16,
    passes=nacl.pwhash.argon2id.OPSLIMIT_INTERACTIVE,
    memory_bytes=nacl.pwhash.argon2id.MEMLIMIT_INTERACTIVE,
)
# For keys that guard nothing: local networks and tests.
QUICK = Work(
    scrypt_n=2, passes=nacl.pwhash.argon2id.OPSLIMIT_MIN, memory_bytes=nacl.pwhash.argon2id.MEMLIMIT_MIN
)
_PASSES_MAX, _MEMORY_MAX, _SCRYPT_N_MAX = 16, 1 << 30, 1 << 20  # of a file that somebody else may have made


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountElsewhere:
    """An account whose key a signer has.

    url: Of its JSON-RPC over HTTP; or `file:` and the absolute path of a folder, whose files people carry
    to it. account: 0x and 40 digits.
    """

    url: str
    account: str

    def __post_init__(self) -> None:
        if not re.fullmatch("0x[0-9a-fA-F]{40}", self.account):
            raise ConfigError(f"{self.account!r}: expected the address of an account, 0x and 40 digits")
        is_url = re.fullmatch(r"https?://[^\s/]+\S*|file:/[^\0\n]*", self.url)
        if not is_url or len(json.dumps(self.url)) > URL_CHARS_MAX:
            raise ConfigError(
                f"{self.url[:200]!r}: expected the address of a signer, http:// or https://, "
                f"or file:/FOLDER, of at most {URL_CHARS_MAX} characters in JSON"
            )

    @property
    def folder(self) -> Path | None:
        """The folder of the files by which it signs; None if a signer is asked."""
        return Path(self.url.removeprefix(_FILE)) if self.url.startswith(_FILE) else None

    @property
    def where(self) -> str:
        """Where the key is, as text."""
        return f"at the signer {self.url}" if self.folder is None else f"behind the files in {self.folder}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Peer key (Ed25519), account and hot key (secp256k1, 32 bytes each); or who signs for the account."""

    peer: SigningKey
    account: bytes | AccountElsewhere
    hot: bytes

    @property
    def account_address(self) -> bytes:
        """The account's address, 20 bytes."""
        if isinstance(self.account, AccountElsewhere):
            return bytes.fromhex(self.account.account[2:])
        return _address(self.account)

    @property
    def account_key(self) -> bytes:
        """The account's key.

        Raises:
            ConfigError: a signer elsewhere has it.
        """
        if isinstance(self.account, AccountElsewhere):
            raise ConfigError(
                f"the key of {self.account.account} is {self.account.where}, which signs "
                "transactions only: `assay key sign` needs a key in its folder"
            )
        return self.account

    @property
    def buyer_key(self) -> bytes:
        """The key that signs a buyer's run files and deliveries: the account's, or the hot key without it."""
        return self.hot if isinstance(self.account, AccountElsewhere) else self.account

    @property
    def signs_by_files(self) -> bool:
        """Whether people carry the account's transactions to its key."""
        return isinstance(self.account, AccountElsewhere) and self.account.folder is not None

    def check_unattended(self, process: str) -> None:
        """Do nothing unless the account signs by files, which a process cannot wait for.

        Args:
            process: That sends transactions by itself, such as "a verifier"; for the error.

        Raises:
            ConfigError: it does.
        """
        if self.signs_by_files:
            raise ConfigError(
                f"{process} sends transactions by itself, and this account signs by files: it takes an "
                "account whose key is in its folder, or at a signer (assay key new --signer)"
            )

    @property
    def signer(self) -> Signer:
        """What signs the account's transactions."""
        from assay.chain.signing.signer import KeyHere, RemoteSigner
        from assay.chain.signing.unsigned import FileSigner

        if not isinstance(self.account, AccountElsewhere):
            return KeyHere(self.account)
        account = Address(evm_address(self.account_address))
        if self.account.folder is not None:
            return FileSigner(account=account, folder=self.account.folder)
        return RemoteSigner(url=self.account.url, account=account)

    @property
    def hot_address(self) -> bytes:
        """The hot key's address, 20 bytes."""
        return _address(self.hot)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed:
    """A secret encrypted with a password, and the work that the password costs."""

    TAG: ClassVar[bytes] = b"assay/sealed/1"
    passes: int
    memory_bytes: int
    salt: Annotated[bytes, Max(_SALT)]
    box: Annotated[bytes, Max(1 << 14)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backup:
    """All secrets of a folder but retired peer keys, which nothing reads."""

    TAG: ClassVar[bytes] = b"assay/key-backup/2"
    peer: Digest
    account: Annotated[bytes, Max(URL_CHARS_MAX + 256)]  # a key, or the file SIGNER
    hot: Digest
    release: Annotated[bytes, Max(1024)]  # DER; empty without
    retired: Annotated[tuple[Digest, ...], Max(RETIRED_MAX), Later()] = ()  # hot keys that were replaced


def create_keys(
    folder: Path, password: str, work: Work = STRONG, elsewhere: AccountElsewhere | None = None
) -> Keys:
    """Fresh keys, written to `folder`; none for the account if a signer has it.

    Raises:
        ConfigError: the folder already holds keys, which are never overwritten, or is open to others.
    """
    keys = Keys(peer=SigningKey.generate(), account=elsewhere or os.urandom(32), hot=os.urandom(32))
    write_keys(folder, keys, password, work)
    return keys


def write_keys(folder: Path, keys: Keys, password: str, work: Work = STRONG) -> None:
    """Write these keys to a folder that has none.

    Raises:
        ConfigError: as `create_keys`.
    """
    make_private_folder(folder)
    if any((folder / name).exists() for name in (PEER, ACCOUNT, SIGNER, HOT, RELEASE)):
        raise ConfigError(f"{folder} already holds keys; they are never overwritten")
    write_private(folder / PEER, _sealed(bytes(keys.peer), password, work))
    if isinstance(keys.account, AccountElsewhere):
        write_private(folder / SIGNER, _signer_file(keys.account))
    else:
        write_private(folder / ACCOUNT, _keystore(keys.account, password, work))
    write_private(folder / HOT, _keystore(keys.hot, password, work))


def load_keys(folder: Path, password: str) -> Keys:
    """The keys that `create_keys` wrote.

    Raises:
        ConfigError: a file is missing, damaged or open to others, or the password is wrong.
    """
    check_private_folder(folder)
    seed, hot = (read_private(folder / name) for name in (PEER, HOT))
    account: bytes | AccountElsewhere
    if (folder / SIGNER).exists():
        if (folder / ACCOUNT).exists():
            raise ConfigError(f"{folder} has {ACCOUNT} and {SIGNER}: an account's key is in one place")
        account = _elsewhere(folder / SIGNER, read_private(folder / SIGNER))
    else:
        account = _secret_of(folder / ACCOUNT, read_private(folder / ACCOUNT), password)
    return Keys(
        peer=SigningKey(_exactly_32(_opened(folder / PEER, seed, password), folder / PEER)),
        account=account,
        hot=_secret_of(folder / HOT, hot, password),
    )


def key_of(folder: Path, password: str, address: bytes) -> bytes:
    """The account's or hot key of this address in a folder, or the one that was its hot key before.

    Raises:
        ConfigError: as `load_keys`, or it has no such key.
    """
    keys, retired = load_keys(folder, password), folder / _retired_hot(address)
    for key in (keys.buyer_key, keys.hot):
        if _address(key) == address:
            return key
    if not retired.exists():
        raise ConfigError(f"{folder} has no key of {evm_address(address)}, which the run's spec names")
    return _secret_of(retired, read_private(retired), password)


def rotate_hot(folder: Path, password: str, work: Work = STRONG) -> tuple[Keys, Path]:
    """Replace the hot key by a fresh one; returns the new keys, and where the old one is kept.

    Raises:
        ConfigError: as `load_keys`.
    """
    old = load_keys(folder, password)
    keys = replace(old, hot=os.urandom(32))
    kept = _retire(folder / HOT, _retired_hot(old.hot_address))
    replace_private(folder / HOT, _keystore(keys.hot, password, work))
    return keys, kept


def rotate_peer(folder: Path, password: str, work: Work = STRONG) -> tuple[Keys, Path]:
    """Replace the peer key by a fresh one, as another participant to all peers; returns as `rotate_hot`.

    Raises:
        ConfigError: as `load_keys`.
    """
    old = load_keys(folder, password)
    keys = replace(old, peer=SigningKey.generate())
    kept = _retire(folder / PEER, f"retired-peer-{bytes(old.peer.verify_key).hex()}.key")
    replace_private(folder / PEER, _sealed(bytes(keys.peer), password, work))
    return keys, kept


def _retired_hot(address: bytes) -> str:
    return _RETIRED_HOT.format(address.hex())


def _retire(path: Path, name: str) -> Path:
    """Keep a key under another name; its own is still there until the new one takes its place."""
    kept = path.with_name(name)
    kept.unlink(missing_ok=True)  # of a rotation that was cut short: the same key
    os.link(path, kept)
    return kept


def back_up_keys(folder: Path, password: str, out: Path, backup_password: str, work: Work = STRONG) -> None:
    """Write a folder's keys and its earlier hot keys to one new file, encrypted with a password of its own.

    Raises:
        ConfigError: as `load_keys`, or the file is there already, or more than `RETIRED_MAX` hot keys were
            replaced.
    """
    keys = load_keys(folder, password)
    old = sorted(folder.glob(_RETIRED_HOT.format("*")))
    if len(old) > RETIRED_MAX:
        raise ConfigError(f"{folder} has {len(old)} retired hot keys; a backup holds {RETIRED_MAX}")
    retired = {Digest(_secret_of(path, read_private(path), password)) for path in old}
    release = b""
    if (folder / RELEASE).exists():
        release = _opened(folder / RELEASE, read_private(folder / RELEASE), password)
    account = keys.account if isinstance(keys.account, bytes) else _signer_file(keys.account)
    whole = _Backup(
        peer=Digest(bytes(keys.peer)),
        account=account,
        hot=Digest(keys.hot),
        release=release,
        retired=tuple(sorted(retired)),
    )
    write_private(out, _sealed(encode(whole), backup_password, work))


def restore_keys(
    backup: Path, backup_password: str, folder: Path, password: str, work: Work = STRONG
) -> Keys:
    """Write the keys of a backup to a folder that has none.

    Raises:
        ConfigError: the backup is damaged or its password wrong, or the folder already holds keys.
    """
    try:
        whole = decode(_Backup, _opened(backup, read_private(backup), backup_password))
    except MalformedMessage as error:
        raise ConfigError(f"{backup}: not a backup of keys ({error})") from None
    account = whole.account if len(whole.account) == 32 else _elsewhere(backup, whole.account)
    keys = Keys(peer=SigningKey(whole.peer), account=account, hot=bytes(whole.hot))
    write_keys(folder, keys, password, work)
    if whole.release:
        write_private(folder / RELEASE, _sealed(whole.release, password, work))
    for key in whole.retired:
        write_private(folder / _retired_hot(_address(key)), _keystore(key, password, work))
    return keys


def release_key(folder: Path, password: str, work: Work = STRONG) -> ec.EllipticCurvePrivateKey:
    """The key that signs releases, created in `folder` at the first call.

    Raises:
        ConfigError: the file is damaged or open to others, or the password is wrong.
    """
    path = folder / RELEASE
    make_private_folder(folder)
    if not path.exists():
        fresh = ec.generate_private_key(ec.SECP256R1())
        der = fresh.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        replace_private(path, _sealed(der, password, work))
        return fresh
    try:
        key = load_der_private_key(_opened(path, read_private(path), password), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: damaged file ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError(f"{path}: another kind of key, expected ECDSA P-256")
    return key


def _signer_file(account: AccountElsewhere) -> bytes:
    return json.dumps(asdict(account)).encode()


def _elsewhere(path: Path, body: bytes) -> AccountElsewhere:
    """What the file SIGNER says.

    Raises:
        ConfigError: it is damaged.
    """
    try:
        found = parse_json(body)
        return AccountElsewhere(url=str(found["url"]), account=str(found["account"]))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: damaged file ({type(error).__name__})") from None


def _sealed(secret: bytes, password: str, work: Work) -> bytes:
    salt = bytes(nacl.utils.random(_SALT))
    key = _stretched(password, salt, work.passes, work.memory_bytes)
    box = bytes(nacl.secret.SecretBox(key).encrypt(secret))
    return encode(_Sealed(passes=work.passes, memory_bytes=work.memory_bytes, salt=salt, box=box))


def _opened(path: Path, blob: bytes, password: str) -> bytes:
    """The secret in a sealed file's bytes.

    Raises:
        ConfigError: the file is damaged, or the password is wrong.
    """
    try:
        sealed = decode(_Sealed, blob)
        if sealed.passes > _PASSES_MAX or sealed.memory_bytes > _MEMORY_MAX:
            raise MalformedMessage(f"{sealed.passes} passes over {sealed.memory_bytes} bytes")
        key = _stretched(password, sealed.salt, sealed.passes, sealed.memory_bytes)
    except (MalformedMessage, ValueError, TypeError, CryptoError) as error:
        raise ConfigError(f"{path}: damaged file ({error})") from None
    try:
        return bytes(nacl.secret.SecretBox(key).decrypt(sealed.box))
    except (CryptoError, ValueError):
        raise ConfigError(f"{path}: wrong password, or damaged file") from None


def _stretched(password: str, salt: bytes, passes: int, memory_bytes: int) -> bytes:
    stretched: bytes = nacl.pwhash.argon2id.kdf(
        nacl.secret.SecretBox.KEY_SIZE, password.encode(), salt, opslimit=passes, memlimit=memory_bytes
    )
    return stretched


def _exactly_32(secret: bytes, path: Path) -> bytes:
    if len(secret) != 32:
        raise ConfigError(f"{path}: a key of {len(secret)} bytes, 32 expected")
    return secret


def _keystore(key: bytes, password: str, work: Work) -> bytes:
    from eth_keyfile.keyfile import create_keyfile_json  # imports py_ecc

    store = create_keyfile_json(key, password.encode(), kdf="scrypt", iterations=work.scrypt_n)
    return json.dumps(store).encode()


def _secret_of(path: Path, body: bytes, password: str) -> bytes:
    """The key in an Ethereum keystore's bytes.

    Raises:
        ConfigError: the file is damaged, or the password is wrong.
    """
    from eth_keyfile.keyfile import decode_keyfile_json  # imports py_ecc

    try:
        store: dict[str, Any] = json.loads(body)
        asked = store["crypto"]["kdfparams"]
        if int(asked.get("n", 0)) * int(asked.get("r", 8)) * int(asked.get("p", 1)) > 8 * _SCRYPT_N_MAX:
            raise ConfigError(f"{path}: damaged file (scrypt with n = {asked.get('n')})")
        return _exactly_32(bytes(decode_keyfile_json(store, password.encode())), path)
    except ValueError as error:
        wrong = "wrong password, or damaged file" if "MAC" in str(error) else "damaged file"
        raise ConfigError(f"{path}: {wrong} ({error})") from None
    except (TypeError, KeyError, AttributeError, NotImplementedError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path}: damaged file ({error})") from None


def _address(key: bytes) -> bytes:
    return bytes(PrivateKey(key).public_key.to_canonical_address())
