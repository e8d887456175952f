#!/usr/bin/env bash
# Holds the format to its description: the repository in tests/golden is read, restored and brought up by programs that
# know only FORMAT.md (read.py) and PostgreSQL; damage of every kind of object is found; and the agent of today
# (HOLDFAST_AGENT, if set) reads what an earlier one wrote.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
golden=$here/../golden/repository
cache=${HOLDFAST_CACHE:-$HOME/.cache/holdfast}
pgbin=$(readlink -f "$cache/tools/postgresql/15")/bin
work=$(mktemp -d /tmp/holdfast-format.XXXXXX)
trap cleanup EXIT

main() {
    install_modules
    lists_what_is_there
    reads_every_object
    comes_back_without_holdfast
    finds_damage
    [[ -z ${HOLDFAST_AGENT:-} ]] || is_read_by_the_agent
    echo "format: the golden repository is read, restored, brought up without Holdfast; damage of every kind is found"
}

cleanup() {
    if [[ -e $work/restored/postmaster.pid ]]; then as_server pg_ctl -D "$work/restored" -m immediate stop >/dev/null; fi
    rm -rf "$work"
}
fail() { echo "format: $*" >&2; exit 1; }
read_py() { PYTHONPATH=$modules python3 "$here/read.py" "$@"; }
run_as=()
((EUID != 0)) || run_as=(setpriv --reuid=postgres --regid=postgres --init-groups)
as_server() { "${run_as[@]}" env -C "$work" HOME="$work" PATH="$pgbin:$PATH" "$@"; }

# same WHAT FILE: FILE is what tests/golden/WHAT says.
same() { diff -u "$here/../golden/$1" "$2" >&2 || fail "$1 is not what it was"; }

# digests DIRECTORY: of all files of the backup; not of what a restore adds to them.
digests() {
    (cd "$1" && find . -type f ! -name backup_label ! -name recovery.signal ! -name tablespace_map ! -name postgresql.auto.conf \
        -print0 | sort -z | xargs -0 sha256sum) | sha256sum
}

install_modules() {
    modules=$cache/tools/format-reader
    cmp -s "$here/requirements.txt" "$modules/requirements.txt" && return
    rm -rf "$modules"
    python3 -m pip install --quiet --no-deps --require-hashes --only-binary :all: --root-user-action ignore \
        --target "$modules" -r "$here/requirements.txt"
    cp "$here/requirements.txt" "$modules"
}

lists_what_is_there() {
    read_py "$golden" list >"$work/list"
    same list.txt "$work/list"
}

reads_every_object() {
    read_py "$golden" check >"$work/check"
    same objects.txt "$work/check"
}

comes_back_without_holdfast() {
    read_py "$golden" restore latest "$work/restored" >/dev/null
    digests "$work/restored" >"$work/digests"
    same files.sha256 "$work/digests"
    read_py "$golden" log "$work/log" >/dev/null
    touch "$work/restored/recovery.signal"
    ((EUID != 0)) || chown -R postgres "$work"
    as_server pg_ctl -D "$work/restored" -l "$work/server.log" -w -o "-c unix_socket_directories=$work -c listen_addresses= \
        -c archive_mode=off -c restore_command='cp $work/log/%f %p'" start >/dev/null 2>&1 || fail "$(cat "$work/server.log")"
    as_server psql -XAt -h "$work" -U postgres postgres >"$work/rows" <<'SQL'
SELECT count(*), count(*) FILTER (WHERE text = CASE WHEN id % 30000 = 0 THEN 'changed ' || id ELSE repeat('x', 100) || id END) FROM big;
SELECT string_agg(number::text, ' ' ORDER BY number) FROM small;
SELECT text FROM aside;
SQL
    same rows.txt "$work/rows"
    as_server pg_ctl -D "$work/restored" -m fast -w stop >/dev/null
}

# Of each kind of object one, flipped in its middle and cut by a byte.
finds_damage() {
    local pattern object copy=$work/damaged
    for pattern in holdfast.json '*/packs/*' '*/maps/*' '*/tombstones/*' '*/lineage.json' '*/position.json' '*/leases/backup' \
        '*/manifest.json' '*/pin.json' '*/evidence/*' '*/log/*' '*/tails/*'; do
        object=$(cd "$golden" && find . -type f -path "./$pattern" -printf '%P\n' | sort | head -n 1)
        [[ -n $object ]] || fail "the golden repository has no $pattern"
        rm -rf "$copy" && cp -r "$golden" "$copy"
        python3 - "$copy/$object" <<'PY'
import os, sys
with open(sys.argv[1], "r+b") as file:
    content = bytearray(file.read())
    content[len(content) // 2] ^= 0x10
    file.seek(0)
    file.write(content)
PY
        is_damaged "$copy" "$object, one bit flipped"
        cp "$golden/$object" "$copy/$object"
        truncate --size=-1 "$copy/$object"
        is_damaged "$copy" "$object, cut by a byte"
    done
}

is_damaged() {
    local status=0
    read_py "$1" check >"$work/check.log" 2>&1 || status=$?
    if [[ $status != 1 ]] || ! grep -q '^damaged: ' "$work/check.log"; then
        fail "$2: the reader says $(cat "$work/check.log")"
    fi
}

is_read_by_the_agent() {
    cp -r "$golden" "$work/repository"
    install -m 755 "$HOLDFAST_AGENT" "$work/agent"
    ((EUID != 0)) || chown -R postgres "$work"
    as_server "$work/agent" --repository "$work/repository" verify all >"$work/verify.log" 2>&1 || fail "$(cat "$work/verify.log")"
    local was_at
    was_at=$(grep -hoE '"location":"[^"]*"' "$work"/repository/*/lineages/*/backups/*/manifest.json | head -n 1 | cut -d'"' -f4)
    as_server "$work/agent" --repository "$work/repository" restore latest --data-dir "$work/by-agent" \
        --tablespace-map "$was_at=$work/by-agent.tablespace" >"$work/restore.log" 2>&1 || fail "$(cat "$work/restore.log")"
    digests "$work/by-agent" >"$work/digests-by-agent"
    same files.sha256 "$work/digests-by-agent"
}

main
