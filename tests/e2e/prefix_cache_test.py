"""The prefix cache and the scheduling settings of `moesaic serve`. Standard library only.

usage: prefix_cache_test.py PATH_TO_MOESAIC MODEL_DIR
"""
import concurrent.futures
import sys
import unittest

import server as e2e

BINARY, MODEL = sys.argv[1:3]
SYSTEM = "You answer with one number. " * 30


def ask(server, messages, **fields):
    body = {"model": server.name, "temperature": 0, "max_tokens": 24, "messages": messages, **fields}
    return server.request("POST", "/v1/chat/completions", body)


def talk(server, **fields):
    """A conversation of four turns: the texts, and (prompt tokens, cached tokens) of each turn."""
    messages = [{"role": "system", "content": SYSTEM}]
    texts, counts = [], []
    for turn in range(4):
        messages.append({"role": "user", "content": f"What is {turn + 3} plus {turn + 14}?"})
        status, body = ask(server, messages, **fields)
        assert status == 200, body
        usage = body["usage"]
        texts.append(body["choices"][0]["message"]["content"])
        counts.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
        messages.append({"role": "assistant", "content": texts[-1]})
    return texts, counts


class PrefixCacheTest(unittest.TestCase):
    def test_a_conversation_finds_its_beginning_and_says_the_same(self):
        with e2e.Server(BINARY, MODEL, "--no-enable-prefix-caching") as server:
            plain, counts = talk(server)
            self.assertEqual([cached for _, cached in counts], [0, 0, 0, 0])
            server.wait_at_rest()
        for flags in ((), ("--chunked-prefill-size", "64"), ("--no-enable-mixed-chunk", "--prefill-delayer-max-delay-passes", "5")):
            with self.subTest(flags=flags), e2e.Server(BINARY, MODEL, *flags) as server:
                texts, counts = talk(server)
                self.assertEqual(texts, plain)
                self.assertEqual(counts[0][1], 0)
                for (before, _), (prompt, cached) in zip(counts, counts[1:]):
                    self.assertGreaterEqual(cached, (before - 1) // 64 * 64)  # all full blocks of the last prompt
                    self.assertLess(cached, prompt)
                again, counts = talk(server)
                self.assertEqual(again, plain)
                self.assertGreater(counts[0][1], 0)
                for fields in ({"cache_salt": "tenant"}, {"cache_prompt": False}):
                    texts, counts = talk(server, **fields)
                    self.assertEqual(texts, plain)
                    self.assertEqual(counts[0][1], 0)
                self.assertEqual(counts[3][1], 0)
                server.wait_at_rest()

    def test_choices_compute_their_prompt_once(self):
        with e2e.Server(BINARY, MODEL) as server:
            messages = [{"role": "user", "content": SYSTEM + "What is 6 plus 6?"}]
            status, body = ask(server, messages, n=16)
            self.assertEqual(status, 200, body)
            self.assertEqual(len({choice["message"]["content"] for choice in body["choices"]}), 1)
            # Once in each of the four groups at most.
            cached = server.metric("sglang:cached_tokens_total")
            self.assertGreaterEqual(cached, 12 * ((body["usage"]["prompt_tokens"] - 1) // 64 * 64))

    def test_a_full_house_refuses_or_gives_up(self):
        flags = ("--max-running-requests", "1", "--max-queued-requests", "6", "--queue-timeout-ms", "300",
                 "--test-delay-ms", "40")
        with e2e.Server(BINARY, MODEL, *flags) as server, concurrent.futures.ThreadPoolExecutor(16) as pool:
            messages = [{"role": "user", "content": "Tell me a tale."}]
            calls = [pool.submit(ask, server, messages, max_tokens=64, ignore_eos=True) for _ in range(16)]
            answers = [call.result() for call in calls]
            self.assertEqual({status for status, _ in answers}, {200, 408, 429})
            for status, body in answers:
                if status != 200:
                    self.assertIn({408: "queued", 429: "max_queued_requests"}[status], body["error"]["message"])
            server.wait_at_rest()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
