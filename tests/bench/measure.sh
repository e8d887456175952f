# shellcheck shell=bash
# The clock: one operation, several runs, each under /usr/bin/time, each waiting for a quiet machine.

server_ticks() { # CPU ticks burnt so far by our servers and the children they have reaped
  local pids="$S3_PID $PG_PID" p
  [[ -n $PG_PID ]] && pids+=" $(ps -o pid= --ppid "$PG_PID" | tr '\n' ' ')"
  for p in $pids; do cat "/proc/$p/stat" 2>/dev/null || true; done |
    sed 's/^.*) //' | awk '{ s += $12 + $13 + $14 + $15 } END { print s + 0 }'
}
machine_ticks() { awk '/^cpu /{ print $2 + $3 + $4 + $7 + $8, $9 }' /proc/stat; } # busy, stolen

time_is_left() { ((SECONDS - START < TIME_LIMIT)); }

# The machine may be shared: wait until others take less than QUIET cores over half a second. All waits together
# are bounded, so that the whole run is.
WAITED=0
wait_quiet() {
  local a b _
  while ((WAITED < QUIET_WAIT)) && time_is_left; do
    read -r a _ < <(machine_ticks); sleep 0.5; read -r b _ < <(machine_ticks)
    awk -v t=$((b - a)) -v q="$QUIET" 'BEGIN { exit !(t / 50 <= q) }' && return 0
    sleep 0.5; WAITED=$((WAITED + 1))
  done
  return 0
}

# measure KEY TOOL SETTING PREP DIR CMD...
#   KEY     what is measured, as report.py knows it          SETTING  how the tool was set up
#   PREP    function called before each run, untimed         DIR      directory whose growth is counted, or -
measure() {
  local run repeats=2
  for ((run = 1; run <= RUNS; run++)); do
    one_run "$run" "$@" || return 0     # a failing operation is not tried again; its row says so
    if [[ $RUN_STATE == disturbed ]] && ((repeats > 0)) && time_is_left; then
      repeats=$((repeats - 1)) run=$((run - 1))
    fi
  done
}

one_run() { # RUN and the arguments of measure: one line in raw.tsv, one log
  local run=$1 key=$2 tool=$3 setting=$4 prep=$5 dir=$6; shift 6
  local lg rc=0 b0=0 b1 s0 s1 m0 m1 st0 st1 wall=0 user=0 sys=0 rss=0 stored=-
  lg="$LOGS/$(printf '%s-%s-%s-%d' "$key" "$tool" "$setting" "$run" | tr -c 'A-Za-z0-9.\n-' _).log"
  $prep >"$lg.prep" 2>&1 || die "preparing $key, $tool ($setting) failed: $(tail -n 3 "$lg.prep")"
  sync; wait_quiet
  [[ $dir == - ]] || b0=$(bytes "$dir")
  rm -f "$TMP/time"
  s0=$(server_ticks); read -r m0 st0 < <(machine_ticks)
  as_user timeout -k 10 "$RUN_LIMIT" /usr/bin/time -q -f '%e %U %S %M' -o "$TMP/time" "$@" >"$lg" 2>&1 || rc=$?
  s1=$(server_ticks); read -r m1 st1 < <(machine_ticks)
  [[ ! -s $TMP/time ]] || read -r wall user sys rss <"$TMP/time"
  [[ $dir == - ]] || { b1=$(bytes "$dir"); stored=$((b1 - b0)); }
  local line
  line=$(awk -v OFS='\t' -v d="$DISTURBED" -v w="$wall" -v c="$user" -v y="$sys" -v k="$rss" -v b="$stored" \
    -v srv="$((s1 - s0))" -v busy="$((m1 - m0))" -v stolen="$((st1 - st0))" -v rc="$rc" \
    'BEGIN { other = (busy - srv) / 100 - c - y
             print w, c + y, k, b, srv / 100, sprintf("%.2f", other), stolen / 100, rc, (w >= 0.5 && other > d * w) ? "disturbed" : "ok" }')
  printf '%s\t%s\t%s\t%s\t%s\n' "$key" "$tool" "$setting" "$run" "$line" >>"$RAW"
  RUN_STATE=${line##*$'\t'}
  log "$key | $tool | $setting | run $run: ${wall}s wall, $user+$sys cpu, $((rss / 1024)) MiB, grew $stored, rc $rc, $RUN_STATE"
  ((rc == 0)) || { log "FAILED: $(tail -n 3 "$lg")"; return 1; }
}

# ---------------------------------------------------------------- steps before a run, shared by the contestants
nothing() { :; }
prep_restore() { rm -rf "$RESTORE"; as_user mkdir -m 700 "$RESTORE"; }
prep_copy() { rm -rf "$COPY"; as_user mkdir "$COPY"; }
