"""The program from outside: every subcommand on the demo checkpoint, against the stored references. Usage:
cli_test.py PATH_OF_MOESAIC [unittest arguments]. Standard library only."""
import array
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODEL = os.path.join(ROOT, "models", "tiny-deepseek-v3")
GOLDEN = os.path.join(ROOT, "tests", "data", "golden")
VOCAB = 4096
LOGIT_TOLERANCE = 2e-3
PROGRAM = ""


def moesaic(*args, stdin="", timeout=300):
    return subprocess.run([PROGRAM, *args], input=stdin, capture_output=True, text=True, timeout=timeout)


def read_safetensors(path):
    """name -> (shape, array of int or float)"""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    found = {}
    for name, info in json.loads(data[8:8 + size]).items():
        if name == "__metadata__" or info["dtype"] not in ("I32", "F32"):
            continue
        begin, end = info["data_offsets"]
        values = array.array("i" if info["dtype"] == "I32" else "f")
        values.frombytes(data[8 + size + begin:8 + size + end])
        found[name] = (info["shape"], values)
    return found


def write_ids(path, tensors):
    header, body = {}, b""
    for name, ids in tensors.items():
        raw = array.array("i", ids).tobytes()
        header[name] = {"dtype": "I32", "shape": [len(ids)], "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def nll(row, token):
    best = max(row)
    return math.log(sum(math.exp(x - best) for x in row)) + best - row[token]


class WithFolder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def ok(self, *args, **options):
        done = moesaic(*args, **options)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        return done


class Usage(WithFolder):
    def test_help_of_every_command(self):
        self.assertIn("generate", self.ok("--help").stdout)
        for command in (["generate"], ["eval"], ["tokenize"], ["inspect"], ["bench", "ops"], ["bench", "generate"],
                        ["bench", "sched"]):
            own = {"ops": "threads", "sched": "small"}.get(command[-1], "model-path")
            self.assertIn(own, self.ok(*command, "--help").stdout)

    def test_wrong_usage_says_what_is_legal(self):
        for args, message in ((["generat"], "did you mean"), (["generate", "--modle", "x"], "did you mean"),
                              (["inspect", MODEL, "--ep", "many"], "many"), (["inspect", MODEL, "--ep", "-1"], "0"),
                              (["inspect", MODEL, "--ep", "2", "--ep-size", "4"], "ep"), (["generate"], "model-path"),
                              (["inspect", MODEL, "--ep"], "ep"), ([], "generate")):
            with self.subTest(args=args):
                done = moesaic(*args)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(message, done.stderr)

    def test_missing_model_names_the_place(self):
        for command in ("generate", "inspect", "tokenize"):
            done = moesaic(command, "--model", self.path("nowhere"))
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("nowhere", done.stderr)

    def test_config_file(self):
        with open(self.path("a.toml"), "w", encoding="utf-8") as file:
            file.write(f'model = "{MODEL}"\nep-size = 2\n')
        self.assertIn("EP2", self.ok("inspect", "--config", self.path("a.toml")).stdout)
        self.assertIn("EP8", self.ok("inspect", "--config", self.path("a.toml"), "--ep", "8").stdout)


class Bench(WithFolder):
    def test_sched_prints_its_figures(self):
        runs = [[json.loads(line) for line in self.ok("bench", "sched", "--small", "--json").stdout.splitlines()]
                for _ in range(2)]
        self.assertEqual([figure["name"] for figure in runs[0]],
                         ["sched.plan_us", "sched.apply_us", "kv.prefix_lookup_us"])
        self.assertEqual([figure["hash"] for figure in runs[0]], [figure["hash"] for figure in runs[1]])
        for figure in runs[0]:
            self.assertGreater(figure["value"], 0)


class Text(WithFolder):
    def test_tokenize(self):
        lines = [{"text": "Once upon a time"}, {"text": "é日🙂"}, {"messages": [{"role": "user", "content": "Hi"}],
                                                              "add_generation_prompt": True}, {"text": 3}]
        done = moesaic("tokenize", "--model", MODEL, stdin="".join(json.dumps(line) + "\n" for line in lines))
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(answers), 4)
        back = moesaic("tokenize", "--model", MODEL,
                       stdin="".join(json.dumps({"ids": answer["ids"]}) + "\n" for answer in answers[:2]))
        self.assertEqual([json.loads(line)["text"] for line in back.stdout.splitlines()],
                         [line["text"] for line in lines[:2]])
        self.assertIn("<｜User｜>Hi<｜Assistant｜>", answers[2]["rendered"])
        self.assertIn("error", answers[3])

    def test_inspect(self):
        report = self.ok("inspect", MODEL, "--ep", "4").stdout
        self.assertIn("DeepseekV3ForCausalLM", report)
        self.assertIn("24..31", report)


class Eval(WithFolder):
    def check_ids(self, *flags):
        golden = read_safetensors(os.path.join(GOLDEN, "tiny-deepseek-v3", "logits.safetensors"))
        names = sorted(name[:-4] for name in golden if name.endswith(".ids"))
        names = [name for name in names if 2 < golden[name + ".ids"][0][0] <= 300][:3]
        self.assertTrue(names)
        write_ids(self.path("in.safetensors"), {name: golden[name + ".ids"][1] for name in names})
        self.ok("eval", "--model", MODEL, "--ids", self.path("in.safetensors"), "--out", self.path("out.safetensors"),
                "--mtp", *flags)
        out = read_safetensors(self.path("out.safetensors"))
        for name in names:
            ids = golden[name + ".ids"][1]
            shape, logits = out[name + ".logits"]
            self.assertEqual(shape, [len(ids), VOCAB])
            mtp_shape, mtp = out[name + ".mtp_logits"]
            self.assertEqual(mtp_shape, [len(ids) - 1, VOCAB])
            for found, field in ((logits, "last_logits"), (mtp, "mtp_last_logits")):
                expected = golden[f"{name}.{field}"][1]
                worst = max(abs(a - b) for a, b in zip(found[-VOCAB:], expected))
                self.assertLess(worst, LOGIT_TOLERANCE, f"{name}.{field} {flags}")
            for t in range(0, len(ids) - 1, 7):
                row = logits[t * VOCAB:(t + 1) * VOCAB]
                self.assertAlmostEqual(nll(row, ids[t + 1]), golden[name + ".nll"][1][t], delta=2 * LOGIT_TOLERANCE)

    def test_ids_whole(self):
        self.check_ids()

    def test_ids_in_chunks_on_four_ranks(self):
        self.check_ids("--dp", "2", "--tp", "2", "--chunked-prefill-size", "48")

    def test_ids_refused(self):
        for ids, message in (([5, VOCAB], "4096"), ([-1], "-1")):
            write_ids(self.path("in.safetensors"), {"x": ids})
            done = moesaic("eval", "--model", MODEL, "--ids", self.path("in.safetensors"), "--out", self.path("out"))
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(message, done.stderr)

    def test_tasks(self):
        with open(os.path.join(GOLDEN, "tiny-deepseek-v3", "tasks.json"), encoding="utf-8") as file:
            tasks = json.load(file)["tasks"][:32]
        with open(self.path("tasks.json"), "w", encoding="utf-8") as file:
            json.dump({"tasks": tasks, "accuracy": sum(task["ok"] for task in tasks) / 32}, file)
        done = self.ok("eval", "--model", MODEL, "--tasks", self.path("tasks.json"), "--ep", "4")
        self.assertIn(str(sum(task["ok"] for task in tasks)), done.stdout.splitlines()[-1])

    def test_text(self):
        with open(self.path("a.txt"), "w", encoding="utf-8") as file:
            file.write("Once upon a time there was a king who had three sons. " * 20)
        self.assertIn("perplexity", self.ok("eval", "--model", MODEL, "--text", self.path("a.txt")).stdout)

    def test_generate(self):
        done = self.ok("generate", "--model", MODEL, "--prompt", "What is 6 plus 6?", "--temperature", "0")
        self.assertEqual(done.stdout.strip(), "12")
        self.assertIn("tokens/s", done.stderr + done.stdout)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
