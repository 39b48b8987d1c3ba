"""Judges: the verifiers whose signatures the contracts take for a run, and their present hot keys.

Room: participant (edge in `read_judges`: the chain). A run keeps the verifier set that it was opened with;
its members' hot keys may change while it is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.chain.commit_statement import evm_address
from assay.chain.statements import Address
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest, PeerId

if TYPE_CHECKING:  # web3 takes a second to import
    from assay.chain.reader import ChainReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Judges:
    """A run's verifier set: its number, and the hot key of each verifier."""

    set_version: int
    hot_keys: Mapping[PeerId, Address]


def read_judges(chain: ChainReader, spec: RunSpec, run_id: Digest) -> Judges:
    """The set that the run was opened with, and the hot key that each verifier's account delegated last.

    Raises:
        ChainRefused: nobody opened the run. Unavailable: the endpoint is gone.
    """
    keys = {member.peer: chain.hot_key_of(evm_address(member.account)) for member in spec.judges}
    return Judges(set_version=chain.set_version_of(run_id), hot_keys=keys)


def read_present_keys(chain: ChainReader) -> tuple[Address, ...]:
    """The hot key that each member of the present verifier set delegated last, as far as they have.

    Raises:
        Unavailable: the endpoint is gone.
    """
    return tuple(chain.hot_key_of(account) for account in chain.verifier_set())


def named_judges(spec: RunSpec, set_version: int) -> Judges:
    """The set with the hot keys that the spec names: what a reader without the chain can check."""
    keys = {member.peer: evm_address(member.hot) for member in spec.judges}
    return Judges(set_version=set_version, hot_keys=keys)
