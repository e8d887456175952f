# shellcheck shell=bash disable=SC2034
# The programs that are measured: where they come from, that they are recent enough, which versions they are.

PGBACKREST_MIN=2.46   # block incremental, its best setting
RESTIC_MIN=0.16       # compression, faster restore

apt_need() { # install the packages that are missing
  local p miss=()
  for p; do dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || miss+=("$p"); done
  ((${#miss[@]})) || return 0
  ((EUID == 0)) || die "missing packages: ${miss[*]}"
  log "apt-get install ${miss[*]}"
  { apt-get update && apt-get install -y --no-install-recommends "${miss[@]}"; } >"$LOGS/apt.log" 2>&1 ||
    die "apt-get failed: $(tail -n 3 "$LOGS/apt.log")"
}

at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; } # at_least VERSION MINIMUM
pgbackrest_version() { "$1" version 2>/dev/null | awk '{ print $2 }'; }
restic_version() { "$1" version 2>/dev/null | awk '{ print $2 }'; }

# Debian 12 has pgBackRest 2.45 and restic 0.14. The next Debian's builds run on its libraries too: download them by
# an apt configuration of their own, so that the machine's sources stay as they are, and unpack, not install, them.
download_newer() { # PACKAGE: into $TOOL_CACHE/bench, once
  local cache=$TOOL_CACHE/bench/apt mirror
  compgen -G "$TOOL_CACHE/bench/$1_*.deb" >/dev/null && return 0
  mkdir -p "$cache/lists/partial" "$cache/archives/partial"
  mirror=$(sed -nE 's/^URIs: *([^ ]*\/debian)\/?$/\1/p; s/^deb (\[[^]]*\] )?([^ ]*\/debian)\/? .*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >"$cache/list"
  local opt=(-o Dir::Etc::sourcelist="$cache/list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::lists="$cache/lists" -o Dir::Cache="$cache" -o APT::Sandbox::User=root)
  log "downloading a newer $1"
  (cd "$TOOL_CACHE/bench" && apt-get "${opt[@]}" update && apt-get "${opt[@]}" download "$1") >"$LOGS/apt-$1.log" 2>&1
}
newer() { # NAME MINIMUM: prints the path of a program that is at least that new
  local name=$1 min=$2 own
  own=$(command -v "$name" || true)
  if [[ -n $own ]] && at_least "$("${name}_version" "$own")" "$min"; then echo "$own"; return 0; fi
  if download_newer "$name"; then dpkg -x "$TOOL_CACHE/bench/$name"_*.deb "$WORK/tools/$name"; fi
  own=$WORK/tools/$name/usr/bin/$name
  at_least "$("${name}_version" "$own")" "$min" ||
    die "$name $min or newer is needed for a fair comparison and was not found (PEERS=0 measures Holdfast alone)"
  echo "$own"
}

build_agent() { # the binary under test, where the unprivileged user can read it
  local binary=$HOLDFAST_AGENT
  if [[ -z $binary ]]; then
    log "cargo build --release -p holdfast-agent"
    (cd "$HERE/../.." && cargo build --quiet --release -p holdfast-agent) || die "the agent does not build"
    binary=$(cd "$HERE/../.." && realpath "${CARGO_TARGET_DIR:-target}/release/holdfast-agent")
  fi
  [[ -x $binary ]] || die "no agent at $binary"
  AGENT=$WORK/tools/holdfast-agent
  install -m 755 "$binary" "$AGENT"
}

install_tools() {
  [[ -x $PGBIN/postgres ]] || die "no PostgreSQL server in $PGBIN (set PGBIN)"
  apt_need time zstd rsync python3
  build_agent
  if peers; then
    apt_need pgbackrest   # for its libraries, even where a newer build is unpacked
    PGBR=$(newer pgbackrest "$PGBACKREST_MIN")
    RESTIC=$(newer restic "$RESTIC_MIN")
  fi
  if wanted s3; then apt_need openssl curl; fi
  versions >"$VERSIONS"
}

versions() {
  "$PGBIN/postgres" --version
  "$AGENT" --version
  if peers; then "$PGBR" version; "$RESTIC" version; fi
  if wanted s3 && [[ -x $MINIO ]]; then "$MINIO" --version | head -n 1; fi
  zstd --version | head -n 1
  echo "$(awk -F: '/model name/{ print $2; exit }' /proc/cpuinfo | sed 's/^ *//'), $(nproc) cores, kernel $(uname -r)"
}
