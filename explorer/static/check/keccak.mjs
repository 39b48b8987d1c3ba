// Keccak: Keccak-256 as Ethereum has it, with lanes as BigInt; readable, and fast enough for some hundred hashes.
const LANE = (1n << 64n) - 1n;
const RATE = 136; // bytes taken up between two permutations

/** The 32 bytes of keccak256. */
export function keccak256(bytes) {
  const padded = new Uint8Array((Math.floor(bytes.length / RATE) + 1) * RATE);
  padded.set(bytes);
  padded[bytes.length] = 0x01; // SHA-3 would begin its padding with 0x06
  padded[padded.length - 1] |= 0x80;
  const state = Array(25).fill(0n); // lane (x, y) at x + 5 y
  for (let block = 0; block < padded.length; block += RATE) {
    for (let lane = 0; lane < RATE / 8; lane += 1) state[lane] ^= number(padded, block + 8 * lane);
    permute(state);
  }
  const out = new Uint8Array(32);
  for (let at = 0; at < 32; at += 1) out[at] = Number((state[at >> 3] >> BigInt(8 * (at & 7))) & 255n);
  return out;
}

function number(bytes, at) {
  let value = 0n;
  for (let index = 7; index >= 0; index -= 1) value = (value << 8n) | BigInt(bytes[at + index]);
  return value;
}

function turned(lane, by) {
  return ((lane << BigInt(by)) | (lane >> BigInt(64 - by))) & LANE;
}

function permute(state) {
  for (const constant of CONSTANTS) {
    const column = [0, 1, 2, 3, 4].map((x) => state[x] ^ state[x + 5] ^ state[x + 10] ^ state[x + 15] ^ state[x + 20]);
    for (let at = 0; at < 25; at += 1) state[at] ^= column[(at + 4) % 5] ^ turned(column[(at + 1) % 5], 1); // theta
    let [x, y, lane] = [1, 0, state[1]];
    for (let step = 0; step < 24; step += 1) { // rho and pi
      [x, y] = [y, (2 * x + 3 * y) % 5];
      const moved = state[x + 5 * y];
      state[x + 5 * y] = turned(lane, (((step + 1) * (step + 2)) / 2) % 64);
      lane = moved;
    }
    for (let row = 0; row < 25; row += 5) { // chi
      const old = state.slice(row, row + 5);
      for (let at = 0; at < 5; at += 1) state[row + at] = old[at] ^ (~old[(at + 1) % 5] & LANE & old[(at + 2) % 5]);
    }
    state[0] ^= constant; // iota
  }
}

const CONSTANTS = (() => {
  let register = 1; // a linear feedback shift register gives the bits of the 24 constants
  const bit = () => {
    const out = register & 1;
    register = register & 0x80 ? ((register << 1) ^ 0x171) & 0xff : register << 1;
    return out;
  };
  return Array.from({ length: 24 }, () => {
    let constant = 0n;
    for (let power = 0; power < 7; power += 1) if (bit()) constant |= 1n << BigInt(2 ** power - 1);
    return constant;
  });
})();
