// A wallet as an extension puts it into a page (EIP-1193, announced by EIP-6963): the test answers what it is asked.
(() => {
  const waiting = new Map(), listeners = new Map();
  const provider = {
    request: ({ method, params }) => new Promise((resolve, reject) => {
      const id = waiting.size;
      waiting.set(id, { resolve, reject });
      askTest(JSON.stringify({ id, method, params: params ?? [] }));
    }),
    on: (name, listener) => listeners.set(name, [...(listeners.get(name) ?? []), listener]),
    removeListener: (name, listener) => listeners.set(name, (listeners.get(name) ?? []).filter((one) => one !== listener)),
  };
  globalThis.walletAnswers = (id, result, error) => {
    const { resolve, reject } = waiting.get(id);
    if (error === null) resolve(result);
    else reject(Object.assign(new Error(error.message), { code: error.code }));
  };
  globalThis.walletTells = (name, value) => (listeners.get(name) ?? []).forEach((listener) => listener(value));
  if (IS_ANNOUNCED) {
    const detail = Object.freeze({ info: { uuid: "350670db", name: "Test <b>wallet</b>", icon: "data:,", rdns: "org.example.wallet" }, provider });
    const announce = () => dispatchEvent(new CustomEvent("eip6963:announceProvider", { detail }));
    addEventListener("eip6963:requestProvider", announce);
    announce();
  } else globalThis.ethereum = provider;
})();
