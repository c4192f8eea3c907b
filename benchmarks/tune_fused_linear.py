"""Chooses the forms of the decode products for the shapes of models, by the time of whole layers.

usage: tune_fused_linear.py [--shapes 8b,1b,135m] [--rows 8,64,16,32,256,128,1]
                            [--products qkv,output,gated,down,head] [--processes 14] [--seconds 195]
                            [--check-seconds 80] [--descent-seconds 5] [--out FILE.json]
       tune_fused_linear.py --print FILE.json [FILE.json ...]

Compiles and checks all candidates in several processes. Times each one, whole products in a row with weights that
miss the cache, as medians of graph replays. Then, since launches overlap, changes the forms of whole layers one by
one as long as that makes the layers faster. The file has everything that was timed and what was chosen; with --print
it becomes the table of `kernels/fused_linear/tiles.py`.
"""

import argparse
import itertools
import sys
import time
from pathlib import Path

import torch
from products.checking import candidates, check_all, check_part
from products.product import PRODUCTS
from products.tuning import Tuning, print_table


def main() -> None:
    began = time.monotonic()
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="8b,1b,135m")
    parser.add_argument("--rows", default="8,64,16,32,256,128,1")
    parser.add_argument("--products", default=",".join(PRODUCTS))
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=195)
    parser.add_argument("--check-seconds", type=float, default=80)
    parser.add_argument("--descent-seconds", type=float, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--print", type=Path, dest="printed", nargs="+")
    parser.add_argument("--check", help="PART,PARTS,FIRST: what its processes are called with")
    a = parser.parse_args()
    if a.printed is not None:
        print_table(a.printed)
        return
    shapes, rows_of = a.shapes.split(","), [int(rows) for rows in a.rows.split(",")]
    names = a.products.split(",")
    if a.check is not None:
        part, parts, first = map(int, a.check.split(","))
        with torch.inference_mode():
            check_part(candidates(shapes, rows_of, names), part, parts, first)
        return
    arguments = ["--shapes", a.shapes, "--rows", a.rows, "--products", a.products]
    right = check_all(arguments, a.processes, began + a.check_seconds)
    print(f"checked after {time.monotonic() - began:.0f} s", flush=True)
    tuning = Tuning(names, right, began + a.seconds, a.descent_seconds, a.out)
    with torch.inference_mode():
        for rows, shape in itertools.product(rows_of, shapes):
            for measure in (tuning.time_products, tuning.time_layers):
                try:
                    measure(shape, rows)
                except Exception as error:
                    print(f"{shape} {rows}: {error!r:.300}", flush=True)
    print(f"ended after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
