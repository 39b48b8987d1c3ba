#!/usr/bin/env node
// solc-js.mjs: the npm compiler, as forge expects a native one; so forge needs no download.
//
//   node solc-js.mjs --version              what forge asks first
//   node solc-js.mjs --standard-json < in   the compiler's JSON in, its JSON out

import { readFileSync } from "node:fs";
import solc from "solc";

if (process.argv.includes("--version")) {
  // forge reads the last line, and does not know the platform "Emscripten".
  console.log(`solc, the solidity compiler commandline interface\nVersion: ${solc.version().replace("Emscripten.clang", "Linux.g++")}`);
} else if (process.argv.includes("--standard-json")) {
  process.stdout.write(solc.compile(readFileSync(0, "utf8")));
} else {
  console.error(`solc-js.mjs: --version or --standard-json, not ${process.argv.slice(2).join(" ")}`);
  process.exit(2);
}
