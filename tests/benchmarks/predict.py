#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What llvm-mca predicts for the inner loops (inner_loops.cpp) on CPUs that are not here: no cache misses, no surroundings.

    predict.py [--into DOCUMENT]     run.sh --predict installs what it needs

Prints a table, or puts it between <!-- predict --> and <!-- end --> of DOCUMENT. A product's figure is its multiply-adds a cycle
over those of a block of nothing else; decode's is bytes of the state, read and written, a cycle.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from results import put_into

HERE = Path(__file__).parent
X86 = ["-mavx2", "-mfma", "-mf16c"]
X86_512 = X86 + ["-mavx512f", "-mavx512cd", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
# Name: compiler, flags, lanes, a multiply-add into register {0}, CPUs (llvm's names), triple. Zen is left out: it is measured, and
# llvm takes its broadcasts from memory for work of the multipliers, which they are not.
ISAS = {
    "neon": ("aarch64-linux-gnu-g++", [], 4, "fmla v{0}.4s, v30.4s, v31.4s", ["neoverse-n1", "neoverse-v1", "neoverse-v2"], "aarch64"),
    "avx2": ("g++", X86, 8, "vfmadd231ps %ymm14, %ymm15, %ymm{0}", ["haswell", "skylake"], "x86_64"),
    "avx512": ("g++", X86_512, 16, "vfmadd231ps %zmm30, %zmm31, %zmm{0}", ["skylake-avx512", "icelake-server"], "x86_64"),
}
FUSED = r"\t(fmla|fmls|vfn?madd\w+)\t"
ITERATIONS = 200
CHANNELS, ROWS = 128, 4  # of a row of the state; rows of an iteration of pass_2


def loop_of(assembly, function):
    """The basic block of a function that jumps back to itself and multiplies most."""
    body = re.search(rf"^{function}:\n(.*?)^\t\.size\t{function},", assembly, re.M | re.S)[1]
    blocks = re.split(r"^(\.L\w+):\n", body, flags=re.M)
    loops = []
    for label, text in zip(blocks[1::2], blocks[2::2]):
        lines = [line for line in text.splitlines() if not re.match(r"\s*[.#/]", line)]
        back = [i for i, line in enumerate(lines) if re.fullmatch(rf"\t(j\w+|b\.?\w+)\t{re.escape(label)}", line)]
        if back:
            loops.append(lines[: back[0] + 1])
    return max(loops, key=lambda lines: len(re.findall(FUSED, "\n".join(lines) + "\n")))


def cycles(lines, triple, cpu):
    """Of one iteration."""
    text = "\n".join(lines) + "\n"
    out = subprocess.run(["llvm-mca-19", f"-mtriple={triple}", f"-mcpu={cpu}", f"-iterations={ITERATIONS}"], input=text, check=True,
                         capture_output=True, text=True).stdout
    return int(re.search(r"Total Cycles:\s+(\d+)", out)[1]) / ITERATIONS


def rows():
    for isa, (compiler, flags, lanes, multiply_add, cpus, triple) in ISAS.items():
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "loops.s"
            subprocess.run([compiler, "-std=c++20", "-O3", f"-I{HERE}/../../include", f"-DKDA_TARGET_{isa.upper()}=1", *flags, "-S",
                            "-o", output, HERE / "inner_loops.cpp"], check=True)
            assembly = output.read_text()
        loops = {name: loop_of(assembly, name) for name in ("read_state", "update_state", "pass_1", "pass_2")}
        for cpu in cpus:
            independent = [multiply_add.format(i) for i in range(14 if isa == "avx2" else 24)]  # of 16 registers, of 32
            peak = len(independent) / cycles(independent, triple, cpu)
            line = [f"{isa}, {cpu}"]
            for name in ("read_state", "update_state"):
                fused = len(re.findall(FUSED, "\n".join(loops[name])))
                line.append(f"{100 * fused / cycles(loops[name], triple, cpu) / peak:.0f} %")
            second = cycles(loops["pass_2"], triple, cpu) / ROWS * CHANNELS / (2 * lanes)  # of one row
            line.append(f"{2 * 4 * CHANNELS / (cycles(loops['pass_1'], triple, cpu) + second):.1f}")
            yield line


def main():
    title = ["ISA, CPU", "[K; Q] S, % of FMA peak", "S <- ..., % of FMA peak", "decode in L1, bytes a cycle"]
    table = ["| " + " | ".join(title) + " |", "| --- | ---: | ---: | ---: |"]
    table += ["| " + " | ".join(line) + " |" for line in rows()]
    text = "\n".join(table)
    if sys.argv[1:2] == ["--into"] and len(sys.argv) == 3:
        put_into(sys.argv[2], {"predict": text + "\n"})
    elif len(sys.argv) == 1:
        print(text)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
