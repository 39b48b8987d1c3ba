// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";

// Everything that is signed off chain and judged on chain. ledger/statements.py declares the same
// structs; a test compares every digest. `deploymentId` comes first in each: two fresh local chains
// share chain id and addresses, so the EIP-712 domain alone does not tell them apart.

/// @notice What a participant's hot key says once per (run, epoch, kind, slot).
struct Statement {
    bytes32 deploymentId;
    bytes32 runId;
    uint64 epoch;
    uint8 kind;
    bytes32 slot;
    bytes32 value;
}

/// @notice The payout table of one epoch, by its Merkle root and its sum.
struct EpochResult {
    bytes32 deploymentId;
    bytes32 runId;
    uint64 epoch;
    uint32 setVersion;
    bytes32 prevResult;
    bytes32 root;
    bytes32 tableHash;
    bytes32 modelHash;
    uint128 total;
}

/// @notice A committee's finding that somebody's work was false.
struct SlashOrder {
    bytes32 deploymentId;
    bytes32 runId;
    uint64 epoch;
    address offender;
    uint8 role;
    uint32 ppm;
    bytes32 offenceId;
    bytes32 evidenceHash;
    address challenger;
}

/// @notice The current verifier set stops a case.
struct Veto {
    bytes32 deploymentId;
    bytes32 caseId;
    bytes32 reasonHash;
}

/// @notice The verifier set of a run finds that a node of this account left it, and that nothing it did there can be
///         disputed any more.
struct Discharge {
    bytes32 deploymentId;
    bytes32 runId;
    address account;
}

/// @notice A hot key accepts to speak for an account; signed by the hot key.
struct Delegation {
    bytes32 deploymentId;
    address account;
    address hotKey;
    uint64 expiry;
}

/// @notice An account names its Ed25519 peer key; signed by the account, judged off chain only.
struct PeerBinding {
    bytes32 deploymentId;
    address account;
    bytes32 peerKey;
    address hotKey;
    uint64 expiry;
}

/// @notice The current verifier set hands over to the next one.
struct Rotation {
    bytes32 deploymentId;
    uint32 fromVersion;
    bytes32 setHash;
    uint64 fromEpoch;
}

/// @notice Where a model came from; hashes only.
struct ModelRecord {
    bytes32 deploymentId;
    bytes32 runId;
    bytes32 modelHash;
    bytes32 dataInventoryHash;
    bytes32 configHash;
    bytes32 parent;
    bytes32 lastResult;
}

/// @notice The current verifier set puts another record in a record's place, or withdraws it (zero).
struct Supersession {
    bytes32 deploymentId;
    bytes32 recordId;
    bytes32 newRecordId;
    bytes32 reasonHash;
}

/// @notice EIP-712 struct hashes. Every struct is static, so abi.encode of it is its encodeData.
library Statements {
    bytes32 private constant STATEMENT =
        keccak256("Statement(bytes32 deploymentId,bytes32 runId,uint64 epoch,uint8 kind,bytes32 slot,bytes32 value)");
    bytes32 private constant EPOCH_RESULT = keccak256(
        "EpochResult(bytes32 deploymentId,bytes32 runId,uint64 epoch,uint32 setVersion,bytes32 prevResult,bytes32 root,bytes32 tableHash,bytes32 modelHash,uint128 total)"
    );
    bytes32 private constant SLASH_ORDER = keccak256(
        "SlashOrder(bytes32 deploymentId,bytes32 runId,uint64 epoch,address offender,uint8 role,uint32 ppm,bytes32 offenceId,bytes32 evidenceHash,address challenger)"
    );
    bytes32 private constant VETO = keccak256("Veto(bytes32 deploymentId,bytes32 caseId,bytes32 reasonHash)");
    bytes32 private constant DISCHARGE = keccak256("Discharge(bytes32 deploymentId,bytes32 runId,address account)");
    bytes32 private constant DELEGATION =
        keccak256("Delegation(bytes32 deploymentId,address account,address hotKey,uint64 expiry)");
    bytes32 private constant PEER_BINDING =
        keccak256("PeerBinding(bytes32 deploymentId,address account,bytes32 peerKey,address hotKey,uint64 expiry)");
    bytes32 private constant ROTATION =
        keccak256("Rotation(bytes32 deploymentId,uint32 fromVersion,bytes32 setHash,uint64 fromEpoch)");
    bytes32 private constant MODEL_RECORD = keccak256(
        "ModelRecord(bytes32 deploymentId,bytes32 runId,bytes32 modelHash,bytes32 dataInventoryHash,bytes32 configHash,bytes32 parent,bytes32 lastResult)"
    );

    bytes32 private constant SUPERSESSION = keccak256(
        "Supersession(bytes32 deploymentId,bytes32 recordId,bytes32 newRecordId,bytes32 reasonHash)"
    );

    function structHash(Statement memory s) internal pure returns (bytes32) {
        return keccak256(abi.encode(STATEMENT, s));
    }

    function structHash(EpochResult memory s) internal pure returns (bytes32) {
        return keccak256(abi.encode(EPOCH_RESULT, s));
    }

    function structHash(SlashOrder memory s) internal pure returns (bytes32) {
        return keccak256(abi.encode(SLASH_ORDER, s));
    }

    function structHash(Veto memory s) internal pure returns (bytes32) {
        return keccak256(abi.encode(VETO, s));
    }

    function structHash(Discharge memory s) internal pure returns (bytes32) {
        return keccak256(abi.encode(DISCHARGE, s));
    }

    function structHash(Delegation memory s) internal pure returns (bytes32) {
        return keccak256(abi.encode(DELEGATION, s));
    }

    function structHash(PeerBinding memory s) internal pure returns (bytes32) {
        return keccak256(abi.encode(PEER_BINDING, s));
    }

    function structHash(Rotation memory s) internal pure returns (bytes32) {
        return keccak256(abi.encode(ROTATION, s));
    }

    function structHash(ModelRecord memory s) internal pure returns (bytes32) {
        return keccak256(abi.encode(MODEL_RECORD, s));
    }

    function structHash(Supersession memory s) internal pure returns (bytes32) {
        return keccak256(abi.encode(SUPERSESSION, s));
    }
}

/// @notice A contract that judges signatures of exactly one deployment.
abstract contract Judge is EIP712 {
    bytes32 public immutable deploymentId;

    error WrongDeployment(bytes32 arrived);

    constructor(string memory name, bytes32 deploymentId_) EIP712(name, "1") {
        deploymentId = deploymentId_;
    }

    function _requireOurs(bytes32 arrived) internal view {
        if (arrived != deploymentId) revert WrongDeployment(arrived);
    }
}
