"""What a process that uses the chain imports, and what waits until somebody asks for it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.child_process import PYTHONPATH

# In a process of its own, since others may have imported the schemes already.
KEYSTORE = """
import sys
import assay.chain.client
print(any(name in sys.modules for name in ("py_ecc.bls.ciphersuites", "py_ecc.bls.constants")))
from eth_keyfile import create_keyfile_json, decode_keyfile_json
made = create_keyfile_json(bytes(31) + bytes([7]), b"word", version=4, iterations=2)
from py_ecc.bls.ciphersuites import G2ProofOfPossession
print(decode_keyfile_json(made, b"word")[-1], made["pubkey"] == G2ProofOfPossession.SkToPk(7).hex())
import py_ecc
print(py_ecc.bls.G2Basic.SkToPk(7).hex() == made["pubkey"])
"""


def test_the_chain_is_used_without_the_schemes_of_validators_which_work_where_somebody_asks_for_them():
    command = [sys.executable, "-W", "ignore", "-c", KEYSTORE]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    assert done.stdout.split() == ["False", "7", "True", "True"], done.stderr[-2000:]
