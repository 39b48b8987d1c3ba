// Run: what a run's spec says once its id is recomputed, and what one certified manifest proves under it.
import { FINALISE, OUTCOMES } from "./messages.mjs";
import { ascii, hex, isSigned, join, named, need, read, same, sha256 } from "./bytes.mjs";
import { keccak256 } from "./keccak.mjs";

const CONFIGURATION = 2 ** 32; // iterations of one: their numbers go on from there after each hand-over

const short = (bytes) => hex(bytes).slice(0, 8);

/**
 * The run of a spec: its id and the keys of its verifiers, whose seats change hands by what `handOvers` holds,
 * and of all judges, whose accounts sign results. Refuted if the page names another id.
 */
export async function readRun(specBytes, claimedId) {
  const spec = read("RunSpec", specBytes);
  const specHash = await sha256(specBytes);
  // As the escrow contract has it: keccak256(abi.encode(deploymentId, buyer, specHash)).
  const id = keccak256(join(spec.deployment_id, new Uint8Array(12), spec.buyer, specHash));
  need(hex(id) === claimedId, `the spec leads to run ${hex(id)}, the page names ${claimedId}`);
  const verifiers = spec.verifiers.map((member) => named("Member", member));
  const judges = [...verifiers, ...(spec.reserves ?? []).map((member) => named("Member", member))];
  return { id, specHash, buyer: spec.buyer, deployment: spec.deployment_id, verifiers, judges, handOvers: [] };
}

/** How many of these members are a quorum. */
export const quorum = (members) => Math.floor((2 * members.length) / 3) + 1;

/** The key that signs for a verifier's seat in a round: that of its last hand-over before, or its name. */
function keyOf(run, seat, round) {
  const last = run.handOvers.findLast((one) => one.round < round && same(one.seat, seat));
  return last?.holder ?? seat;
}

/**
 * The manifest in these bytes as checkLink returns it, which hands a seat over: later ones are checked by its
 * holder's key. To be called for each such manifest, the earliest first, before any other is checked.
 */
export async function checkHandOver(run, bytes, round) {
  const link = await checkLink(run, bytes, round);
  const before = run.handOvers.at(-1)?.round ?? 0;
  need(round > before && link.handOver.length === 1, `round ${round}: it hands over ${link.handOver.length} seats after round ${before}`);
  run.handOvers.push({ round, ...link.handOver[0] });
  return link;
}

/** Refuted unless this key signed the message in this run: of every message its tag and digest are signed. */
async function checkSigned(run, message, key, signature, what) {
  const head = join(ascii("assay/sign/1"), [message.tag.length], ascii(message.tag));
  const bytes = join(head, run.deployment, run.id, await sha256(message.bytes));
  need(await isSigned(key, signature, bytes), `${what}: the signature of ${short(key)} does not cover it`);
}

/**
 * The manifest in these bytes, if a quorum of the run's verifiers made it final as this round's.
 * Returns its digest, what it names as its parent, how many signatures were checked, and its facts by name.
 */
export async function checkLink(run, bytes, round) {
  const link = read("CertifiedManifest", bytes);
  const manifest = named("Manifest", link.manifest), block = named("Block", link.block);
  const certificate = named("QuorumCertificate", link.certificate), vote = named("Vote", certificate.vote);
  const where = `round ${round}`;
  const digest = await sha256(manifest.bytes);
  need([manifest, block, vote].every((one) => same(one.run_id, run.id)), `${where}: it is of another run`);
  need(manifest.round === round && block.round === round, `${where}: the manifest is of round ${manifest.round}`);
  need(same(block.manifest, digest), `${where}: the block names another manifest than the one received`);
  need(vote.kind === FINALISE && same(vote.block, await sha256(block.bytes)), `${where}: the votes are not for its block`);
  need(!block.is_closing, `${where}: its block only ends a configuration, and is in no chain`);
  need([0, block.iteration].includes(vote.iteration), `${where}: the votes are of another iteration`);
  const { verifiers: signers, signatures } = certificate;
  need(signers.length === signatures.length, `${where}: ${signers.length} signers, ${signatures.length} signatures`);
  need(new Set(signers.map(hex)).size === signers.length, `${where}: a verifier signed twice`);
  const least = quorum(run.verifiers), configuration = run.handOvers.filter((one) => one.round < round).length;
  need(signers.length >= least, `${where}: ${signers.length} signatures, a quorum has ${least}`);
  need(Math.floor(Number(block.iteration) / CONFIGURATION) === configuration, `${where}: its iteration ${block.iteration} is not of a run with ${configuration} hand-overs before`);
  for (const [at, signer] of signers.entries()) {
    need(run.verifiers.some((member) => same(member.peer, signer)), `${where}: ${short(signer)} is no verifier of this run`);
    await checkSigned(run, vote, keyOf(run, signer, round), signatures[at], `${where}, finalisation`);
  }
  const facts = new Map(), set = (name, value) => facts.set(`${round}/${name}`, value);
  for (const name of ["parent", "time_s", "aggregate", "is_partial"]) set(name, manifest[name]);
  for (const [name, list] of Object.entries({ signers, signatures })) list.forEach((one, at) => set(`${name}/${at}`, one));
  for (const name of ["commits", "verdicts", "commitments", "beacon_shares"]) set(`${name}/count`, manifest[name].length);
  set("digest", digest);
  set("signers/count", signers.length);
  set("iteration", block.iteration);
  for (const item of manifest.commits) {
    const signed = named("SignedCommit", item), commit = named("Commit", signed.commit);
    need(commit.round === round, `${where}: a commit of round ${commit.round}`);
    await checkSigned(run, commit, commit.node, signed.signature, `${where}, commit`);
    for (const name of ["tokens", "loss_micro", "update", "update_bytes"]) set(`commits/${hex(commit.node)}/${name}`, commit[name]);
    set(`commits/${hex(commit.node)}/digest`, await sha256(commit.bytes));
  }
  for (const item of manifest.verdicts) {
    const signed = named("SignedVerdict", item), verdict = named("Verdict", signed.verdict);
    await checkSigned(run, verdict, keyOf(run, verdict.verifier, round), signed.signature, `${where}, verdict`);
    const name = `verdicts/${verdict.round}-${hex(verdict.node)}-${hex(verdict.verifier)}`;
    set(`${name}/outcome`, OUTCOMES[verdict.outcome]);
    set(`${name}/distance_ppb`, verdict.distance_ppb);
    set(`${name}/digest`, await sha256(verdict.bytes));
  }
  for (const item of manifest.commitments) {
    const signed = named("SignedVerdictCommitment", item), seal = named("VerdictCommitment", signed.commitment);
    await checkSigned(run, seal, keyOf(run, seal.verifier, round), signed.signature, `${where}, verdict commitment`);
    set(`seals/${hex(seal.verdict)}`, true);
  }
  const inside = manifest.commits.length + manifest.verdicts.length + manifest.commitments.length;
  const handOver = (manifest.hand_over ?? []).map((item) => named("HandOver", item));
  return { round, digest, parent: manifest.parent, signers: signers.length, inside, facts, handOver };
}

/** Refuted unless this manifest names that one as its parent: round 0 names the spec. */
export function checkParent(run, link, before) {
  const parent = before === null ? run.specHash : before.digest;
  const whose = before === null ? "the run's spec" : `the manifest of round ${before.round}`;
  need(same(link.parent, parent), `round ${link.round}: it names ${hex(link.parent)} as its parent, which is not ${whose}`);
}
