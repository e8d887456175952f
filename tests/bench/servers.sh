# shellcheck shell=bash
# The PostgreSQL that is backed up and, for the S3 phase, a MinIO over TLS. Both are stopped by pid at exit.

PG_PID="" S3_PID=""

start_postgres() { # waits until it accepts connections
  as_user pg_ctl -D "$PGDATA" -w -t 120 -l "$LOGS/postgres.log" start >/dev/null
  PG_PID=$(head -n 1 "$PGDATA/postmaster.pid")
}
stop_postgres() {
  [[ -n $PG_PID ]] || return 0
  as_user pg_ctl -D "$PGDATA" -w -t 120 -m fast stop >/dev/null || kill -QUIT "$PG_PID" || true
  PG_PID=""
}
sql() { as_user psql -XAtq -v ON_ERROR_STOP=1 -d bench -c "$1"; }

archive_to() { # SHELL_COMMAND: returns when the server has read it, the archiver with it
  sql "alter system set archive_command = '$1'"; sql 'select pg_reload_conf()' >/dev/null
  wait_until 10 "archive_command" archive_command_is "$1"
}
archive_command_is() { [[ $(sql "select setting from pg_settings where name = 'archive_command'") == "$1" ]]; }

s3_curl() { # METHOD KEY [curl arguments]: one signed request
  local method=$1 key=$2; shift 2
  curl -sS --fail --cacert "$CA" --aws-sigv4 aws:amz:us-east-1:s3 --user "$S3KEY:$S3SECRET" -X "$method" "$@" "$S3URL/$BUCKET$key"
}
start_s3() { # pgBackRest speaks only HTTPS to S3, so everybody gets TLS
  mkdir -p "$CERTS" "$S3DIR"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
    -keyout "$CERTS/private.key" -out "$CA" 2>"$LOGS/openssl.log"
  install -m 755 "$MINIO" "$WORK/tools/minio"
  give_to_user "$CERTS" "$S3DIR"
  exec_as_user env MINIO_ROOT_USER="$S3KEY" MINIO_ROOT_PASSWORD="$S3SECRET" MINIO_BROWSER=off MINIO_UPDATE=off \
    "$WORK/tools/minio" server --quiet --certs-dir "$CERTS" --address "127.0.0.1:$S3PORT" "$S3DIR" >"$LOGS/s3.log" 2>&1 &
  S3_PID=$!
  wait_until 60 "MinIO on port $S3PORT" s3_curl PUT "" 2>"$LOGS/s3-bucket.log"
}
stop_s3() {
  [[ -n $S3_PID ]] || return 0
  kill "$S3_PID" 2>/dev/null || true
  wait "$S3_PID" || true
  S3_PID=""
}
# MinIO on one directory keeps an object as a directory of files: removing and copying whole prefixes behind its back
# is how repositories are emptied and brought back between runs, outside the clock.
s3_store() { echo "$S3DIR/$BUCKET/$1"; }
