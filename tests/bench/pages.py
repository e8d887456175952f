#!/usr/bin/env python3
"""What the bench needs to know about data directories, page by page.

pages.py changed OLD NEW OUT     say how much differs; write the changed 8 KiB pages of NEW to OUT, as the data that an
                                 ideal page-level incremental would store
pages.py same COLD RESTORED      compare the files that a restore must bring back exactly; exit 1 and name those that differ
pages.py damage DIRECTORY BIG SMALL   overwrite 64 pages of BIG, remove SMALL (paths below DIRECTORY)
"""
import os
import sys

PAGE = 8192
BLOCK = 1 << 20
# Only these hold nothing that a running server changes by itself between the copy and the backup.
EXACT = ("base", "global", "pg_xact", "pg_multixact", "pg_tblspc")
# pg_control moves with every checkpoint; pg_internal.init is a cache that is built anew.
NOT_EXACT = ("pg_control", "pg_internal.init")


def files_below(root, directories):
    for directory in directories:
        for parent, _, names in os.walk(os.path.join(root, directory)):
            for name in names:
                yield os.path.relpath(os.path.join(parent, name), root)


def blocks(path):
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            yield block


def changed(old, new, out):
    pages = changed_pages = files = changed_files = 0
    with open(out, "wb") as output:
        for name in files_below(new, ("base", "global")):
            files += 1
            before = changed_pages
            old_blocks = blocks(os.path.join(old, name))
            for block in blocks(os.path.join(new, name)):
                was = next(old_blocks, b"")
                pages += -(-len(block) // PAGE)
                if block == was:
                    continue
                for at in range(0, len(block), PAGE):
                    if block[at:at + PAGE] != was[at:at + PAGE]:
                        changed_pages += 1
                        output.write(block[at:at + PAGE])
            changed_files += changed_pages > before
    print(f"{changed_pages} of {pages} pages changed ({100 * changed_pages / max(1, pages):.1f} %, "
          f"{changed_pages * PAGE / 1e6:.1f} MB) in {changed_files} of {files} files")
    return 0


def same(cold, restored):
    def exact(root):
        return {n for n in files_below(root, EXACT) if os.path.basename(n) not in NOT_EXACT}

    left, right = exact(cold), exact(restored)
    differing = sorted(f"{n} (missing)" for n in left - right) + sorted(f"{n} (not in the source)" for n in right - left)
    for name in sorted(left & right):
        a, b = os.path.join(cold, name), os.path.join(restored, name)
        if os.path.getsize(a) != os.path.getsize(b) or any(x != y for x, y in zip(blocks(a), blocks(b))):
            differing.append(name)
    print(f"{len(left)} files compared" + (f", {len(differing)} differ: {', '.join(differing[:5])}" if differing else ""))
    return 1 if differing else 0


def damage(directory, big, small):
    path = os.path.join(directory, big)
    status = os.stat(path)
    pages = status.st_size // PAGE
    with open(path, "r+b") as file:
        for i in range(64):
            file.seek(pages * i // 64 * PAGE)
            file.write(b"\x55" * PAGE)
    # Rot does not touch the modification time: a tool that believes it alone does not repair.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.remove(os.path.join(directory, small))
    return 0


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    sys.exit({"changed": changed, "same": same, "damage": damage}[command](*arguments))
