#!/usr/bin/env bash
# Holds what is really linked, built or tested with against deny.toml: banned crates, crates that may come in one
# version only, licences. `cargo tree` is asked, as `cargo metadata` also lists optional dependencies that nobody enables.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

cargo tree --locked --workspace --all-features --edges normal,build,dev --target x86_64-unknown-linux-gnu \
    --no-dedupe --prefix none --format '{p}|{l}' | sort -u | python3 "$here/dependencies.py" deny.toml
