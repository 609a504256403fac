"""`moesaic serve` as a process: the port, the signals, the hidden test flags. Standard library only.

usage: serve_test.py PATH_TO_MOESAIC MODEL_DIR
"""
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import server as e2e

BINARY, MODEL = sys.argv[1:3]


class Server(e2e.Server):
    def __init__(self, *flags, port=None):
        super().__init__(BINARY, MODEL, *flags, port=port)

    def chat(self, text, **fields):
        body = {"model": self.name, "temperature": 0, "messages": [{"role": "user", "content": text}], **fields}
        return self.request("POST", "/v1/chat/completions", body)

    def answer(self, text, **fields):
        status, body = self.chat(text, **fields)
        assert status == 200, body
        return body["choices"][0]["message"]["content"]


class ServeTest(unittest.TestCase):
    def test_busy_port_is_found_before_the_model_loads(self):
        with Server() as first:
            began = time.monotonic()
            second = subprocess.run([BINARY, "serve", MODEL, "--port", str(first.port)], capture_output=True,
                                    text=True, timeout=30)
            self.assertLess(time.monotonic() - began, 2)
            self.assertEqual(second.returncode, 1)
            self.assertIn(str(first.port), second.stderr)
            self.assertNotIn("loading", second.stderr)
            self.assertEqual(first.answer("What is 6 plus 6?"), "12")

    def test_restart_right_after_a_kill(self):
        port = e2e.free_port()
        with Server(port=port) as first:
            self.assertEqual(first.answer("What is 6 plus 6?"), "12")
        with Server(port=port) as second:
            self.assertEqual(second.answer("What is 6 plus 6?"), "12")

    def test_signals_drain_and_exit_with_0(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with Server() as server:
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
                body = {"model": server.name, "stream": True, "max_tokens": 200, "ignore_eos": True,
                        "messages": [{"role": "user", "content": "Tell me a tale."}]}
                connection.request("POST", "/v1/chat/completions", json.dumps(body),
                                   {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read(10)
                server.process.send_signal(number)
                text = response.read().decode()
                connection.close()
                self.assertIn('"finish_reason":"length"', text)
                self.assertTrue(text.endswith("data: [DONE]\n\n"), text[-100:])
                self.assertEqual(server.process.wait(timeout=30), 0)

    def test_signal_while_loading_ends_at_once(self):
        process = subprocess.Popen([BINARY, "serve", MODEL, "--port", "0"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        process.stderr.readline()  # "loading: 0 % ..."
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=10), 0)
        process.stderr.close()

    def test_script_makes_any_text(self):
        with Server("--test-script", "[42, 489]") as server:
            status, body = server.chat("anything", max_tokens=10)
            self.assertEqual(status, 200)
            self.assertEqual(body["usage"]["completion_tokens"], 3)  # and the end token

    def test_a_failed_engine_ends_the_process(self):
        with Server("--test-fail-at-step", "2") as server:
            status, _ = server.chat("Tell me a tale.", max_tokens=50)
            self.assertGreaterEqual(status, 500)
            self.assertEqual(server.process.wait(timeout=10), 1)

    def test_a_damaged_checkpoint_ends_the_process_by_name(self):
        shards = sorted(name for name in os.listdir(MODEL) if name.endswith(".safetensors"))

        def remove(folder):
            os.remove(os.path.join(folder, shards[1]))
            return shards[1]

        def cut(folder):
            path = os.path.join(folder, shards[2])
            shutil.copyfile(os.path.join(MODEL, shards[2]), path + ".new")
            os.truncate(path + ".new", os.path.getsize(path + ".new") - 1024)
            os.replace(path + ".new", path)
            return shards[2]

        def promise(folder):
            path = os.path.join(folder, "model.safetensors.index.json")
            with open(path, encoding="utf-8") as file:
                index = json.load(file)
            index["weight_map"]["model.layers.9.promised"] = shards[0]
            os.remove(path)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(index, file)
            return "model.layers.9.promised"

        def half(name):
            def damage(folder):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                os.remove(path)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text[:len(text) // 2])
                return name
            damage.__name__ = f"half of {name}"
            return damage

        texts = [half(name) for name in sorted(os.listdir(MODEL)) if name.endswith(".json")]
        self.assertEqual(len(texts), 5)
        for damage in [remove, cut, promise] + texts:
            with self.subTest(damage.__name__), tempfile.TemporaryDirectory() as folder:
                for name in os.listdir(MODEL):
                    os.symlink(os.path.abspath(os.path.join(MODEL, name)), os.path.join(folder, name))
                named = damage(folder)
                done = subprocess.run([BINARY, "serve", folder, "--port", "0"], capture_output=True, text=True,
                                      timeout=60)
                self.assertIn(done.returncode, (1, 2), done.stderr)  # failed, or wrong input
                self.assertIn(named, done.stderr)

    def test_settings_come_from_a_file(self):
        path = os.path.join(os.environ.get("TMPDIR", os.curdir), f"serve_test_{os.getpid()}.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write('served-model-name = "from-file"\ncontext-length = 512\n')
        try:
            with Server("--config", path) as server:
                models = server.request("GET", "/v1/models")[1]["data"]
                self.assertEqual([(m["id"], m["max_model_len"]) for m in models], [("from-file", 512)])
        finally:
            os.remove(path)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
