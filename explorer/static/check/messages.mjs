// Messages: the parts of the protocol's messages that the checks read, in their order on the wire.
// A field with a question mark may be missing at the end of a message: then it is undefined.
// A test compares both tables with the room `protocol`, where the messages are declared.
export const LAYOUT = {
  "RunSpec": ["assay/run-spec/11", "deployment_id", "name", "seed", "rounds", "state_every", "model", "compute", "data", "choices", "rule", "audit", "money", "timing", "buyer", "seats", "least_nodes", "start_by_s", "nodes", "verifiers", "reserves?", "predecessor?", "buyer_key?"],
  "Member": ["assay/member/1", "peer", "account", "hot"],
  "CertifiedManifest": ["assay/certified/13", "manifest", "block", "certificate"],
  "Manifest": ["assay/manifest/14", "run_id", "round", "parent", "time_s", "commits", "inclusion_lists", "beacon_shares", "drand", "drand_next", "is_partial", "commitments", "verdicts", "sketch_openings", "known_answers", "attendance", "admissions", "contradictions", "double_votes", "appraised", "stake_reports", "funding_reports", "evaluations", "disqualified", "aggregate", "chain", "hand_over?", "seat_notices?", "iteration?", "evaluation_commitments?"],
  "HandOver": ["assay/hand-over/1", "seat", "holder"],
  "Block": ["assay/block/1", "run_id", "iteration", "round", "parent", "manifest", "is_closing?"],
  "QuorumCertificate": ["assay/certificate/1", "vote", "verifiers", "signatures"],
  "Vote": ["assay/vote/1", "run_id", "iteration", "kind", "block"],
  "SignedCommit": ["assay/signed-commit/2", "commit", "signature", "statement"],
  "Commit": ["assay/commit/2", "run_id", "round", "node", "parent", "state", "batch_root", "update", "update_bytes", "base", "momentum_before", "momentum_after", "inner", "commitment", "exec_class", "tokens", "loss_micro", "seat?"],
  "SignedVerdict": ["assay/signed-verdict/3", "verdict", "signature"],
  "Verdict": ["assay/verdict/3", "run_id", "round", "node", "verifier", "salt", "outcome", "exec_class", "recomputed", "is_biased", "witness", "opening", "opening_bytes", "distance_ppb", "block"],
  "SignedVerdictCommitment": ["assay/signed-verdict-commitment/2", "commitment", "signature"],
  "VerdictCommitment": ["assay/verdict-commitment/2", "run_id", "round", "node", "verifier", "pattern", "verdict", "in_reference"]
};
export const OUTCOMES = {"1": "match", "2": "mismatch", "3": "withheld", "4": "inconclusive", "5": "borderline"};
export const FINALISE = 3; // the kind of vote that makes a block final
