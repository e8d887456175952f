# shellcheck shell=bash
# What is measured, in order. A phase that stands alone makes the backups it starts from itself, untimed.

everybody_ready() { # PLACE
  if peers; then
    if [[ $1 == s3 ]]; then pgbr_ready s3; else pgbr_ready bb; fi
    restic_ready "$1"
  fi
  holdfast_ready "$1"
}

phase_full() {
  if peers; then
    pgbr_full full bb
    measure full pg_basebackup 'server-zstd:level=3,workers=2' prep_copy "$COPY" \
      pg_basebackup -D "$COPY" -Ft -X stream -c fast --compress=server-zstd:level=3,workers=2
    rm -rf "$COPY"
    restic_full full local
  fi
  holdfast_full full local
}

phase_restore() { # and, from the restored directory, the delta restore
  everybody_ready local
  if peers; then
    restore_and_delta pgbr bb pgBackRest
    if listed restore; then
      restic_restore restore local
      same_as_cold 'restic: full restored' "$RESTORE$COLD"; rm -rf "$RESTORE"
    fi
  fi
  restore_and_delta holdfast local Holdfast
}
restore_and_delta() { # CONTESTANT SETTING NAME
  if listed restore; then
    "${1}_restore" restore "$2"
    same_as_cold "$3: full restored" "$RESTORE"
  fi
  if listed delta; then
    "${1}_delta" delta "$2"
    same_as_cold "$3: damage repaired" "$RESTORE"
  fi
  rm -rf "$RESTORE"
}
damage_restored() { # 64 pages of the biggest table overwritten, one small file gone
  python3 "$HERE/pages.py" damage "$RESTORE" \
    "$(sql "select pg_relation_filepath('pgbench_accounts')")" "$(sql "select pg_relation_filepath('pgbench_branches')")"
}

phase_verify() {
  everybody_ready local
  if peers; then pgbr_verify verify bb; restic_verify verify local; fi
  holdfast_verify verify local
}

phase_states() {
  everybody_ready local
  if peers; then pgbr_ready plain; fi
  local state
  for state in S2 SR S1; do
    move_to "$state"
    floor_of "$state"
    if peers; then
      pgbr_incremental "$state" plain
      pgbr_incremental "$state" bb
      restic_incremental "$state" local
    fi
    holdfast_incremental "$state" local
  done
}
floor_of() { # STATE: the changed pages alone, compressed
  measure "$1" floor 'changed pages, zstd -3 -T2, fsync' prep_copy "$COPY" \
    bash -c "zstd -q -3 -T2 '$TMP/changed-$1' -o '$COPY/z' && sync '$COPY/z'"
  rm -rf "$COPY" "$TMP/changed-$1"
}

phase_chain() { # ten small incrementals, untimed, then restore what they add up to
  everybody_ready local
  ten_small_backups
  if peers; then
    pgbr_restore restore-chain bb
    same_as_cold 'pgBackRest: chain restored' "$RESTORE"
    restic_restore restore-chain local
  fi
  holdfast_restore restore-chain local
  same_as_cold 'Holdfast: chain restored' "$RESTORE"
  rm -rf "$RESTORE"
  local want; want=$(sums_of_source)
  if peers; then check_started 'pgBackRest: chain restored, started, read' pgbr_restore_for_check "$want"; fi
  check_started 'Holdfast: chain restored, started, read' holdfast_restore_for_check "$want"
}
ten_small_backups() {
  local i
  log "ten small incrementals"
  for i in 1 2 3 4 5 6 7 8 9 10; do
    if ((i < 10)); then sql "$(state_sql "small-$i")"; else move_to small-10; fi
    small_backup "$i" >"$LOGS/small-$i.log" 2>&1 || die "incremental $i failed: $(tail -n 3 "$LOGS/small-$i.log")"
  done
  rm -f "$TMP/changed-small-10"
}
small_backup() { # NUMBER
  if peers; then
    pgbr_use bb; pgbr_archive; as_user "${PGBR_CLI[@]}" backup --type=incr; archive_to /bin/true
    if (($1 == 10)); then restic_use local; as_user "${RESTIC_CLI[@]}" backup "$COLD"; fi
  fi
  holdfast_use local; as_user "${HOLDFAST_BACKUP[@]}"
}

phase_s3() {
  [[ -x $MINIO ]] || { note "phase s3 left out: no MinIO at \$MINIO"; return 0; }
  start_s3
  if peers; then pgbr_full s3-full s3; restic_full s3-full s3; fi
  holdfast_full s3-full s3
  move_to S2b; rm -f "$TMP/changed-S2b"
  if peers; then pgbr_incremental s3-incr s3; restic_incremental s3-incr s3; fi
  holdfast_incremental s3-incr s3
  if peers; then
    pgbr_restore s3-restore s3; same_as_cold 'pgBackRest: restored from S3' "$RESTORE"
    restic_restore s3-restore s3
  fi
  holdfast_restore s3-restore s3; same_as_cold 'Holdfast: restored from S3' "$RESTORE"
  rm -rf "$RESTORE"
  if peers; then pgbr_verify s3-verify s3; restic_verify s3-verify s3; fi
  holdfast_verify s3-verify s3
  stop_s3
}
