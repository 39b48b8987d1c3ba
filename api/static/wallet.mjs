// Wallet page: a person connects a wallet, signs in, has the API prepare a move, reads it, and has the wallet send it.
// The sign-in and the move are held here and nowhere else. Nothing happens without a click, and texts go in as text.
import { Refused, askedOf, choicesOf, fieldsOf, hintOf, readActions, readDeployment, readPrepared } from "./moves.mjs";
import { accountOf, ask, chainOf, chooseChain, receiptOf, watchWallets, wordsOf } from "./wallets.mjs";

const element = (id) => document.getElementById(id);
const LINKED_CHARS_MAX = 200;
const typed = new Map(); // what every field had last, by its name: a field keeps it when the action changes
let actions = new Map(); // what the API offers, by name
let deployment = null; // what the API says that it is for
let wallet = null; // {provider, account, listeners} once one is connected
let signedIn = null; // the session's token
let move = null; // the transactions that were prepared and are shown
let current = null; // the step that a click began; forgetting ends it, so nothing that comes later counts
let edits = 0; // of the form

class Forgotten extends Error {} // what a step was for is gone: it was told already

// ---- what the page shows

function tell(text) {
  element("told").textContent = text;
}

function made(tag, text, inside = []) {
  const one = document.createElement(tag);
  one.textContent = text;
  one.append(...inside);
  return one;
}

function show() {
  element("account").textContent = wallet === null ? "Not connected."
    : `Account ${wallet.account} on chain ${deployment.chainId}${signedIn === null ? ", not signed in" : ", signed in"}.`;
  element("wallets").hidden = wallet !== null;
  for (const button of element("wallets").children) button.disabled = current !== null || deployment === null;
  element("signin").disabled = current !== null || wallet === null || signedIn !== null;
  element("forget").disabled = wallet === null && current === null;
  element("prepare").disabled = current !== null || signedIn === null;
  element("review").hidden = move === null;
  element("send").disabled = element("drop").disabled = current !== null;
}

function showWallets(wallets) {
  element("wallets").replaceChildren(...wallets.map((one) => {
    const button = made("button", `Connect ${one.name} (${one.id})`);
    button.type = "button";
    button.addEventListener("click", () => act((still) => connect(one.provider, still)));
    return button;
  }));
  if (wallets.length === 0) {
    element("wallets").append(made("p", "No wallet was found in this browser. Install one as an extension, or open this page in a wallet's own browser; the command line needs none."));
  }
  show();
}

const spaced = (name) => `${name[0].toUpperCase()}${name.slice(1).replaceAll("_", " ")}`;

const chosen = () => actions.get(element("action").value);


function fieldFor({ name, schema, isOptional }) {
  const label = made("label", `${spaced(name)}${schema.format === "amount" ? " in aUSD" : ""}`), choices = choicesOf(schema);
  label.htmlFor = name;
  const input = document.createElement(choices.length > 0 ? "select" : "input");
  for (const text of choices) input.append(new Option(text, text));
  if (isOptional && choices.length > 0) input.prepend(new Option("", ""));
  if (typed.has(name) || choices.length === 0) input.value = typed.get(name) ?? "";
  [input.id, input.name, input.autocomplete, input.spellcheck] = [name, name, "off", false];
  input.setAttribute("aria-describedby", `${name}-hint ${name}-error`);
  const hint = made("p", `${isOptional ? "May be left out; else" : "Expected:"} ${hintOf(schema)}.`);
  const error = made("p", "");
  [hint.className, hint.id, error.className, error.id] = ["hint", `${name}-hint`, "error", `${name}-error`];
  const field = made("div", "", [label, input, hint, error]);
  field.className = "field";
  return field;
}

function showFields() {
  element("fields").replaceChildren(...fieldsOf(chosen()).map(fieldFor));
}

function showActions() {
  element("action").replaceChildren(...[...actions.values()].map(({ name, does }) => new Option(`${name}: ${does}`, name)));
}

function showError(field, words) {
  const text = element(`${field}-error`);
  text.textContent = words && `✕ ${words}`;
  if (words) element(field).setAttribute("aria-invalid", "true");
  else element(field).removeAttribute("aria-invalid");
}

function named(text) {
  if (text.toLowerCase() === wallet.account.toLowerCase()) return `${text} (your account)`;
  const [name] = Object.entries(deployment.contracts).find(([, address]) => address.toLowerCase() === text) ?? [];
  return name === undefined ? text : `${text} (${name})`;
}

const listOf = (pairs) => pairs.flatMap(([name, text]) => [made("dt", name), made("dd", text)]);

function showMove(summary) {
  element("summary").textContent = `The server says: ${summary}. The transactions, as this page read them from what is to be sent:`;
  element("transactions").replaceChildren(...move.map((one) => made("li", "", [
    made("dl", "", listOf([
      ["Contract", `${one.contract} at ${one.to}`],
      ["Function", one.name],
      ...Object.entries(one.arguments).map(([name, text]) => [spaced(name), named(text)]),
      ["Gas", `at most ${one.gas}`],
      ["Fee", `at most ${one.fee} of the chain's coin`],
      ["Value", "0: no coin is paid"],
      ["Call data", one.data],
    ])),
  ])));
  show();
  element("review-heading").focus();
}

// ---- steps

/** Carry out what a click asked for, one step at a time, and say what went wrong. */
async function act(step) {
  if (current !== null) return;
  const mine = current = {};
  const still = async (promise) => { // what a promise gives, unless the step was ended meanwhile
    const found = await promise;
    if (current !== mine) throw new Forgotten();
    return found;
  };
  show();
  try {
    await step(still);
  } catch (error) {
    if (current !== mine) return;
    if (!(error instanceof Refused)) tell(wordsOf(error));
    else if (error.field === null) tell(`Refused: ${error.message}. Nothing is sent.`);
    else {
      showError(error.field, error.message);
      element(error.field).focus();
      tell("One value is not as expected; nothing was asked for.");
    }
  } finally {
    if (current === mine) current = null;
    show();
  }
}

async function api(method, path, body, token = null) {
  const key = [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");
  const headers = { "Idempotency-Key": key, ...(body && { "Content-Type": "application/json" }), ...(token && { Authorization: `Bearer ${token}` }) };
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store", credentials: "omit", redirect: "error" });
  const text = await answer.text();
  if (answer.ok) return text && JSON.parse(text);
  if (answer.status === 401 && token !== null) signedIn = null;
  let detail = "";
  try {
    detail = JSON.parse(text).detail;
  } catch { /* not this server's own answer */ }
  throw new Error(`The server answers ${answer.status}: ${String(detail).slice(0, 400)}`);
}

function signOut(token) {
  api("DELETE", "/v1/signin", null, token).catch(() => {}); // if this does not arrive, the session ends by itself
}

function forget(words) {
  const token = signedIn;
  if (wallet !== null) for (const [name, listener] of wallet.listeners) wallet.provider.removeListener?.(name, listener);
  wallet = signedIn = move = current = null;
  if (token !== null) signOut(token);
  tell(words);
  show();
}

function watch(mine) {
  const change = (what) => wallet === mine && forget(`${what} The sign-in and the prepared move are forgotten, and nothing more is sent: connect again.`);
  mine.listeners = [
    ["accountsChanged", (accounts) => {
      if (String(accounts?.[0]).toLowerCase() !== mine.account.toLowerCase()) change("The wallet acts for another account now.");
    }],
    ["chainChanged", (chainId) => {
      if (Number(chainId) !== deployment.chainId) change(`The wallet is on another chain now, ${Number(chainId)}.`);
    }],
    ["disconnect", () => change("The wallet is not connected to its chain any more.")],
  ];
  for (const [name, listener] of mine.listeners) mine.provider.on?.(name, listener);
}

async function connect(provider, still) {
  tell("Asking the wallet: look there.");
  const account = await still(accountOf(provider, "eth_requestAccounts"));
  if (account === null) throw new Error("The wallet gives no account");
  if ((await still(chainOf(provider))) !== deployment.chainId) await still(chooseChain(provider, deployment.chainId));
  const chainId = await still(chainOf(provider));
  if (chainId !== deployment.chainId) {
    tell(`The wallet is on chain ${chainId}, and this server's contracts are on chain ${deployment.chainId}. Choose chain ${deployment.chainId} in the wallet, then connect again.`);
    return;
  }
  wallet = { provider, account, listeners: [] };
  watch(wallet);
  tell("The wallet is connected. Sign in to go on.");
}

async function signIn(still) {
  const { provider, account } = wallet;
  const { message } = await still(api("POST", "/v1/signin/message", { account }));
  const lines = String(message).split("\n");
  if (lines[0] !== `${location.host} wants you to sign in with your Ethereum account:` || !lines.includes(`URI: ${location.origin}`)) {
    throw new Refused(`this server is set up for another address than ${location.origin}, so its sign-in is not for this page`);
  }
  if (lines[1].toLowerCase() !== account.toLowerCase() || !lines.includes(`Chain ID: ${deployment.chainId}`)) {
    throw new Refused("the server's sign-in is not for this account on this chain");
  }
  tell("Asking the wallet for a signature: look there.");
  const bytes = [...new TextEncoder().encode(message)].map((one) => one.toString(16).padStart(2, "0")).join("");
  const signature = await still(ask(provider, "personal_sign", `0x${bytes}`, account));
  const { token } = await api("POST", "/v1/signin", { message, signature });
  try {
    await still();
  } catch (error) {
    signOut(token); // the account is not chosen any more
    throw error;
  }
  [signedIn, wallet.account] = [token, lines[1]]; // with its checksum
  tell("Signed in.");
}

async function prepare(still) {
  move = null;
  const action = chosen(), names = fieldsOf(action).map(({ name }) => name);
  names.forEach((name) => showError(name, ""));
  const asked = askedOf(action, Object.fromEntries(names.map((name) => [name, element(name).value])));
  const before = edits;
  tell("The server prepares it.");
  const prepared = await still(api("POST", "/v1/moves/prepare", asked, signedIn));
  if (edits !== before) {
    tell("The values changed meanwhile: prepare it again.");
    return;
  }
  move = readPrepared(prepared, asked, wallet.account, deployment, action);
  tell("Prepared. Nothing is sent yet.");
  showMove(String(prepared.typed_data?.message?.summary).slice(0, 300));
}

async function send(still) {
  const { provider, account: from } = wallet, sending = move;
  move = null; // it is sent once, whatever comes of it
  element("sent").replaceChildren();
  element("progress").hidden = false;
  for (const [at, one] of sending.entries()) {
    const line = made("li", "");
    element("sent").append(line);
    const told = (text) => { line.textContent = `${one.contract}, ${one.name}: ${text}`; };
    told("not sent");
    const account = await still(accountOf(provider)), chainId = await still(chainOf(provider));
    if (account?.toLowerCase() !== from.toLowerCase() || chainId !== deployment.chainId) {
      forget("The wallet acts for another account or chain than the move was prepared for. Nothing more is sent: connect again.");
      return;
    }
    told("asking the wallet");
    tell(`Transaction ${at + 1} of ${sending.length}: look at the wallet.`);
    let hash;
    try {
      hash = await ask(provider, "eth_sendTransaction", one.send);
      if (!/^0x[0-9a-fA-F]{64}$/.test(hash)) throw new Error("The wallet answers with something else than a transaction's hash");
    } catch (error) {
      told(error?.code === 4001 ? "rejected in the wallet, not sent" : "the wallet did not say that it was sent; look for it there before you try again");
      throw error;
    }
    told(`sent as ${hash}, not mined yet`);
    const receipt = await receiptOf(provider, hash);
    const isMined = receipt !== null && Number(receipt.status) === 1;
    if (receipt === null) told(`sent as ${hash}, not mined in ten minutes; the wallet shows what becomes of it`);
    else told(`${isMined ? "mined" : "reverted"} in block ${Number(receipt.blockNumber)}, as ${hash}`);
    await still();
    if (!isMined) {
      tell(receipt === null ? "The chain takes long; nothing more is sent." : "The contract refused it, so nothing was moved; nothing more is sent.");
      return;
    }
  }
  tell(sending.length === 1 ? "Done: it is mined." : `Done: all ${sending.length} transactions are mined.`);
}

// ---- what a link may fill in, and what clicks do

/** A link's text as characters that cannot disguise their order or look. */
const visible = (text) => text.slice(0, LINKED_CHARS_MAX).replace(/[^ -~]/gu, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);

function fillIn(query) {
  const fill = (name) => {
    if (!query.has(name)) return;
    const input = element(name), text = visible(query.get(name));
    element("linked").hidden = false;
    if (input.tagName === "INPUT" || [...input.options].some(({ value }) => value === text)) input.value = text;
    else showError(name, `the link asks for “${text}”, which this page does not offer`);
  };
  fill("action");
  showFields();
  for (const { name } of fieldsOf(chosen())) fill(name);
}

async function start() {
  watchWallets(showWallets);
  try {
    actions = readActions(await api("GET", "/v1/moves/actions"));
    showActions();
    fillIn(new URLSearchParams(location.search));
    deployment = readDeployment(await api("GET", "/v1/deployment"), actions);
  } catch (error) {
    tell(wordsOf(error));
    return;
  }
  element("deployment").textContent = `This server says that it is for chain ${deployment.chainId} and these contracts. Compare them with your deployment.json.`;
  element("contracts").replaceChildren(...listOf(Object.entries(deployment.contracts)));
  show();
}

element("signin").addEventListener("click", () => act(signIn));
element("forget").addEventListener("click", () => forget("Disconnected."));
element("drop").addEventListener("click", () => {
  move = null;
  tell("Dropped; nothing was sent.");
  show();
});
element("send").addEventListener("click", () => act(send));
element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (signedIn !== null) act(prepare);
});
element("form").addEventListener("input", ({ target }) => {
  edits += 1;
  if (target.id === "action") showFields();
  else typed.set(target.id, target.value);
  if (move !== null) {
    move = null; // what was prepared is no longer what the form says
    tell("The values changed: prepare it again.");
    show();
  }
});
start();
