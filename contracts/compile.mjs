// Compile: every contract in src/ becomes artefacts/<Name>.json, which Python reads as data.
//
//   node compile.mjs            write the artefacts
//   node compile.mjs OUT_DIR    write them elsewhere; a test compares the two
//
// The output is a function of the sources, the compiler and the settings below; nothing else enters it.

import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import solc from "solc";

const HERE = dirname(fileURLToPath(import.meta.url));
const OUT = process.argv[2] ?? join(HERE, "artefacts");
const CONTRACTS = [
  "AssayToken", "VerifierSet", "StakeVault", "SlashCourt", "RunEscrow", "EpochSettlement", "ModelRegistry",
  "Directory", "AppealCourt",
];
const SETTINGS = {
  evmVersion: "cancun",
  optimizer: { enabled: true, runs: 10000 },
  viaIR: false,
  metadata: { bytecodeHash: "none", appendCBOR: false },
  outputSelection: {
    "*": {
      "*": [
        "abi", "evm.bytecode.object", "evm.deployedBytecode.object", "evm.deployedBytecode.immutableReferences",
      ],
      "": ["ast"],
    },
  },
};

const names = readdirSync(join(HERE, "src")).filter((name) => name.endsWith(".sol")).sort();
const sources = Object.fromEntries(
  names.map((name) => [`src/${name}`, { content: readFileSync(join(HERE, "src", name), "utf8") }]),
);
const sourceHash = createHash("sha256").update(JSON.stringify({ sources, SETTINGS })).digest("hex");

const findImport = (path) => {
  try {
    return { contents: readFileSync(join(HERE, "node_modules", path), "utf8") };
  } catch {
    return { error: `${path}: run 'npm install' in contracts/ first` };
  }
};
const output = JSON.parse(
  solc.compile(JSON.stringify({ language: "Solidity", sources, settings: SETTINGS }), { import: findImport }),
);
// 2394 warns of transient storage as such; src/Guarded.sol clears its own, the use that the warning calls safe.
const complaints = (output.errors ?? []).filter((error) => error.errorCode !== "2394").map((error) => error.formattedMessage);
if (complaints.length > 0) {
  console.error(complaints.join("\n")); // warnings are errors here
  process.exit(1);
}

// The compiler names an immutable by its number in the syntax trees.
const nameOf = {};
for (const { ast } of Object.values(output.sources)) {
  for (const contract of ast.nodes.filter((node) => node.nodeType === "ContractDefinition")) {
    for (const node of contract.nodes) nameOf[node.id] = node.name;
  }
}
const immutablesOf = ({ immutableReferences }) => {
  const found = Object.entries(immutableReferences).map(([id, places]) => [
    nameOf[id], places.map(({ start }) => start).sort((a, b) => a - b),
  ]);
  const names = new Set(found.map(([name]) => name));
  if (names.size !== found.length || names.has(undefined)) throw new Error("immutables of one name, or of none");
  return Object.fromEntries(found.sort(([a], [b]) => (a < b ? -1 : 1)));
};

mkdirSync(OUT, { recursive: true });
for (const name of CONTRACTS) {
  const { abi, evm } = output.contracts[`src/${name}.sol`][name];
  const artefact = {
    contractName: name,
    solc: solc.version(),
    sourceHash,
    abi,
    bytecode: `0x${evm.bytecode.object}`,
    immutables: immutablesOf(evm.deployedBytecode), // where the 32 bytes of each stand in the deployed code
    deployedBytecode: `0x${evm.deployedBytecode.object}`,
  };
  writeFileSync(join(OUT, `${name}.json`), `${JSON.stringify(artefact, null, 1)}\n`);
  console.log(`${name}: ${evm.deployedBytecode.object.length / 2} bytes`);
}
