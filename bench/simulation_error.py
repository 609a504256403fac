"""How far a simulation is from the engine that it simulates, on this machine. Standard library only.

usage: simulation_error.py PATH_TO_MOESAIC MODEL_DIR [--repetitions N] [--prefix COMMAND] [--out FILE]

For each load and repetition: `bench steps` measures step times, `serve` answers the load that `bench serve` sends, and
`simulate --steps` runs the same trace on that table. They take turns, so that what else runs on the machine disturbs
both alike; --prefix "chrt -r 1" or "nice -n -20" keeps it away (the first loses 5 % to the limit of real-time processes
where the engine never rests). Prints one JSON line a load: medians over the repetitions, and the error of each
repetition with its median.
"""
import argparse
import datetime
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile

ENGINE = ["--threads", "1"]
LIMITS = ["--max-running-requests", "16", "--chunked-prefill-size", "1024"]
PLAIN = ["--speculative-num-steps", "0"]
DRAFTS = ["--synthetic-acceptance", "0.7"]  # a simulation is told how many guesses are right: so is the server
LOADS = {  # name: flags of the traffic; the names that begin with "drafts" speculate
    "steady": ["--num-prompts", "60", "--request-rate", "6", "--random-input-len", "256", "--random-output-len", "64"],
    "bursts": ["--num-prompts", "60", "--request-rate", "5", "--burstiness", "0.25", "--random-input-len", "256",
               "--random-output-len", "64"],
    "long": ["--num-prompts", "24", "--request-rate", "1.5", "--random-input-len", "1000", "--random-output-len", "80"],
    "drafts": ["--num-prompts", "60", "--request-rate", "6", "--random-input-len", "256", "--random-output-len", "64"],
    "drafts-saturated": ["--num-prompts", "48", "--request-rate", "inf", "--random-input-len", "256",
                         "--random-output-len", "64"],
    "saturated": ["--num-prompts", "48", "--request-rate", "inf", "--random-input-len", "256", "--random-output-len", "64"],
}
FIGURES = ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "median_e2el_ms")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--device", default="")
    parser.add_argument("--out")
    args = parser.parse_args()
    prefix = args.prefix.split()

    def run(*command):
        done = subprocess.run([*prefix, args.binary, *command], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve_and_measure(trace, limits):
        port = free_port()
        server = subprocess.Popen([*prefix, args.binary, "serve", args.model, "--port", str(port), *ENGINE, *limits],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert "Serving" in server.stdout.readline()
            return json.loads(run("bench", "serve", "--base-url", f"http://127.0.0.1:{port}", "--dataset-name", "trace",
                                  "--dataset-path", trace, "--ignore-eos", "--num-warmups", "4", "--json",
                                  "--disable-tqdm", "--metric-percentiles", "50,99"))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)

    def write_line(name, pairs):
        line = {"date": datetime.date.today().isoformat(), "device": args.device, "commit": commit,
                "name": f"simulate.error.{name}"}
        for figure in FIGURES:
            errors = [round(simulated[figure] / real[figure] - 1, 4) for real, simulated in pairs]
            line[figure] = {"measured": round(statistics.median(real[figure] for real, _ in pairs), 3),
                            "simulated": round(statistics.median(simulated[figure] for _, simulated in pairs), 3),
                            "error": statistics.median(errors), "errors": errors}
        line["command"] = (f"bench/simulation_error.py moesaic {os.path.relpath(args.model)} --repetitions "
                           f"{args.repetitions} --prefix '{args.prefix}' --loads {name}")
        print(json.dumps(line), flush=True)
        if args.out:
            with open(args.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        table, trace = os.path.join(folder, "steps.json"), os.path.join(folder, "trace.jsonl")
        for name in args.loads.split(","):
            limits = [*LIMITS, *(DRAFTS if name.startswith("drafts") else PLAIN)]
            engine = ["--model", args.model, *limits, "--steps", table, "--metric-percentiles", "50,99", "--json"]
            pairs = []
            for _ in range(args.repetitions):
                run("bench", "steps", args.model, *ENGINE, *limits, "--repetitions", "3", "--out", table)
                run("simulate", *engine, *LOADS[name], "--random-range-ratio", "0.5", "--traffic-out", trace)
                real = serve_and_measure(trace, limits)
                simulated = json.loads(run("simulate", *engine, "--trace", trace))
                assert real["failed"] == 0, real
                assert simulated["total_output_tokens"] == real["total_output_tokens"]
                pairs.append((real, simulated))
            write_line(name, pairs)


if __name__ == "__main__":
    main()
