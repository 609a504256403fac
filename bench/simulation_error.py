"""How far a simulation is from the engine that it simulates, on this machine. Standard library only.

usage: simulation_error.py PATH_TO_MOESAIC MODEL_DIR [--repetitions N] [--realtime] [--out FILE]

For each load: `bench steps` measures step times, `serve` answers the load that `bench serve` sends, `simulate --steps`
simulates the same trace. The three take turns, so that what else runs on the machine disturbs all alike; --realtime runs
measurements under `chrt -r 1`. Prints one JSON line a load: the medians over repetitions and their relative errors.
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

ENGINE = ["--threads", "1", "--speculative-num-steps", "0"]
LOADS = {  # name: flags of the traffic
    "light": ["--num-prompts", "120", "--request-rate", "3", "--random-input-len", "256", "--random-output-len", "64"],
    "busy": ["--num-prompts", "240", "--request-rate", "6", "--random-input-len", "256", "--random-output-len", "64"],
    "bursts": ["--num-prompts", "240", "--request-rate", "4", "--burstiness", "0.25", "--random-input-len", "256",
               "--random-output-len", "64"],
    "long": ["--num-prompts", "60", "--request-rate", "1", "--random-input-len", "1200", "--random-output-len", "100"],
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
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--device", default="")
    parser.add_argument("--out")
    args = parser.parse_args()
    prefix = ["chrt", "-r", "1"] if args.realtime else []

    def run(*command):
        done = subprocess.run([*prefix, args.binary, *command], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve_and_measure(trace):
        port = free_port()
        server = subprocess.Popen([*prefix, args.binary, "serve", args.model, "--port", str(port), *ENGINE],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert "Serving" in server.stdout.readline()
            return json.loads(run("bench", "serve", "--base-url", f"http://127.0.0.1:{port}", "--dataset-name", "trace",
                                  "--dataset-path", trace, "--ignore-eos", "--num-warmups", "4", "--json",
                                  "--disable-tqdm", "--metric-percentiles", "50,99"))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        table, trace = os.path.join(folder, "steps.json"), os.path.join(folder, "trace.jsonl")
        simulated_engine = ["--model", args.model, *ENGINE[2:], "--steps", table, "--metric-percentiles", "50,99"]
        for name in args.loads.split(","):
            pairs = []
            for seed in range(args.repetitions):
                run("bench", "steps", args.model, *ENGINE[:2], "--repetitions", "3", "--out", table)
                traffic = [*LOADS[name], "--random-range-ratio", "0.5", "--seed", str(seed)]
                run("simulate", *simulated_engine, *traffic, "--traffic-out", trace, "--json")
                real = serve_and_measure(trace)
                assert real["failed"] == 0, real
                simulated = json.loads(run("simulate", *simulated_engine, "--trace", trace, "--json", "--seed", str(seed)))
                assert simulated["total_output_tokens"] == real["total_output_tokens"]
                pairs.append((real, simulated))
            line = {"date": datetime.date.today().isoformat(), "device": args.device, "commit": commit,
                    "name": f"simulate.error.{name}", "repetitions": args.repetitions}
            for figure in FIGURES:
                line[f"{figure}"] = {
                    "measured": round(statistics.median(real[figure] for real, _ in pairs), 3),
                    "simulated": round(statistics.median(simulated[figure] for _, simulated in pairs), 3),
                    "errors": [round(simulated[figure] / real[figure] - 1, 4) for real, simulated in pairs]}
                line[f"{figure}"]["error"] = round(
                    line[f"{figure}"]["simulated"] / line[f"{figure}"]["measured"] - 1, 4)
            line["command"] = (f"bench/simulation_error.py moesaic {os.path.relpath(args.model)} --repetitions "
                               f"{args.repetitions}{' --realtime' if args.realtime else ''} --loads {name}")
            print(json.dumps(line), flush=True)
            if args.out:
                with open(args.out, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
