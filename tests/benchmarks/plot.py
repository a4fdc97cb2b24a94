#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run of the benchmarks: roofline.svg, a panel for each ISA, and peers.svg, ours against others.

    plot.py FILE... [FOLDER]     as table.py; FOLDER: where they go (default docs/)
"""
import math
import os
import sys
from xml.sax.saxutils import escape

from results import FLOPS_PER_TOKEN_HEAD, Results, Wrong
from table import GLM, F32, number, peer_name

INK, FAINT, GRID, PAPER = "#1f2328", "#6e7781", "#e3e6ea", "#ffffff"
BLUE, GREEN, ORANGE, GREY = "#1f6feb", "#1a7f37", "#bc4c00", "#b6bdc6"


class Svg:
    def __init__(self, width, height):
        self.width, self.height, self.parts = width, height, []

    def line(self, x1, y1, x2, y2, color=GRID, width=1.0, dash=None):
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width}"{dashes}/>')

    def text(self, x, y, words, size=12, color=INK, anchor="start", weight="normal"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}" '
                          f'font-weight="{weight}">{escape(words)}</text>')

    def box(self, x, y, width, height, color):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" fill="{color}"/>')

    def mark(self, x, y, color, square, words):
        shape = f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" ' if square else f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" '
        self.parts.append(f'{shape}fill="{color}" stroke="{PAPER}"><title>{escape(words)}</title></{"rect" if square else "circle"}>')

    def save(self, file):
        with open(file, "w", encoding="utf-8") as f:
            f.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
                    f'height="{self.height}" font-family="system-ui, sans-serif">\n'
                    f'<rect width="100%" height="100%" fill="{PAPER}"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


# ---- roofline -----------------------------------------------------------------------------------------------------------
SERIES = [("KDA, f32", "kda", F32, BLUE), ("KDA, bf16 state", "kda", {**F32, "state": "bf16"}, GREEN), ("GDN, f32", "gdn", F32, ORANGE)]
PANEL, PLOT, TOP, LEFT = 470, 380, 84, 58
X_RANGE, Y_RANGE = (0.125, 128.0), (1.0, 512.0)


def log_place(value, low, high, size):
    return size * math.log(min(max(value, low), high) / low) / math.log(high / low)


def roofline_panel(svg, r, isa, left):
    x = lambda v: left + LEFT + log_place(v, *X_RANGE, PLOT)
    y = lambda v: TOP + PLOT - log_place(v, *Y_RANGE, PLOT)
    svg.text(left + LEFT, TOP - 12, f"{isa}, one thread", 14, weight="bold")
    for v in (0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128):
        svg.line(x(v), TOP, x(v), TOP + PLOT)
        svg.text(x(v), TOP + PLOT + 16, f"{v:g}", 11, FAINT, "middle")
    for v in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        svg.line(left + LEFT, y(v), left + LEFT + PLOT, y(v))
        svg.text(left + LEFT - 6, y(v) + 4, f"{v}", 11, FAINT, "end")
    svg.text(left + LEFT + PLOT / 2, TOP + PLOT + 34, "flop per byte read and written", 12, FAINT, "middle")

    peak = r.peak(isa, 1)
    for level in ("L3", "DRAM"):
        rate = next((v for v in r.machine["limits"]["in_place"] if v["level"] == level and v["threads"] == 1), None)
        if rate and peak:
            gbps = max(rate["one_stream_gbps"], rate["four_streams_gbps"])
            low, high = max(X_RANGE[0], Y_RANGE[0] / gbps), min(peak / gbps, X_RANGE[1])
            if low < high:
                svg.line(x(low), y(low * gbps), x(high), y(high * gbps), FAINT, 1.2, "5 3")
                svg.text(x(low) + 14, y(low * gbps) + 2, f"{level} {number(gbps)} GB/s", 10, FAINT)
    if peak:
        svg.line(left + LEFT, y(peak), left + LEFT + PLOT, y(peak), INK, 1.5)
        svg.text(left + LEFT + PLOT - 4, y(peak) - 5, f"FMA peak {number(peak)} GFLOP/s", 11, INK, "end")

    for name, kind, tensors, color in SERIES:
        for op, square in (("prefill", True), ("decode", False)):
            rows = [x for x in r.find(op=f"{kind}_{op}", isa=isa, threads=1, geometry=GLM, **tensors)
                    if (x["N"] if square else x["T"]) == 1]
            for i, row in enumerate(rows):
                flops = row["us"] / row["us_per_token_head"] * FLOPS_PER_TOKEN_HEAD
                label = f"T {row['T']}" if square else f"N {row['N']}"
                at_x, at_y = x(flops / row["bytes"]), y(row["gflops"])
                svg.mark(at_x, at_y, color, square, f"{name}, {op}, N = {row['N']}, T = {row['T']}: {number(row['us'])} µs, "
                         f"{number(row['gflops'])} GFLOP/s")
                if kind == "kda" and tensors is F32:
                    if square:
                        svg.text(at_x, at_y + (16 if i % 2 else -8), label, 10, color, "middle")
                    else:
                        svg.text(at_x - 8, at_y + 4, label, 10, color, "end")


def roofline(r, file):
    isas = [i for i in r.isas() if i != "scalar"] or r.isas()
    svg = Svg(PANEL * len(isas) + 20, TOP + PLOT + 50)
    svg.text(LEFT, 26, "Prefill (squares) and decode (circles) of GLM-5.3-Flash's heads under this machine's limits", 15, weight="bold")
    at = LEFT
    for name, _, _, color in SERIES:
        svg.box(at, 40, 10, 10, color)
        svg.text(at + 15, 49, name, 12)
        at += 130
    svg.text(at, 49, f"GFLOP/s at 108 kFLOP a token and head; {r.machine['cpu']}", 11, FAINT)
    for i, isa in enumerate(isas):
        roofline_panel(svg, r, isa, i * PANEL)
    svg.save(file)


# ---- peers --------------------------------------------------------------------------------------------------------------
CASES = [("kda_prefill", 1, 512, "KDA prefill, 512 tokens"), ("kda_decode", 1, 1, "KDA decode, 1 sequence"),
         ("kda_decode", 32, 1, "KDA decode, 32 sequences"), ("gdn_prefill", 1, 512, "GDN prefill, 512 tokens"),
         ("gdn_decode", 32, 1, "GDN decode, 32 sequences")]
NAMES, BAR, FULL, LONGEST = 190, 20, 460, 10.0  # bars end at LONGEST times our best


def peers(r, file):
    groups = []
    for op, N, T, title in CASES:
        ours = [x for isa in r.isas() if isa != "scalar"
                for x in r.find(op=op, isa=isa, N=N, T=T, threads=1, geometry=GLM, **F32)]
        others = sorted((x for x in r.rows if x["peer"] and (x["op"], x["N"], x["T"], x["threads"]) == (op, N, T, 1)),
                        key=lambda x: x["us"])
        if ours:
            groups.append((title, ours, others))
    height = 56 + sum(34 + BAR * (len(a) + len(b)) + 14 for _, a, b in groups)
    svg = Svg(NAMES + FULL + 190, max(height, 80))
    svg.text(16, 26, "µs a token and head, one thread: kda against other implementations", 15, weight="bold")
    svg.text(16, 44, f"GLM-5.3-Flash's heads, fp32 states; {r.machine['cpu']}; bars end at {LONGEST:g} times our best", 11, FAINT)
    top = 60
    for title, ours, others in groups:
        svg.text(16, top + 18, title, 13, weight="bold")
        top += 28
        best = min(x["us"] for x in ours)
        for x in ours + others:
            times = x["us"] / best
            name = peer_name(x) if x["peer"] else f"kda ({x['isa']})"
            svg.text(NAMES - 8, top + 14, name, 12, anchor="end", weight="normal" if x["peer"] else "bold")
            length = FULL * min(times, LONGEST) / LONGEST
            svg.box(NAMES, top + 3, length, BAR - 6, GREY if x["peer"] else BLUE)
            if times > LONGEST:
                svg.text(NAMES + length - 4, top + 14, "»", 13, PAPER, "end", "bold")
            svg.text(NAMES + length + 6, top + 14, f"{number(x['us_per_token_head'])} µs" +
                     (f", {number(times, 2)}x" if x["peer"] else ""), 11, FAINT)
            top += BAR
        top += 20
    svg.save(file)


def main(words):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs")
    if words and os.path.isdir(words[-1]):
        folder = words.pop()
    if not words:
        sys.exit(__doc__)
    r = Results(*words)
    roofline(r, os.path.join(folder, "roofline.svg"))
    peers(r, os.path.join(folder, "peers.svg"))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (Wrong, OSError) as e:
        sys.exit(f"plot.py: {e}")
