"""`moesaic bench serve` against a server of our own: every kind of load, its counts against the server's, and what it
says of failures. Standard library only.

usage: bench_test.py PATH_TO_MOESAIC MODEL_DIR
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import server as e2e

BINARY, MODEL = sys.argv[1:3]


def bench(url, *flags, code=0, timeout=120):
    done = subprocess.run([BINARY, "bench", "serve", "--base-url", url, "--disable-tqdm", *flags], capture_output=True,
                          text=True, timeout=timeout)
    assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done


def figures(url, *flags, **options):
    return json.loads(bench(url, "--json", *flags, **options).stdout)


class BenchServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = e2e.Server(BINARY, MODEL, "--max-running-requests", "64").__enter__()
        cls.addClassCleanup(cls.server.__exit__)

    def tearDown(self):
        self.server.wait_at_rest()

    def figures(self, *flags, **options):
        return figures(self.server.url, *flags, **options)

    def file(self, text):
        file = tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False)
        self.addCleanup(os.unlink, file.name)
        with file:
            file.write(text)
        return file.name

    def test_closed_loop_counts_what_the_server_counts(self):
        names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "sglang:num_requests_total",
                 "vllm:time_to_first_token_seconds_count", "sglang:e2e_request_latency_seconds_count")
        before = [self.server.metric(name) for name in names]
        got = self.figures("--num-prompts", "24", "--max-concurrency", "6", "--random-input-len", "20",
                           "--random-output-len", "8", "--num-warmups", "0", "--save-detailed", "--goodput",
                           "ttft:60000", "tpot:60000")
        self.assertEqual((got["completed"], got["failed"], got["without_usage"]), (24, 0, 0))
        self.assertEqual((got["total_input_tokens"], got["total_output_tokens"]), (480, 192))
        self.assertEqual(got["output_lens"], [8] * 24)
        self.assertLessEqual(got["max_concurrent_requests"], 6)
        self.assertAlmostEqual(got["request_goodput"], got["request_throughput"])
        self.assertAlmostEqual(got["output_throughput"], 192 / got["duration"], places=6)
        for name in ("ttft", "tpot", "itl", "e2el"):
            self.assertGreater(got[f"mean_{name}_ms"], 0)
            self.assertLessEqual(got[f"p90_{name}_ms"], got[f"p99_{name}_ms"])
        self.assertLess(got["mean_ttft_ms"], got["mean_e2el_ms"])
        probe = (3, 1, 1, 1, 1)  # the request that asks whether token ids are taken
        after = [self.server.metric(name) - more for name, more in zip(names, probe)]
        self.assertEqual([b - a for a, b in zip(before, after)], [480, 192, 24, 24, 24])

    def test_open_loops_send_at_their_times(self):
        for flags in (("--request-rate", "40"), ("--request-rate", "40", "--burstiness", "inf")):
            got = self.figures("--num-prompts", "20", "--random-input-len", "4", "--random-output-len", "2",
                               "--save-detailed", *flags)
            self.assertEqual(got["completed"], 20)
            if "inf" in flags:
                self.assertGreaterEqual(got["duration"], 0.5)  # the last is due after 20 gaps
            self.assertEqual(got["start_times"], sorted(got["start_times"]))

    def test_every_data_set(self):
        shared = self.figures("--dataset-name", "generated-shared-prefix", "--num-prompts", "6", "--gsp-num-groups", "2",
                              "--gsp-system-prompt-len", "70", "--gsp-question-len", "5", "--gsp-output-len", "3")
        self.assertEqual((shared["total_input_tokens"], shared["total_output_tokens"]), (6 * 75, 18))
        prompts = self.file('{"prompt": "What is 6 plus 6?", "output_tokens": 4}\n{"prompt": [5, 6, 7]}\n')
        custom = self.figures("--dataset-name", "custom", "--dataset-path", prompts, "--custom-output-len", "5")
        self.assertEqual((custom["completed"], custom["total_output_tokens"]), (2, 9))
        trace = self.file('{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n'
                          '{"timestamp": 300, "input_length": 10, "output_length": 3, "hash_ids": [1]}\n')
        mooncake = self.figures("--dataset-name", "mooncake", "--dataset-path", trace)
        self.assertEqual((mooncake["total_input_tokens"], mooncake["total_output_tokens"]), (610, 5))
        self.assertGreaterEqual(mooncake["duration"], 0.3)

    def test_chat_takes_words(self):
        got = self.figures("--endpoint", "/v1/chat/completions", "--num-prompts", "4", "--random-input-len", "10",
                           "--random-output-len", "6")
        self.assertEqual((got["completed"], got["total_output_tokens"]), (4, 24))
        self.assertGreater(got["total_input_tokens"], 40)

    def test_table_and_file(self):
        path = self.file("")
        table = bench(self.server.url, "--num-prompts", "3", "--random-input-len", "4", "--random-output-len", "2",
                      "--output-file", path, "--metric-percentiles", "50,99.9").stdout
        for line in ("============ Serving Benchmark Result ============", "Successful requests:                     3 ",
                     "P99.9 TTFT (ms):", "Total token throughput (tok/s):"):
            self.assertIn(line, table)
        with open(path) as file:
            saved = json.loads(file.read())
        self.assertEqual(saved["model_id"], self.server.name)
        self.assertIn("p99.9_ttft_ms", saved)

    def test_a_thousand_streams(self):
        got = self.figures("--num-prompts", "1000", "--random-input-len", "2", "--random-output-len", "2", timeout=300)
        self.assertEqual((got["completed"], got["failed"]), (1000, 0), got["error_kinds"])
        self.assertGreater(got["max_concurrent_requests"], 500)

    def test_failures_are_said(self):
        refused = bench(f"http://127.0.0.1:{e2e.free_port()}", code=1)
        self.assertIn("connect", refused.stderr)
        long = self.file('{"prompt": "hi", "output_tokens": 2}\n{"prompt": "hi", "output_tokens": 9000000}\n')
        got = self.figures("--dataset-name", "custom", "--dataset-path", long)
        self.assertEqual((got["completed"], got["failed"]), (1, 1))
        self.assertEqual(got["error_kinds"]["http 400"]["count"], 1)
        self.assertIn("9000000", got["error_kinds"]["http 400"]["first"])
        self.assertIn("ttft:MS", bench(self.server.url, "--goodput", "x:1", code=2).stderr)
        self.assertIn("--dataset-path", bench(self.server.url, "--dataset-name", "custom", code=2).stderr)

    def test_key_and_full_queue(self):
        flags = ("--api-key", "k", "--max-queued-requests", "3", "--max-running-requests", "1")
        with KeyServer(BINARY, MODEL, *flags) as server:
            self.assertIn("401", bench(server.url, code=1).stderr)
            got = figures(server.url, "--api-key", "k", "--num-prompts", "30", "--random-input-len", "4",
                          "--random-output-len", "40")
            self.assertEqual(got["completed"] + got["failed"], 30)
            self.assertEqual(got["error_kinds"]["http 429"]["count"], got["failed"])
            self.assertGreater(got["failed"], 0)


class KeyServer(e2e.Server):
    def request(self, method, path, body=None, timeout=60):
        return super().request(method, "/health", None, timeout)  # the one path without a key


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
