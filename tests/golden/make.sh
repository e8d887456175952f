#!/usr/bin/env bash
# Makes tests/golden/repository: a small repository that has one of every kind of object. What is there was written by
# a version that people use, so it is made anew only when the format gets another version, beside the old one.
#
#   HOLDFAST_AGENT=... tests/golden/make.sh DIRECTORY
set -euo pipefail
export LC_ALL=C

target=$(realpath -m "$1")
cache=${HOLDFAST_CACHE:-$HOME/.cache/holdfast}
pgbin=$(readlink -f "$cache/tools/postgresql/15")/bin
work=$(mktemp -d /tmp/holdfast-golden.XXXXXX)
run_as=()
if ((EUID == 0)); then
    run_as=(setpriv --reuid=postgres --regid=postgres --init-groups)
    chown postgres "$work"
fi
install -m 755 "$HOLDFAST_AGENT" "$work/agent"

as_server() { "${run_as[@]}" env -C "$work" HOME="$work" PATH="$pgbin:$PATH" PGHOST="$work" PGDATABASE=postgres PGUSER=postgres "$@"; }
agent() { as_server "$work/agent" --repository "$work/repository" "$@"; }
sql() { as_server psql -XAtq -v ON_ERROR_STOP=1 -c "$1"; }
watching=
cleanup() {
    [[ -z $watching ]] || kill "$watching" 2>/dev/null || true
    as_server pg_ctl -D "$work/data" -m immediate -w stop >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT

as_server initdb -D "$work/data" -U postgres --data-checksums --wal-segsize=1 --auth=trust >/dev/null
cat >>"$work/data/postgresql.conf" <<CONF
listen_addresses = ''
unix_socket_directories = '$work'
autovacuum = off
archive_mode = on
archive_command = '$work/agent --repository $work/repository wal-push %p'
CONF
as_server pg_ctl -D "$work/data" -l "$work/server.log" -w start >/dev/null
as_server mkdir "$work/tablespace"
sql "CREATE TABLESPACE elsewhere LOCATION '$work/tablespace'"
sql "CREATE TABLE aside TABLESPACE elsewhere AS SELECT 'in a tablespace' AS text"
# More than 1,024 pages, so that it has a map of its own; frozen, so that reading it changes nothing.
sql "CREATE TABLE big AS SELECT id, repeat('x', 100) || id AS text FROM generate_series(1, 90000) AS id"
sql "VACUUM (FREEZE) big"
sql "CHECKPOINT"
agent backup --data-dir "$work/data" --compression 19 >/dev/null
agent verify latest >/dev/null
# A few pages change: the next map is a patch.
sql "UPDATE big SET text = 'changed ' || id WHERE id % 30000 = 0"
sql "CREATE TABLE small AS SELECT 7 AS number"
sql "CHECKPOINT"
printf '[[probe]]\nname = "seven"\ndatabase = "postgres"\nquery = "SELECT number FROM public.small"\nexpect = { matches_source = true }\n' >"$work/probes"
chmod 644 "$work/probes"
agent backup --data-dir "$work/data" --compression 19 --probes "$work/probes" >/dev/null
agent backup --data-dir "$work/data" --compression 19 >/dev/null
agent verify all >/dev/null
second=$(agent --output json list | python3 -c 'import json, sys; print(json.load(sys.stdin)["backups"][1]["id"])')
agent drill "$second" --scratch "$work" --probes "$work/probes" --pg-bin "$pgbin" >/dev/null
agent pin "$second" >/dev/null
# The third goes, and what only it named is marked.
third=$(agent --output json list | python3 -c 'import json, sys; print(json.load(sys.stdin)["backups"][2]["id"])')
agent forget "$third" --grace 30d >/dev/null
sql "INSERT INTO small VALUES (8)"
sql "SELECT pg_switch_wal()" >/dev/null
deadline=$((SECONDS + 60))
agent watch --data-dir "$work/data" --interval 1s >/dev/null &
watching=$!
for piece in 00000000 00000001; do
    until compgen -G "$work/repository/*/lineages/*/tails/*/*/$piece" >/dev/null; do
        ((SECONDS < deadline)) || { echo "no piece $piece was shipped" >&2; exit 1; }
        sleep 0.2
    done
    sql "INSERT INTO small VALUES (9)"
done
kill "$watching"
wait "$watching" || true
watching=
mkdir -p "$target"
cp -a --no-preserve=ownership,mode "$work/repository/." "$target"
rm -rf "$target/.lock" "$target/.tmp"
find "$target" -type d -empty -delete
