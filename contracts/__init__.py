"""Contracts: Solidity sources, the npm package list of the local chain, and compiled artefacts.

Room: contracts. No Python runs here; chain/rpc.py reads artefacts/<Name>.json
through importlib.resources. `node compile.mjs` writes them.
"""
