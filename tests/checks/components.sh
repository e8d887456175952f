#!/usr/bin/env bash
# components.sh NAME...: sees to it that parts of the Rust toolchain (rustfmt, clippy) are there.
set -euo pipefail

for component; do
    program=cargo-${component#rust}
    "$program" --version >/dev/null 2>&1 && continue
    command -v rustup >/dev/null || {
        echo "$component is missing: install it beside cargo ($(command -v cargo))" >&2
        exit 1
    }
    rustup component add "$component"
done
