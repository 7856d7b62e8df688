"""The prefix cache's decisions: hashes, records, index, matches, snapshots, explanations. Uses `models`."""
