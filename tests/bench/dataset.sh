# shellcheck shell=bash
# The data, the states it goes through, and the cold copy that every state leaves behind.
#   S0  freshly filled
#   S2  1 % of the accounts updated, one range                     (1.6 % of the pages)
#   SR  20,000 rows of the accounts updated at random              (about 8 % of the pages; scaled with SCALE)
#   S1  every 100th account updated                                (about half of the pages)

RANDOM_ROWS=$((SCALE * 400 / 3))
RND_ROWS=$((SCALE * 2000))    # 1,000 incompressible bytes each
DOC_ROWS=$((SCALE * 3000))    # about 400 bytes of text and JSON each

prepare_data() { # ends with the server running on S0 and a cold copy of it
  local want; want="scale $SCALE, $("$PGBIN/postgres" --version)"
  if [[ $(cat "$FILLED.is" 2>/dev/null) == "$want" ]]; then
    log "reusing the filled data directory"
    as_user cp -a "$FILLED" "$PGDATA"
  else
    rm -rf "$FILLED" "$FILLED.is"
    fill
    if [[ $KEEP == 1 ]]; then keep_filled; echo "$want" >"$FILLED.is"; fi
  fi
  copy_stopped "$COLD"
  start_postgres
  note "data directory without log: $(($(bytes "$COLD") / 1000000)) MB in $(find "$COLD" -type f | wc -l) files; $(
    sql "select string_agg(relname || ' ' || pg_relation_size(oid) / 1048576 || ' MiB', ', ' order by pg_relation_size(oid) desc)
         from pg_class where pg_relation_size(oid) > 8000000")"
}

fill() { # leaves the server stopped
  log "initdb and fill (scale $SCALE)"
  as_user initdb -D "$PGDATA" -U postgres -A trust -k --no-sync --locale=C -E UTF8 >"$LOGS/initdb.log"
  cat >>"$PGDATA/postgresql.conf" <<C
listen_addresses = ''
unix_socket_directories = '$TMP'
port = $PGPORT
shared_buffers = 1GB
max_wal_size = 8GB
checkpoint_timeout = 1h
wal_level = replica
archive_mode = on
archive_command = '/bin/true'
autovacuum = off                 # states must not move by themselves
C
  start_postgres
  as_user createdb bench
  as_user pgbench -q -i -s "$SCALE" bench >"$LOGS/pgbench-init.log" 2>&1
  sql 'create extension pgcrypto'
  sql "create table rnd as select g id, gen_random_bytes(1000) b from generate_series(1, $RND_ROWS) g"
  sql "create table doc as select g id, 'customer ' || g || ' ordered ' || (g % 1000 * 7919 % 1000) || ' items from ' ||
         (array['Berlin','Paris','Oslo','Rome','Quito','Lagos'])[1 + g % 6] || ' on day ' || g % 365 note,
         jsonb_build_object('id', g, 'email', md5(g::text) || '@example.org', 'active', g % 3 = 0, 'score', (g * 31 % 1000) / 10.0,
           'tags', jsonb_build_array('t' || g % 17, 't' || g % 101, 'common'),
           'address', jsonb_build_object('street', 'Long Street ' || g % 999, 'city', 'City ' || g % 500, 'zip', lpad((g % 99999)::text, 5, '0')),
           'token', md5((g * 3)::text)) j
       from generate_series(1, $DOC_ROWS) g"
  # The second round removes what analyze left dead in the catalogs: else reading them would prune their pages later.
  sql 'vacuum (freeze, analyze)'; sql 'vacuum (freeze)'; sql checkpoint
  stop_postgres
}

copy_stopped() { # DIR: a copy of the stopped data directory without its log
  as_user rsync -a --delete --exclude postmaster.pid --exclude 'pg_wal/0*' --exclude 'pg_wal/archive_status/*' "$PGDATA/" "$1/"
}
keep_filled() { # the copy plus the one segment that a start needs
  local segment
  copy_stopped "$FILLED"
  segment=$(as_user pg_controldata -D "$PGDATA" | sed -n "s/^Latest checkpoint's REDO WAL file: *//p")
  as_user cp -a "$PGDATA/pg_wal/$segment" "$FILLED/pg_wal/"
}

state_sql() { # STATE: the statement that leads to it
  local set='update pgbench_accounts set abalance = abalance + 1 where'
  case $1 in
    S2) echo "$set aid between $((SCALE * 30000)) and $((SCALE * 31000))" ;;
    S2b) echo "$set aid between $((SCALE * 60000)) and $((SCALE * 61000))" ;;
    SR) echo "select setseed(0.42); $set aid in (select 1 + floor(random() * $((SCALE * 100000)))::int from generate_series(1, $RANDOM_ROWS))" ;;
    S1) echo "$set aid % 100 = 7" ;;
    small-*) echo "$set aid between $((SCALE * 5000 * ${1#small-})) and $((SCALE * 5000 * ${1#small-} + SCALE * 50))" ;;
  esac
}
move_to() { # STATE: change the data, remember what changed, bring the cold copy to it
  log "state $1"
  sql "$(state_sql "$1")" >/dev/null; sql checkpoint
  stop_postgres
  note "$1: $(python3 "$HERE/pages.py" changed "$COLD" "$PGDATA" "$TMP/changed-$1")"
  give_to_user "$TMP/changed-$1"
  copy_stopped "$COLD"
  start_postgres
}
