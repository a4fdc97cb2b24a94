#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures other implementations of KDA and GDN on GLM-5.3-Flash's heads, and adds them to a file of kda_benchmarks.

    measure.py --into FILE [--quick] [--only NAME] [--threads 1,2] [--seconds S]

Every peer and number of threads runs in a process of its own, on the first CPUs alone, so an illegal instruction or an abort costs
only that peer. A peer is first checked against a float64 recurrence on two heads; then the shortest of repeated calls counts. Rows
of an earlier run of the same peers are replaced. Peers that cannot be measured are listed with the reason, under "absent".
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from results import FLOPS_PER_TOKEN_HEAD, Results, check  # noqa: E402

HEADS, D = 64, 128
BOUND = 2e-2  # beyond it a peer computes something else: bf16 inputs and approximate exponentials stay below


# ---- one peer, in a process of its own -----------------------------------------------------------------------------------
def shortest(run, seconds, cap):
    run()
    best, calls, start = float("inf"), 0, time.perf_counter()
    while True:
        begin = time.perf_counter()
        run()
        end = time.perf_counter()
        best, calls = min(best, end - begin), calls + 1
        if (end - start >= seconds and calls >= 5) or end - start >= cap:
            return best


def cpus_of(threads):
    return sorted(os.sched_getaffinity(0))[:threads]


def child(number, threads, quick, seconds):
    os.sched_setaffinity(0, cpus_of(threads))  # before the peer starts threads
    import implementations
    import problem

    def report(**row):
        print("@" + json.dumps(row), flush=True)

    name, factory = implementations.PEERS[number]
    try:
        peer = factory()
    except implementations.Absent as e:
        report(absent=str(e))
        return
    for op in peer.ops:
        decoding = op.endswith("decode")
        try:
            small = problem.make(op, *((3, 1) if decoding else (1, 70)), 2)
            run, result = peer.prepare(small, threads)
            run()
            stated = peer.rounded(small) if hasattr(peer, "rounded") else small
            error = problem.error(result(), problem.reference(stated))
            if not error <= BOUND:
                raise RuntimeError(f"wrong by {error:.1e}")
            for n in ((1, 32) if quick else (1, 8, 32)) if decoding else (512,) if quick else (64, 512, 2048):
                N, T = (n, 1) if decoding else (1, n)
                if T > getattr(peer, "longest", T):
                    continue
                run, _ = peer.prepare(problem.make(op, N, T, HEADS), threads)
                report(op=op, isa=peer.isa, io=peer.io, layout=peer.layout, N=N, T=T, error=error, version=peer.version,
                       note=peer.note, seconds=shortest(run, seconds, 8 if quick else 20))
        except Exception as e:  # whatever another project raises
            report(absent=f"{op}: {type(e).__name__}: {str(e)[:300]}")


# ---- all of them -----------------------------------------------------------------------------------------------------------
def row_of(name, threads, x, r):
    token_heads, state_bytes = x["N"] * x["T"] * HEADS, x["N"] * HEADS * D * D * 4
    gflops, gbps = token_heads * FLOPS_PER_TOKEN_HEAD / x["seconds"] / 1e9, 2 * state_bytes / x["seconds"] / 1e9
    peak = r.peak(x["isa"], threads)
    bandwidth = r.bandwidth(state_bytes, threads)
    four = lambda v: float(f"{v:.4g}")
    return {"peer": name, "op": x["op"], "isa": x["isa"], "io": x["io"], "state": "f32", "layout": x["layout"],
            "geometry": "GLM-5.3-Flash", "threads": threads, "N": x["N"], "T": x["T"], "us": four(1e6 * x["seconds"]),
            "us_per_token_head": four(1e6 * x["seconds"] / token_heads), "gflops": four(gflops),
            "percent_of_fma_peak": four(100 * gflops / peak) if peak else None, "gbps": four(gbps),
            "percent_of_bandwidth": four(100 * gbps / bandwidth) if bandwidth else None, "max_rel_err": four(x["error"]),
            "version": x["version"], "note": x["note"]}


def run_child(number, threads, options):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), OMP_DYNAMIC="false",
                       NUMPY_MADVISE_HUGEPAGE="0",  # else it asks for huge pages of its own accord, which kda's tensors have not
                       OMP_PROC_BIND="close", OMP_PLACES=",".join("{%d}" % c for c in cpus_of(threads)))
    command = [sys.executable, os.path.abspath(__file__), "--child", str(number), "--threads", str(threads), "--seconds",
               str(options.seconds)] + ["--quick"] * options.quick
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=1200)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    rows = [json.loads(line[1:]) for line in out.splitlines() if line.startswith("@")]
    if process.returncode:
        why = signal.Signals(-process.returncode).name if process.returncode < 0 else f"exit status {process.returncode}"
        rows.append({"absent": f"{why} after {len(rows)} results: {err.strip()[-200:]}"})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", metavar="FILE")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="peers with this name")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child, int(options.threads), options.quick, options.seconds)
        return
    if not options.into:
        parser.error("--into FILE is needed")
    from implementations import PEERS
    r = Results(options.into)
    rows, absent = [], []
    for threads in (int(t) for t in options.threads.split(",")):
        if threads > len(os.sched_getaffinity(0)):
            continue
        for number, (name, _) in enumerate(PEERS):
            if options.only not in (None, name):
                continue
            for x in run_child(number, threads, options):
                if "absent" in x:
                    absent.append({"peer": name, "why": x["absent"]})
                    print(f"{name}: {x['absent']}", flush=True)
                    continue
                rows.append(row_of(name, threads, x, r))
                row = rows[-1]
                print(f"{name:13s} {row['isa'] or '-':7s} {row['op']:12s} N {row['N']:3d} T {row['T']:5d} threads {threads}: "
                      f"{row['us']:12.1f} us {row['us_per_token_head']:8.3f} us/token-head, error {row['max_rel_err']:.0e}", flush=True)
    measured = {x["peer"] for x in rows} | {x["peer"] for x in absent}
    data = r.data
    data["results"] = [x for x in data["results"] if x["peer"] not in measured] + rows
    data["absent"] = [x for x in data.get("absent", []) if x["peer"] not in measured] + \
        [dict(t) for t in dict.fromkeys(tuple(x.items()) for x in absent)]
    check(data)
    with open(options.into, "w", encoding="utf-8") as f:
        f.write('{"machine": ' + json.dumps(data["machine"], indent=1))
        for part in ("results", "ratios", "absent"):
            f.write(f',\n"{part}": [' + ",".join("\n " + json.dumps(x) for x in data[part]) + "\n]")
        f.write("}\n")


if __name__ == "__main__":
    main()
