#!/usr/bin/env python3
"""Tests of dependencies.py: python3 tests/checks/dependencies_test.py"""
import unittest

import dependencies

RULES = {
    "licenses": {"allow": ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]},
    "bans": {"deny": [{"crate": "ring"}, {"crate": "rustls", "deny-multiple-versions": True}]},
}


class Licences(unittest.TestCase):
    def allowed(self, expression):
        return dependencies.is_allowed(expression, set(RULES["licenses"]["allow"]))

    def test_one_of_several_suffices_and_all_of_several_are_needed(self):
        for expression in ("MIT", "MIT OR GPL-3.0", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "(MIT OR GPL-3.0) AND ISC",
                           "Apache-2.0 WITH LLVM-exception OR GPL-3.0"):
            self.assertTrue(self.allowed(expression), expression)
        for expression in ("GPL-3.0", "MIT AND GPL-3.0", "GPL-3.0 AND MIT", "(MIT OR ISC) AND GPL-3.0", "Apache-2.0"):
            self.assertFalse(self.allowed(expression), expression)


class Crates(unittest.TestCase):
    def faults(self, *lines):
        return dependencies.faults(lines, RULES)[0]

    def test_what_is_allowed_passes(self):
        self.assertEqual(self.faults("rustls v0.23.1|MIT", "a v1.0.0 (proc-macro)|ISC"), [])

    def test_a_banned_crate_is_named(self):
        self.assertEqual(self.faults("ring v0.17.0|MIT"), ["ring is banned: see `cargo tree --workspace --invert ring`"])

    def test_a_second_version_is_named(self):
        self.assertEqual(self.faults("rustls v0.22.0|MIT", "rustls v0.23.1|MIT"),
                         ["rustls is there in several versions: v0.22.0, v0.23.1"])

    def test_a_crate_without_a_licence_is_named(self):
        self.assertEqual(self.faults("a v1.0.0|"), ["a v1.0.0 has the licence '(none)', which is not allowed"])


if __name__ == "__main__":
    unittest.main()
