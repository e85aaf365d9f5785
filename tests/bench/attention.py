"""`make bench NAME=attention`: ours beside FlashInfer's, XQA's and cuDNN's, where there is a device.

    attention.py OURS [PEERS [OURS AGAIN]]

OURS is the program of attention.cu or a file of its lines; PEERS the peers' script, which is run
between two runs of ours, or a file of its table: `heads KV-heads dim batch context | name us GB/s |`
for decode, `| name T ms TFLOP/s |` for prefill.
Prints ours against the best of them and writes build/bench/attention.json.
"""

import json
import math
import os
import statistics
import subprocess
import sys

TENSOR_RATE = 989.0  # TFLOP/s, by the data sheet
KEYS = ("work", "n_head", "n_kv_head", "head_dim", "batch", "context")


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


def parse_field(field):
    """(work, microseconds, name) of a peer's field, or None."""
    parts = field.split()
    if len(parts) == 3:
        return "decode", float(parts[1]), parts[0]
    if len(parts) == 4 and parts[2] == "ms":
        return "prefill", float(parts[1]) * 1e3, parts[0].lower()
    return None


def parse_peers(text):
    """The fastest peer's (microseconds, name) by work and shape."""
    best = {}
    for line in text.splitlines():
        fields = line.split("|")
        numbers = fields[0].split()
        if len(fields) < 2 or len(numbers) != 5 or not all(n.isdigit() for n in numbers):
            continue
        for work, us, name in filter(None, map(parse_field, fields[1:])):
            key = (work, *map(int, numbers))
            best[key] = min(best.get(key, (us, name)), (us, name))
    return best


def run_peers(path):
    if not path.endswith(".py"):
        return parse_peers(open(path).read())
    return parse_peers(subprocess.run(
        [sys.executable, path], capture_output=True, text=True).stdout)


def target_of(row):
    """The ratio to the best peer that is asked for."""
    if row["work"] == "prefill":
        return 1.0
    if row["bytes"] > 180e6:
        return 0.97
    return 1.3 if row["bytes"] < 60e6 else 1.0


def limit_of(row, read):
    """Microseconds that the device itself allows."""
    return row["ops"] / TENSOR_RATE / 1e6 if "ops" in row else row["bytes"] / read / 1e3


def rate_of(row, us):
    return "%6.0f TFLOP/s" % (row["ops"] / us / 1e6) if "ops" in row else \
        "%6.0f GB/s   " % (row["bytes"] / us / 1e3)


def main():
    program = sys.argv[1]
    first, read = run_ours(program)
    peers = run_peers(sys.argv[2]) if len(sys.argv) > 2 else {}
    second = run_ours(sys.argv[3] if len(sys.argv) > 3 else program)[0]
    table, ratios = [], {"decode": [], "prefill": []}
    print(f"device memory read: {read:.0f} GB/s")
    print("work     heads     batch x context        us                | "
          "best peer       us  ratio  target")
    for key, row in first.items():
        us = statistics.mean((row["us"], second[key]["us"]))
        peer_us, peer = peers.get(key, (None, None))
        entry = {"work": "%s %d/%d/%d %dx%d" % key, "value": round(us, 2), "unit": "us",
                 "limit": round(limit_of(row, read), 2), "peer": peer,
                 "peer_value": peer_us, "target": target_of(row)}
        table.append(entry)
        text = "%-8s %-9s %5d x %-7d %10.1f %s" % (
            key[0], "%d/%d/%d" % key[1:4], key[4], key[5], us, rate_of(row, us))
        if peer_us:
            ratios[key[0]].append(peer_us / us)
            text += " | %-9s %8.1f %6.2f %7.2f" % (peer, peer_us, peer_us / us, entry["target"])
        print(text)
    for work, all_ratios in ratios.items():
        if all_ratios:
            print("%s: geometric mean of %d ratios: %.3f" % (
                work, len(all_ratios), math.exp(statistics.mean(map(math.log, all_ratios)))))
    os.makedirs("build/bench", exist_ok=True)
    with open("build/bench/attention.json", "w") as f:
        json.dump(table, f, indent=1)


if __name__ == "__main__":
    main()
