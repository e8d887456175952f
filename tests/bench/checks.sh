# shellcheck shell=bash
# A fast restore of the wrong bytes is no restore. Every check is a line in checks.tsv: name, ok or WRONG, detail.

check() { # NAME ok|WRONG DETAIL
  printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$CHECKS"
  log "check: $1: $2 ($3)"
}

same_as_cold() { # NAME DIR: page files of DIR equal the cold copy's
  local detail verdict=ok
  detail=$(as_user python3 "$(readable pages.py)" same "$COLD" "$2") || verdict=WRONG
  check "$1" "$verdict" "$detail"
}
readable() { # a helper program where the unprivileged user can read it
  [[ -e $WORK/tools/$1 ]] || install -m 755 "$HERE/$1" "$WORK/tools/$1"
  echo "$WORK/tools/$1"
}

SUMS="select count(*), sum(hashint8(aid::bigint * 131 + abalance)) from pgbench_accounts
  union all select count(*), sum(hashint8(id)::bigint + hashtext(note) + jsonb_hash(j)) from doc
  union all select count(*), sum(hashint8(id)::bigint + hashtext(encode(b, 'hex'))) from rnd"

sums_of_source() { sql "$SUMS" | paste -sd' '; }
sums_of_copy() { as_user env PGPORT="$PG2PORT" psql -XAtq -d bench -c "$SUMS" | paste -sd' '; }
copy_is_promoted() { [[ $(as_user env PGPORT="$PG2PORT" psql -XAtq -d bench -c 'select pg_is_in_recovery()') == f ]]; }

# Restores with the given function into $CHECK, starts what came out, and asks it what the source was asked.
check_started() { # NAME FUNCTION EXPECTED
  local got="the restore failed" verdict=WRONG
  rm -rf "$CHECK"; as_user mkdir -m 700 "$CHECK"
  if "$2" >"$LOGS/check-$2.log" 2>&1; then
    got="it does not start"
    if as_user pg_ctl -D "$CHECK" -w -t 120 -l "$LOGS/check-$2.postgres.log" -o "-c archive_mode=off -p $PG2PORT" start >/dev/null; then
      wait_until 60 "the end of recovery" copy_is_promoted && got=$(sums_of_copy)
      as_user pg_ctl -D "$CHECK" -w -m immediate stop >/dev/null
    fi
  fi
  [[ $got != "$3" ]] || verdict=ok
  check "$1" "$verdict" "$got"
  rm -rf "$CHECK"
}
