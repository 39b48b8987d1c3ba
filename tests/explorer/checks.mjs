// Runs the browser's checks under Node: one JSON request a line comes in, one answer a line goes out.
import { createInterface } from "node:readline";
import { Refuted, hex, unhex } from "../../explorer/static/check/bytes.mjs";
import { keccak256 } from "../../explorer/static/check/keccak.mjs";
import { recover } from "../../explorer/static/check/secp256k1.mjs";
import { checkHandOver, checkLink, checkParent, readRun } from "../../explorer/static/check/run.mjs";
import { checkResult, checkRow, checkTable } from "../../explorer/static/check/payouts.mjs";

const CALLS = {
  keccak: ({ bytes }) => hex(keccak256(unhex(bytes))),
  recover: ({ digest, signature }) => recover(unhex(digest), unhex(signature)),
  links: async ({ spec, id, links, first, handOvers = [] }) => {
    const run = await readRun(unhex(spec), id);
    for (const [round, bytes] of handOvers) await checkHandOver(run, unhex(bytes), round);
    let before = null;
    const facts = {};
    for (const [at, bytes] of links.entries()) {
      const link = await checkLink(run, unhex(bytes), first + at);
      if (at > 0 || first === 0) checkParent(run, link, before);
      for (const [name, value] of link.facts) facts[name] = value instanceof Uint8Array ? hex(value) : value;
      before = link;
    }
    return facts;
  },
  epoch: async ({ spec, id, deployment, settlement, epoch, row, proof }) => {
    const run = await readRun(unhex(spec), id);
    const { digest, signers } = checkResult(run, deployment, settlement.result, settlement.certificate, epoch);
    if (proof) checkRow(run, settlement.result, row, proof);
    else checkTable(run, settlement.result, settlement.rows);
    return { digest: hex(digest), signers };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  try {
    console.log(JSON.stringify({ answer: await CALLS[request.call](request) }));
  } catch (error) {
    if (!(error instanceof Refuted)) throw error;
    console.log(JSON.stringify({ refuted: error.message }));
  }
}
