#!/usr/bin/env bash
# Shows what Holdfast does, on a real server under load, and demands that every step is as it should be. Everything
# lives in one temporary directory and is gone afterwards. `make demo` builds the agent and brings PostgreSQL.
#
#   HOLDFAST_AGENT   the program; PGBIN   PostgreSQL's programs (default: what tests/env/install.sh brought)
set -Eeuo pipefail
trap 'echo "demo: failed at line $LINENO" >&2' ERR
export LC_ALL=C

cache=${HOLDFAST_CACHE:-$HOME/.cache/holdfast}
pgbin=${PGBIN:-$(readlink -f "$cache/tools/postgresql/15")/bin}
[[ -x $pgbin/postgres ]] || { echo "demo: no PostgreSQL in $pgbin: run tests/env/install.sh" >&2; exit 3; }

work=$(mktemp -d /tmp/holdfast-demo.XXXXXX)
data=$work/data repository=$work/repository restored=$work/restored socket=$work/socket
jobs_started=() servers=()

main() {
    trap cleanup EXIT
    prepare
    start_server
    start_load
    back_up_twice
    list_and_verify
    lose_rows_and_get_them_back
    damage_a_copy
    drill
    report
}

# ---------------------------------------------------------------- the tools of this script

# PostgreSQL refuses to run as root.
as_server() { "${run_as[@]}" env -C "$work" HOME="$work" PATH="$pgbin:$PATH" PGHOST="$socket" PGDATABASE=postgres PGUSER=postgres "$@"; }
agent() { as_server "$work/bin/holdfast-agent" --repository "$repository" "$@"; }
sql() { as_server psql -XAtq -v ON_ERROR_STOP=1 "$@"; }
bold='' plain=''
[[ ! -t 1 ]] || bold=$'\e[1m' plain=$'\e[0m'
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
fail() { echo "demo: $*" >&2; exit 1; }
# field FILE EXPRESSION: a value of a JSON document d, by a Python expression.
field() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$1" "$2"; }
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }
# timed NAME COMMAND...: runs it and keeps in seconds[NAME] how long it took.
declare -A seconds
timed() {
    local name=$1 from to
    shift
    from=$(date +%s.%N)
    "$@"
    to=$(date +%s.%N)
    seconds[$name]=$(awk -v from="$from" -v to="$to" 'BEGIN { printf "%.1f s", to - from }')
}
# wait_for WHAT COMMAND...: until it succeeds, at most a minute.
wait_for() {
    local what=$1 deadline=$((SECONDS + 60))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || fail "waited a minute for $what"
        sleep 0.2
    done
}

cleanup() {
    local status=$? pid directory
    trap - EXIT ERR
    for pid in "${jobs_started[@]}"; do kill "$pid" 2>/dev/null || true; done
    for directory in "${servers[@]}"; do
        as_server pg_ctl -D "$directory" -m immediate -w stop >/dev/null 2>&1 || true
    done
    wait || true
    if ((status)); then
        for log in "$work"/*.log; do echo "--- ${log##*/}" && tail -n 15 "$log"; done >&2
    fi
    rm -rf "$work"
    exit "$status"
}

# ---------------------------------------------------------------- the story

prepare() {
    run_as=()
    chmod 755 "$work"
    if ((EUID == 0)); then
        run_as=(setpriv --reuid=postgres --regid=postgres --init-groups)
        chown postgres "$work"
    fi
    install -D -m 755 "$HOLDFAST_AGENT" "$work/bin/holdfast-agent"
    as_server mkdir "$socket"
    agent --version
    as_server postgres --version
}

start_server() {
    say "A server with page checksums; archive_command hands every WAL segment to Holdfast"
    as_server initdb -D "$data" -U postgres --data-checksums --auth=trust >"$work/initdb.log"
    cat >>"$data/postgresql.conf" <<CONF
listen_addresses = ''
unix_socket_directories = '$socket'
archive_mode = on
archive_command = '$work/bin/holdfast-agent --repository $repository wal-push %p'
CONF
    servers+=("$data")
    as_server pg_ctl -D "$data" -l "$work/server.log" -w start >/dev/null
    as_server pgbench -i -q -s 20 2>"$work/pgbench-init.log"
    # What makes drills thorough: checks of every index and table, and probes asked by somebody who can change nothing.
    sql -c "CREATE EXTENSION amcheck" -c "CREATE ROLE holdfast_probe LOGIN IN ROLE pg_read_all_data"
    sql -c "CREATE TABLE customers AS SELECT id, 'customer ' || id AS name, md5(id::text) AS secret FROM generate_series(1, 10000) AS id"
    echo "$(sql -c 'SELECT pg_size_pretty(sum(pg_database_size(oid))) FROM pg_database') of data, 10000 customers"
}

start_load() {
    say "200 write transactions a second, and \`watch\`, which ships what archive_command does not have yet"
    as_server pgbench -n -c 2 -R 200 -T 600 >"$work/load.log" 2>&1 &
    jobs_started+=($!)
    agent watch --data-dir "$data" --interval 1s >"$work/watch.log" 2>&1 &
    jobs_started+=($!)
}

back_up_twice() {
    say "A full backup, under load"
    timed full agent --output json backup --data-dir "$data" --checkpoint fast >"$work/full.json"
    echo "$(field "$work/full.json" "d['backup_id']"): $(mib "$(field "$work/full.json" "d['database_bytes']")") read, $(mib "$(field "$work/full.json" "d['stored_bytes']")") stored"
    say "An incremental one: only pages that changed are stored, and it is complete by itself"
    timed incremental agent --output json backup --data-dir "$data" --checkpoint fast >"$work/incremental.json"
    echo "$(field "$work/incremental.json" "d['backup_id']"): $(mib "$(field "$work/incremental.json" "d['new_bytes']")") new, $(mib "$(field "$work/incremental.json" "d['stored_bytes']")") stored"
    (($(field "$work/incremental.json" "d['stored_bytes']") < $(field "$work/full.json" "d['stored_bytes']"))) ||
        fail "the incremental backup stored as much as the full one"
}

list_and_verify() {
    say "Every byte of it is read back and hashed"
    timed verify agent verify latest --level data
    agent list
}

lose_rows_and_get_them_back() {
    say "A mistake: DELETE FROM customers"
    before=$(sql -c 'SELECT sum(hashtext(customers::text)) FROM customers')
    moment=$(sql -c "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
    sql -c 'DELETE FROM customers'
    local deleted
    deleted=$(sql -c "SELECT extract(epoch FROM clock_timestamp())")
    echo "gone; the last good moment was $moment"
    wait_for "the repository to know the log up to the mistake" reaches "$deleted"
    say "The database is restored to that moment, beside the one that runs"
    timed restore agent restore latest --data-dir "$restored" --target-time "$moment" --recover --pg-bin "$pgbin"
    servers+=("$restored")
    as_server mkdir "$work/restored-socket"
    as_server pg_ctl -D "$restored" -l "$work/restored.log" -w \
        -o "-c unix_socket_directories=$work/restored-socket -c listen_addresses= -c archive_mode=off" start >/dev/null
    local after here
    after=$(sql -h "$work/restored-socket" -c 'SELECT sum(hashtext(customers::text)) FROM customers')
    here=$(sql -c 'SELECT count(*) FROM customers')
    [[ $after == "$before" ]] || fail "the restored customers are not those that were lost"
    [[ $here == 0 ]] || fail "the running server was changed by a restore"
    echo "all 10000 customers are back, every value as it was; the running server still has $here"
    as_server pg_ctl -D "$restored" -m fast -w stop >/dev/null
}

# reaches EPOCH: what was committed up to then is in the repository.
reaches() {
    agent --output json list >"$work/list.json"
    local until
    until=$(field "$work/list.json" "max(w['until_time'] or '' for w in d['windows'])")
    (($(date -d "$until" +%s) > ${1%.*}))
}

damage_a_copy() {
    say "One byte of a copy of the repository is flipped; verify has to find it"
    as_server cp -a "$repository" "$work/damaged"
    victim=$(cd "$work/damaged" && find . -path '*/packs/*' -type f -printf '%s %P\n' | sort -n | tail -n 1 | cut -d' ' -f2)
    python3 - "$work/damaged/$victim" <<'PY'
import os, sys
with open(sys.argv[1], "r+b") as file:
    middle = os.fstat(file.fileno()).st_size // 2
    file.seek(middle)
    byte = file.read(1)[0]
    file.seek(middle)
    file.write(bytes([byte ^ 1]))
PY
    local status=0
    as_server "$work/bin/holdfast-agent" --repository "$work/damaged" verify all --level data >"$work/damaged.log" 2>&1 || status=$?
    grep -m 1 -F "${victim##*/}" "$work/damaged.log" || fail "verify does not name $victim"
    [[ $status == 1 ]] || fail "verify of a damaged repository ended with $status instead of 1"
    echo "found, and named (exit code 1)"
}

drill() {
    say "A drill: restored to the newest point, started in isolation, recovered, asked"
    cat >"$work/probes.toml" <<'PROBES'
[[probe]]
name = "no branch is missing"
database = "postgres"
query = "SELECT count(*) FROM public.pgbench_branches"
expect = { equals = "20" }

[[probe]]
name = "the books balance"
database = "postgres"
query = "SELECT (SELECT sum(abalance) FROM public.pgbench_accounts) = (SELECT sum(bbalance) FROM public.pgbench_branches)"
expect = { equals = "t" }
PROBES
    chmod 644 "$work/probes.toml"
    timed drill agent --output json drill latest --scratch "$work" --probes "$work/probes.toml" --pg-bin "$pgbin" >"$work/drill.json"
    [[ $(field "$work/drill.json" "d['verdict']") == passed ]] || fail "the drill failed"
    [[ $(field "$work/drill.json" "len(d['details']['structure']['amcheck']['databases'])") != 0 ]] || fail "pg_amcheck was not run"
    field "$work/drill.json" "'\\n'.join(f\"{p['name']}: {p['answer']}\" for p in d['details']['probes'])"
    agent list
}

report() {
    local until behind packs
    agent --output json list >"$work/list.json"
    until=$(field "$work/list.json" "max(w['until_time'] or '' for w in d['windows'])")
    behind=$(awk -v now="$(date +%s.%N)" -v until="$(date -d "$until" +%s.%N)" 'BEGIN { printf "%.1f s", now - until }')
    packs=$(find "$work/damaged" -path '*/packs/*' -type f | wc -l)
    say "What was shown, on a server with 200 write transactions a second"
    line "full backup" "${seconds[full]}" "$(mib "$(field "$work/full.json" "d['database_bytes']")"), stored in $(mib "$(field "$work/full.json" "d['stored_bytes']")")"
    line "incremental backup" "${seconds[incremental]}" "$(mib "$(field "$work/incremental.json" "d['new_bytes']")") had changed, stored in $(mib "$(field "$work/incremental.json" "d['stored_bytes']")")"
    line "verify" "${seconds[verify]}" "every byte of the backup was read and hashed, the log has no hole"
    line "restore to a moment" "${seconds[restore]}" "all 10000 deleted rows are back, as of $moment"
    line "damage" "" "one flipped bit in $packs packs was found, its object named, exit code 1"
    line "drill" "${seconds[drill]}" "restored, recovered, every index and table checked, 2 probes answered: the backup is proven"
    line "log" "" "losing this server now would lose the last $behind"
    line "all in all" "$SECONDS s" "everything is stopped and removed"
}

line() { printf '  %-20s %8s  %s\n' "$@"; }

main
