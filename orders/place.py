"""Place: makes a run from an order, a network and the members' records, before any money moves.

Room: orders (edge: the chain). `assay order place` and
`assay localnet` both make their runs here; the transaction itself is `purchase.place`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from assay.chain.client import ChainReader
from assay.chain.commit_statement import evm_address
from assay.chain.statements import OPERATOR, VERIFIER, address_of
from assay.chain.text.units import UNIT, money_text
from assay.orders.data.tokenise import OnBytes, collect_data, nobody
from assay.orders.model import base_folder
from assay.orders.order import Order
from assay.orders.price.quote import differing
from assay.orders.spec import build_spec, data_spec
from assay.participant.files.record import Role, SignedRecord
from assay.participant.files.run_file import RunFile, run_file_of
from assay.participant.wallet.delegation import delegation_fault
from assay.protocol.errors import ConfigError
from assay.protocol.params import DataSpec, RunSpec
from assay.protocol.types import NO_DIGEST, Address, Digest
from assay.training.model.hugging_face import read_theta
from assay.training.model.initial import state_digest


def new_run(
    order: Order,
    records: Iterable[SignedRecord],
    *,
    deployment_id: Digest,
    data: DataSpec,
    base: Digest,
    buyer_key: bytes,
    now_s: int,
) -> RunFile:
    """The run of an order, with everybody whose record is given.

    Args:
        order: What is bought.
        records: Of nodes, verifiers, the ledger service, the buyer and watchtowers; checked, one a peer. The
            last verifiers are the reserves.
        deployment_id: Of the contracts that the run is paid through.
        data: As `described` or `data_spec` describe the data.
        base: State digest of the imported starting parameters; zero without.
        buyer_key: Signs the run file. The spec names it if it is not the key of the buyer's account.
        now_s: Unix time, from which the time counts for which the run waits for nodes.

    Raises:
        ConfigError: the records are not those of the order's members, or parts do not fit together.
    """
    found = list(records)
    nodes, verifiers = of_role(found, Role.NODE), of_role(found, Role.VERIFIER)
    for what, have, want in (
        ("nodes", nodes, order.run.nodes),
        ("verifiers", verifiers, order.run.verifiers + order.run.reserves),
        ("ledger services", of_role(found, Role.LEDGER), 1),
        ("buyers", of_role(found, Role.BUYER), 1),
    ):
        if len(have) != want:
            raise ConfigError(f"records of {len(have)} {what}, the order has {want}")
    treasury, buyer = of_role(found, Role.LEDGER)[0].record, of_role(found, Role.BUYER)[0].record
    spec = build_spec(
        order,
        deployment_id=deployment_id,
        data=data,
        buyer=Address(buyer.account),
        treasury=Address(treasury.account),
        nodes=[one.record.member for one in nodes],
        verifiers=[one.record.member for one in verifiers[: order.run.verifiers]],
        reserves=[one.record.member for one in verifiers[order.run.verifiers :]],
        base=base,
        start_by_s=now_s + order.start_within_s if order.start_within_s else 0,
        buyer_key=Address(bytes.fromhex(address_of(buyer_key)[2:])),
    )
    return run_file_of(spec, found, buyer_key)


def described(order: Order, on_bytes: OnBytes = nobody) -> tuple[DataSpec, Digest]:
    """An order's data and imported starting parameters, read from their sources; nothing is written.

    Args:
        order: What is bought.
        on_bytes: As `collect_data`'s.

    Raises:
        ConfigError: as `collect_data`.
    """
    data = data_spec(order, collect_data(order, None, on_bytes))
    if order.model.base is None:
        return data, NO_DIGEST
    return data, state_digest(read_theta(base_folder(order.model, order.folder), order.sizes.whole))


def check_described(order: Order, spec: RunSpec, on_bytes: OnBytes = nobody) -> None:
    """Do nothing if a run trains on what the order names, as it is now, and begins with its base.

    Args:
        order: What is bought.
        spec: The run's.
        on_bytes: As `collect_data`'s.

    Raises:
        ConfigError: as `described`, or each field that differs, with both values.
    """
    data, base = described(order, on_bytes)
    found = [*differing(data, spec.data, "data"), *differing(base, spec.model.base, "model.base")]
    if found:
        raise ConfigError("the run was made of other data than the order names now:\n" + "\n".join(found))


def check_members(chain: ChainReader, spec: RunSpec, until_s: int) -> None:
    """Do nothing if every member of a run can be held to its work until this chain time.

    Raises:
        ConfigError: one line for each member without stake, banned, or whose hot key cannot sign until then.
        Unavailable: the endpoint is gone.
    """
    faults = []
    for role, members in ((OPERATOR, spec.nodes), (VERIFIER, spec.judges)):
        for member in members:
            account = evm_address(member.account)
            stake = chain.stake_of(account, role)
            fault = delegation_fault(chain.hot_key(evm_address(member.hot)), account, until_s)
            if chain.is_banned(account):
                fault = "its account is banned for ever"
            elif stake.active < stake.minimum:
                have, least = money_text(stake.active), money_text(stake.minimum)
                fault = f"its stake is {have} {UNIT}, at least {least} expected"
            if fault is not None:
                faults.append(f"member {member.peer.hex()[:16]} ({account}): {fault}")
    if faults:
        raise ConfigError("\n".join(faults))


def of_role(records: Sequence[SignedRecord], role: Role) -> list[SignedRecord]:
    """Those of the records that are of members of this role, in their order."""
    return [signed for signed in records if signed.record.role is role]
