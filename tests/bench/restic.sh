# shellcheck shell=bash
# restic, of the cold copy: it knows nothing of a running server. Places: local, s3.

restic_use() { # PLACE: sets what the others use
  case $1 in
    local) RESTIC_STORE=$REPO/restic; RESTIC_CLI=("$RESTIC" -r "$RESTIC_STORE" --quiet) ;;
    s3) RESTIC_STORE=$(s3_store restic); RESTIC_CLI=("$RESTIC" --cacert "$CA" -r "s3:$S3URL/$BUCKET/restic" --quiet) ;;
  esac
}
restic_ready() { # PLACE: use it; its repository holds a snapshot
  restic_use "$1"
  [[ ! -e $RESTIC_STORE/config ]] || return 0
  restic_prep_new; as_user "${RESTIC_CLI[@]}" backup "$COLD"
}
restic_snapshots() { as_user "${RESTIC_CLI[@]}" snapshots --json --no-lock | grep -o '"short_id"' | wc -l; }

restic_prep_new() {
  rm -rf "$RESTIC_STORE" "$BENCH_HOME/restic"
  as_user "${RESTIC_CLI[@]}" init
}
restic_full() { # KEY PLACE
  restic_use "$2"
  measure "$1" restic "$2" restic_prep_new "$RESTIC_STORE" "${RESTIC_CLI[@]}" backup "$COLD"
}

restic_prep_incremental() { # forget what this state's earlier run added
  if (($(restic_snapshots) > RESTIC_PRIOR)); then as_user "${RESTIC_CLI[@]}" forget --prune --max-unused 0 latest; fi
}
restic_incremental() { # KEY PLACE
  restic_use "$2"; RESTIC_PRIOR=$(restic_snapshots)
  measure "$1" restic "$2" restic_prep_incremental "$RESTIC_STORE" "${RESTIC_CLI[@]}" backup "$COLD"
}

restic_restore() { # KEY PLACE
  restic_use "$2"
  measure "$1" restic "$2" prep_restore "$RESTORE" "${RESTIC_CLI[@]}" restore latest --target "$RESTORE"
}
restic_verify() { # KEY PLACE
  restic_use "$2"
  measure "$1" restic "$2, check --read-data" nothing - "${RESTIC_CLI[@]}" check --read-data
}
