"""Tidy's own test: a clean little tree passes, and one planted violation of every rule is found where it stands."""
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import tempfile
import unittest

TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "tidy")
sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("tidy", TOOL)
tidy = importlib.util.module_from_spec(importlib.util.spec_from_loader("tidy", LOADER))
LOADER.exec_module(tidy)

HEADER = "// What it is.\n#pragma once\n"
NAMED_TYPE = "\nnamespace m {\n\nstruct Named {\n  int x;\n};\n\n}  // namespace m\n"
CLEAN = {
    "src/base/CMakeLists.txt": "moesaic_library(NAME base SRCS a.cc)\n",
    "src/base/README.md": "# base\n",
    "src/base/a.h": HEADER + "\n#include <string>\n\nstd::string name();\n",
    "src/base/type.h": HEADER + NAMED_TYPE,
    "src/base/a.cc": '#include "base/a.h"\n\nstd::string name() {\n  return "getenv( { // not code";\n}\n',
    "src/tensor/tensor.h": HEADER,
    "src/kv/pool.h": HEADER + '\n#include "base/a.h"\n',
    "tools/demo": "#!/bin/sh\n",
}
LONG_BODY = "int long_one() {\n" + "  name();\n" * 80 + "}\n"
DOWN, DO_LATER = "/wo" + "rk/x", "// TO" + "DO: later\n"

# rule: (path, contents) of the file that breaks it
PLANTED = {
    "layer": ("src/base/b.h", HEADER + '#include "kv/pool.h"\n'),
    "include": ("src/kv/b.h", HEADER + '#include "base/missing.h"\n'),
    "host-only": ("src/kv/c.h", HEADER + '#include "tensor/tensor.h"\n'),
    "third-party": ("src/kv/d.h", HEADER + "#include <boost/asio.hpp>\n"),
    "getenv": ("src/kv/e.h", HEADER + 'inline auto home = std::getenv("HOME");\n'),
    "random": ("src/kv/f.h", HEADER + "inline int r = rand();\n"),
    "clock": ("src/kv/g.h", HEADER + "inline auto t = std::chrono::steady_clock::now();\n"),
    "thread": ("src/kv/h.h", HEADER + "inline std::thread worker;\n"),
    "print": ("src/kv/i.h", HEADER + 'inline int p = printf("x");\n'),
    "openmp": ("src/kv/j.h", HEADER + "#pragma omp parallel\n"),
    "cuda-malloc": ("src/kv/k.h", HEADER + "inline int m = cudaMalloc(&p, 1);\n"),
    "using-namespace": ("src/kv/l.h", HEADER + "using namespace std;\n"),
    "exit": ("src/kv/m.h", HEADER + "inline void stop() { exit(1); }\n"),
    "marker": ("src/kv/n.h", HEADER + DO_LATER),
    "machine-path": ("docs/page.md", f"See {DOWN}.\n"),
    "space": ("docs/space.md", "two words \n"),
    "tab": ("src/kv/o.h", HEADER + "\tint x;\n"),
    "newline": ("docs/newline.md", "no end"),
    "header-comment": ("src/kv/p.h", "#pragma once\n"),
    "header-guard": ("src/kv/q.h", "// What it is.\n"),
    "target-init": ("src/kv/v.h", HEADER + "MOESAIC_TARGET_AMX_BEGIN\nconst Table kTable = make_table();\nMOESAIC_TARGET_END\n"),
    "one-type": ("src/kv/w.h", HEADER + NAMED_TYPE),
    "function-length": ("src/kv/r.h", HEADER + LONG_BODY),
    "file-length": ("src/kv/s.h", HEADER + "int x;\n" * 600),
    "dead-file": ("src/base/unlisted.cc", "int unlisted;\n"),
    "readme": ("src/sched/CMakeLists.txt", "moesaic_library(NAME sched SRCS)\n"),
    "format": ("src/kv/t.h", HEADER + "int   x;\n"),
}


class TidyTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        for path, contents in CLEAN.items():
            self.write(path, contents)
        repository = os.path.join(os.path.dirname(TOOL), "..")
        shutil.copy(os.path.join(repository, ".clang-format"), self.root)
        for table in ("LONG_FILES", "LONG_FUNCTIONS", "LONG_KERNELS"):
            self.addCleanup(setattr, tidy, table, getattr(tidy, table))
            setattr(tidy, table, type(getattr(tidy, table))())

    def write(self, path, contents):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(contents)

    def rules(self):
        return [(path, rule) for path, _, rule, _ in tidy.check_tree(self.root)]

    def test_clean_tree_passes(self):
        self.assertEqual(tidy.check_tree(self.root), [])
        self.assertEqual(tidy.check_headers(self.root, "g++", 2), [])

    def test_every_rule_finds_its_violation(self):
        have_format = shutil.which("clang-format-14") is not None
        for rule, (path, contents) in PLANTED.items():
            if rule == "format" and not have_format:
                continue
            with self.subTest(rule=rule):
                self.write(path, contents)
                self.assertIn((path, rule), [(p.replace("README.md", "CMakeLists.txt"), r) for p, r in self.rules()])
                os.remove(os.path.join(self.root, path))

    def test_homes_are_allowed(self):
        self.write("src/base/log.cc", '#include <spdlog/spdlog.h>\n\nchar* level() {\n  return getenv("X");\n}\n')
        self.write("src/base/CMakeLists.txt", "moesaic_library(NAME base SRCS a.cc log.cc)\n")
        self.assertEqual(self.rules(), [])

    def test_host_only_sees_through_other_headers(self):
        self.write("src/model/model_config.h", HEADER + '\n#include "tensor/tensor.h"\n')
        self.write("src/sched/plan.h", HEADER + '\n#include "model/model_config.h"\n')
        self.assertIn(("src/sched/plan.h", "host-only"), self.rules())

    def test_ratchets_only_shrink(self):
        path, contents = PLANTED["function-length"]
        self.write(path, contents)
        tidy.LONG_FUNCTIONS = {(path, "long_one"): 82}
        self.assertNotIn("function-length", [rule for _, rule in self.rules()])
        self.assertNotIn("ratchet", [rule for _, rule in self.rules()])
        tidy.LONG_FUNCTIONS = {(path, "long_one"): 81}
        self.assertIn((path, "ratchet"), self.rules())
        tidy.LONG_FUNCTIONS = {(path, "long_one"): 82, (path, "short_one"): 90}
        self.assertIn((path, "ratchet"), self.rules())
        tidy.LONG_FILES = {"src/kv/gone.h": 700}
        self.assertIn(("src/kv/gone.h", "ratchet"), self.rules())

    def test_kernels_are_excepted_by_name(self):
        path = PLANTED["function-length"][0]
        self.write(path, HEADER + LONG_BODY + LONG_BODY.replace("long_one", "other"))
        tidy.LONG_KERNELS = {(path, "long_one")}
        found = [message for _, _, rule, message in tidy.check_tree(self.root) if rule == "function-length"]
        self.assertEqual(len(found), 1)
        self.assertIn("other", found[0])

    def test_header_that_needs_another_is_found(self):
        self.write("src/kv/alone.h", HEADER + "\nstd::string missing_include();\n")
        self.assertEqual([v[0] for v in tidy.check_headers(self.root, "g++", 2)], ["src/kv/alone.h"])

    def test_function_lengths_are_measured(self):
        self.write("src/kv/u.h", HEADER + "namespace n {\nstruct S {\n  S(int a) : a_{a}, b_(a) {\n    a_ = 1;\n  }\n"
                   "  int get() const {\n    if (a_) {\n      return 1;\n    }\n    return 2;\n  }\n};\n"
                   "int table[] = {\n    1,\n};\nTEST(A, B) {\n  auto f = [](int x) {\n    return x;\n  };\n}\n}\n")
        found = {name: lines for name, _, lines in tidy.functions(tidy.Source(self.root, "src/kv/u.h"))}
        self.assertEqual(found["get"], 6)
        self.assertEqual(found["A.B"], 5)
        self.assertNotIn("f", found)


if __name__ == "__main__":
    unittest.main()
