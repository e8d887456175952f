"""Reads lines `name vVERSION ...|licence` and says which of them a deny.toml forbids."""

import re
import sys
import tomllib
from collections import defaultdict


def is_allowed(expression, allowed):
    """Whether an SPDX expression can be satisfied by allowed licences. `A/B` is how `A OR B` was once written."""
    tokens = re.findall(r"[()]|[\w.+-]+", expression.replace("/", " OR "))

    def either():
        right = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            right = both() or right
        return right

    def both():
        right = single()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            right = single() and right
        return right

    def single():
        name = tokens.pop(0)
        if name == "(":
            right = either()
            tokens.pop(0)
            return right
        if tokens[:1] == ["WITH"]:
            name = f"{name} WITH {tokens[1]}"
            del tokens[:2]
        return name in allowed

    right = either()
    if tokens:
        raise ValueError(f"cannot read the licence {expression!r}")
    return right


def faults(lines, rules):
    allowed = set(rules["licenses"]["allow"])
    versions = defaultdict(set)
    found = []
    for line in filter(str.strip, lines):
        crate, licence = line.rstrip("\n").rsplit("|", 1)
        name, version = crate.split()[:2]
        versions[name].add(version)
        if not licence or not is_allowed(licence, allowed):
            found.append(f"{name} {version} has the licence {licence or '(none)'!r}, which is not allowed")
    for rule in rules["bans"]["deny"]:
        seen = versions.get(rule["crate"], set())
        if rule.get("deny-multiple-versions"):
            if len(seen) > 1:
                found.append(f"{rule['crate']} is there in several versions: {', '.join(sorted(seen))}")
        elif seen:
            found.append(f"{rule['crate']} is banned: see `cargo tree --workspace --invert {rule['crate']}`")
    return found, len(versions)


def main():
    with open(sys.argv[1], "rb") as file:
        rules = tomllib.load(file)
    found, crates = faults(sys.stdin, rules)
    if crates < 10:
        found.append(f"cargo named only {crates} crates: this is not the dependency graph")
    for fault in found:
        print(f"dependencies: {fault}", file=sys.stderr)
    if found:
        sys.exit(1)
    print(f"dependencies: {crates} crates, all licences allowed, none banned")


if __name__ == "__main__":
    main()
