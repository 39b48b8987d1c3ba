// Payouts: an epoch's result under the signatures of a quorum's hot keys, and rows under its Merkle root.
import { ascii, hex, join, need, same, unhex } from "./bytes.mjs";
import { quorum } from "./run.mjs";
import { keccak256 } from "./keccak.mjs";
import { recover } from "./secp256k1.mjs";

const RESULT = [ // the EIP-712 struct, in its order
  ["bytes32", "deployment_id"], ["bytes32", "run_id"], ["uint64", "epoch"], ["uint32", "set_version"], ["bytes32", "prev_result"],
  ["bytes32", "root"], ["bytes32", "table_hash"], ["bytes32", "model_hash"], ["uint128", "total"],
];
const DOMAIN = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)";

function word(value) {
  if (typeof value === "string") {
    const bytes = unhex(value.replace(/^0x/, "").toLowerCase());
    need(bytes.length <= 32, "a value is longer than an EVM word");
    return join(new Uint8Array(32 - bytes.length), bytes);
  }
  need(Number.isSafeInteger(value) && value >= 0, `${value} is no amount that this browser can compute with`);
  return unhex(value.toString(16).padStart(64, "0"));
}

/** Digest of the result that hot keys sign, in the settlement contract of a deployment. */
export function resultDigest(deployment, result) {
  const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
  const type = `EpochResult(${RESULT.map(([kind, name]) => `${kind} ${camel(name)}`).join(",")})`;
  const struct = keccak256(join(keccak256(ascii(type)), ...RESULT.map(([, name]) => word(result[name]))));
  const names = [DOMAIN, "AssayEpochSettlement", "1"].map((text) => keccak256(ascii(text)));
  const domain = keccak256(join(...names, word(deployment.chain_id), word(deployment.epoch_settlement)));
  return keccak256(join([0x19, 0x01], domain, struct));
}

/** Refuted unless a quorum of the run's hot keys signed this result of this epoch. Returns how many signed. */
export function checkResult(run, deployment, result, certificate, epoch) {
  const where = `epoch ${epoch}`;
  need(result.run_id === hex(run.id) && result.epoch === epoch, `${where}: the result is of another run or epoch`);
  need(result.deployment_id === hex(run.deployment), `${where}: the result is of another deployment`);
  const digest = resultDigest(deployment, result), bytes = unhex(certificate);
  const signers = new Set();
  for (let at = 0; at < bytes.length; at += 65) {
    const signer = recover(digest, bytes.subarray(at, at + 65));
    const isMember = run.judges.some((member) => hex(member.hot) === signer);
    need(isMember, `${where}: a signature of the certificate is of 0x${signer}, which is no verifier's hot key`);
    signers.add(signer);
  }
  const least = quorum(run.judges);
  need(signers.size >= least, `${where}: ${signers.size} hot keys signed, a quorum has ${least}`);
  return { digest, signers: signers.size };
}

export function leaf(runId, epoch, index, account, amount) {
  return keccak256(keccak256(join(runId, word(epoch), word(index), word(account), word(amount))));
}

function parent(a, b) {
  return keccak256(hex(a) < hex(b) ? join(a, b) : join(b, a));
}

/** Refuted unless the hashes of the proof lead from this row to the signed root. */
export function checkRow(run, result, row, proof) {
  const start = leaf(run.id, result.epoch, row.index, row.account, row.amount);
  const root = proof.map(unhex).reduce(parent, start);
  need(hex(root) === result.root, `row ${row.index}: it is not under the signed root ${result.root}`);
}

/** Refuted unless these rows are the whole table: its root and its sum are the signed ones. */
export function checkTable(run, result, rows) {
  let level = rows.map((row) => leaf(run.id, result.epoch, row.index, row.account, row.amount));
  need(rows.every((row, at) => row.index === at), "the rows are not in their order");
  while (level.length > 1) {
    level = Array.from({ length: Math.ceil(level.length / 2) }, (_, at) =>
      2 * at + 1 < level.length ? parent(level[2 * at], level[2 * at + 1]) : level[2 * at]);
  }
  const root = level.length ? level[0] : new Uint8Array(32);
  need(same(root, unhex(result.root)), `the rows lead to the root ${hex(root)}, signed is ${result.root}`);
  const total = rows.reduce((sum, row) => sum + row.amount, 0);
  need(total === result.total, `the rows add up to ${total} units, signed are ${result.total}`);
}
