"""`make bench NAME=attention`: our decode beside FlashInfer, XQA and cuDNN, on a machine with a device.

    attention.py OURS [PEERS [OURS AGAIN]]

OURS is the program of attention.cu or a file of its lines; PEERS the peers' script, which is run
between two runs of ours, or a file of its table: `heads KV-heads dim batch context | name us GB/s |`.
Prints ours against the best of them and writes build/bench/attention.json.
"""

import json
import math
import os
import statistics
import subprocess
import sys

KEYS = ("n_head", "n_kv_head", "head_dim", "batch", "context")


def run_ours(program):
    """Rows by shape, of the faster block layout; and the read rate of the device's memory."""
    if program.endswith(".txt"):
        out = open(program).read()
    else:
        out = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    rows, read = {}, 0.0
    for line in out.splitlines():
        row = json.loads(line)
        if "read" in row:
            read = row["gb_s"]
        elif row["layout"] == "heads":
            rows[tuple(row[k] for k in KEYS)] = row
    return rows, read


def parse_peers(text):
    """The fastest peer's (microseconds, name) by shape."""
    best = {}
    for line in text.splitlines():
        fields = line.split("|")
        numbers = fields[0].split()
        if len(fields) < 2 or len(numbers) != 5 or not all(n.isdigit() for n in numbers):
            continue
        times = []
        for field in fields[1:]:
            parts = field.split()
            if len(parts) == 3:
                times.append((float(parts[1]), parts[0]))
        if times:
            best[tuple(int(n) for n in numbers)] = min(times)
    return best


def run_peers(path):
    if not path.endswith(".py"):
        return parse_peers(open(path).read())
    return parse_peers(subprocess.run(
        [sys.executable, path], capture_output=True, text=True).stdout)


def target_of(size):
    if size > 180e6:
        return 0.97
    return 1.3 if size < 60e6 else 1.0


def main():
    program = sys.argv[1]
    first, read = run_ours(program)
    peers = run_peers(sys.argv[2]) if len(sys.argv) > 2 else {}
    second = run_ours(sys.argv[3] if len(sys.argv) > 3 else program)[0]
    table, ratios = [], []
    print(f"device memory read: {read:.0f} GB/s")
    print("heads     batch x context      MB       us   GB/s | best peer       us  ratio  target")
    for key, row in first.items():
        us = statistics.mean((row["us"], second[key]["us"]))
        work = "decode %d/%d/%d %dx%d" % key
        peer_us, peer = peers.get(key, (None, None))
        entry = {"work": work, "value": round(us, 2), "unit": "us",
                 "limit": round(row["bytes"] / read / 1e3, 2), "peer": peer,
                 "peer_value": peer_us, "target": target_of(row["bytes"])}
        table.append(entry)
        text = "%-9s %5d x %-7d %9.1f %8.1f %6.0f" % (
            "%d/%d/%d" % key[:3], key[3], key[4], row["bytes"] / 1e6, us, row["bytes"] / us / 1e3)
        if peer_us:
            ratios.append(peer_us / us)
            text += " | %-9s %8.1f %6.2f %7.2f" % (peer, peer_us, ratios[-1], entry["target"])
        print(text)
    if ratios:
        print("geometric mean of %d ratios: %.3f" % (
            len(ratios), math.exp(statistics.mean(map(math.log, ratios)))))
    os.makedirs("build/bench", exist_ok=True)
    with open("build/bench/attention.json", "w") as f:
        json.dump(table, f, indent=1)


if __name__ == "__main__":
    main()
