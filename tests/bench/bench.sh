#!/usr/bin/env bash
# Measures Holdfast and its peers (pgBackRest, pg_basebackup, restic) on the same data in one run, checks that
# what was restored is what was backed up, and says which speed and size targets are met. See README.md.
# shellcheck disable=SC2034   # the parts use what is set here
set -Eeuo pipefail
trap 'echo "bench: error at ${BASH_SOURCE[0]}:$LINENO" >&2' ERR
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CALLER_DIR=$PWD

# ---------------------------------------------------------------- what to measure
PHASES=${PHASES:-full restore delta verify states chain wal}    # and, if asked for: s3
RUNS=${RUNS:-3}                          # timed runs of each operation; the fastest is reported
SCALE=${SCALE:-150}                      # pgbench scale; 150 gives 2.9 GB
SEGMENTS=${SEGMENTS:-64}                 # WAL segments pushed and fetched
PEERS=${PEERS:-1}                        # 0: Holdfast and the floors only (for tuning)
KEEP=${KEEP:-0}                          # 1: leave WORK as it is; a later run with the same WORK reuses the filled data
OUT=${OUT:-}                             # write the report there too
STRICT=${STRICT:-0}                      # 1: exit 1 when a target is missed
HOLDFAST_AGENT=${HOLDFAST_AGENT:-}       # the binary; default: built by cargo

# ---------------------------------------------------------------- how far to wait for a quiet machine
QUIET=${QUIET:-0.3}                      # start a run only while others take less than this many cores
QUIET_WAIT=${QUIET_WAIT:-180}            # ... but wait for that at most this many seconds in all
DISTURBED=${DISTURBED:-0.4}              # repeat a run during which others took more than this many cores
TIME_LIMIT=${TIME_LIMIT:-1080}           # after this many seconds nothing is waited for or repeated
RUN_LIMIT=${RUN_LIMIT:-300}              # a single run that takes longer has failed

# ---------------------------------------------------------------- places
PGBIN=${PGBIN:-$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)}
TOOL_CACHE=${TOOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/tools}
MINIO=${MINIO:-$TOOL_CACHE/minio/minio}
PGPORT=${PGPORT:-54390} PG2PORT=${PG2PORT:-54392} S3PORT=${S3PORT:-54391}
RUNUSER=${RUNUSER:-postgres}             # PostgreSQL refuses to run as root

WORK_IS_OURS=0
[[ -n ${WORK:-} ]] || { WORK=$(mktemp -d -t holdfast-bench.XXXXXX); WORK_IS_OURS=1; }
mkdir -p "$WORK"; WORK=$(cd "$WORK" && pwd); chmod 755 "$WORK"
PGDATA=$WORK/pgdata COLD=$WORK/cold FILLED=$WORK/filled RESTORE=$WORK/restore COPY=$WORK/copy CHECK=$WORK/check
REPO=$WORK/repo S3DIR=$WORK/s3 TMP=$WORK/tmp LOGS=$WORK/logs CERTS=$WORK/certs BENCH_HOME=$WORK/home
RAW=$WORK/raw.tsv CHECKS=$WORK/checks.tsv NOTES=$WORK/notes.txt VERSIONS=$WORK/versions.txt
BUCKET=bench S3KEY=benchkey S3SECRET=benchsecret123 CA=$CERTS/public.crt S3URL=https://localhost:$S3PORT

for part in process measure tools servers dataset checks pgbackrest restic holdfast wal phases; do
  # shellcheck source=/dev/null
  . "$HERE/$part.sh"
done

report() {
  python3 "$HERE/report.py" --raw "$RAW" --checks "$CHECKS" --notes "$NOTES" --versions "$VERSIONS" \
    --scale "$SCALE" --runs "$RUNS" --strict "$STRICT"
}

main() {
  trap cleanup EXIT
  prepare_places
  install_tools
  prepare_data
  local phase result=0
  for phase in full restore verify states chain s3 wal; do
    if wanted "$phase"; then log "phase $phase"; "phase_$phase"; fi
  done
  stop_postgres
  log "measured"
  report >"$WORK/report.md" || result=$?
  cat "$WORK/report.md"
  if [[ -n $OUT ]]; then (cd "$CALLER_DIR" && mkdir -p "$(dirname "$OUT")" && cp "$WORK/report.md" "$OUT"); fi
  FINISHED=1
  return "$result"
}
main
