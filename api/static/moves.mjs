// Moves: what a person asks for, as parameters of the API, and whether what the API prepared is that and nothing else.
// Pure: values in, values out; no page, no wallet, no network. Amounts and fees are integers, never floats.

/** Why a move is not asked for or not sent; `field` names the input that is wrong, if one is. */
export class Refused extends Error {
  constructor(words, field = null) {
    super(words);
    this.field = field;
  }
}

function need(holds, words, field = null) {
  if (!holds) throw new Refused(words, field);
}

// ---- amounts

const UNIT = "aUSD", DECIMALS = 6, COIN_DECIMALS = 18; // tests hold them to chain/text/units.py

/** Token units, as text, of a decimal amount of tokens: "12.5" is "12500000". */
function unitsOf(text, field) {
  const found = /^([0-9]{1,13})(?:\.([0-9]{1,6}))?$/.exec(text);
  need(found, "expected tokens such as 250 or 12.5, digits and one point, at most six decimals", field);
  const units = BigInt(found[1] + (found[2] ?? "").padEnd(DECIMALS, "0"));
  need(units > 0n, "expected more than nothing", field);
  return String(units);
}

function decimal(units, places) {
  const text = String(units).padStart(places + 1, "0");
  return `${text.slice(0, -places).replace(/\B(?=(\d{3})+$)/g, ",")}.${text.slice(-places)}`;
}

const moneyText = (units) => `${decimal(units, DECIMALS)} ${UNIT}`;

/** An amount of the chain's own coin, which pays fees. */
const coinText = (wei) => decimal(wei, COIN_DECIMALS).replace(/\.?0+$/, "");

// ---- what is asked

const READ = { // each input's text, as the API takes it
  run: (text, field) => {
    need(/^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/.test(text), "expected a run's name as this server has it", field);
    return text;
  },
  run_id: (text, field) => {
    need(/^(0x)?[0-9a-fA-F]{64}$/.test(text), "expected a run's id, 64 hexadecimal digits", field);
    return `0x${text.slice(-64).toLowerCase()}`;
  },
  role: (text, field) => {
    need(text in ROLES, "expected operator or verifier", field);
    return text;
  },
  epoch: wholeNumber,
  index: wholeNumber,
  ticket: wholeNumber,
  amount: unitsOf,
};
const ROLES = { operator: 0n, verifier: 1n };

function wholeNumber(text, field) {
  need(/^(0|[1-9][0-9]{0,14})$/.test(text), "expected a number, such as 0 or 12", field); // exact as a number of JSON
  return Number(text);
}

// Each action: its inputs; the function that carries it out, by its selector; whether tokens leave the wallet; what
// the function's arguments have to be.
const runId = { fields: ["run_id"], wants: ({ run_id: run }) => ({ run }) };
const stake = { fields: ["role", "amount"], wants: ({ role, amount }) => ({ role, amount: moneyText(amount) }) };
export const ACTIONS = {
  claim: { fields: ["run", "epoch", "index"], does: "2ffb708d", wants: ({ epoch, index }) => ({ epoch: String(epoch), row: String(index) }) },
  "stake.add": { ...stake, does: "dd752e55", isPaying: true },
  "stake.remove": { ...stake, does: "a0f16bf9" },
  "stake.withdraw": { fields: ["ticket"], does: "2e1a7d4d", wants: ({ ticket }) => ({ ticket: String(ticket) }) },
  "order.topup": {
    fields: ["run_id", "amount"], does: "9f6f687a", isPaying: true,
    wants: ({ run_id: run, amount }) => ({ run, amount: moneyText(amount) }),
  },
  "order.cancel": { ...runId, does: "6bf5fe6f" },
  "order.refund": { ...runId, does: "7249fbb6" },
};
const APPROVE = "095ea7b3";

/** The body of the API's request for an action, from what was typed; refuses what the API would not read. */
export function askedOf(action, typed) {
  need(Object.hasOwn(ACTIONS, action), "this page does not offer that action", "action");
  const parameters = Object.fromEntries(
    ACTIONS[action].fields.map((field) => [field, READ[field](String(typed[field] ?? "").trim(), field)]));
  return { action, parameters };
}

// ---- what was prepared

// Each word of the call data, with its name and how it is read; a word without a name has that one value.
const hash = (word) => `0x${word}`;
const number = (word) => String(BigInt(`0x${word}`));
const money = (word) => moneyText(BigInt(`0x${word}`));
const address = (word) => {
  need(/^0{24}/.test(word), "the call data has an address that is none");
  return `0x${word.slice(24)}`;
};
const role = (word) => {
  const found = Object.keys(ROLES).find((name) => ROLES[name] === BigInt(`0x${word}`));
  need(found, "the call data names a role that is none");
  return found;
};
const only = (value) => (word) => need(BigInt(`0x${word}`) === BigInt(value), "the call data is not laid out as the function's");

/** The functions that a move may call, by their selectors. */
export const FUNCTIONS = {
  [APPROVE]: { contract: "AssayToken", name: "approve(address,uint256)", words: [["spender", address], ["amount", money]] },
  dd752e55: { contract: "StakeVault", name: "stake(uint8,uint256)", words: [["role", role], ["amount", money]] },
  a0f16bf9: { contract: "StakeVault", name: "requestUnstake(uint8,uint256)", words: [["role", role], ["amount", money]] },
  "2e1a7d4d": { contract: "StakeVault", name: "withdraw(uint256)", words: [["ticket", number]] },
  "9f6f687a": { contract: "RunEscrow", name: "topUp(bytes32,uint128)", words: [["run", hash], ["amount", money]] },
  "6bf5fe6f": { contract: "RunEscrow", name: "requestClose(bytes32)", words: [["run", hash]] },
  "7249fbb6": { contract: "RunEscrow", name: "refund(bytes32)", words: [["run", hash]] },
  "2ffb708d": {
    contract: "EpochSettlement", name: "claim(bytes32,uint64,(uint256,address,uint128,bytes32[])[])",
    words: [["run", hash], ["epoch", number], [null, only(96)], [null, only(1)], [null, only(32)],
      ["row", number], ["account", address], ["amount", money], [null, only(128)]],
    hasProof: true,
  },
};

/** The function that call data is for, and its arguments as text, by their names. */
function readCall(data) {
  need(/^0x[0-9a-f]{8}([0-9a-f]{64})*$/.test(data), "the call data is not made of words");
  const selector = data.slice(2, 10), words = data.slice(10).match(/.{64}/g) ?? [];
  need(Object.hasOwn(FUNCTIONS, selector), `the function ${selector} belongs to no move of this page`);
  const called = FUNCTIONS[selector], read = called.words.length;
  if (called.hasProof) need(number(words[read] ?? "0") === String(words.length - read - 1), "the call data is not a proof's");
  else need(words.length === read, "the call data is longer or shorter than the function's");
  const named = called.words.map(([name, kind], at) => [name, kind(words[at])]).filter(([name]) => name !== null);
  return { selector, ...called, arguments: Object.fromEntries(named) };
}

/** The chain and the contracts that the API says it is for; refuses an answer that names no address for one of them. */
export function readDeployment({ chain_id: chainId, contracts }) {
  need(Number.isSafeInteger(chainId) && chainId > 0, "the API names no chain");
  for (const { contract } of Object.values(FUNCTIONS)) {
    need(/^0x[0-9a-fA-F]{40}$/.test(contracts?.[contract]), `the API names no address for ${contract}`);
  }
  return { chainId, contracts };
}

const NUMBERS = ["type", "chainId", "nonce", "value", "gas", "maxFeePerGas", "maxPriorityFeePerGas"];
const isSame = (one, other) => String(one).toLowerCase() === String(other).toLowerCase();
const hex = (value) => `0x${BigInt(value).toString(16)}`;

function readTransaction(given, account, deployment) {
  for (const name of NUMBERS) need(Number.isSafeInteger(given[name]) && given[name] >= 0, `its ${name} is no number`);
  need(given.type === 2, `its type is ${given.type}, expected 2 (EIP-1559)`);
  need(given.chainId === deployment.chainId, `it is for chain ${given.chainId}, expected ${deployment.chainId}`);
  need(given.value === 0, `it would pay ${coinText(given.value)} of the chain's coin, expected nothing`);
  const call = readCall(given.data), to = deployment.contracts[call.contract];
  need(isSame(given.to, to), `it is for ${given.to}, expected ${call.contract} at ${to}`);
  return {
    ...call,
    to,
    data: given.data,
    gas: String(given.gas),
    fee: coinText(BigInt(given.gas) * BigInt(given.maxFeePerGas)),
    send: { // for eth_sendTransaction; the wallet chooses the nonce, since it may have sent something meanwhile
      from: account, to, value: "0x0", data: given.data, chainId: hex(given.chainId), gas: hex(given.gas),
      maxFeePerGas: hex(given.maxFeePerGas), maxPriorityFeePerGas: hex(given.maxPriorityFeePerGas),
    },
  };
}

/**
 * The transactions of a prepared move, in order, read from their bytes: exactly what was asked, by this account, to
 * contracts of this deployment, without coin; an approval is for the amount that the next call takes.
 */
export function readPrepared(prepared, asked, account, deployment) {
  const { does, isPaying, wants } = ACTIONS[asked.action], given = prepared.transactions;
  need(prepared.action === asked.action && isSame(prepared.account, account), "the API prepared another move than was asked for");
  need(Array.isArray(given) && given.length >= 1 && given.length <= (isPaying ? 2 : 1), "the API prepared more or fewer transactions than the move has");
  const found = given.map((one, at) => {
    try {
      return readTransaction(one, account, deployment);
    } catch (error) {
      throw new Refused(`transaction ${at + 1} that the API prepared is refused: ${error.message}`);
    }
  });
  const last = found.at(-1);
  need(last.selector === does, `the API prepared ${last.name} for ${asked.action}`);
  for (const [name, value] of Object.entries(wants(asked.parameters))) {
    need(last.arguments[name] === value, `the API prepared ${name} ${last.arguments[name]}, asked was ${value}`);
  }
  if (found.length === 2) {
    const { selector, arguments: { spender, amount } } = found[0];
    need(selector === APPROVE && isSame(spender, last.to) && amount === last.arguments.amount,
      "the first transaction is no approval of the amount that the second one takes");
  }
  return found;
}
