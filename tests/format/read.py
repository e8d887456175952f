#!/usr/bin/env python3
"""Reads a repository in a directory: a second implementation, written from agent/src/repository/FORMAT.md alone.

    read.py REPOSITORY list
    read.py REPOSITORY restore BACKUP|latest DIRECTORY        tablespaces beside it, as DIRECTORY.tablespace-OID
    read.py REPOSITORY log DIRECTORY                  every log file, tails filled up with zeros
    read.py REPOSITORY check                          every object of the repository

Needs the packages in requirements.txt. Exit codes: 0 all is right, 1 something is damaged (the last line says what), 2 usage.
"""

import base64
import hashlib
import json
import os
import re
import struct
import sys
from pathlib import Path

import zstandard
from blake3 import blake3

PAGE = 8192
PART_PAGES = 131_072
HEX64 = re.compile("[0-9a-f]{64}")


class Damage(Exception):
    """What is not as the format says."""


def demand(right, what):
    if not right:
        raise Damage(what)


def unpack_frame(stored, size, where):
    try:
        plain = zstandard.ZstdDecompressor().decompress(stored, max_output_size=size)
    except zstandard.ZstdError as error:
        raise Damage(f"{where}: does not decompress: {error}") from error
    demand(len(plain) == size, f"{where}: has {len(plain)} bytes instead of {size}")
    return plain


class Bytes:
    """Bytes that are read from the front."""

    def __init__(self, data, where):
        self.data, self.at, self.where = data, 0, where

    def take(self, count):
        demand(self.at + count <= len(self.data), f"{self.where}: ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def words(self, count):
        return struct.unpack(f"<{count}I", self.take(4 * count))

    def varint(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            demand(value < 1 << 64, f"{self.where}: has a number of more than 64 bits")
            if byte < 0x80:
                return value
            shift += 7

    def at_end(self):
        return self.at == len(self.data)


# ---------------------------------------------------------------- objects


class Repository:
    def __init__(self, root):
        self.root = Path(root)
        self.id = self.document("holdfast.json", "repository")["repository_id"]

    def get(self, key):
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError:
            raise Damage(f"{key}: is missing") from None

    def keys(self, below=""):
        start = self.root / below
        found = []
        for directory, directories, files in os.walk(start):
            directories[:] = [name for name in directories if not name.startswith(".")]
            found += [str((Path(directory) / name).relative_to(self.root)) for name in files if not name.startswith(".")]
        return sorted(found)

    def children(self, key):
        """The names one level below; a directory that holds no object is none."""
        depth = key.count("/") + 1 if key else 0
        return sorted({found.split("/")[depth] for found in self.keys(key)})

    def document(self, key, kind, **says):
        data = self.get(key)
        start, digest, end = data[-78:-67], data[-67:-3], data[-3:]
        demand(start == b',"sha256":"' and end == b'"}\n', f"{key}: has no seal")
        demand(hashlib.sha256(data[:-78]).hexdigest().encode() == digest, f"{key}: was changed")
        document = json.loads(data)
        demand((document["kind"], document["format"]) == (kind, 1), f"{key}: is no {kind} of format 1")
        for name, value in says.items():
            demand(document[name] == value, f"{key}: is of {name} {document[name]!r}")
        return document

    def systems(self):
        return [name for name in self.children("") if name != "holdfast.json"]

    def backups(self):
        """(system, lineage, backup) of every backup, oldest first."""
        found = []
        for system in self.systems():
            for lineage in self.children(f"{system}/lineages"):
                below = f"{system}/lineages/{lineage}/backups"
                found += [
                    (system, lineage, backup)
                    for backup in self.children(below)
                    if (self.root / below / backup / "manifest.json").exists()
                ]
        return sorted(found, key=lambda names: names[2])

    def manifest(self, system, lineage, backup):
        key = f"{system}/lineages/{lineage}/backups/{backup}/manifest.json"
        return self.document(key, "manifest", repository_id=self.id, system_id=system, lineage=lineage, backup_id=backup)


def safe(path):
    parts = path.split("/")
    good = all(part not in ("", ".", "..") and len(part.encode()) <= 255 and "\0" not in part for part in parts)
    demand(good, f"the path {path!r} leads out of the data directory")
    return path


# ---------------------------------------------------------------- maps


class Map:
    """Entries are None for a page of zeros, else (pack, frame, slot, hash); a pack is (digest, size)."""

    def __init__(self, repository, system, digest, size, base=None):
        self.key = f"{system}/maps/{digest[:2]}/{digest}"
        data = repository.get(self.key)
        demand(len(data) == size, f"{self.key}: has {len(data)} bytes instead of {size}")
        demand(hashlib.sha256(data).hexdigest() == digest, f"{self.key}: was changed")
        cursor = Bytes(data, self.key)
        demand(cursor.take(8) == b"HFMAP\0\0\x01", f"{self.key}: is no map")
        is_patch, pages, files_stored, files_plain, packs, runs_stored, runs_plain, hashes = cursor.words(8)
        base_digest = cursor.take(32).hex()
        demand(bool(is_patch) == (base is not None), f"{self.key}: is a patch, or is none, against its manifest")
        demand(not is_patch or base_digest == base["sha256"], f"{self.key}: patches another map")
        self.files_json = unpack_frame(cursor.take(files_stored), files_plain, self.key)
        self.files = json.loads(self.files_json)
        self.packs = [(entry[:32].hex(), struct.unpack("<I", entry[32:])[0])
                      for entry in (cursor.take(36) for _ in range(packs))]
        runs = Bytes(unpack_frame(cursor.take(runs_stored), runs_plain, self.key), self.key)
        self.hashes = Bytes(cursor.take(16 * hashes), self.key)
        demand(cursor.at_end(), f"{self.key}: goes on after its end")
        self.check_files(pages)
        known = Map(repository, system, base["sha256"], base["size"]).entries[:pages] if base else []
        self.entries = known + [False] * (pages - len(known))
        self.fill(runs, is_patch)
        demand(False not in self.entries, f"{self.key}: leaves pages out")

    def check_files(self, pages):
        for part in self.files:
            safe(part["path"])
            whole = -(-part["size"] // PAGE)
            end = part["first_page"] + part["pages"]
            right = end == whole if part["pages"] < PART_PAGES else part["pages"] == PART_PAGES and end <= whole
            demand(right, f"{self.key}: claims {part['pages']} pages of {part['path']}")
        demand(sum(part["pages"] for part in self.files) == pages, f"{self.key}: does not cover its files")

    def fill(self, runs, is_patch):
        page, last = 0, None
        while not runs.at_end():
            if is_patch:
                page += runs.varint()
            length, kind = divmod(runs.varint(), 4)
            demand(length > 0 and page + length <= len(self.entries), f"{self.key}: has a run that goes nowhere")
            if kind == 0:
                self.entries[page : page + length] = [None] * length
            else:
                if kind == 1:
                    number, frame, slot = runs.varint(), runs.varint(), runs.varint()
                    demand(number < len(self.packs), f"{self.key}: names no pack {number}")
                    pack = self.packs[number]
                else:
                    demand(last is not None, f"{self.key}: begins with a run that continues")
                    pack, frame, slot = last
                    frame, slot = (frame, slot + 1) if kind == 2 else (frame + 1, 0)
                for offset in range(length):
                    self.entries[page + offset] = (pack, frame, slot + offset, self.hashes.take(16))
                last = (pack, frame, slot + length - 1)
            page += length
        demand(self.hashes.at_end(), f"{self.key}: has more hashes than pages")


def maps_of(repository, manifest):
    for row in manifest["maps"]:
        found = Map(repository, manifest["system_id"], row["sha256"], row["size"], row["base"])
        first = found.files[0]
        demand((first["path"], first["first_page"]) == (row["first"], row["first_page"]), f"{found.key}: covers other files")
        demand((len(found.files), len(found.entries)) == (row["files"], row["pages"]), f"{found.key}: covers more or less")
        demand(blake3(found.files_json).hexdigest(length=16) == row["files_digest"], f"{found.key}: has another files_digest")
        yield found


# ---------------------------------------------------------------- packs


class Pack:
    def __init__(self, repository, system, digest, size):
        self.key = f"{system}/packs/{digest[:2]}/{digest}"
        self.data = repository.get(self.key)
        demand(len(self.data) == size, f"{self.key}: has {len(self.data)} bytes instead of {size}")
        demand(hashlib.sha256(self.data).hexdigest() == digest, f"{self.key}: was changed")
        demand(self.data[:16] == b"HFPACK\0\x01" + struct.pack("<II", PAGE, 0), f"{self.key}: is no pack")
        frames, zeros, magic = struct.unpack("<II8s", self.data[-16:])
        demand((zeros, magic) == (0, b"HFINDEX\x01"), f"{self.key}: has no index")
        self.frames, at = [], 16
        for entry in struct.iter_unpack("<IHH16s", self.data[len(self.data) - 16 - 24 * frames : -16]):
            demand(1 <= entry[1] <= 128 and entry[2] == 0, f"{self.key}: has a frame of {entry[1]} pages")
            self.frames.append((at, entry[0], entry[1], entry[3]))
            at += entry[0]
        demand(at + 24 * frames + 16 == size, f"{self.key}: its parts do not add up")

    def pages(self, number):
        """The pages of a frame, with their hashes."""
        demand(number < len(self.frames), f"{self.key}: has no frame {number}")
        at, stored, count, digest = self.frames[number]
        plain = unpack_frame(self.data[at : at + stored], count * PAGE, f"{self.key} frame {number}")
        pages = [plain[start : start + PAGE] for start in range(0, len(plain), PAGE)]
        hashes = [blake3(page).digest(length=16) for page in pages]
        demand(blake3(b"".join(hashes)).digest(length=16) == digest, f"{self.key}: frame {number} has another digest")
        return list(zip(pages, hashes))


class Pages:
    """Reads pages by their places; holds one pack and its last frame."""

    def __init__(self, repository, system):
        self.repository, self.system = repository, system
        self.pack = self.frame = None

    def read(self, entry):
        pack, frame, slot, page_hash = entry
        if self.pack is None or self.pack[0] != pack:
            self.pack, self.frame = (pack, Pack(self.repository, self.system, *pack)), None
        if self.frame is None or self.frame[0] != frame:
            self.frame = (frame, self.pack[1].pages(frame))
        demand(slot < len(self.frame[1]), f"{self.pack[1].key}: frame {frame} has no page {slot}")
        page, found = self.frame[1][slot]
        demand(found == page_hash, f"{self.pack[1].key}: page {slot} of frame {frame} is another")
        return page


def restore(repository, manifest, target):
    target = Path(target)
    target.mkdir(mode=0o700, parents=True)
    for directory in manifest["directories"]:
        (target / safe(directory["path"])).mkdir(mode=directory["mode"], parents=True, exist_ok=True)
    wanted, files = [], 0
    for found in maps_of(repository, manifest):
        first = 0
        for part in found.files:
            path = target / part["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as file:
                file.truncate(part["size"])
            path.chmod(part["mode"])
            files += part["first_page"] == 0
            for page, entry in enumerate(found.entries[first : first + part["pages"]], part["first_page"]):
                if entry is not None:
                    wanted.append((entry, path, page, part["size"]))
            first += part["pages"]
    pages = Pages(repository, manifest["system_id"])
    for entry, path, page, size in sorted(wanted, key=lambda one: one[0][:3]):
        with open(path, "r+b") as file:
            file.seek(page * PAGE)
            file.write(pages.read(entry)[: size - page * PAGE])
    demand(files == manifest["sizes"]["files"], f"the backup has {files} files, its manifest says {manifest['sizes']['files']}")
    record = manifest["engine_record"]
    (target / "backup_label").write_bytes(base64.b64decode(record["backup_label"]))
    # tablespace_map would make the server use the places of the original.
    for tablespace in record["tablespaces"]:
        link = target / "pg_tblspc" / str(tablespace["oid"])
        link.symlink_to(link.rename(f"{target.resolve()}.tablespace-{tablespace['oid']}"))
    return files


# ---------------------------------------------------------------- log


def container(repository, key, system, lineage, branch, name):
    """Header and content."""
    data = repository.get(key)
    demand(len(data) > 44 and hashlib.sha256(data[:-32]).digest() == data[-32:], f"{key}: was changed or cut")
    cursor = Bytes(data[:-32], key)
    demand(cursor.take(8) == b"HFLOG\0\0\x01", f"{key}: is no log file")
    header = json.loads(cursor.take(cursor.words(1)[0]))
    address = tuple(header[member] for member in ("system_id", "lineage", "branch", "name"))
    demand(address == (system, lineage, branch, name), f"{key}: belongs to {address}")
    content = b""
    for frame in header["frames"]:
        plain = unpack_frame(cursor.take(frame["stored"]), frame["size"], key)
        demand(blake3(plain).hexdigest() == frame["blake3"], f"{key}: a frame was changed")
        content += plain
    demand(cursor.at_end() and len(content) == header["size"], f"{key}: its parts do not add up")
    return header, content


def tail(repository, below, *address):
    """The content of a tail, as large as the file: the pieces of the newest generation, then zeros."""
    names = repository.children(below)
    pieces = [container(repository, f"{below}/{name}", *address) for name in names]
    newest = pieces[-1][0]["piece"]["generation"]
    content = b""
    for name, (header, piece) in zip(names, pieces):
        if header["piece"]["generation"] != newest:
            continue
        demand(header["from"] == len(content), f"{below}/{name}: a piece before it is missing")
        demand(header["piece"]["before"] == blake3(content).hexdigest(), f"{below}/{name}: follows other bytes")
        content += piece
    return content.ljust(max(header["file_size"] for header, _ in pieces), b"\0")


def logs(repository):
    """(branch, name, content) of all log files, whole ones before tails."""
    for system in repository.systems():
        for lineage in repository.children(f"{system}/lineages"):
            below = f"{system}/lineages/{lineage}"
            for branch in repository.children(f"{below}/log"):
                for name in repository.children(f"{below}/log/{branch}"):
                    header, content = container(repository, f"{below}/log/{branch}/{name}", system, lineage, branch, name)
                    whole = header["piece"] is None and header["from"] == 0 and header["file_size"] == len(content)
                    demand(whole, f"{branch}/{name}: is a piece, not a file")
                    yield branch, name, content
            for branch in repository.children(f"{below}/tails"):
                for name in repository.children(f"{below}/tails/{branch}"):
                    yield branch, name, tail(repository, f"{below}/tails/{branch}/{name}", system, lineage, branch, name)


# ---------------------------------------------------------------- commands

DOCUMENTS = [
    (re.compile(r"holdfast\.json"), "repository"),
    (re.compile(r"[^/]+/tombstones/(?P<name>[^/]+)"), "tombstone"),
    (re.compile(r"(?P<system_id>[^/]+)/lineages/(?P<lineage>[^/]+)/lineage\.json"), "lineage"),
    (re.compile(r"[^/]+/lineages/(?P<lineage>[^/]+)/position\.json"), "position"),
    (re.compile(r"[^/]+/lineages/(?P<lineage>[^/]+)/leases/(?P<work>backup|prune)"), "lease"),
    (re.compile(r"(?P<system_id>[^/]+)/lineages/(?P<lineage>[^/]+)/backups/(?P<backup_id>[^/]+)/manifest\.json"), "manifest"),
    (re.compile(r"[^/]+/lineages/[^/]+/backups/(?P<backup_id>[^/]+)/pin\.json"), "pin"),
    (re.compile(r"[^/]+/lineages/[^/]+/backups/(?P<backup_id>[^/]+)/evidence/[^/]+\.json"), "evidence"),
]


def check(repository):
    """Reads every object there is; an object of no known kind is damage."""
    counts = {}
    for key in repository.keys():
        parts = key.split("/")
        kind = next((kind for pattern, kind in DOCUMENTS if pattern.fullmatch(key)), None)
        if kind:
            pattern = next(pattern for pattern, of in DOCUMENTS if of == kind)
            repository.document(key, kind, **pattern.fullmatch(key).groupdict())
        elif len(parts) == 4 and parts[1] == "packs" and HEX64.fullmatch(parts[3]) and parts[2] == parts[3][:2]:
            kind = "pack"
            pack = Pack(repository, parts[0], parts[3], (repository.root / key).stat().st_size)
            for number in range(len(pack.frames)):
                pack.pages(number)
        elif len(parts) == 4 and parts[1] == "maps":
            kind = "map"
        elif len(parts) >= 6 and parts[3] in ("log", "tails"):
            kind = "log" if parts[3] == "log" else "piece"
        demand(kind, f"{key}: is no object of the format")
        counts[kind] = counts.get(kind, 0) + 1
    for names in repository.backups():
        manifest, pages = repository.manifest(*names), Pages(repository, names[0])
        for entry in sorted(entry for found in maps_of(repository, manifest) for entry in found.entries if entry):
            pages.read(entry)
    for _ in logs(repository):
        pass
    return counts


def main(arguments):
    match arguments:
        case [root, "list"]:
            repository = Repository(root)
            for names in repository.backups():
                sizes = repository.manifest(*names)["sizes"]
                print(names[2], sizes["files"], sizes["database_bytes"], sizes["new_bytes"])
        case [root, "restore", backup, target]:
            repository = Repository(root)
            named = [names for names in repository.backups() if backup in (names[2], "latest")]
            demand(named, f"there is no backup {backup}")
            print(named[-1][2], restore(repository, repository.manifest(*named[-1]), target), "files")
        case [root, "log", target]:
            Path(target).mkdir(parents=True)
            for branch, name, content in logs(Repository(root)):
                path = Path(target) / name
                if not path.exists():
                    path.write_bytes(content)
                    print(branch, name, len(content))
        case [root, "check"]:
            for kind, count in sorted(check(Repository(root)).items()):
                print(kind, count)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (Damage, KeyError, ValueError) as error:
        print(f"damaged: {error}", file=sys.stderr)
        sys.exit(1)
