// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {IStakeVault} from "./Interfaces.sol";
import {Judge, Rotation, Statements} from "./Statements.sol";

/// @title The verifiers, as numbered sets that never change once written.
/// @notice A set hands over to the next by its own quorum; old versions stay readable, because a run
///         is judged by the set it was opened with. A member that joins by a rotation has stake, and a hot
///         key whose equivocation costs that stake; the first set is chosen by the deployer.
contract VerifierSet is Judge {
    using Statements for Rotation;

    uint256 public constant MEMBERS_MAX = 64;
    uint8 public constant CERT_ECDSA = 0;
    uint256 private constant SIGNATURE_BYTES = 65;
    uint8 private constant VERIFIER = 1;

    struct Member {
        address account;
        address hotKey;
    }

    struct VersionInfo {
        bytes32 setHash;
        uint64 fromEpoch;
        uint32 size;
    }

    IStakeVault public immutable vault;
    uint32 public currentVersion;
    mapping(uint32 version => VersionInfo) public versions;
    mapping(uint32 version => Member[]) private _members;
    mapping(uint32 version => mapping(address hotKey => uint256 indexPlusOne)) private _seat;
    mapping(uint32 version => mapping(address account => bool seated)) private _seated;

    event SetRotated(uint32 indexed version, bytes32 setHash, uint64 fromEpoch);

    error BadSetSize(uint256 size);
    error MembersNotAscending(address hotKey);
    error ZeroMember();
    error AccountSeatedTwice(address account);
    error UnknownVersion(uint32 version);
    error UnknownCertType(uint8 certType);
    error BadCertLength(uint256 length);
    error SignersNotAscending(address signer);
    error NotAMember(address signer);
    error QuorumNotReached(uint256 have, uint256 need);
    error EpochGoesBack(uint64 fromEpoch);
    error NotItsHotKey(address account, address hotKey);
    error NotEnoughStake(address account, uint256 active);

    constructor(bytes32 deploymentId_, IStakeVault vault_, Member[] memory firstSet)
        Judge("AssayVerifierSet", deploymentId_)
    {
        vault = vault_;
        _install(firstSet, 0);
    }

    /// @notice Installs the next set. `cert` is a quorum of the present one over Rotation.
    function rotate(Member[] calldata newSet, uint64 fromEpoch, uint8 certType, bytes calldata cert) external {
        uint32 version = currentVersion;
        if (fromEpoch < versions[version].fromEpoch) revert EpochGoesBack(fromEpoch);
        verify(version, rotationDigest(version, hashOf(newSet), fromEpoch), certType, cert);
        uint256 minimum = vault.minStake(VERIFIER);
        // At most 64 members, and the vault is one of ours that cannot be replaced: no call here can be made to fail.
        for (uint256 i = 0; i < newSet.length; i++) {
            Member calldata m = newSet[i];
            // slither-disable-next-line calls-loop
            if (vault.accountOf(m.hotKey) != m.account) revert NotItsHotKey(m.account, m.hotKey);
            // What is leaving, the other value, no longer counts.
            // slither-disable-next-line unused-return,calls-loop
            (uint256 active,) = vault.stakeOf(m.account, VERIFIER);
            if (active < minimum) revert NotEnoughStake(m.account, active);
        }
        _install(newSet, fromEpoch);
    }

    /// @notice Reverts unless `cert` holds a quorum of distinct members' signatures over `digest`.
    /// @param cert 65-byte signatures (r, s, v), low s, in strictly ascending order of signer address.
    function verify(uint32 version, bytes32 digest, uint8 certType, bytes calldata cert)
        public
        view
        returns (uint256 weight, uint256 bitmap)
    {
        if (!exists(version)) revert UnknownVersion(version);
        if (certType != CERT_ECDSA) revert UnknownCertType(certType);
        if (cert.length % SIGNATURE_BYTES != 0 || cert.length > MEMBERS_MAX * SIGNATURE_BYTES) {
            revert BadCertLength(cert.length);
        }
        address last = address(0);
        for (uint256 start = 0; start < cert.length; start += SIGNATURE_BYTES) {
            address signer = ECDSA.recover(digest, bytes(cert[start:start + SIGNATURE_BYTES]));
            if (signer <= last) revert SignersNotAscending(signer);
            last = signer;
            uint256 seat = _seat[version][signer];
            if (seat == 0) revert NotAMember(signer);
            bitmap |= 1 << (seat - 1);
            weight += 1;
        }
        uint256 need = quorum(version);
        if (weight < need) revert QuorumNotReached(weight, need);
    }

    // ---- reads

    function exists(uint32 version) public view returns (bool) {
        return version != 0 && version <= currentVersion;
    }

    /// @notice floor(2n/3) + 1 of n members: any two quorums share an honest one while f < n/3.
    function quorum(uint32 version) public view returns (uint256) {
        return uint256(versions[version].size) * 2 / 3 + 1;
    }

    function setHash(uint32 version) external view returns (bytes32) {
        return versions[version].setHash;
    }

    function members(uint32 version) external view returns (Member[] memory) {
        return _members[version];
    }

    function hashOf(Member[] memory set) public pure returns (bytes32) {
        return keccak256(abi.encode(set));
    }

    function rotationDigest(uint32 fromVersion, bytes32 newHash, uint64 fromEpoch) public view returns (bytes32) {
        return _hashTypedDataV4(Rotation(deploymentId, fromVersion, newHash, fromEpoch).structHash());
    }

    // ---- inside

    function _install(Member[] memory set, uint64 fromEpoch) private {
        if (set.length == 0 || set.length > MEMBERS_MAX) revert BadSetSize(set.length);
        uint32 version = ++currentVersion;
        bytes32 newHash = hashOf(set);
        versions[version] = VersionInfo(newHash, fromEpoch, uint32(set.length));
        address last = address(0);
        for (uint256 i = 0; i < set.length; i++) {
            Member memory m = set[i];
            if (m.account == address(0)) revert ZeroMember();
            if (m.hotKey <= last) revert MembersNotAscending(m.hotKey);
            if (_seated[version][m.account]) revert AccountSeatedTwice(m.account);
            last = m.hotKey;
            _seated[version][m.account] = true;
            _seat[version][m.hotKey] = i + 1;
            _members[version].push(m);
        }
        emit SetRotated(version, newHash, fromEpoch);
    }
}
