#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the time of prefill and of decode goes, stage by stage: samples of Linux's perf, by the functions inlined at them.

    stages.py PROGRAM [--into DOCUMENT]     PROGRAM: kda_benchmarks, built with -g1 (run.sh --stages does all of it)

Prints a table for each case, or puts them between <!-- stages --> and <!-- end --> of DOCUMENT. Shares of one thread's time, all
samples of kernels being 1; nothing is said of cache misses apart from where they are waited for.
"""
import collections
import re
import subprocess
import sys
import tempfile

from results import put_into

# Stages by the innermost of these functions that a sample lies in; what is in none of them is "the rest".
PREFILL = {
    "gate, beta, norm": "gate_channels gate_tokens beta_tokens sum_of_squares scale_row l2norm_factor fill_decay fill",
    "decay": "decay_per_channel decay_per_head apply_decay round_keys",
    "A, P": "tokens_dots neighbours_dots reduce_lanes place_row partial_dots",
    "[K; Q] S": "read_state",
    "S, u to bf16": "round_rows",
    "u, out": "solve output",
    "S <- ...": "update_state",
    "states in and out, outputs": "load_to store_from emit",
}
DECODE = {
    "gate, beta, norm": PREFILL["gate, beta, norm"],
    "rows of k, q, decay": "prepare_token",
    "pass 1: S^T k, S^T q": "sum_rows sum_key_rows",
    "sums across lanes, delta": "sum_lanes finish_sums",
    "pass 2: S <- ...": "update_rows update_key_rows",
}
ONE_THREAD = "/threads:1/"
CASES = [  # title, stages, the benchmark on one ISA
    ("prefill, f32, T = 512", PREFILL, "kda_prefill/{}/glm_f32/GLM-5.3-Flash/N:1/T:512" + ONE_THREAD),
    ("prefill, bf16 products, T = 512", PREFILL, "kda_prefill/{}/glm_f32_products/GLM-5.3-Flash/N:1/T:512" + ONE_THREAD),
    ("decode, f32, N = 1", DECODE, "kda_decode/{}/glm_f32/GLM-5.3-Flash/N:1/T:1" + ONE_THREAD),
    ("decode, f32, N = 32", DECODE, "kda_decode/{}/glm_f32/GLM-5.3-Flash/N:32/T:1" + ONE_THREAD),
    ("decode, f32, key-major, N = 32", DECODE, "kda_decode/{}/glm_f32_key/GLM-5.3-Flash/N:32/T:1" + ONE_THREAD),
]
ISAS = ["avx2", "avx512", "avx512_bf16"]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def samples(program, case):
    """Counts of sampled addresses of the program's file, for one benchmark; empty if the program has none of that name."""
    with tempfile.NamedTemporaryFile() as data:
        run("perf", "record", "--quiet", "--event", "cpu-clock", "--freq", "5000", "--output", data.name, program, "--quick",
            "--no-ratios", "--seconds", "0.3", f"--benchmark_filter=^{case}")
        events = run("perf", "script", "--input", data.name, "--fields", "comm,tid,ip,sym,event", "--show-mmap-events")
    name = re.escape(program.rsplit("/", 1)[-1])
    mapped = re.search(rf"MMAP2.*?\[0x([0-9a-f]+)\(0x[0-9a-f]+\) @ (0x[0-9a-f]+|0) .*r-xp.*{name}", events)
    base = int(mapped[1], 16) - int(mapped[2], 16)
    found = collections.Counter()
    for line in events.splitlines():
        sample = re.search(r"cpu-clock\S*\s+([0-9a-f]+) (.*)", line)
        if sample and re.search(r"\bkda::\S*isa_", sample[2]) and not re.search("bench::|thread_pool", sample[2]):
            found[int(sample[1], 16) - base] += 1
    return found


def functions_at(program, addresses):
    """For each address the functions inlined there, innermost first."""
    text = run("addr2line", "--exe", program, "--functions", "--inlines", "--demangle", "--addresses", *map(hex, addresses))
    chains = []
    for line in text.splitlines():
        if re.fullmatch(r"0x[0-9a-f]+", line):
            chains.append([])
        else:
            chains[-1].append(line)
    return [chain[0::2] for chain in chains]


def shares(program, stages, case):
    found = samples(program, case)
    if not found:
        return None
    stage_of = {function: stage for stage, functions in stages.items() for function in functions.split()}
    total = collections.Counter()
    for (address, count), chain in zip(found.items(), functions_at(program, list(found))):
        names = (re.search(r"(\w+)(<.*)?\(", re.sub(r"^.*?\bisa_\w+::", "", f)) for f in chain)
        total[next((stage_of[n[1]] for n in names if n and n[1] in stage_of), "the rest")] += count
    return {stage: count / sum(found.values()) for stage, count in total.items()}


def report(program):
    text = ""
    for title, stages, case in CASES:
        columns = {isa: shares(program, stages, case.format(isa)) for isa in ISAS}
        columns = {isa: s for isa, s in columns.items() if s}
        if not columns:
            continue
        lines = [[title, *columns], ["---", *["---:"] * len(columns)]]
        lines += [[stage, *(f"{100 * s.get(stage, 0):.0f} %" for s in columns.values())] for stage in [*stages, "the rest"]
                  if any(s.get(stage, 0) >= 0.005 for s in columns.values())]
        text += "".join("| " + " | ".join(line) + " |\n" for line in lines) + "\n"
    return text.rstrip("\n") + "\n"


def main(words):
    if not words:
        sys.exit(__doc__)
    text = report(words[0])
    if words[1:2] == ["--into"]:
        put_into(words[2], {"stages": text})
    else:
        print(text, end="")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (subprocess.CalledProcessError, OSError) as e:
        sys.exit(f"stages.py: {e}\n{getattr(e, 'stderr', '') or ''}")
