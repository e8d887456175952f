# shellcheck shell=bash
# The log: segments pushed as the archiver does it (one call each, oldest first, .ready becomes .done) and fetched as
# recovery does it (one call each). The server is stopped, so that the segments stay as they are.

phase_wal() {
  holdfast_ready local
  make_segments
  local reap push fetch
  reap=$(readable reap.py)
  push="cd '$PGDATA' && while read -r s; do \"\$@\" pg_wal/\$s && mv pg_wal/archive_status/\$s.ready pg_wal/archive_status/\$s.done || exit 1; done < '$TMP/segments'"
  fetch="cd '$PGDATA' && while read -r s; do \"\$@\" \$s pg_wal/RECOVERYXLOG && rm pg_wal/RECOVERYXLOG || exit 1; done < '$TMP/segments'"
  if peers; then
    local store; store=$(pgbr_store plain)
    pgbr_use plain
    measure push pgBackRest 'one by one' pgbr_prep_push "$store" python3 "$reap" bash -c "$push" - "${PGBR_CLI[@]}" archive-push
    measure push pgBackRest 'async, process-max=2' pgbr_prep_push "$store" python3 "$reap" bash -c "$push" - "${PGBR_CLI[@]}" --archive-async archive-push
    measure fetch pgBackRest 'one by one' pgbr_prep_fetch - python3 "$reap" bash -c "$fetch" - "${PGBR_CLI[@]}" archive-get
    check_segments 'pgBackRest: segments fetched' "${PGBR_CLI[@]}" archive-get
  fi
  holdfast_use local; holdfast_remember
  measure push Holdfast 'one by one' holdfast_prep_push "$HOLDFAST_STORE" python3 "$reap" bash -c "$push" - "${HOLDFAST_CLI[@]}" wal-push
  measure fetch Holdfast 'one by one' nothing - python3 "$reap" bash -c "$fetch" - "${HOLDFAST_CLI[@]}" wal-fetch
  check_segments 'Holdfast: segments fetched' "${HOLDFAST_CLI[@]}" wal-fetch
}

ready_segments() { find "$PGDATA/pg_wal/archive_status" -name '*.ready' -printf '%f\n' | sed 's/.ready$//' | { grep -E '^[0-9A-F]{24}$' || true; } | sort; }
make_segments() { # nothing is archived, so that they pile up; ends with the server stopped and the names in a file
  log "making $SEGMENTS segments"
  if peers; then pgbr_stanza plain; fi
  archive_to ''
  sql checkpoint
  local i
  for ((i = 0; i < 2 * SEGMENTS; i++)); do
    (($(ready_segments | wc -l) <= SEGMENTS)) || break
    sql "update pgbench_accounts set abalance = abalance + 1 where aid % 100 = $((20 + i % 80))"
    as_user pgbench -n -c 2 -j 2 -t 3000 bench >/dev/null 2>&1
    sql 'select pg_switch_wal()' >/dev/null
  done
  stop_postgres
  ready_segments | head -n "$SEGMENTS" >"$TMP/segments"
  (($(wc -l <"$TMP/segments") == SEGMENTS)) || die "only $(wc -l <"$TMP/segments") segments"
  give_to_user "$TMP/segments"
  find "$PGDATA/pg_wal/archive_status" -name '*.ready' -delete
}

mark_ready() {
  local s
  while read -r s; do
    rm -f "$PGDATA/pg_wal/archive_status/$s".*; as_user touch "$PGDATA/pg_wal/archive_status/$s.ready"
  done <"$TMP/segments"
}
pgbr_prep_push() {
  local version; version=$("$PGBIN/postgres" --version | grep -oE '[0-9]+' | head -n 1)
  as_user "${PGBR_CLI[@]}" repo-rm --recurse "archive/main/$version-1/$(head -c 16 "$TMP/segments")" || true
  rm -rf "$WORK/pgbr/spool-$CFG"
  mark_ready
}
pgbr_prep_fetch() { rm -rf "$WORK/pgbr/spool-$CFG" "$PGDATA/pg_wal/RECOVERYXLOG"; }
holdfast_prep_push() { holdfast_prep_prior; mark_ready; }

check_segments() { # NAME COMMAND...: what is fetched equals what was pushed
  local name=$1 s wrong=0; shift
  while read -r s; do
    rm -f "$TMP/fetched"
    if ! as_user env -C "$PGDATA" "$@" "$s" "$TMP/fetched" </dev/null >>"$LOGS/fetch.log" 2>&1 ||
      ! cmp -s "$PGDATA/pg_wal/$s" "$TMP/fetched"; then wrong=$((wrong + 1)); fi
  done <"$TMP/segments"
  check "$name" "$( ((wrong == 0)) && echo ok || echo WRONG)" "$((SEGMENTS - wrong)) of $SEGMENTS equal"
}
