// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {AppealCourt} from "../src/AppealCourt.sol";
import {AssayToken} from "../src/AssayToken.sol";
import {EpochSettlement} from "../src/EpochSettlement.sol";
import {IRunEscrow, ISlashCourt, IStakeVault, IVerifierSet} from "../src/Interfaces.sol";
import {RunEscrow} from "../src/RunEscrow.sol";
import {SlashCourt} from "../src/SlashCourt.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {VerifierSet} from "../src/VerifierSet.sol";

/// @notice The few of forge's cheats that these tests use.
/// @dev The clock is read through `getBlockTimestamp`: the optimiser may move a plain `block.timestamp` over a warp.
interface Vm {
    function warp(uint256 time) external;
    function roll(uint256 height) external;
    function prevrandao(bytes32 randomness) external;
    function getBlockNumber() external view returns (uint256);
    function getBlockTimestamp() external view returns (uint256);
    function prank(address sender) external;
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function addr(uint256 key) external pure returns (address);
    function computeCreateAddress(address deployer, uint256 nonce) external pure returns (address);
    function getNonce(address account) external view returns (uint64);
    function expectRevert(bytes4 selector) external;
    function expectRevert(bytes calldata data) external;
    function expectPartialRevert(bytes4 selector) external;
}

/// @notice A whole deployment, four verifiers with known hot keys, and one hand for everybody.
abstract contract World {
    using SafeERC20 for IERC20;

    Vm internal constant vm = Vm(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);
    bytes32 internal constant ID = keccak256("deployment");
    uint64 internal constant DAY = 1 days;
    uint64 internal constant UNBONDING = 21 * DAY;
    uint96 internal constant BOND = 500;
    uint64 internal constant DRAW_DELAY = 2;
    uint8 internal constant SEATS = 5;
    uint256 internal constant FEE = 20;
    uint256 internal constant MIN_VERIFIER_STAKE = 1_000;
    uint96 internal constant CASE_BOND = 700;
    uint96 internal constant APPEAL_BOND = 900;
    uint256 internal constant PPM = 1_000_000;
    uint32 internal constant CASE_PPM_MAX = 300_000;

    address internal constant SINK = address(0xdEaD);
    IERC20 public token;
    VerifierSet public set;
    StakeVault public vault;
    SlashCourt public court;
    RunEscrow public escrow;
    EpochSettlement public settlement;
    AppealCourt public appeals;
    uint256[] internal hotKeys; // of the verifiers, ascending by address

    function deploy() internal {
        deploy(new AssayToken(1e30));
    }

    /// @notice With a coin that is there already, all of which this contract holds.
    function deploy(IERC20 coin) internal {
        token = coin;
        vm.warp(1_000 * DAY);
        address[] memory members = verifiers(4);
        uint256 nonce = vm.getNonce(address(this));
        address[7] memory made;
        made[0] = address(coin);
        for (uint256 i = 1; i < 7; i++) {
            made[i] = vm.computeCreateAddress(address(this), nonce + i - 1);
        }
        set = new VerifierSet(ID, IStakeVault(made[2]), members);
        vault = new StakeVault(
            ID,
            IERC20(made[0]),
            made[3],
            IRunEscrow(made[4]),
            StakeVault.Params(UNBONDING, 1, MIN_VERIFIER_STAKE, 200_000, FEE, SINK)
        );
        court = new SlashCourt(
            ID,
            IStakeVault(made[2]),
            IVerifierSet(made[1]),
            IRunEscrow(made[4]),
            made[6],
            SlashCourt.Params(7 * DAY, 3 * DAY, 7 * DAY, DAY, 7 * DAY, DAY, CASE_PPM_MAX, CASE_BOND)
        );
        escrow = new RunEscrow(ID, IERC20(made[0]), IVerifierSet(made[1]), made[5], 2 * DAY);
        settlement = new EpochSettlement(
            ID,
            IERC20(made[0]),
            IRunEscrow(made[4]),
            IVerifierSet(made[1]),
            ISlashCourt(made[3]),
            EpochSettlement.Params(DAY, 3 * DAY, 30 * DAY, DRAW_DELAY, SEATS, BOND, SINK)
        );
        appeals = new AppealCourt(
            ID,
            ISlashCourt(made[3]),
            IVerifierSet(made[1]),
            IRunEscrow(made[4]),
            AppealCourt.Params(DAY, 3 * DAY, DRAW_DELAY, SEATS, APPEAL_BOND)
        );
        for (uint256 i = 0; i < members.length; i++) {
            join(members[i], hotKeys[i]);
            lockLot(members[i], 1, bytes32(uint256(1)), uint128(MIN_VERIFIER_STAKE));
        }
    }

    function lockLot(address who, uint8 role, bytes32 commitment, uint128 amount) internal {
        vm.prank(who);
        vault.lock(role, commitment, amount, uint64(_now() + 100 * DAY));
    }

    function lotOf(address who, uint8 role, bytes32 commitment) internal view returns (uint256 amount) {
        (amount,,) = vault.lotOf(who, role, commitment);
    }

    /// @notice `count` members, and their hot keys in `hotKeys`.
    function verifiers(uint256 count) internal returns (address[] memory members) {
        delete hotKeys;
        for (uint256 key = 1; key <= count; key++) {
            hotKeys.push(key);
        }
        for (uint256 i = 1; i < count; i++) {
            for (uint256 j = i; j > 0 && vm.addr(hotKeys[j]) < vm.addr(hotKeys[j - 1]); j--) {
                (hotKeys[j], hotKeys[j - 1]) = (hotKeys[j - 1], hotKeys[j]);
            }
        }
        members = new address[](count);
        for (uint256 i = 0; i < count; i++) {
            members[i] = address(uint160(0xE000 + i));
        }
    }

    /// @notice Stakes the minimum of a verifier for `who`, and lets the hot key sign for it.
    function join(address who, uint256 hotKey) internal {
        fund(who, address(vault), MIN_VERIFIER_STAKE);
        vm.prank(who);
        vault.stake(1, MIN_VERIFIER_STAKE);
        bytes memory consent = signature(hotKey, vault.delegationDigest(who, vm.addr(hotKey), 1));
        vm.prank(who);
        vault.delegate(vm.addr(hotKey), 1, consent);
    }

    /// @notice `count` verifiers more, who are in no set and have an entry on the jury list each.
    function enlistJurors(uint256 count) internal {
        for (uint256 i = 0; i < count; i++) {
            address who = juror(i);
            join(who, 1_000 + i);
            uint256 end = set.entryCount();
            vm.prank(who);
            set.enlist(places(1, end));
        }
        vm.roll(vm.getBlockNumber() + 1); // an entry counts for challenges of later blocks
    }

    /// @notice `count` times the same place: the end of the list, where it is not shorter.
    function places(uint256 count, uint256 place) internal pure returns (uint256[] memory all) {
        all = new uint256[](count);
        for (uint256 i = 0; i < count; i++) {
            all[i] = place;
        }
    }

    function juror(uint256 i) internal pure returns (address) {
        return address(uint160(0x70000 + i));
    }

    function certificate(bytes32 digest, uint256 count) internal view returns (bytes memory cert) {
        for (uint256 i = 0; i < count; i++) {
            cert = bytes.concat(cert, signature(hotKeys[i], digest));
        }
    }

    function signature(uint256 key, bytes32 digest) internal pure returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digest);
        return abi.encodePacked(r, s, v);
    }

    /// @notice Tokens for `who`, and an allowance for `spender`; of coins that return nothing too.
    function fund(address who, address spender, uint256 amount) internal {
        token.safeTransfer(who, amount);
        vm.prank(who);
        (bool done,) = address(token).call(abi.encodeCall(IERC20.approve, (spender, type(uint256).max)));
        require(done);
    }

    /// @notice A table's only row.
    function oneRow(uint256 index, address account, uint128 amount)
        internal
        pure
        returns (EpochSettlement.Row[] memory rows)
    {
        rows = new EpochSettlement.Row[](1);
        rows[0] = EpochSettlement.Row(index, account, amount, new bytes32[](0));
    }

    function between(uint256 seed, uint256 low, uint256 high) internal pure returns (uint256) {
        return low + seed % (high - low + 1);
    }

    function _now() internal view returns (uint256) {
        return vm.getBlockTimestamp();
    }

    /// @notice The id of an offence in a run: its first 12 bytes are the run's.
    function offenceIn(bytes32 runId, bytes32 offence) internal pure returns (bytes32) {
        return bytes32(bytes12(runId)) | bytes32(uint256(uint160(uint256(keccak256(abi.encode(offence))))));
    }

    function pass(uint256 duration) internal {
        vm.warp(_now() + duration);
    }
}
