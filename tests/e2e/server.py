"""A `moesaic serve` of its own for a test: on a free port, with its log in a file, ended by SIGTERM."""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
DEFAULT_PROGRAM = os.path.join(ROOT, "build", "release", "src", "cli", "moesaic")
DEFAULT_MODEL = os.path.join(ROOT, "models", "tiny-deepseek-v3")
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """with Server(program, model) as server: ... server.url ..."""

    def __init__(self, program, model, *flags, port=None):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = os.path.basename(os.path.normpath(model))
        self.command = [program, "serve", "--port", str(self.port), "--model", model, "--ep", "4", *flags]
        self.log = None
        self.process = None

    def __enter__(self):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=subprocess.STDOUT)
        try:
            self._wait_until_healthy()
        except BaseException:
            self.process.kill()
            self.process.wait()
            print(self.log_text()[-4000:], flush=True)
            raise
        return self

    def __exit__(self, *error):
        if error and error[0] is not None:
            print(f"exit code {self.process.poll()}, the end of its log:", self.log_text()[-4000:], sep="\n", flush=True)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def stop(self):
        """Asks it to end as an operator does; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=STOP_TIMEOUT_S)

    def log_text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def request(self, method, path, body=None, timeout=60):
        """(status, decoded JSON or text); errors of HTTP are answers too."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, text, kind = answer.status, answer.read().decode(), answer.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            status, text, kind = error.code, error.read().decode(), error.headers["Content-Type"]
        return status, json.loads(text) if kind and kind.startswith("application/json") else text

    def metric(self, name, **labels):
        """Sum over the samples of /metrics with this name and these labels."""
        status, text = self.request("GET", "/metrics")
        assert status == 200, text
        found = []
        for line in text.splitlines():
            match = re.fullmatch(r"([^{\s]+)(?:\{(.*)\})? (\S+)", line)
            if not match or match[1] != name:
                continue
            own = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            if all(own.get(key) == value for key, value in labels.items()):
                found.append(float(match[3]))
        assert found, f"no metric {name} {labels}"
        return sum(found)

    def wait_at_rest(self, timeout_s=10):
        """Nothing runs or waits and every KV block is free or cached; says what is not so after the timeout."""
        end = time.monotonic() + timeout_s
        while True:
            blocks = {state: self.metric("moesaic:kv_blocks", state=state)
                      for state in ("total", "free", "used", "cached")}
            running = self.metric("sglang:num_running_reqs") + self.metric("sglang:num_queue_reqs")
            if running == 0 and blocks["used"] == 0 and blocks["free"] + blocks["cached"] == blocks["total"]:
                return
            assert time.monotonic() < end, f"not at rest: {running} requests, blocks {blocks}"
            time.sleep(0.05)

    def rss_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) * 1024

    def num_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def wait_for_files(self, count, timeout_s=10):
        """Until no more than `count` files are open, or the timeout; how many there are then."""
        end = time.monotonic() + timeout_s
        while self.num_files() > count and time.monotonic() < end:
            time.sleep(0.05)
        return self.num_files()

    def _wait_until_healthy(self):
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            assert self.process.poll() is None, f"the server ended with code {self.process.returncode}"
            try:
                if self.request("GET", "/health", timeout=5)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"not healthy after {START_TIMEOUT_S} s")
