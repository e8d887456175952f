# shellcheck shell=bash disable=SC2034
# pgBackRest, zstd 3, two processes. Configurations: bb (bundles and block incremental, its best for most), plain
# (better where changes are scattered), s3 (bb on S3).

pgbr_configure() { # CONFIGURATION
  local file=$WORK/pgbr/$1.conf
  cat >"$file" <<C
[global]
compress-type=zst
compress-level=3
process-max=2
start-fast=y
log-level-console=warn
log-level-file=off
lock-path=$WORK/pgbr/lock-$1
spool-path=$WORK/pgbr/spool-$1
repo1-retention-full=9
repo1-path=$(pgbr_path "$1")
C
  [[ $1 == plain ]] || printf 'repo1-bundle=y\nrepo1-block=y\n' >>"$file"
  [[ $1 != s3 ]] || cat >>"$file" <<C
repo1-type=s3
repo1-s3-bucket=$BUCKET
repo1-s3-endpoint=localhost
repo1-s3-region=us-east-1
repo1-s3-uri-style=path
repo1-s3-key=$S3KEY
repo1-s3-key-secret=$S3SECRET
repo1-storage-port=$S3PORT
repo1-storage-ca-file=$CA
C
  printf '[main]\npg1-path=%s\npg1-port=%s\npg1-socket-path=%s\n' "$PGDATA" "$PGPORT" "$TMP" >>"$file"
}
pgbr_path() { case $1 in s3) echo /pgbackrest ;; *) echo "$REPO/pgbackrest-$1" ;; esac; }
pgbr_store() { case $1 in s3) s3_store pgbackrest ;; *) pgbr_path "$1" ;; esac; }
pgbr_use() { CFG=$1 PGBR_CLI=("$PGBR" --config="$WORK/pgbr/$1.conf" --stanza=main); } # sets what the others use
pgbr_archive() { archive_to "${PGBR_CLI[*]} archive-push %p"; }
pgbr_latest() { as_user "${PGBR_CLI[@]}" info | sed -nE 's/^ *(full|incr|diff) backup: //p' | tail -n 1; }

pgbr_stanza() { # CONFIGURATION: use it; its repository exists
  pgbr_use "$1"
  [[ ! -e $WORK/pgbr/$1.conf ]] || return 0
  pgbr_configure "$1"
  as_user "${PGBR_CLI[@]}" stanza-create
}
pgbr_ready() { # CONFIGURATION: use it; its repository holds a full backup
  pgbr_stanza "$1"
  [[ -z $(pgbr_latest) ]] || return 0
  pgbr_archive; as_user "${PGBR_CLI[@]}" backup --type=full; archive_to /bin/true
}

pgbr_prep_full() { # leave one full backup at most
  [[ -z $(pgbr_latest) ]] || as_user "${PGBR_CLI[@]}" expire --repo1-retention-full=1
}
pgbr_full() { # KEY CONFIGURATION
  pgbr_stanza "$2"; pgbr_archive
  measure "$1" pgBackRest "$2" pgbr_prep_full "$(pgbr_store "$2")" "${PGBR_CLI[@]}" backup --type=full
  archive_to /bin/true
  pgbr_prep_full
}

# Away with the previous run's, so that each run starts from the same prior backup.
pgbr_prep_incremental() {
  local latest; latest=$(pgbr_latest)
  [[ $latest == "$PGBR_PRIOR" ]] || as_user "${PGBR_CLI[@]}" expire --set="$latest"
}
pgbr_incremental() { # KEY CONFIGURATION
  pgbr_use "$2"; pgbr_archive; PGBR_PRIOR=$(pgbr_latest)
  measure "$1" pgBackRest "$2" pgbr_prep_incremental "$(pgbr_store "$2")" "${PGBR_CLI[@]}" backup --type=incr
  archive_to /bin/true
}

pgbr_restore() { # KEY CONFIGURATION
  pgbr_use "$2"
  measure "$1" pgBackRest "$2" prep_restore "$RESTORE" "${PGBR_CLI[@]}" --pg1-path="$RESTORE" restore
}
pgbr_delta() { # KEY CONFIGURATION
  pgbr_use "$2"
  [[ -e $RESTORE/PG_VERSION ]] || { prep_restore; as_user "${PGBR_CLI[@]}" --pg1-path="$RESTORE" restore; }
  measure "$1" pgBackRest "$2" damage_restored - "${PGBR_CLI[@]}" --pg1-path="$RESTORE" --delta restore
}
pgbr_verify() { # KEY CONFIGURATION
  pgbr_use "$2"
  measure "$1" pgBackRest "$2" nothing - "${PGBR_CLI[@]}" verify
}
pgbr_restore_for_check() { as_user "${PGBR_CLI[@]}" --pg1-path="$CHECK" --type=immediate --target-action=promote restore; }
