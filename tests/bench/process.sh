# shellcheck shell=bash disable=SC2034
# Running things: as whom, in which environment, and how they end.

START=$SECONDS
FINISHED=0

log() { printf '[%4ds] %s\n' $((SECONDS - START)) "$*" >&2; }
note() { echo "$*" | tee -a "$NOTES" >&2; }
die() { echo "bench: $*" >&2; exit 1; }

# Restoring and damaging a restored directory go together: "delta" alone still runs the restore phase.
listed() { [[ " $PHASES " == *" $1 "* ]]; }
wanted() { if [[ $1 == restore ]]; then listed restore || listed delta; else listed "$1"; fi; }
peers() { [[ $PEERS == 1 ]]; }

# Everything that is measured, and the servers, run as the unprivileged user with an environment of their own.
as_user() { (exec_as_user "$@"); }
exec_as_user() { # replaces the calling shell: "exec_as_user SERVER &" leaves the server's own pid in $!
  local drop=()
  ((EUID)) || drop=(setpriv --reuid="$RUNUSER" --regid="$RUNUSER" --clear-groups --)
  cd "$BENCH_HOME" || exit 1
  exec "${drop[@]}" env -i PATH="$PGBIN:/usr/bin:/bin" HOME="$BENCH_HOME" LC_ALL=C TMPDIR="$TMP" \
    PGHOST="$TMP" PGPORT="$PGPORT" PGUSER=postgres \
    AWS_ACCESS_KEY_ID="$S3KEY" AWS_SECRET_ACCESS_KEY="$S3SECRET" AWS_REGION=us-east-1 \
    RESTIC_PASSWORD=bench RESTIC_CACHE_DIR="$BENCH_HOME/restic" "$@"
}
give_to_user() { ((EUID)) || chown -R "$RUNUSER:" "$@"; }

wait_until() { # wait_until SECONDS WHAT COMMAND...: a condition with a deadline
  local end=$((SECONDS + $1)) what=$2; shift 2
  until "$@"; do
    ((SECONDS < end)) || { log "gave up waiting: $what"; return 1; }
    sleep 0.1
  done
}

bytes() { # bytes in the files below a directory, 0 if it is not there
  { find "$1" -type f -printf '%s\n' 2>/dev/null || true; } | awk '{ s += $1 } END { printf "%d\n", s }'
}

prepare_places() {
  rm -rf "$PGDATA" "$COLD" "$RESTORE" "$COPY" "$CHECK" "$REPO" "$S3DIR" "$TMP" "$BENCH_HOME" "$WORK/pgbr" "$LOGS"
  mkdir -p "$REPO" "$TMP" "$LOGS" "$BENCH_HOME" "$WORK/pgbr" "$WORK/tools"
  # The user makes the other directories itself.
  ((EUID)) || chown "$RUNUSER:" "$REPO" "$TMP" "$LOGS" "$BENCH_HOME" "$WORK/pgbr" "$WORK"
  chmod 700 "$TMP"
  : >"$RAW"; : >"$NOTES"; : >"$CHECKS"; : >"$VERSIONS"
}

cleanup() {
  trap - ERR; set +e
  stop_postgres
  [[ -s $CHECK/postmaster.pid ]] && as_user pg_ctl -D "$CHECK" -m immediate stop >/dev/null
  stop_s3
  if [[ $FINISHED == 0 && -s $RAW ]]; then report >"$WORK/report.md"; log "not finished; so far: $WORK/report.md"; fi
  if [[ $KEEP == 1 ]]; then
    log "kept: WORK=$WORK"
  elif [[ $WORK_IS_OURS == 1 && $FINISHED == 1 ]]; then
    rm -rf "$WORK"
  else
    rm -rf "$PGDATA" "$COLD" "$FILLED" "$RESTORE" "$COPY" "$CHECK" "$REPO" "$S3DIR" "$TMP" "$BENCH_HOME" "$CERTS" "$WORK/pgbr" "$WORK/tools"
    log "logs and raw results: $WORK"
  fi
}
