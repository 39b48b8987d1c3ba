// Page: binds the buttons "Check it here". Fetches evidence from this server alone; the checks are in check/.
import { Refuted, hex, need } from "./check/bytes.mjs";
import { checkHandOver, checkLink, checkParent, readRun } from "./check/run.mjs";
import { checkResult, checkRow, checkTable } from "./check/payouts.mjs";

const AHEAD = 4; // requests on their way while a round is checked
const TOLD_EVERY = 50; // rounds: a screen reader reads each progress out

async function fetched(address) {
  const answer = await fetch(address, { cache: "no-store" });
  need(answer.ok, `the server does not give the evidence: ${address} is answered ${answer.status}`);
  return answer;
}

const bytesOf = async (address) => new Uint8Array(await (await fetched(address)).arrayBuffer());
const jsonOf = async (address) => (await fetched(address)).json();

// ---- the figures on the page against the signed ones

const WRITTEN = {
  hex: (value) => (typeof value === "string" ? value : hex(value)),
  int: (value) => value.toLocaleString("en-US"),
  loss: (micro) => decimal((BigInt(micro) + 50n) / 100n, 4),
  money: (units) => decimal(BigInt(units), 6),
  time: (unixS) => (unixS > TIME_S_MAX ? String(unixS) : new Date(unixS * 1000).toISOString().slice(0, 19).replace("T", " ")),
  text: (value) => String(value),
};
const TIME_S_MAX = 253402300799; // the last second that has a date in four digits

function decimal(value, places) {
  const unit = 10n ** BigInt(places);
  return `${(value / unit).toLocaleString("en-US")}.${String(value % unit).padStart(places, "0")}`;
}

function compare(facts) {
  const shown = document.querySelectorAll("[data-signed]");
  for (const element of shown) {
    const name = element.dataset.signed, how = element.dataset.as, text = element.textContent.trim();
    need(facts.has(name), `this page shows ${name}, and what was signed has no such thing`);
    const is = WRITTEN[how](facts.get(name));
    const isEqual = text.endsWith("…") ? text.length > 8 && is.startsWith(text.slice(0, -1)) : is === text;
    need(isEqual, `this page shows ${text} for ${name}, signed is ${is}`);
  }
  for (const { dataset: { absent: name } } of document.querySelectorAll("[data-absent]")) {
    const isKnown = facts.has(`${name.split("/")[0]}/digest`);
    need(isKnown && !facts.has(name), `this page says that there is no ${name}, and it was signed`);
  }
  for (const element of document.querySelectorAll("[data-sealed]")) { // a verdict, beside the round of its commitment
    const name = element.dataset.sealed, round = Number(element.textContent.replaceAll(",", ""));
    const isThere = facts.has(name + "/digest") && facts.has(`${round}/seals/${hex(facts.get(name + "/digest"))}`);
    need(isThere, `this page shows round ${round} for the commitment to ${name}, which is not in it`);
  }
  return shown.length;
}

// ---- the checks of a page

const many = (count, one, more) => `${count.toLocaleString("en-US")} ${count === 1 ? one : more}`;
const trusted = ({ runId }) => `Still to be trusted: that ${runId ? `run ${runId} is the one` : "these are the ids of the runs"} you mean ` +
  "(compare with the chain's), that less than a third of its verifiers lie, and this page itself, which the server sent; the command " +
  "assay run verify needs no server. Figures that are not underlined were not compared: they follow from signed ones by rules, which it repeats.";

function rounds(text) {
  return text.split(" ").filter(Boolean).flatMap((part) => {
    const [first, last = first] = part.split("-").map(Number);
    return Array.from({ length: last - first + 1 }, (_, at) => first + at);
  });
}

async function checkRounds({ base, runId, rounds: named, handOvers = "" }, tell) {
  const run = await readRun(await bytesOf(`${base}/spec.cbor`), runId);
  for (const round of rounds(handOvers)) await checkHandOver(run, await bytesOf(`${base}/rounds/${round}.cbor`), round);
  const wanted = rounds(named), coming = new Map(), facts = new Map([["run/id", run.id], ["run/spec", run.specHash]]);
  const ask = (at) => {
    if (at >= wanted.length) return;
    const answer = bytesOf(`${base}/rounds/${wanted[at]}.cbor`);
    answer.catch(() => {}); // told when its turn comes
    coming.set(at, answer);
  };
  for (let at = 0; at < AHEAD; at += 1) ask(at);
  let before = null, fewest = run.verifiers.length, inside = 0, follow = 0;
  for (const [at, round] of wanted.entries()) {
    ask(at + AHEAD);
    const link = await checkLink(run, await coming.get(at), round);
    coming.delete(at);
    if (round === 0 || before?.round === round - 1) {
      checkParent(run, link, round === 0 ? null : before);
      follow += 1;
    }
    [before, fewest, inside] = [link, Math.min(fewest, link.signers), inside + link.inside];
    if (wanted.length <= 200) link.facts.forEach((value, name) => facts.set(name, value)); // no longer list has figures
    if (at % TOLD_EVERY === 0) tell(`Round ${(at + 1).toLocaleString("en-US")} of ${wanted.length.toLocaleString("en-US")} is checked.`);
  }
  const figures = compare(facts);
  return `the run's id follows from its spec; at least ${fewest} of the ${run.verifiers.length} verifiers named there signed each of ` +
    `${many(wanted.length, "manifest", "manifests")}, whose bytes were hashed here; of these ${many(follow, "names", "name")} the one before ` +
    `as parent; ${many(inside, "commit or verdict", "commits and verdicts")} inside ${inside === 1 ? "bears" : "bear"} the author's signature` +
    (figures ? `; ${many(figures, "figure on this page is", "figures on this page are")} as signed.` : ".");
}

async function settled(base, runId, epoch) {
  const [spec, deployment, settlement] = await Promise.all(
    [bytesOf(`${base}/spec.cbor`), jsonOf(`${base}/deployment.json`), jsonOf(`${base}/settlements/${epoch}.json`)]);
  const run = await readRun(spec, runId), { result, certificate, rows } = settlement;
  const { digest, signers } = checkResult(run, deployment, result, certificate, epoch);
  const signed = Object.entries(result).map(([name, value]) => [`result/${name}`, value]);
  const facts = new Map([...signed, ["result/digest", digest]]);
  const words = `the run's id follows from its spec; the hot keys of ${signers} of the ${run.judges.length} verifiers named there signed this result`;
  return { run, result, rows, facts, signers, words };
}

function setRow(facts, row) {
  for (const name of ["account", "amount"]) facts.set(`rows/${row.index}/${name}`, row[name]);
}

async function checkEpoch({ base, runId, epoch }) {
  const { run, result, rows, facts, words } = await settled(base, runId, Number(epoch));
  checkTable(run, result, rows);
  rows.forEach((row) => setRow(facts, row));
  const figures = compare(facts);
  return `${words}; its root and its sum are those of all ${rows.length} rows of the table; ${figures} figures on this page are as signed.`;
}

async function checkPayout({ base, runId, epoch, row: index }) {
  const { run, result, facts, words } = await settled(base, runId, Number(epoch));
  const { row, proof } = await jsonOf(`${base}/epochs/${epoch}/${index}.json`);
  need(row.index === Number(index), `row ${row.index} came for row ${index}`);
  checkRow(run, result, row, proof);
  setRow(facts, row);
  const figures = compare(facts);
  return `${words}; ${proof.length} hashes lead from this row to its root; ${figures} figures on this page are as signed.`;
}

async function checkSpent({ base, runId, rounds: epochs }) {
  const facts = new Map([["run/id", runId]]);
  let fewest = Infinity;
  for (const epoch of rounds(epochs)) {
    const { result, signers } = await settled(base, runId, epoch);
    facts.set(`${epoch}/total`, result.total);
    fewest = Math.min(fewest, signers);
  }
  const figures = compare(facts);
  return `the run's id follows from its spec; the hot keys of at least ${fewest} of the verifiers named there signed the result of each of ` +
    `${many(rounds(epochs).length, "epoch", "epochs")}; ${many(figures, "figure on this page is", "figures on this page are")} as signed.`;
}

async function checkRuns({ runs }) {
  const pairs = runs.split(" ").filter(Boolean).map((pair) => pair.split("="));
  const facts = new Map();
  for (const [name, expected] of pairs) {
    const { id, buyer } = await readRun(await bytesOf(`/runs/${name}/spec.cbor`), expected);
    facts.set(name, id).set(`${name}/buyer`, buyer);
  }
  compare(facts);
  return `the id of ${many(pairs.length, "run", "runs")} on this page follows from the spec, which names parties and terms.`;
}

const CHECKS = { rounds: checkRounds, epoch: checkEpoch, payout: checkPayout, spent: checkSpent, runs: checkRuns };

/** What became of a check, the sentence that says so, and what is to be done or trusted. */
async function answerOf(check, tell) {
  if (!globalThis.crypto?.subtle) {
    return ["unknown", "Not checked: browsers compute signatures only on https or on localhost.", "The command assay run verify checks a copy of your own."];
  }
  try {
    const proved = await CHECKS[check.check](check, tell);
    return ["proved", `Proved: ${proved}`, trusted(check)];
  } catch (error) {
    if (error instanceof Refuted) return ["refuted", `Not proved: ${error.message}.`, "Do not believe this page; the command assay run verify checks a copy of your own."];
    if (error.name === "NotSupportedError") return ["unknown", "Not checked: this browser does not know Ed25519.", "The command assay run verify does."];
    return ["unknown", `Not checked: ${error.message}.`, "Nothing is known to be wrong; try again."];
  }
}

function say(output, state, ...sentences) {
  output.className = state;
  output.replaceChildren(...sentences.map((sentence) => {
    const paragraph = document.createElement("p");
    paragraph.textContent = sentence;
    return paragraph;
  }));
}

// ---- commands

/** A button beside a command puts it on the clipboard; it is shown where the browser has one for this page. */
export function showCopies() {
  if (!navigator.clipboard) return; // only on https and on this machine
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
}

document.addEventListener("click", async ({ target }) => {
  const button = target.closest?.("[data-copy]"), told = document.querySelector("[data-told]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    told.textContent = `Copied: ${button.dataset.copy}`;
  } catch {
    told.textContent = "Not copied: the browser does not allow it.";
  }
});

function bindChecks() {
  showCopies();
  for (const place of document.querySelectorAll("[data-origin]")) place.textContent = location.origin; // in commands
  for (const section of document.querySelectorAll("[data-check]")) bindCheck(section);
}

function bindCheck(section) {
  const button = section.querySelector("button"), output = section.querySelector("output");
  button.addEventListener("click", async () => {
    stopFollowing("This page stands still while you check it.");
    button.disabled = true;
    say(output, "", "Checking …");
    const answer = await answerOf(section.dataset, (progress) => say(output, "", progress));
    say(output, ...answer);
    document.body.classList.toggle("is-proved", answer[0] === "proved"); // underlines the figures that were signed
    button.disabled = false;
  });
}

// ---- a run that is still going on

let growth = null; // the open stream

function stopFollowing(reason) {
  if (growth === null) return;
  growth.close();
  growth = null;
  const reload = document.createElement("a");
  reload.href = location.pathname + location.search;
  reload.textContent = "Reload";
  document.querySelector(".live span").replaceChildren(`${reason} `, reload);
}

/** A page as the server has it now; parsed by the browser without a string that could become a script. */
export function fetchedPage(address = location.href) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.timeout = 20000;
    request.onload = () => (request.status === 200 && request.response ? resolve(request.response) : reject(new Error(String(request.status))));
    request.onerror = request.ontimeout = () => reject(new Error("no answer"));
    request.send();
  });
}

const labelOf = (element) => element?.getAttribute("href") ?? element?.textContent;

async function renew() {
  const page = await fetchedPage();
  if (growth === null) return; // a check began meanwhile
  const focused = labelOf(document.activeElement);
  const main = document.adoptNode(page.querySelector("main"));
  document.querySelector("main").replaceWith(main);
  if (!main.dataset.live) { // delivered, or damaged
    growth.close();
    growth = null;
  } else if (!growth.url.startsWith(new URL(main.dataset.live.split("?")[0], location))) { // another run goes on
    growth.close();
    follow(main.dataset.live);
  }
  const again = [...main.querySelectorAll("a[href], button, summary")].find((one) => labelOf(one) === focused);
  again?.focus({ preventScroll: true });
  bindChecks();
}

function follow(address) {
  let isRenewing = false, isStale = false;
  growth = new EventSource(address);
  growth.addEventListener("error", () => { // else the browser opens it again by itself
    if (growth?.readyState === EventSource.CLOSED) stopFollowing("This page does not grow by itself: the server has no stream left for it.");
  });
  growth.addEventListener("message", async () => {
    isStale = true;
    if (isRenewing) return; // the page under way may be older than this event: once more after it
    isRenewing = true;
    while (isStale && growth !== null) {
      isStale = false;
      await renew().catch((error) => stopFollowing(`This page could not be renewed (${error.message}).`));
    }
    isRenewing = false;
  });
}

bindChecks();
const { live } = document.querySelector("main").dataset;
if (live) follow(live);
