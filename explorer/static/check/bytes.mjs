// Bytes: hexadecimal, comparison, SHA-256 and Ed25519 by Web Crypto, and a reader of the protocol's CBOR.
import { LAYOUT } from "./messages.mjs";

const DEPTH_MAX = 12;

/** What was found wrong, as one sentence about the run. */
export class Refuted extends Error {}

export function need(holds, sentence) {
  if (!holds) throw new Refuted(sentence);
}

export function hex(bytes) {
  return Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join("");
}

export function unhex(text) {
  need(typeof text === "string" && /^([0-9a-f]{2})*$/.test(text), "a value is not hexadecimal");
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

export function same(a, b) {
  return a.length === b.length && a.every((one, at) => one === b[at]);
}

export function join(...parts) {
  return Uint8Array.from(parts.flatMap((part) => [...part]));
}

export function ascii(text) {
  return new TextEncoder().encode(text);
}

export async function sha256(bytes) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

export async function isSigned(publicKey, signature, message) {
  try {
    const key = await crypto.subtle.importKey("raw", publicKey, "Ed25519", false, ["verify"]);
    return await crypto.subtle.verify("Ed25519", key, signature, message);
  } catch (error) {
    if (error.name === "NotSupportedError") throw error;
    return false; // no point of the curve, or no signature
  }
}

/** The message of this type that the bytes encode: its fields by name, and `bytes`, which its digest covers. */
export function read(kind, bytes) {
  const [value, end] = item(bytes, 0, 0);
  need(end === bytes.length, `${kind}: bytes after its end`);
  return named(kind, value);
}

/** A part of a message that was read, as a message of this type. */
export function named(kind, value) {
  const [tag, ...names] = LAYOUT[kind];
  const most = names.length, least = names.filter((name) => !name.endsWith("?")).length;
  const isLong = Array.isArray(value) && value.length > least && value.length <= most + 1;
  const isIts = isLong && value[0] instanceof Uint8Array;
  need(isIts && same(value[0], ascii(tag)), `a ${kind} was expected, with the tag ${tag}`);
  const fields = Object.fromEntries(names.map((name, at) => [name.replace("?", ""), value[at + 1]]));
  return { ...fields, tag, bytes: value.bytes };
}

// Each array keeps the bytes that it was read from: a digest is of these, never of a second encoding.
function item(bytes, at, depth) {
  need(at < bytes.length && depth < DEPTH_MAX, "a message ends too early, or is nested too deep");
  const start = at, major = bytes[at] >> 5, small = bytes[at] & 31;
  at += 1;
  if (major === 7) {
    need(small === 20 || small === 21, "a message holds what the protocol does not use");
    return [small === 21, at];
  }
  need(small < 28 && [0, 2, 3, 4].includes(major), "a message holds what the protocol does not use");
  let size = BigInt(small);
  if (small >= 24) {
    const width = 1 << (small - 24);
    need(at + width <= bytes.length, "a message ends too early");
    size = BigInt("0x" + hex(bytes.subarray(at, at + width)));
    at += width;
  }
  if (major === 0) return [size <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(size) : size, at];
  need(size <= BigInt(bytes.length - at), "a message ends too early");
  const count = Number(size);
  if (major < 4) {
    const part = bytes.slice(at, at + count);
    return [major === 2 ? part : new TextDecoder().decode(part), at + count];
  }
  const items = [];
  for (let index = 0; index < count; index += 1) {
    const [one, next] = item(bytes, at, depth + 1);
    items.push(one);
    at = next;
  }
  items.bytes = bytes.subarray(start, at);
  return [items, at];
}
