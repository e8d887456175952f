# shellcheck shell=bash
# Holdfast. Places: local, s3. It reads the running server's data directory and brings the log it needs from pg_wal
# itself, so archive_command does nothing meanwhile.

holdfast_use() { # PLACE: sets what the others use
  case $1 in
    local) HOLDFAST_STORE=$REPO/holdfast; HOLDFAST_CLI=("$AGENT" --repository "$HOLDFAST_STORE") ;;
    s3)
      HOLDFAST_STORE=$(s3_store holdfast)
      HOLDFAST_CLI=("$AGENT" --repository "s3://$BUCKET/holdfast" --s3-endpoint "$S3URL" --s3-region us-east-1 --s3-path-style --s3-ca-file "$CA")
      ;;
  esac
  HOLDFAST_BACKUP=("${HOLDFAST_CLI[@]}" backup --data-dir "$PGDATA" --checkpoint fast)
}
holdfast_ready() { # PLACE: use it; its repository holds a backup
  holdfast_use "$1"
  [[ -e $HOLDFAST_STORE ]] || as_user "${HOLDFAST_BACKUP[@]}"
}

holdfast_prep_new() { rm -rf "$HOLDFAST_STORE"; }
holdfast_full() { # KEY PLACE
  holdfast_use "$2"
  measure "$1" Holdfast "$2" holdfast_prep_new "$HOLDFAST_STORE" "${HOLDFAST_BACKUP[@]}"
}

# Leases and positions change in place, so the prior state is a real copy, never links.
holdfast_remember() { rm -rf "$REPO/holdfast.prior"; as_user cp -a "$HOLDFAST_STORE" "$REPO/holdfast.prior"; }
holdfast_prep_prior() { rm -rf "$HOLDFAST_STORE"; as_user cp -a "$REPO/holdfast.prior" "$HOLDFAST_STORE"; }
holdfast_incremental() { # KEY PLACE
  holdfast_use "$2"; holdfast_remember
  measure "$1" Holdfast "$2" holdfast_prep_prior "$HOLDFAST_STORE" "${HOLDFAST_BACKUP[@]}"
}

holdfast_restore() { # KEY PLACE
  holdfast_use "$2"
  measure "$1" Holdfast "$2" prep_restore "$RESTORE" "${HOLDFAST_CLI[@]}" restore latest --data-dir "$RESTORE"
}
holdfast_delta() { # KEY PLACE
  holdfast_use "$2"
  [[ -e $RESTORE/PG_VERSION ]] || { prep_restore; as_user "${HOLDFAST_CLI[@]}" restore latest --data-dir "$RESTORE"; }
  measure "$1" Holdfast "$2" damage_restored - "${HOLDFAST_CLI[@]}" restore latest --data-dir "$RESTORE" --delta
}
holdfast_verify() { # KEY PLACE
  holdfast_use "$2"
  measure "$1" Holdfast "$2, --level data" nothing - "${HOLDFAST_CLI[@]}" verify latest --level data
}
holdfast_restore_for_check() { as_user "${HOLDFAST_CLI[@]}" restore latest --data-dir "$CHECK" --recover --target-immediate --pg-bin "$PGBIN"; }
