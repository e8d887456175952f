#!/usr/bin/env python3
"""Tests of report.py: python3 tests/bench/report_test.py"""
import unittest

import report


def run(key, tool, setting, wall, rss_mib=50, stored="-", rc="0", state="ok"):
    return {"key": key, "tool": tool, "setting": setting, "run": "1", "wall": str(wall), "cpu": "1.0", "rss": str(rss_mib * 1024),
            "stored": str(stored), "server_cpu": "0", "other_cpu": "0", "stolen": "0", "rc": rc, "state": state}


def target(name):
    return next(t for t in report.TARGETS if t.name == name)


FULL = target("full backup, time, of pgBackRest")
RANDOM = target("incremental, random rows, time, of the best peer")
PUSH = target("WAL pushed, time, of pgBackRest asynchronous")


class Judging(unittest.TestCase):
    def judge(self, which, *runs):
        verdict, ratio, _, peer = report.judge(which, report.rows_of(runs))
        return verdict, ratio, peer and peer.setting

    def test_a_ratio_at_the_limit_is_met(self):
        self.assertEqual(self.judge(FULL, run("full", "pgBackRest", "bb", 4.0), run("full", "Holdfast", "local", 2.2)), ("met", 0.55, "bb"))

    def test_a_ratio_above_the_limit_is_missed(self):
        self.assertEqual(self.judge(FULL, run("full", "pgBackRest", "bb", 4.0), run("full", "Holdfast", "local", 3.0)), ("missed", 0.75, "bb"))

    def test_a_strict_target_is_missed_by_a_tie(self):
        strict = target("full backup, time, of pg_basebackup zstd")
        self.assertEqual(self.judge(strict, run("full", "pg_basebackup", "z", 2.0), run("full", "Holdfast", "local", 2.0))[0], "missed")

    def test_the_fastest_setting_of_the_fastest_peer_counts(self):
        runs = (run("SR", "pgBackRest", "plain", 3.0), run("SR", "pgBackRest", "bb", 2.0), run("SR", "restic", "local", 5.0),
                run("SR", "Holdfast", "local", 1.0))
        self.assertEqual(self.judge(RANDOM, *runs), ("met", 0.5, "bb"))

    def test_only_the_named_setting_is_compared(self):
        runs = (run("push", "pgBackRest", "one by one", 1.0), run("push", "pgBackRest", "async, process-max=2", 2.0),
                run("push", "Holdfast", "one by one", 1.0))
        self.assertEqual(self.judge(PUSH, *runs), ("met", 0.5, "async, process-max=2"))

    def test_a_failed_run_of_ours_is_never_met(self):
        runs = (run("full", "pgBackRest", "bb", 4.0), run("full", "Holdfast", "local", 1.0), run("full", "Holdfast", "local", 0.1, rc="3"))
        self.assertEqual(self.judge(FULL, *runs), ("failed", None, "bb"))

    def test_without_a_peer_nothing_is_claimed(self):
        self.assertEqual(self.judge(FULL, run("full", "Holdfast", "local", 1.0)), ("not measured", None, None))


class Rows(unittest.TestCase):
    def test_wall_and_bytes_are_of_the_fastest_run_and_memory_is_the_largest(self):
        row, = report.rows_of([run("full", "Holdfast", "local", 3.0, rss_mib=60, stored=10), run("full", "Holdfast", "local", 2.0, rss_mib=40, stored=20),
                               run("full", "Holdfast", "local", 4.0, rss_mib=90, stored=30, state="disturbed")])
        self.assertEqual((row.wall, row.stored, row.rss_mib, row.walls), (2.0, 20, 90.0, ["3.0", "2.0", "4.0*"]))

    def test_memory_is_judged_in_the_worst_row(self):
        rows = report.rows_of([run("full", "Holdfast", "local", 1, rss_mib=128), run("S1", "Holdfast", "local", 1, rss_mib=129)])
        verdict, worst = report.judge_memory(rows)
        self.assertEqual((verdict, worst.key), ("missed", "S1"))


class ExitStatus(unittest.TestCase):
    GOOD = [run("full", "pgBackRest", "bb", 4.0), run("full", "Holdfast", "local", 3.9)]

    def test_wrong_data_is_wrong(self):
        self.assertTrue(report.is_wrong(self.GOOD, [{"name": "x", "verdict": "WRONG", "detail": ""}], strict=False))

    def test_a_failed_run_is_wrong(self):
        self.assertTrue(report.is_wrong([*self.GOOD, run("S1", "restic", "local", 1, rc="1")], [], strict=False))

    def test_a_missed_target_is_wrong_only_if_asked(self):
        self.assertEqual([report.is_wrong(self.GOOD, [], strict=s) for s in (False, True)], [False, True])


if __name__ == "__main__":
    unittest.main()
