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

/** The parameters of an action: each one's name, its JSON Schema, and whether it may be left out. */
export const fieldsOf = ({ parameters: { properties, required = [] } }) => Object.entries(properties).map(
  ([name, schema]) => ({ name, schema: plain(schema), isOptional: !required.includes(name) }));

const plain = (schema) => schema.anyOf?.find(({ type }) => type !== "null") ?? schema;

/** What a field expects, in words. */
export function hintOf(schema) {
  const digits = /^\^0x\[0-9a-fA-F\]\{([0-9]+)\}\$$/.exec(schema.pattern)?.[1];
  if (digits) return digits === "40" ? "an address, 0x and 40 hexadecimal digits" : `0x and ${digits} hexadecimal digits`;
  if (schema.enum || schema.type === "boolean") return choicesOf(schema).join(" or ");
  if (schema.format === "amount") return "tokens such as 250 or 12.5, digits and one point, at most six decimals";
  if (schema.format === "unix-time") return "a time, in seconds since 1970 (UTC)";
  if (schema.type === "integer") return "a number, such as 0 or 12";
  if (schema.type === "array") return `a list with commas or spaces between, each ${hintOf(schema.items)}`;
  return "a name of letters, digits, - and _";
}

/** The only texts that a field may have; none if it is typed. */
export const choicesOf = (schema) => schema.enum ?? (schema.type === "boolean" ? ["true", "false"] : []);

/** A typed text as the API takes it. */
function valueOf(schema, text, field) {
  const holds = (found) => need(found, `expected ${hintOf(schema)}`, field);
  if (schema.format === "amount") return unitsOf(text, field);
  if (schema.type === "array") return text.split(/[\s,]+/).filter(Boolean).map((one) => valueOf(schema.items, one, field));
  if (schema.type === "integer") {
    holds(/^(0|[1-9][0-9]{0,14})$/.test(text)); // exact as a number of JSON
    return Number(text);
  }
  if (choicesOf(schema).length > 0) holds(choicesOf(schema).includes(text));
  if (schema.type === "boolean") return text === "true";
  const whole = schema.pattern?.startsWith("^0x") && /^[0-9a-fA-F]+$/.test(text) ? `0x${text}` : text;
  if (schema.pattern) holds(new RegExp(schema.pattern, "v").test(whole));
  return whole;
}

/** The body of the API's request for an action, from what was typed; refuses what the API would not read. */
export function askedOf(action, typed) {
  const parameters = {};
  for (const { name, schema, isOptional } of fieldsOf(action)) {
    const text = String(typed[name] ?? "").trim();
    if (text !== "" || !isOptional) parameters[name] = valueOf(schema, text, name);
  }
  return { action: action.name, parameters };
}

// ---- call data, as the contract ABI lays it out

const SCALAR = /^(bytes32|address|bool|uint([0-9]+))$/;
const isArray = ({ type }) => type.endsWith("[]");
const isDynamic = (input) => isArray(input) || input.type === "bytes" || input.type === "tuple";
const itemOf = (input) => ({ ...input, type: input.type.slice(0, -2) });
const wordOf = (value) => BigInt(value).toString(16).padStart(64, "0");
const countAt = (words, at) => Number(BigInt(`0x${words[at] ?? "f".repeat(64)}`));
const NOT_SO = "the call data is not laid out as the function's";

/** A value of this type at a place: a scalar is a word, bytes are hexadecimal digits, all else is an array. */
function readValue(input, words, at) {
  if (input.type === "tuple") return readTuple(input.components, words, at);
  if (!isDynamic(input)) return readScalar(input, words[at]);
  const count = countAt(words, at);
  if (isArray(input)) {
    need(count <= words.length, NOT_SO);
    return readTuple(Array(count).fill(itemOf(input)), words, at + 1);
  }
  need(count <= words.length * 32, NOT_SO);
  return words.slice(at + 1).join("").slice(0, 2 * count);
}

const readTuple = (inputs, words, base) => inputs.map((input, at) =>
  readValue(input, words, base + (isDynamic(input) ? countAt(words, base + at) / 32 : at)));

function readScalar({ type }, word) {
  const bits = type === "address" ? 160 : type === "bool" ? 1 : type === "bytes32" ? 256 : Number(SCALAR.exec(type)?.[2]);
  need(bits > 0 && word !== undefined && BigInt(`0x${word}`) >> BigInt(bits) === 0n, NOT_SO);
  return word;
}

function wordsOf(input, value) {
  if (input.type === "tuple") return wordsOfTuple(input.components, value);
  if (isArray(input)) return [wordOf(value.length), ...wordsOfTuple(value.map(() => itemOf(input)), value)];
  if (input.type !== "bytes") return [value];
  return [wordOf(value.length / 2), ...(value.match(/.{1,64}/g) ?? []).map((part) => part.padEnd(64, "0"))];
}

function wordsOfTuple(inputs, values) {
  const heads = [], tails = [];
  for (const [at, input] of inputs.entries()) {
    const words = wordsOf(input, values[at]);
    if (isDynamic(input)) {
      heads.push(wordOf(32 * (inputs.length + tails.length)));
      tails.push(...words);
    } else heads.push(...words);
  }
  return [...heads, ...tails];
}

/** The function's and the parameters' names are the same but for their spelling: `runId` is `run_id`. */
const spelt = (name) => name.replace(/[A-Z]/g, (one) => `_${one.toLowerCase()}`);

/** Each scalar in a value, with the name of what holds it, its place, and its text for a person. */
function leavesOf(input, value, place, schemas) {
  const name = spelt(input.name);
  if (isArray(input)) return value.flatMap((one, at) => leavesOf(itemOf(input), one, `${place} ${at + 1}`, schemas));
  if (input.type === "tuple") return input.components.flatMap((part, at) => leavesOf(part, value[at], `${place} ${spelt(part.name)}`, schemas));
  return [{ name, place, text: textOf(input.type, value, schemas[name] ?? {}, name) }];
}

function textOf(type, value, schema, name) {
  if (type === "address") return `0x${value.slice(24)}`;
  if (!type.startsWith("uint") && type !== "bool") return `0x${value}`;
  const number = BigInt(`0x${value}`);
  if (type === "bool") return String(number === 1n);
  if (schema.enum) return schema.enum[Number(number)] ?? need(false, `the call data names a ${name} that is none`);
  return schema.format === "amount" || name === "amount" ? moneyText(number) : String(number);
}

/** What was asked, as `textOf` says it. */
const askedText = (schema, value) => schema.format === "amount" ? moneyText(value) : String(value).toLowerCase();

const signatureOf = (inputs) => inputs.map(({ type, components }) => type.replace("tuple", () => `(${signatureOf(components)})`)).join(",");

const APPROVE = {
  contract: "AssayToken", function: "approve", selector: "095ea7b3",
  inputs: [{ name: "spender", type: "address" }, { name: "amount", type: "uint256" }], parameters: { properties: {} },
};

/** The function that call data is for, and its scalars by their places: whatever the data hold is one of them. */
function readCall(data, functions) {
  need(/^0x[0-9a-f]{8}([0-9a-f]{64})*$/.test(data), "the call data is not made of words");
  const selector = data.slice(2, 10), words = data.slice(10).match(/.{64}/g) ?? [];
  const called = functions.find((one) => one.selector === selector);
  need(called, `the function ${selector} belongs to no move of this page`);
  const values = readTuple(called.inputs, words, 0), { inputs } = called;
  need(wordsOfTuple(inputs, values).join() === words.join(), NOT_SO); // no second layout, and nothing beside it
  const schemas = Object.fromEntries(fieldsOf(called).map(({ name, schema }) => [name, schema]));
  const leaves = inputs.flatMap((input, at) => leavesOf(input, values[at], spelt(input.name), schemas));
  return {
    selector, schemas, leaves, contract: called.contract, name: `${called.function}(${signatureOf(inputs)})`,
    arguments: Object.fromEntries(leaves.map(({ place, text }) => [place, text])),
  };
}

// ---- what was prepared

/** The actions that the API offers, by their names. */
export const readActions = ({ actions }) => new Map(actions.map((one) => [one.name, one]));

/** The chain and the contracts that the API says it is for; refuses an answer that names no address for one of them. */
export function readDeployment({ chain_id: chainId, contracts }, actions) {
  need(Number.isSafeInteger(chainId) && chainId > 0, "the API names no chain");
  for (const { contract } of [APPROVE, ...actions.values()]) {
    need(/^0x[0-9a-fA-F]{40}$/.test(contracts?.[contract]), `the API names no address for ${contract}`);
  }
  return { chainId, contracts };
}

const NUMBERS = ["type", "chainId", "nonce", "value", "gas", "maxFeePerGas", "maxPriorityFeePerGas"];
const isSame = (one, other) => String(one).toLowerCase() === String(other).toLowerCase();
const hex = (value) => `0x${BigInt(value).toString(16)}`;

function readTransaction(given, account, deployment, functions) {
  for (const name of NUMBERS) need(Number.isSafeInteger(given[name]) && given[name] >= 0, `its ${name} is no number`);
  need(given.type === 2, `its type is ${given.type}, expected 2 (EIP-1559)`);
  need(given.chainId === deployment.chainId, `it is for chain ${given.chainId}, expected ${deployment.chainId}`);
  need(given.value === 0, `it would pay ${coinText(given.value)} of the chain's coin, expected nothing`);
  const call = readCall(given.data, functions), to = deployment.contracts[call.contract];
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
export function readPrepared(prepared, asked, account, deployment, action) {
  const { selector, takes } = action, given = prepared.transactions;
  need(prepared.action === asked.action && isSame(prepared.account, account), "the API prepared another move than was asked for");
  need(Array.isArray(given) && given.length >= 1 && given.length <= (takes ? 2 : 1), "the API prepared more or fewer transactions than the move has");
  const found = given.map((one, at) => {
    try {
      return readTransaction(one, account, deployment, [APPROVE, action]);
    } catch (error) {
      throw new Refused(`transaction ${at + 1} that the API prepared is refused: ${error.message}`);
    }
  });
  const last = found.at(-1);
  need(last.selector === selector, `the API prepared ${last.name} for ${asked.action}`);
  for (const [name, value] of Object.entries(asked.parameters)) {
    const texts = last.leaves.filter((one) => one.name === name).map(({ text }) => text).sort();
    const wanted = (Array.isArray(value) ? value : texts.map(() => value)).map((one) => askedText(last.schemas[name], one)).sort();
    const isArgument = action.inputs.some((input) => spelt(input.name) === name && input.type !== "tuple[]") || texts.length > 0;
    need(!isArgument || texts.join() === wanted.join(), `the API prepared ${name} ${texts.join(", ")}, asked was ${wanted.join(", ")}`);
  }
  if (found.length === 2) {
    const { selector: first, arguments: { spender, amount } } = found[0], taken = last.arguments[takes] ?? amount;
    need(first === APPROVE.selector && isSame(spender, last.to) && amount === taken,
      "the first transaction is no approval of the amount that the second one takes");
  }
  return found;
}
