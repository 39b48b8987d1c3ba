"""Contracts: Solidity sources, the local chain's package list, and compiled artefacts that are data here.

Room: contracts. No Python runs here; chain/rpc.py reads artefacts/<Name>.json
through importlib.resources. `node compile.mjs` writes them.
"""
