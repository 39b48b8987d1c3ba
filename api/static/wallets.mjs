// Wallets: finds this browser's wallets (EIP-6963, else window.ethereum) and asks one of them (EIP-1193).
const WALLETS_MAX = 20, TEXT_MAX = 200;
const POLL_MS = 1000, MINED_WITHIN_MS = 10 * 60 * 1000;

/** Have `tell` called with the wallets known so far, now and whenever one announces itself: {name, id, provider}. */
export function watchWallets(tell) {
  const announced = new Map();
  const told = () => {
    const found = [...announced.values()];
    if (found.length === 0 && typeof globalThis.ethereum?.request === "function") {
      found.push({ name: "This browser's wallet", id: "window.ethereum", provider: globalThis.ethereum });
    }
    tell(found);
  };
  addEventListener("eip6963:announceProvider", ({ detail }) => {
    const { info, provider } = detail ?? {};
    if (typeof provider?.request !== "function" || typeof info?.uuid !== "string" || announced.size >= WALLETS_MAX) return;
    announced.set(info.uuid, { name: short(info.name), id: short(info.rdns), provider });
    told();
  });
  addEventListener("ethereum#initialized", told, { once: true });
  told();
  dispatchEvent(new Event("eip6963:requestProvider"));
}

const short = (text) => String(text).slice(0, TEXT_MAX);

export const ask = (provider, method, ...params) => provider.request({ method, params });

/** The account that a wallet acts for, asked for if it has not been chosen yet; null if there is none. */
export async function accountOf(provider, method = "eth_accounts") {
  const [first] = (await ask(provider, method)) ?? [];
  return /^0x[0-9a-fA-F]{40}$/.test(first) ? first : null;
}

export const chainOf = async (provider) => Number(await ask(provider, "eth_chainId"));

/** Ask the wallet for another chain; its refusal is not an error here, the caller looks at the chain again. */
export async function chooseChain(provider, chainId) {
  try {
    await ask(provider, "wallet_switchEthereumChain", { chainId: `0x${chainId.toString(16)}` });
  } catch { /* it does not know the chain, or the person does not want it */ }
}

/** The receipt of a transaction, through the wallet's own node; null if there is none in ten minutes. */
export async function receiptOf(provider, hash) {
  const end = performance.now() + MINED_WITHIN_MS;
  while (performance.now() < end) {
    const found = await ask(provider, "eth_getTransactionReceipt", hash).catch(() => null); // its node may come back
    if (found) return found;
    await new Promise((go) => setTimeout(go, POLL_MS));
  }
  return null;
}

/** A wallet's or this page's error in a sentence. */
export function wordsOf(error) {
  switch (error?.code) {
    case 4001: return "You rejected it in the wallet.";
    case 4100: return "The wallet does not allow this page to do that: connect it again.";
    case 4900: case 4901: return "The wallet is not connected to the chain.";
    case -32002: return "The wallet waits for an answer to an earlier question: open it.";
    default: return short(error?.message ?? error).replace(/\.?$/, ".");
  }
}
