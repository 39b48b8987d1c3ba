"""Chain: the contracts' client, and what signs, reads and proves for it.

web3 imports py_ecc's BLS schemes with eth_keyfile, for the keystores of Ethereum's validators. Nothing here
reads one, and they are a quarter of what a process that uses the chain imports: so they are imported once
somebody asks for them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Scheme:
    """`G2ProofOfPossession`, which eth_keyfile names as it is imported."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_schemes("G2ProofOfPossession"), name)


def _schemes(name: str) -> Any:
    return getattr(import_module("py_ecc.bls.ciphersuites"), name)


def _put_off_bls() -> None:
    """Let `py_ecc.bls` be a package whose schemes are not imported yet, unless they are."""
    py_ecc = find_spec("py_ecc")  # is not imported by this
    if py_ecc is None or py_ecc.submodule_search_locations is None or "py_ecc.bls" in sys.modules:
        return
    later = ModuleType("py_ecc.bls")
    later.__path__ = [f"{folder}/bls" for folder in py_ecc.submodule_search_locations]
    later.__getattr__ = _schemes  # type: ignore[method-assign]
    later.G2ProofOfPossession = _Scheme()  # type: ignore[attr-defined]
    sys.modules["py_ecc.bls"] = later


_put_off_bls()
