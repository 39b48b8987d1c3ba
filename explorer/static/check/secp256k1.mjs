// secp256k1: the account that made a signature, as an EVM chain recovers it. Only public values: time may vary.
import { hex, need } from "./bytes.mjs";
import { keccak256 } from "./keccak.mjs";

const P = 2n ** 256n - 2n ** 32n - 977n;
const N = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n;
const G = [
  0x79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798n,
  0x483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8n,
  1n,
];
const NOWHERE = [0n, 1n, 0n]; // the neutral element; points are Jacobian: (X / Z^2, Y / Z^3)

/** The address, in lower-case hexadecimal, whose key made this 65-byte signature r, s, v of a digest. */
export function recover(digest, signature) {
  need(signature.length === 65, "a hot key's signature has not 65 bytes");
  const [r, s, z] = [signature.subarray(0, 32), signature.subarray(32, 64), digest].map((part) => BigInt("0x" + hex(part)));
  const odd = BigInt(signature[64]) - 27n;
  need(odd === 0n || odd === 1n, "a hot key's signature does not end with 27 or 28");
  need(r > 0n && r < N && s > 0n && s <= N / 2n, "a hot key's signature is not in its one form");
  const square = mod(r ** 3n + 7n, P);
  let y = power(square, (P + 1n) / 4n, P);
  need(mod(y * y, P) === square, "a hot key's signature is of no key");
  if ((y & 1n) !== odd) y = P - y;
  const inverse = power(r, N - 2n, N);
  const key = plus(times(mod(-z * inverse, N), G), times(mod(s * inverse, N), [r, y, 1n]));
  need(key[2] !== 0n, "a hot key's signature is of no key");
  const z1 = power(key[2], P - 2n, P);
  const plain = [mod(key[0] * z1 ** 2n, P), mod(key[1] * z1 ** 3n, P)];
  const bytes = plain.map((one) => one.toString(16).padStart(64, "0")).join("").match(/../g);
  return hex(keccak256(Uint8Array.from(bytes, (pair) => parseInt(pair, 16))).subarray(12));
}

function mod(value, modulus) {
  const rest = value % modulus;
  return rest < 0n ? rest + modulus : rest;
}

function power(base, exponent, modulus) {
  let result = 1n;
  for (base = mod(base, modulus); exponent > 0n; exponent >>= 1n) {
    if (exponent & 1n) result = (result * base) % modulus;
    base = (base * base) % modulus;
  }
  return result;
}

function times(factor, point) {
  let sum = NOWHERE;
  for (const bit of factor.toString(2)) {
    sum = twice(sum);
    if (bit === "1") sum = plus(sum, point);
  }
  return sum;
}

function twice([x, y, z]) {
  if (z === 0n || y === 0n) return NOWHERE;
  const yy = mod(y * y, P), s = mod(4n * x * yy, P), m = mod(3n * x * x, P);
  const x3 = mod(m * m - 2n * s, P);
  return [x3, mod(m * (s - x3) - 8n * yy * yy, P), mod(2n * y * z, P)];
}

function plus(a, b) {
  if (a[2] === 0n) return b;
  if (b[2] === 0n) return a;
  const za = mod(a[2] * a[2], P), zb = mod(b[2] * b[2], P);
  const ua = mod(a[0] * zb, P), ub = mod(b[0] * za, P);
  const sa = mod(a[1] * zb * b[2], P), sb = mod(b[1] * za * a[2], P);
  if (ua === ub) return sa === sb ? twice(a) : NOWHERE;
  const h = mod(ub - ua, P), hh = mod(h * h, P), hhh = mod(h * hh, P), r = mod(sb - sa, P), v = mod(ua * hh, P);
  const x = mod(r * r - hhh - 2n * v, P);
  return [x, mod(r * (v - x) - sa * hhh, P), mod(a[2] * b[2] * h, P)];
}
