"""`moesaic simulate` as a process: figures, traces, timelines, the page in a browser. Standard library only.

usage: simulate_test.py PATH_TO_MOESAIC MODEL_DIR

The page is drawn by headless chromium where there is one; otherwise that case is reported as skipped.
"""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

BINARY, MODEL = sys.argv[1:3]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SMALL = ["--ep", "16", "--hardware", "h200", "--num-prompts", "400", "--request-rate", "80", "--random-input-len", "300",
         "--random-output-len", "60", "--random-range-ratio", "0.5", "--seed", "7"]


def simulate(*flags, expect=0):
    done = subprocess.run([BINARY, "simulate", *flags], capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, done.stderr
    return done.stdout if expect == 0 else done.stderr


def corner_of_png(path):
    """The first pixel as (red, green, blue). Row filters leave the first pixel of the first row as it is."""
    with open(path, "rb") as file:
        data = file.read()
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        packed += data[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    return tuple(zlib.decompressobj().decompress(packed, 4)[1:4])


class SimulateTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_same_seed_same_bytes(self):
        def outputs():
            flags = ["--json", "--trace-out", self.path("t.json"), "--report", self.path("r.html")]
            text = simulate(*SMALL, *flags)
            return [text] + [pathlib.Path(self.path(name)).read_text(encoding="utf-8") for name in ("t.json", "r.html")]
        first = outputs()
        self.assertEqual(first, outputs())
        figures = json.loads(first[0])
        self.assertEqual(figures["source"], "simulated")
        self.assertEqual(figures["completed"], 400)
        self.assertLess(figures["median_ttft_ms"], figures["p99_ttft_ms"])
        self.assertLess(figures["token_balancedness"], 1)
        kinds = {event.get("name") for event in json.loads(first[1])["traceEvents"]}
        self.assertTrue({"step", "forward", "prefill", "decode"} <= kinds, kinds)
        other = json.loads(simulate(*SMALL[:-1], "8", "--json"))
        self.assertNotEqual(other["mean_ttft_ms"], figures["mean_ttft_ms"])

    def test_a_written_trace_is_the_same_load(self):
        made = json.loads(simulate(*SMALL, "--json", "--traffic-out", self.path("trace.jsonl")))
        read = json.loads(simulate(*SMALL, "--json", "--trace", self.path("trace.jsonl")))
        for name in ("duration", "mean_ttft_ms", "p99_tpot_ms", "num_steps"):
            self.assertEqual(made[name], read[name])

    def test_steps_that_were_measured_here(self):
        limits = ["--max-running-requests", "2", "--chunked-prefill-size", "64", "--context-length", "256"]
        subprocess.run([BINARY, "bench", "steps", MODEL, "--threads", "1", "-r", "1", "--out", self.path("steps.json"),
                        "--device", "the test's machine", *limits], check=True, capture_output=True, timeout=120)
        table = json.loads(pathlib.Path(self.path("steps.json")).read_text(encoding="utf-8"))
        self.assertEqual(table["decode_tokens"], [0, 1, 2, 4, 8])  # two sequences, and their drafts
        self.assertEqual(table["prefill_tokens"], [0, 16, 62])
        self.assertTrue(all(time > 0 for kind in ("step", "draft") for time in table[kind]["base_s"]), table)
        flags = ["--model", MODEL, "--steps", self.path("steps.json"), *limits, "--num-prompts", "30", "--request-rate",
                 "20", "--random-input-len", "100", "--random-output-len", "20", "--json"]
        figures = json.loads(simulate(*flags))
        self.assertEqual(figures["completed"], 30)
        self.assertIn("measured: tiny-deepseek-v3 on the test's machine, EP1", figures["step_times"])
        self.assertIn("EP1", simulate(*flags, "--ep", "2", expect=2))
        drafts = json.loads(simulate(*flags, "--synthetic-acceptance", "1", "--no-speculative-adaptive"))
        self.assertEqual(drafts["acceptance"], 1)
        self.assertLess(drafts["num_steps"], 0.6 * figures["num_steps"])
        del table["draft"]
        pathlib.Path(self.path("steps.json")).write_text(json.dumps(table), encoding="utf-8")
        self.assertIn("draft module", simulate(*flags, "--synthetic-acceptance", "1", expect=2))

    def test_bad_input_names_what_is_wrong(self):
        with open(self.path("bad.jsonl"), "w", encoding="utf-8") as file:
            file.write('{"time": 0, "input": 5, "output": 2}\n{"time": 1, "input": 5, "output": 0}\n')
        message = simulate("--ep", "16", "--trace", self.path("bad.jsonl"), expect=2)
        self.assertIn("line 2", message)
        self.assertIn('"output"', message)
        self.assertIn("h200", simulate("--hardware", "h2000", expect=2))
        self.assertIn("synthetic-acceptance", simulate("--ep", "32", "--speculative-num-steps", "1", expect=2))
        self.assertIn("memory", simulate("--ep", "1", expect=2))
        with open(self.path("steps.json"), "w", encoding="utf-8") as file:
            file.write('{"device": "x"}')
        self.assertIn("'model'", simulate("--model", MODEL, "--steps", self.path("steps.json"), expect=2))

    def test_drafts_make_more_tokens_of_a_step(self):
        plain = json.loads(simulate(*SMALL, "--json"))
        drafts = json.loads(simulate(*SMALL, "--json", "--draft", "1", "--synthetic-acceptance", "0.8"))
        self.assertAlmostEqual(drafts["acceptance"], 0.8, delta=0.03)
        self.assertLess(drafts["median_tpot_ms"], 0.8 * plain["median_tpot_ms"])

    def test_the_page_is_drawn(self):
        if CHROMIUM is None:
            self.skipTest("no chromium here")
        simulate(*SMALL, "--report", self.path("r.html"), "--goodput", "ttft:500", "tpot:60")
        for name, size, dark in (("phone", "390,2400", False), ("wide", "1280,1400", False), ("dark", "1280,1400", True)):
            image = self.path(name + ".png")
            flags = ["--blink-settings=preferredColorScheme=0"] if dark else []
            subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                            "--user-data-dir=" + self.path("profile"), "--window-size=" + size,
                            "--screenshot=" + image, *flags, "file://" + self.path("r.html")],
                           check=True, capture_output=True, timeout=120)
            corner = corner_of_png(image)
            self.assertTrue(max(corner) < 60 if dark else min(corner) > 240, (name, corner))
            self.assertGreater(os.path.getsize(image), 30_000, name)  # a blank page has a tenth of that
        dump = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                               "--user-data-dir=" + self.path("profile"), "file://" + self.path("r.html")],
                              check=True, capture_output=True, text=True, timeout=120).stdout
        self.assertEqual(dump.count("<svg"), 5)
        self.assertEqual(len(re.findall(r"</figure>", dump)), 5)
        self.assertIn("Simulated, not measured", dump)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
