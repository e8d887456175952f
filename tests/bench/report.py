#!/usr/bin/env python3
"""Turns the bench's raw runs into two markdown tables: every row, and the targets with what was reached.

Exit status: 0 all is right, 1 a run failed or a check found wrong data (with --strict 1 also when a target is missed).
"""
import argparse
import csv
import sys
from dataclasses import dataclass, field

MIB = 1 << 20

OPERATIONS = {
    "full": "full backup",
    "S2": "incremental, one range (S2)",
    "SR": "incremental, random rows (SR)",
    "S1": "incremental, half of the pages (S1)",
    "restore": "restore of a full",
    "restore-chain": "restore after ten incrementals",
    "delta": "delta restore, 64 pages + 1 file damaged",
    "verify": "verify data",
    "push": "WAL segments pushed",
    "fetch": "WAL segments fetched",
    "s3-full": "S3: full backup",
    "s3-incr": "S3: incremental, one range",
    "s3-restore": "S3: restore",
    "s3-verify": "S3: verify data",
}

MEMORY_LIMIT_MIB = 128


@dataclass
class Row:
    """All runs of one operation by one tool in one setting. Wall, CPU and growth are of the fastest run."""
    key: str
    tool: str
    setting: str
    wall: float | None = None
    cpu: float = 0.0
    server_cpu: float = 0.0
    stored: int | None = None
    rss_mib: float = 0.0
    failed: bool = False
    walls: list[str] = field(default_factory=list)

    def add(self, run):
        self.rss_mib = max(self.rss_mib, int(run["rss"]) / 1024)
        if run["rc"] != "0":
            self.failed = True
            self.walls.append(f"({run['wall']}, exit {run['rc']})")
            return
        self.walls.append(run["wall"] + ("" if run["state"] == "ok" else "*"))
        if self.wall is None or float(run["wall"]) < self.wall:
            self.wall, self.cpu, self.server_cpu = float(run["wall"]), float(run["cpu"]), float(run["server_cpu"])
            self.stored = None if run["stored"] == "-" else int(run["stored"])


@dataclass(frozen=True)
class Target:
    """What Holdfast must reach: its figure over the best of the peers' is at most (or, if strict, below) the limit."""
    name: str
    key: str
    figure: str
    peers: tuple[tuple[str, str], ...]
    limit: float
    strict: bool = False


PGBACKREST = (("pgBackRest", ""),)
BEST_PEER = (("pgBackRest", ""), ("restic", ""))
FLOOR = (("floor", ""),)
TARGETS = (
    Target("full backup, time, of pgBackRest", "full", "wall", PGBACKREST, 0.55),
    Target("full backup, time, of pg_basebackup zstd", "full", "wall", (("pg_basebackup", ""),), 1.0, strict=True),
    Target("full backup, bytes, of pgBackRest", "full", "stored", PGBACKREST, 1.0),
    Target("incremental, one range, time, of pgBackRest", "S2", "wall", PGBACKREST, 0.35),
    Target("incremental, random rows, time, of the best peer", "SR", "wall", BEST_PEER, 0.6),
    Target("incremental, random rows, bytes, of the floor", "SR", "stored", FLOOR, 1.15),
    Target("incremental, half of the pages, time, of the best peer", "S1", "wall", BEST_PEER, 0.7),
    Target("incremental, half of the pages, bytes, of the floor", "S1", "stored", FLOOR, 1.15),
    Target("restore of a full, time, of pgBackRest", "restore", "wall", PGBACKREST, 0.75),
    Target("restore after ten incrementals, time, of pgBackRest", "restore-chain", "wall", PGBACKREST, 0.75),
    Target("delta restore, time, of pgBackRest", "delta", "wall", PGBACKREST, 0.5),
    Target("verify data, time, of restic", "verify", "wall", (("restic", ""),), 0.5),
    Target("WAL pushed, time, of pgBackRest asynchronous", "push", "wall", (("pgBackRest", "async"),), 0.9),
    Target("WAL fetched, time, of pgBackRest one by one", "fetch", "wall", (("pgBackRest", "one by one"),), 0.5),
)

RUN_COLUMNS = ("key", "tool", "setting", "run", "wall", "cpu", "rss", "stored", "server_cpu", "other_cpu", "stolen", "rc", "state")


def read_tsv(path, columns):
    with open(path, newline="") as file:
        return [dict(zip(columns, line, strict=True)) for line in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def rows_of(runs):
    rows = {}
    for run in runs:
        identity = run["key"], run["tool"], run["setting"]
        rows.setdefault(identity, Row(*identity)).add(run)
    return list(rows.values())


def mib(size):
    return "-" if size is None else f"{size / MIB:.1f}"


def best(rows, key, figure, choices):
    """The row with the smallest figure among the tools (and settings that contain the text) asked for."""
    fitting = [r for r in rows if r.key == key and getattr(r, figure) is not None and not r.failed
               and any(r.tool == tool and text in r.setting for tool, text in choices)]
    return min(fitting, key=lambda r: getattr(r, figure), default=None)


def judge(target, rows):
    """(verdict, ratio, Holdfast's row, the peer's row); the verdict is met, missed, failed or not measured."""
    ours = next((r for r in rows if r.key == target.key and r.tool == "Holdfast"), None)
    peer = best(rows, target.key, target.figure, target.peers)
    if ours is not None and ours.failed:
        return "failed", None, ours, peer
    if ours is None or peer is None or not getattr(peer, target.figure):
        return "not measured", None, ours, peer
    ratio = getattr(ours, target.figure) / getattr(peer, target.figure)
    reached = ratio < target.limit if target.strict else ratio <= target.limit
    return "met" if reached else "missed", ratio, ours, peer


def judge_memory(rows):
    ours = [r for r in rows if r.tool == "Holdfast"]
    if not ours:
        return "not measured", None
    worst = max(ours, key=lambda r: r.rss_mib)
    return "met" if worst.rss_mib <= MEMORY_LIMIT_MIB else "missed", worst


def table(head, alignment, lines):
    escaped = [[str(cell).replace("|", "\\|") for cell in line] for line in lines]
    return ["| " + " | ".join(head) + " |", "|" + "|".join(alignment) + "|"] + ["| " + " | ".join(line) + " |" for line in escaped]


def all_rows(rows):
    lines = []
    for row in rows:
        wall = "FAILED" if row.failed or row.wall is None else f"{row.wall:.2f}"
        lines.append([OPERATIONS.get(row.key, row.key), row.tool, row.setting, wall, f"{row.cpu:.2f}", f"{row.rss_mib:.0f}",
                      mib(row.stored), f"{row.server_cpu:.2f}", " ".join(row.walls)])
    head = ("operation", "tool", "setting", "wall s", "cpu s", "RSS MiB", "stored MiB", "server cpu s", "all walls s")
    return table(head, ["---", "---", "---", "---:", "---:", "---:", "---:", "---:", "---"], lines)


def target_rows(rows):
    lines = []
    for target in TARGETS:
        verdict, ratio, ours, peer = judge(target, rows)

        def pair(show):
            return " / ".join("-" if r is None else show(r) for r in (ours, peer))

        lines.append([target.name, "-" if ratio is None else f"{ratio:.2f}", ("< " if target.strict else "≤ ") + f"{target.limit:.2f}",
                      verdict, "-" if peer is None else f"{peer.tool}, {peer.setting}",
                      pair(lambda r: "-" if r.wall is None else f"{r.wall:.2f}"), pair(lambda r: f"{r.cpu:.2f}"),
                      pair(lambda r: f"{r.rss_mib:.0f}"), pair(lambda r: mib(r.stored))])
    verdict, worst = judge_memory(rows)
    where = "-" if worst is None else f"most in: {OPERATIONS.get(worst.key, worst.key)}"
    memory = "-" if worst is None else f"{worst.rss_mib:.0f} / -"
    lines.append(["peak memory of Holdfast, every row", "-", f"≤ {MEMORY_LIMIT_MIB} MiB", verdict, where, "-", "-", memory, "-"])
    head = ("target", "ratio", "allowed", "verdict", "against", "wall s", "cpu s", "RSS MiB", "stored MiB")
    return table(head, ["---", "---:", "---:", "---", "---", "---:", "---:", "---:", "---:"], lines)


def verdicts(rows):
    return [judge(target, rows)[0] for target in TARGETS] + [judge_memory(rows)[0]]


def summary(rows):
    found = verdicts(rows)
    return "Targets: " + ", ".join(f"{found.count(v)} {v}" for v in ("met", "missed", "failed", "not measured") if v in found) + "."


def disturbance(runs):
    timed = [r for r in runs if r["rc"] == "0" and float(r["wall"]) > 1]
    wall = sum(float(r["wall"]) for r in timed)
    if not wall:
        return []
    other, stolen = (sum(float(r[c]) for r in timed) / wall for c in ("other_cpu", "stolen"))
    return [f"Over {wall:.0f} s of timed runs the rest of the machine took {other:.2f} cores and {stolen:.3f} cores were stolen.", ""]


def render(runs, checks, notes, versions, scale, count):
    rows = rows_of(runs)
    lines = [f"# Bench: scale {scale}, {count} runs each", "",
             "Wall, CPU and bytes are of the fastest run; RSS is the largest of any single process in any run; \\* marks a run that",
             "other processes disturbed. Pairs are Holdfast / peer. \"Server cpu\" is what PostgreSQL and MinIO took of the same cores.", ""]
    lines += ["## Targets", "", summary(rows), "", *target_rows(rows), ""]
    lines += ["## Checks", ""] + [f"- {'ok' if c['verdict'] == 'ok' else '**WRONG**'}: {c['name']}: {c['detail']}" for c in checks] + [""]
    lines += ["## Every row", "", *all_rows(rows), "", *disturbance(runs)]
    lines += ["## Data and versions", ""] + [f"- {text}" for text in notes + versions]
    return "\n".join(lines) + "\n"


def is_wrong(runs, checks, strict):
    missed = strict and {"missed", "failed"} & set(verdicts(rows_of(runs)))
    return bool(missed) or any(r["rc"] != "0" for r in runs) or any(c["verdict"] != "ok" for c in checks)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--raw", "--checks", "--notes", "--versions", "--scale", "--runs"):
        parser.add_argument(name, required=True)
    parser.add_argument("--strict", type=int, default=0)
    options = parser.parse_args()
    runs = read_tsv(options.raw, RUN_COLUMNS)
    checks = read_tsv(options.checks, ("name", "verdict", "detail"))
    notes, versions = (open(path).read().splitlines() for path in (options.notes, options.versions))
    sys.stdout.write(render(runs, checks, notes, versions, options.scale, options.runs))
    return 1 if is_wrong(runs, checks, options.strict) else 0


if __name__ == "__main__":
    sys.exit(main())
